"""The options of the block cache, seen in the directory; most with both programs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.programs import OURS, PEER, Program
from tests.support.volumes import Volume, new_volume
from tests.support.waiting import wait_for

BLOCK = 64 << 10
SMALL = 1000

both = pytest.mark.parametrize("program", [OURS, PEER], ids=str)


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    made = new_volume(f"sqlite3://{tmp_path}/meta.db", tmp_path / "v")
    made.format(OURS, "--quiet", "--block-size", "64K")
    return made


@contextmanager
def mounted(volume: Volume, program: Program, cache: str | Path, *options: str) -> Iterator[Path]:
    with program.mounted(
        volume.meta_url, volume.place(program), cache_dir=Path(cache), options=options
    ) as mount:
        yield mount.path


def cached(top: Path) -> list[Path]:
    return [path for path in top.glob("**/raw/chunks/*/*/*") if path.suffix != ".tmp"]


def sizes(top: Path) -> list[int]:
    """Of the blocks, by their names."""
    return sorted(int(path.name.rpartition("_")[2]) for path in cached(top))


@both
def test_mode_and_checksums(program: Program, volume: Volume, tmp_path: Path) -> None:
    options = ("--cache-mode", "0640", "--verify-cache-checksum", "none")
    with mounted(volume, program, tmp_path / "none", *options) as path:
        (path / "f").write_bytes(bytes(SMALL))
        wait_for(lambda: len(cached(tmp_path / "none")) == 1, "the block")
        status = cached(tmp_path / "none")[0].stat()
        assert (status.st_mode & 0o777, status.st_size) == (0o640, SMALL)
    with mounted(volume, program, tmp_path / "full", "--verify-cache-checksum", "full") as path:
        (path / "g").write_bytes(bytes(SMALL))
        wait_for(lambda: len(cached(tmp_path / "full")) == 1, "the block")
        status = cached(tmp_path / "full")[0].stat()
        assert (status.st_mode & 0o777, status.st_size) == (0o600, SMALL + 4)


@pytest.mark.long
@both
def test_full_blocks_written_and_read(program: Program, volume: Volume, tmp_path: Path) -> None:
    data = os.urandom(2 * BLOCK + SMALL)
    with mounted(volume, program, tmp_path / "c1") as path:
        (path / "f").write_bytes(data)
        wait_for(lambda: sizes(tmp_path / "c1") == [SMALL], "the short block only")
    with mounted(volume, program, tmp_path / "c2", "--cache-large-write") as path:
        (path / "g").write_bytes(data)
        wait_for(lambda: sizes(tmp_path / "c2") == [SMALL, BLOCK, BLOCK], "all blocks")
    with mounted(volume, program, tmp_path / "c3", "--cache-partial-only") as path:
        assert (path / "f").read_bytes() == data
        wait_for(lambda: sizes(tmp_path / "c3") == [SMALL], "the short block only")


@pytest.mark.long
@both
def test_items_and_eviction(program: Program, volume: Volume, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    options = ("--cache-items", "20", "--cache-eviction", "lru")
    with mounted(volume, program, cache, *options) as path:
        for number in range(60):
            (path / f"f{number}").write_bytes(os.urandom(SMALL))
        wait_for(lambda: 5 <= len(cached(cache)) <= 20, "a cache within its limit")
        for number in range(60):
            assert len((path / f"f{number}").read_bytes()) == SMALL


def test_free_space_and_size(volume: Volume, tmp_path: Path) -> None:
    """Of ours only: the real client keeps a block where the ratio leaves no room for one."""
    for name, options in {
        "ratio": ("--free-space-ratio", "0.99999"),
        "size": ("--cache-size", "0"),
    }.items():
        cache = tmp_path / name
        with mounted(volume, OURS, cache, *options) as path:
            for number in range(10):
                (path / f"f{number}").write_bytes(bytes(SMALL))
                assert (path / f"f{number}").read_bytes() == bytes(SMALL)
            wait_for(lambda: not cached(cache), "an empty cache")  # noqa: B023


@both
def test_directories_by_wildcard(program: Program, volume: Volume, tmp_path: Path) -> None:
    for name in ("d1", "d2", "other"):
        (tmp_path / "disks" / name).mkdir(parents=True)
    with mounted(volume, program, f"{tmp_path}/disks/d*:{tmp_path}/more") as path:
        for number in range(30):
            (path / f"f{number}").write_bytes(bytes(SMALL))
        wait_for(lambda: len(cached(tmp_path)) == 30, "all blocks")
    found = {str(file.relative_to(tmp_path)).partition("/raw/")[0] for file in cached(tmp_path)}
    assert {Path(root).parent for root in found} == {
        Path("disks/d1"),
        Path("disks/d2"),
        Path("more"),
    }


@both
def test_memory(program: Program, volume: Volume, tmp_path: Path) -> None:
    with mounted(volume, program, "memory") as path:
        (path / "f").write_bytes(bytes(SMALL))
        stats = path / ".stats"
        wait_for(lambda: "juicefs_blockcache_blocks 1\n" in stats.read_text(), "the block")
    assert not cached(tmp_path)
    assert not Path("memory").exists()


def test_expiry_and_scan(volume: Volume, tmp_path: Path) -> None:
    cache, program = tmp_path / "cache", OURS
    with mounted(volume, program, cache, "--cache-scan-interval", "1s") as path:
        (path / "f").write_bytes(bytes(SMALL))
        wait_for(lambda: len(cached(cache)) == 1, "the block")
        block = cached(cache)[0]
        shutil.copy(block, block.with_name(f"999_0_{SMALL}"))
        stats = path / ".stats"
        wait_for(lambda: "juicefs_blockcache_blocks 2\n" in stats.read_text(), "the scan")
    with mounted(volume, program, cache, "--cache-expire", "1s"):
        wait_for(lambda: not cached(cache), "the expiry")
