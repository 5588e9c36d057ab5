"""Cache directories shared with the real client: it reads ours, and we read its."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from juicepy.cache.disks import DiskCaches, open_cache
from juicepy.cache.options import CacheOptions
from juicepy.chunk.layout import Layout
from juicepy.types import BlockKey
from tests.support.programs import OURS, PEER
from tests.support.volumes import Volume
from tests.support.waiting import wait_for

NAME = "vola"
LAYOUT = Layout(4 << 20)
FILES = 40


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    made = Volume(f"sqlite3://{tmp_path}/meta.db", NAME, tmp_path, f"{tmp_path}/bucket")
    made.format(PEER)
    return made


def blocks(volume: Volume) -> Iterator[tuple[BlockKey, bytes]]:
    """All blocks of the volume with their content, which is plain."""
    top = Path(volume.bucket) / NAME
    for path in sorted((top / "chunks").rglob("*_*_*")):
        block = LAYOUT.parse_key(str(path.relative_to(top)))
        assert block is not None, path
        yield block, path.read_bytes()


def write_files(top: Path) -> dict[str, str]:
    rng = random.Random(7)
    sums = {}
    for number in range(FILES):
        data = rng.randbytes(9 << 20 if number == 0 else 1000 * number)
        (top / f"f{number}").write_bytes(data)
        sums[f"f{number}"] = hashlib.sha256(data).hexdigest()
    return sums


def read_files(top: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in top.glob("f*")}


def three_dirs(home: Path) -> Path:
    return Path(f"{home}/c1:{home}/c2:{home}/c3")


def opened(dirs: Path, volume: Volume) -> DiskCaches:
    ident = (Path(volume.bucket) / NAME / "juicefs_uuid").read_text()
    cache = open_cache(CacheOptions(dirs=str(dirs), free_space=0.01), ident, LAYOUT)
    assert isinstance(cache, DiskCaches)
    return cache


def test_blocks_cached_by_the_real_client_are_hits(volume: Volume, tmp_path: Path) -> None:
    dirs = three_dirs(tmp_path)
    with PEER.mounted(volume.meta_url, tmp_path / "mnt", cache_dir=dirs) as mount:
        sums = write_files(mount.path)
        assert read_files(mount.path) == sums
        raw = "c?/*/raw/chunks/*/*/*"
        total = len(list(blocks(volume)))
        wait_for(lambda: len(list(tmp_path.glob(raw))) >= total, "all blocks in the cache")
    with closing(opened(dirs, volume)) as cache:
        for block, content in blocks(volume):
            disk = cache.disk(block)
            assert disk is not None
            assert (Path(disk.root) / "raw" / LAYOUT.object_key(block)).exists(), block
            assert bytes(cache.load(block) or b"") == content
            assert bytes(cache.load(block, 5, 90) or b"") == content[5:95]


def test_blocks_cached_here_are_hits_of_the_real_client(volume: Volume, tmp_path: Path) -> None:
    with PEER.mounted(volume.meta_url, tmp_path / "mnt1", cache_dir=tmp_path / "other") as mount:
        sums = write_files(mount.path)
    dirs = three_dirs(tmp_path)
    with closing(opened(dirs, volume)) as cache:
        stored = 0
        for block, content in blocks(volume):
            cache.store(block, content)
            stored += 1
        wait_for(lambda: cache.stats()[0] == stored, "all blocks in files")
    shutil.rmtree(Path(volume.bucket) / NAME / "chunks")
    with PEER.mounted(volume.meta_url, tmp_path / "mnt2", cache_dir=dirs) as mount:
        wait_for(
            lambda: f"juicefs_blockcache_blocks {stored}" in (mount.path / ".stats").read_text(),
            "the scan of the cache",
        )
        assert read_files(mount.path) == sums


def test_real_client_leaves_the_saved_index_alone(volume: Volume, tmp_path: Path) -> None:
    with PEER.mounted(volume.meta_url, tmp_path / "mnt1", cache_dir=tmp_path / "other") as mount:
        sums = write_files(mount.path)
    shared = tmp_path / "shared"
    total = len(list(blocks(volume)))
    raw = "shared/*/raw/chunks/*/*/*"
    with OURS.mounted(volume.meta_url, tmp_path / "mnt2", cache_dir=shared) as mount:
        assert read_files(mount.path) == sums
        wait_for(lambda: len(list(tmp_path.glob(raw))) >= total, "all blocks in the cache")
    (index,) = shared.glob("*/index.msgpack")
    saved = index.read_bytes()
    shutil.rmtree(Path(volume.bucket) / NAME / "chunks")
    scan = ["--cache-scan-interval", "1s"]
    with PEER.mounted(volume.meta_url, tmp_path / "mnt3", cache_dir=shared, options=scan) as mount:
        wait_for(
            lambda: f"juicefs_blockcache_blocks {total}" in (mount.path / ".stats").read_text(),
            "the scan of the cache, which counts no other file",
        )
        assert read_files(mount.path) == sums
        (mount.path / "small").write_bytes(b"by the real client")
    assert index.read_bytes() == saved
    with OURS.mounted(volume.meta_url, tmp_path / "mnt4", cache_dir=shared) as mount:
        assert f"juicefs_blockcache_blocks {total}\n" in (mount.path / ".stats").read_text()
        assert read_files(mount.path) == sums
        assert (mount.path / "small").read_bytes() == b"by the real client"
