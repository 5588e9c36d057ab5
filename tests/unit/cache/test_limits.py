"""The limits of a cache directory under a stream of blocks from several threads.

JFS_CACHE_STREAM_GIB says how much passes through (1000: the scale of a large cache disk). The
blocks are sparse files, so the free space that the cache sees is told by the test.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from juicepy.cache import blockfile
from juicepy.cache.directory import Space
from juicepy.cache.disk import DiskCache
from juicepy.cache.evict import POLICIES
from juicepy.cache.options import CacheOptions
from juicepy.memory import MemoryBudget
from juicepy.types import Buffer
from tests.unit.cache.test_disk import NAMES, block, content, fill, opened, wait_for

STREAM = int(os.environ.get("JFS_CACHE_STREAM_GIB", "6")) << 30
SIZE = 16 << 20
THREADS = 4


class SparseDisk:
    """A disk of `total` bytes whose files have a length, but no content."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path, total: int) -> None:
        self.root, self.total = root, total
        self.lowest_free = total
        self._lock = threading.Lock()
        self._used = 0
        self._unlink = os.unlink
        monkeypatch.setattr(blockfile, "write", self.write)
        monkeypatch.setattr(Space, "of", self.space)
        monkeypatch.setattr(os, "unlink", self.unlink)

    def write(self, path: str, data: Buffer, **_: object) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(fd, len(data))
        os.close(fd)
        with self._lock:
            self._used += len(data)
            self.lowest_free = min(self.lowest_free, self.total - self._used)

    def unlink(self, path: str) -> None:
        size = os.stat(path).st_size
        self._unlink(path)
        with self._lock:
            self._used -= size

    def space(self, path: str) -> Space:
        return Space(self.total, self.total - self._used, 0, 0)


def stream(cache: DiskCache, look: Callable[[int, int], None]) -> None:
    """Offer `STREAM` bytes of blocks, some of them again and again; `look` at each moment."""
    data = memoryview(bytes(SIZE))
    count = STREAM // SIZE // THREADS
    evicts = cache.options.eviction != "none"
    failed: list[BaseException] = []

    def offer(first: int) -> None:
        try:
            for number in range(first, first + count):
                drops = cache.counts.drops
                cache.store(block(number, SIZE), data)
                cache.store(block(number // 2, SIZE), data)
                look(*cache.stats())
                if cache.counts.drops > drops and evicts:  # as a reader, who fetches blocks
                    time.sleep(0.001)
                while len(cache.queue) > 8:  # as fast as the disk is
                    os.sched_yield()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=offer, args=(n * count + 1,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    assert cache.wait_stored()


def options(root: Path, **limits: object) -> CacheOptions:
    chosen = {"free_space": 0.0, "reserve": 0, "write_pending": 16 * SIZE, "writers": 2}
    return CacheOptions(dirs=str(root), **{**chosen, **limits})  # type: ignore[arg-type]


@pytest.mark.parametrize("eviction", POLICIES)
@pytest.mark.parametrize(
    "limits",
    [{"size": 80 * SIZE}, {"items": 60}, {"free_space": 0.25, "size": 1 << 50}, {"reserve": 1}],
    ids=["size", "items", "free-space-ratio", "reserve"],
)
def test_limits_hold_at_every_moment(
    eviction: str, limits: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = 120 * SIZE
    if "reserve" in limits:
        limits = {"reserve": 30 * SIZE, "size": 1 << 50}
    disk = SparseDisk(monkeypatch, tmp_path, total)
    chosen = options(tmp_path, eviction=eviction, **limits)
    most = 0

    def look(blocks: int, cost: int) -> None:
        nonlocal most
        assert cost <= chosen.size
        assert not chosen.items or blocks <= chosen.items
        most = max(most, blocks)

    cache = DiskCache(str(tmp_path), NAMES, chosen, MemoryBudget(1 << 40))
    monkeypatch.setattr(cache, "_try_writing", lambda: None)
    cache.open()
    with closing(cache):
        stream(cache, look)
        lowest_free = disk.lowest_free  # before the index is saved, a few KiB
    held = len(list((tmp_path / "raw").rglob("*_*")))
    assert cache.stats()[0] == held
    assert most >= 50
    assert held >= 40
    assert (cache.counts.evicts > STREAM // SIZE // 10) == (eviction != "none")
    if "size" not in limits or limits["size"] == 1 << 50:
        assert lowest_free >= Space(total, 0, 0, 0).reserve(chosen)


def test_clean_up_begins_and_ends_where_it_is_told(tmp_path: Path) -> None:
    with opened(tmp_path, items=100, prune_above=0.8, prune_to=0.5) as cache:
        fill(cache, *range(80))
        cache.keeper.keep()
        assert cache.stats()[0] == 80
        fill(cache, 80)
        cache.keeper.keep()
        assert cache.stats()[0] == 50


def test_reserve_that_is_not_there_lets_nothing_in(tmp_path: Path) -> None:
    with opened(tmp_path, reserve=1 << 60) as cache:
        cache.store(block(1), content(1))
        assert cache.wait_stored()
        assert cache.stats() == (0, 0)
        assert cache.counts.drops == 1
        wait_for(lambda: cache.keeper.is_full)
        assert not cache.may_stage()


def test_what_waits_for_the_disk_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    write = blockfile.write

    def wait(path: str, data: Buffer, **how: object) -> None:
        go_on.wait(30)
        write(path, data, **how)  # type: ignore[arg-type]

    with opened(tmp_path, write_pending=5000, writers=2) as cache:
        monkeypatch.setattr(blockfile, "write", wait)
        for number in range(20):
            cache.store(block(number), content(number))
        assert (len(cache.queue), cache.queue.bytes) == (5, 5000)
        assert cache.counts.drops == 15
        assert bytes(cache.load(block(4)) or b"") == content(4)
        go_on.set()
        assert cache.wait_stored()
        assert cache.queue.bytes == 0
        fill(cache, 19)
        wait_for(lambda: cache.stats()[0] == 6)


def test_each_disk_has_its_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(3)
    write = blockfile.write

    def meet(path: str, data: Buffer, **how: object) -> None:
        both.wait(30)
        write(path, data, **how)  # type: ignore[arg-type]

    with opened(tmp_path, writers=3) as cache:
        fill(cache, 9)
        monkeypatch.setattr(blockfile, "write", meet)
        for number in range(3):
            cache.store(block(number), content(number))
        assert cache.wait_stored()
        assert cache.stats()[0] == 4
        monkeypatch.undo()
