"""kill -9 of a mount while it writes to its cache: what is found there later is right.

JFS_KILL_ROUNDS says how often.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from pathlib import Path

import pytest

from tests.support.programs import OURS, Mount, discard
from tests.support.volumes import Volume, new_volume
from tests.support.waiting import wait_for

ROUNDS = int(os.environ.get("JFS_KILL_ROUNDS", "2"))
FILES = 24


@pytest.mark.parametrize("level", ["full", "none"])
def test_killed_mount_leaves_no_bad_block(level: str, tmp_path: Path) -> None:
    chance = random.Random(level)
    volume = new_volume(f"sqlite3://{tmp_path}/meta.db", tmp_path / "v")
    volume.format(OURS, "--quiet")
    contents = {f"f{n}": chance.randbytes(chance.randrange(10_000, 6 << 20)) for n in range(FILES)}
    with volume.mounted(OURS) as mount:
        for name, data in contents.items():
            (mount.path / name).write_bytes(data)
    place, cache = tmp_path / "mnt", tmp_path / "cache"
    options = ["--verify-cache-checksum", level, "--cache-writers", "2"]
    with contextlib.ExitStack() as stack:
        for _ in range(ROUNDS):
            mount = OURS.mount(volume.meta_url, place, cache_dir=cache, options=options)
            stack.callback(discard, mount)
            names = sorted(contents)
            chance.shuffle(names)
            _kill_while_read(mount, names, cache, enough=chance.randrange(2, FILES // 2))
            assert _check_cache(cache, volume) > 0
            for path in cached(cache)[::2]:
                path.unlink()
        discard(mount)
        with OURS.mounted(volume.meta_url, place, cache_dir=cache, options=options) as mount:
            for name, data in contents.items():
                assert (mount.path / name).read_bytes() == data


def cached(cache: Path) -> list[Path]:
    return [path for path in cache.glob("*/raw/chunks/*/*/*") if path.suffix != ".tmp"]


def _kill_while_read(mount: Mount, names: list[str], cache: Path, enough: int) -> None:
    def read() -> None:
        with contextlib.suppress(OSError):  # the mount dies meanwhile
            for name in names:
                (mount.path / name).read_bytes()

    before = set(cached(cache))
    reader = threading.Thread(target=read)
    reader.start()
    wait_for(lambda: len(set(cached(cache)) - before) >= enough, f"{enough} more blocks")
    mount.kill()
    reader.join(60)


def _check_cache(cache: Path, volume: Volume) -> int:
    """How many blocks there are, each as its object."""
    objects = next(Path(volume.bucket).glob("*/chunks"))
    found = cached(cache)
    for path in found:
        size = int(path.name.rpartition("_")[2])
        data = path.read_bytes()
        assert len(data) >= size, path
        assert data[:size] == (objects / Path(*path.parts[-3:])).read_bytes(), path
    return len(found)
