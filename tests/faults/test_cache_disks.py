"""Cache disks that are full, read-only, slow, lying or gone: reads go on, and the disk comes back.

Real small file systems, so root is needed; what no file system does by itself is injected.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from juicepy.cache import blockfile, health
from juicepy.cache.disk import DiskCache
from juicepy.cache.disks import DiskCaches, DiskStates, open_cache
from juicepy.cache.options import CacheOptions
from juicepy.cache.staging import Staging
from juicepy.types import BlockKey, Buffer
from tests.support.waiting import wait_for
from tests.unit.cache.test_disk import NAMES, VOLUME, block, content
from tests.unit.cache.test_staging import opened as opened_staging
from tests.unit.chunk.fakes import FaultyStorage

SIZE = 100_000


def run(*words: str | Path) -> None:
    subprocess.run(list(map(str, words)), check=True, capture_output=True)


class SmallDisk:
    """A file system of 4 MiB mounted at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.mount()

    def mount(self) -> None:
        run("mount", "-t", "tmpfs", "-o", "size=4m", "none", self.path)

    def remount(self, how: str) -> None:
        run("mount", "-o", f"remount,{how}", self.path)

    def umount(self) -> None:
        run("umount", "-l", self.path)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    made = SmallDisk(tmp_path / "small")
    try:
        yield made
    finally:
        while os.path.ismount(made.path):
            made.umount()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(health, "MAX_PAUSE_S", 0.2)


@contextmanager
def opened(*paths: Path) -> Iterator[tuple[DiskCache | DiskCaches, DiskCache]]:
    """The cache, and the directory in the first of `paths`."""
    dirs = ":".join(map(str, paths))
    options = CacheOptions(dirs=dirs, free_space=0.0, reserve=0)
    with closing(open_cache(options, VOLUME, NAMES)) as cache:
        assert isinstance(cache, DiskCache | DiskCaches)
        disks = [cache] if isinstance(cache, DiskCache) else cache.disks
        yield cache, next(each for each in disks if each.root.startswith(f"{paths[0]}/"))


def store(cache: DiskCache | DiskCaches, *numbers: int) -> None:
    for number in numbers:
        cache.store(block(number, SIZE), content(number, SIZE))
    for disk in [cache] if isinstance(cache, DiskCache) else cache.disks:
        assert disk.wait_stored()


def held(cache: DiskCache | DiskCaches, *numbers: int) -> list[int]:
    """Those of the blocks that the cache has; what it gives must be right."""
    found = []
    for number in numbers:
        data = cache.load(block(number, SIZE))
        if data is not None:
            assert bytes(data) == content(number, SIZE)
            found.append(number)
    return found


def states(cache: DiskCache | DiskCaches) -> dict[str, float]:
    (family,) = DiskStates(cache).collect()
    return {sample.labels["dir"]: sample.value for sample in family.samples}


def wait_out(disk: DiskCache, caplog: pytest.LogCaptureFixture, why: str) -> None:
    wait_for(lambda: disk.is_down, "the disk out of use")
    assert caplog.text.count("is out of use") == 1
    assert why in caplog.text
    assert states(disk) == {disk.root: 2}


def wait_back(disk: DiskCache, caplog: pytest.LogCaptureFixture) -> None:
    wait_for(lambda: not disk.is_down, "the disk in use again")
    assert caplog.text.count("is out of use") == 1
    assert caplog.text.count("is in use again") == 1
    assert states(disk) == {disk.root: 0}
    store(disk, 200)
    assert held(disk, 200) == [200]


def test_disk_filled_by_others(disk: SmallDisk) -> None:
    with opened(disk.path) as (cache, directory):
        store(cache, 1, 2)
        (disk.path / "big").write_bytes(bytes(os.statvfs(disk.path).f_bavail * 4096))
        numbers = itertools.count(3)

        def finds_room() -> bool:  # which older blocks make
            number = next(numbers)
            store(cache, number)
            assert not directory.is_down
            return bool(held(cache, number))

        wait_for(finds_room, "room for a block")
        for number in range(next(numbers)):
            cache.discard(block(number, SIZE))
        (disk.path / "more").write_bytes(bytes(os.statvfs(disk.path).f_bavail * 4096))
        store(cache, 2100)
        wait_for(lambda: states(cache) == {directory.root: 1}, "the disk to be full")
        assert held(cache, 2100) == []
        (disk.path / "big").unlink()
        wait_for(lambda: not directory.keeper.is_full, "the disk to have room")
        store(cache, 30)
        assert held(cache, 30) == [30]
        assert states(cache) == {directory.root: 0}
        assert not list(disk.path.rglob("*.tmp"))


def test_read_only_disk(disk: SmallDisk, caplog: pytest.LogCaptureFixture) -> None:
    with opened(disk.path) as (cache, directory):
        store(cache, 1)
        disk.remount("ro")
        for number in range(2, 2 + health.FAILURES):
            store(cache, number)
            held(cache, 1)  # that it can be read is no proof of health
        wait_out(directory, caplog, "Read-only file system")
        assert held(cache, 1, 2) == []
        disk.remount("rw")
        wait_back(directory, caplog)
        assert held(cache, 1) == [1]


@pytest.mark.parametrize("comes_back", ["as it was", "empty"])
def test_unmounted_disk(
    comes_back: str, disk: SmallDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    with opened(disk.path) as (cache, directory):
        store(cache, 1)
        run("mount", "--bind", disk.path, keep)
        disk.umount()
        store(cache, 2)
        wait_out(directory, caplog, "not mounted")
        store(cache, 3)
        assert held(cache, 1, 2, 3) == []
        assert list(disk.path.iterdir()) == []  # nothing on the disk beneath
        if comes_back == "empty":
            disk.mount()
        else:
            run("mount", "--bind", keep, disk.path)
        run("umount", keep)
        wait_back(directory, caplog)
        assert held(cache, 1) == ([1] if comes_back == "as it was" else [])
        assert (disk.path / VOLUME / ".lock").read_text() == directory.ident


def test_other_disks_take_over_meanwhile(disk: SmallDisk, tmp_path: Path) -> None:
    numbers = list(range(1, 31))
    with opened(disk.path, tmp_path / "other") as (cache, directory):
        assert isinstance(cache, DiskCaches)
        store(cache, *numbers)
        here = [number for number in numbers if cache.disk(block(number, SIZE)) is directory]
        assert len(here) > 3
        disk.remount("ro")
        for number in range(100, 130):
            store(cache, number)
        assert directory.is_down
        assert sorted(states(cache).values()) == [0, 2]
        assert held(cache, *numbers) == sorted(set(numbers) - set(here))
        store(cache, *here)
        assert held(cache, *numbers) == numbers
        disk.remount("rw")
        wait_for(lambda: not directory.is_down, "the disk in use again")
        assert held(cache, *numbers) == numbers


@pytest.mark.parametrize("damage", ["flipped", "short", "directory", "link", "pipe"])
def test_lying_disk(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    numbers = range(1, 1 + health.FAILURES)
    with opened(tmp_path) as (cache, directory):
        store(cache, *numbers)
        for number in numbers:
            spoil(Path(directory.path(block(number, SIZE))), damage)
        assert held(cache, *numbers) == []
        wait_out(directory, caplog, "cannot read")
        wait_back(directory, caplog)


def spoil(path: Path, damage: str) -> None:
    data = path.read_bytes()
    if damage in ("flipped", "short"):
        flipped = data[:77] + bytes([data[77] ^ 4]) + data[78:]
        path.write_bytes(flipped if damage == "flipped" else data[:-200])
        return
    path.unlink()
    if damage == "directory":
        path.mkdir()
    elif damage == "link":
        path.symlink_to("/etc/hostname")
    else:
        os.mkfifo(path)


def test_disk_that_fails_again_and_again_is_tried_ever_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(path: str, data: Buffer, **_: object) -> None:
        tries.append(path)
        raise OSError(errno.EIO, "Input/output error")

    tries: list[str] = []
    with opened(tmp_path) as (cache, directory):
        store(cache, 9)
        with monkeypatch.context() as patched:
            patched.setattr(health, "FIRST_PAUSE_S", 0.01)
            patched.setattr(health, "MAX_PAUSE_S", 3600.0)
            patched.setattr(blockfile, "write", failing)
            store(cache, *range(1, 1 + health.FAILURES))
            assert directory.is_down
            tries.clear()
            begun_s = time.monotonic()
            while len(tries) < 4:
                directory.keeper.round()
                assert time.monotonic() < begun_s + 60
            took_s = time.monotonic() - begun_s
            assert len(tries) <= math.log2(took_s / 0.01) + 2
        directory.health.bring_back()
        assert held(cache, 9) == [9]
    assert caplog.text.count("is out of use") == 1


def test_disk_that_hangs_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "SLOW_S", 0.3)
    go_on = threading.Event()
    read = blockfile.BlockFile.read

    def hanging(file: blockfile.BlockFile, off: int, size: int, level: str) -> Buffer:
        go_on.wait(60)
        return read(file, off, size, level)

    with opened(tmp_path) as (cache, directory):
        store(cache, 1)
        monkeypatch.setattr(blockfile.BlockFile, "read", hanging)
        stuck = threading.Thread(target=cache.load, args=(block(1, SIZE),))
        stuck.start()
        try:
            wait_out(directory, caplog, "has not returned")
            for number in range(100):
                assert cache.load(block(number, SIZE)) is None
                cache.store(block(number, SIZE), content(number, SIZE))
            assert len(directory.queue) == 0
        finally:
            go_on.set()
            stuck.join(60)
        monkeypatch.undo()
        wait_for(lambda: not directory.is_down, "the disk in use again")
        assert held(cache, 1) == [1]


# -- staged blocks


@contextmanager
def staged_on(disk: SmallDisk, storage: FaultyStorage) -> Iterator[tuple[Staging, list[BlockKey]]]:
    """Blocks that wait on the disk as their upload fails."""

    def failing(method: str, key: str) -> None:
        raise OSError(errno.EIO, "no network")

    storage.before = failing
    with opened_staging(disk.path, storage, reserve=0) as (store, staging):
        blocks = [block(number) for number in range(1, 6)]
        for each in blocks:
            store.put(each, content(each.id))
        wait_for(lambda: staging.counts.errors >= len(blocks), "vain uploads")
        yield staging, blocks


def test_staged_blocks_outlive_a_disk_that_was_gone(
    disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FaultyStorage()
    keep = tmp_path / "keep"
    keep.mkdir()
    with staged_on(disk, storage) as (staging, blocks):
        run("mount", "--bind", disk.path, keep)
        disk.umount()
        storage.before = lambda *_: None
        staging._round()
        for each in blocks:
            with pytest.raises(OSError, match="gone") as caught:
                staging.load(each, 0, 10)
            assert caught.value.errno == errno.EIO
        assert staging.waiting() == (5, 5000)
        assert storage.objects == {}
        run("mount", "--bind", keep, disk.path)
        run("umount", keep)
        assert [staging.load(each, 0, 10) for each in blocks] == [
            content(each.id, 10) for each in blocks
        ]

        def is_uploaded() -> bool:
            staging._round()
            return staging.waiting() == (0, 0)

        wait_for(is_uploaded, "the uploads")
    assert sorted(storage.objects.values()) == [content(each.id) for each in blocks]


def test_staged_blocks_on_a_read_only_disk_are_read_and_uploaded(disk: SmallDisk) -> None:
    storage = FaultyStorage()
    with staged_on(disk, storage) as (staging, blocks):
        disk.remount("ro")
        assert [staging.load(each, 5, 3) for each in blocks] == [
            content(each.id, 3) for each in blocks
        ]
        storage.before = lambda *_: None
        staging._round()
        wait_for(lambda: len(storage.objects) == 5, "the uploads")
        disk.remount("rw")
    assert sorted(storage.objects.values()) == [content(each.id) for each in blocks]


def test_full_staging_disk_is_passed_by(disk: SmallDisk) -> None:
    storage = FaultyStorage()
    with opened_staging(disk.path, storage, reserve=0, delay_s=3600.0) as (store, staging):
        (disk.path / "big").write_bytes(bytes(os.statvfs(disk.path).f_bavail * 4096))
        store.put(block(1), content(1))
        assert staging.waiting() == (0, 0)
        assert list(storage.objects.values()) == [content(1)]
        assert not list(disk.path.rglob("*.tmp"))
