"""Blocks that wait on disk for their upload: nothing is lost, nothing is left over."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from juicepy.cache import staging as module
from juicepy.cache.disks import open_cache, open_staging
from juicepy.cache.options import CacheOptions
from juicepy.cache.staging import Staging, StagingOptions, parse_hours
from juicepy.chunk.layout import Layout
from juicepy.chunk.store import BlockLost, BlockStore, StoreOptions
from juicepy.types import BlockKey, SliceId
from tests.unit.cache.test_disk import VOLUME, wait_for
from tests.unit.chunk.fakes import FaultyStorage

BLOCK = 65536
NAMES = Layout(BLOCK)
SIZE = 1000


def block(number: int, size: int = SIZE) -> BlockKey:
    return BlockKey(SliceId(number), 0, size)


def content(number: int, size: int = SIZE) -> bytes:
    return bytes([number]) * size


@contextmanager
def opened(
    path: Path,
    storage: FaultyStorage,
    *,
    dirs: str = "",
    free_space: float = 0.0,
    reserve: int = 150 << 20,
    **chosen: object,
) -> Iterator[tuple[BlockStore, Staging]]:
    options = CacheOptions(dirs=dirs or str(path), free_space=free_space, reserve=reserve)
    cache = open_cache(options, VOLUME, NAMES)
    writing = StagingOptions(enabled=True, **chosen)  # type: ignore[arg-type]
    staging = open_staging(cache, writing, NAMES, 4)
    assert staging is not None
    store = BlockStore(storage, cache, NAMES, "none", StoreOptions(), None, staging)
    try:
        yield store, staging
    finally:
        storage.before = lambda *_: None
        staging.close()
        store.close()
        cache.close()


def staged(path: Path) -> list[str]:
    return sorted(file.name for file in path.rglob("rawstaging/**/*_*") if file.is_file())


def failing(method: str, key: str) -> None:
    raise OSError(errno.EIO, "no network")


def test_a_block_is_on_disk_first_and_uploaded_after(tmp_path: Path) -> None:
    storage = FaultyStorage()
    go_on = threading.Event()
    storage.before = lambda *_: go_on.wait(20) and None
    with opened(tmp_path, storage) as (store, staging):
        store.put(block(1), content(1))
        assert staged(tmp_path) == ["1_0_1000"]
        assert staging.waiting() == (1, SIZE)
        assert store.read(SliceId(1), SIZE, 10, 5) == [content(1)[:5]]
        go_on.set()
        wait_for(lambda: staging.waiting() == (0, 0))
        assert staged(tmp_path) == []
        assert storage.objects == {NAMES.object_key(block(1)): content(1)}
        assert store.contains(block(1))


def test_both_links_are_one_file_which_is_not_evicted(tmp_path: Path) -> None:
    with opened(tmp_path, FaultyStorage(), delay_s=3600.0) as (store, _):
        store.put(block(1), content(1))
        raw, waiting = (
            next((tmp_path / VOLUME / name).rglob("1_0_1000")) for name in ("raw", "rawstaging")
        )
        assert os.path.samefile(raw, waiting)
        assert raw.stat().st_mode & 0o777 == 0o600
        raw.unlink()
        store.cache.discard(block(1))
        assert store.read(SliceId(1), SIZE, 0, SIZE) == [content(1)]
        assert store.read(SliceId(1), SIZE, 990, 10) == [content(1)[990:]]


def test_what_an_earlier_process_left_is_uploaded(tmp_path: Path) -> None:
    storage = FaultyStorage()
    with opened(tmp_path, storage, delay_s=3600.0) as (store, staging):
        for number in range(1, 6):
            store.put(block(number), content(number))
        assert staging.waiting() == (5, 5 * SIZE)
    assert len(staged(tmp_path)) == 5
    assert storage.objects == {}
    with opened(tmp_path, storage) as (_, staging):
        wait_for(lambda: staging.waiting() == (0, 0))
    assert sorted(storage.objects.values()) == [content(number) for number in range(1, 6)]
    assert staged(tmp_path) == []


def test_a_failed_upload_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUND_S", 0.05)
    storage = FaultyStorage()
    storage.before = failing
    with opened(tmp_path, storage) as (store, staging):
        store.put(block(1), content(1))
        wait_for(lambda: staging.counts.errors > 1)
        assert staged(tmp_path) == ["1_0_1000"]
        storage.before = lambda *_: None
        wait_for(lambda: staging.waiting() == (0, 0))
    assert list(storage.objects.values()) == [content(1)]


def test_blocks_wait_for_their_delay(tmp_path: Path) -> None:
    storage = FaultyStorage()
    with opened(tmp_path, storage, delay_s=1.0) as (store, staging):
        store.put(block(1), content(1))
        time.sleep(0.3)
        assert storage.objects == {}
        wait_for(lambda: staging.waiting() == (0, 0))
        assert len(storage.objects) == 1


def test_a_deleted_block_is_never_uploaded(tmp_path: Path) -> None:
    storage = FaultyStorage()
    with opened(tmp_path, storage, delay_s=3600.0) as (store, staging):
        store.put(block(1), content(1))
        store.remove(SliceId(1), SIZE)
        assert staging.waiting() == (0, 0)
        assert staged(tmp_path) == []
        with pytest.raises(BlockLost):
            store.read(SliceId(1), SIZE, 0, SIZE)
    assert storage.objects == {}


def test_a_block_deleted_during_its_upload_leaves_no_object(tmp_path: Path) -> None:
    storage = FaultyStorage()
    begun, go_on = threading.Event(), threading.Event()

    def wait(method: str, _: str) -> None:
        if method == "put":
            begun.set()
            go_on.wait(20)

    storage.before = wait
    with opened(tmp_path, storage) as (store, _):
        store.put(block(1), content(1))
        assert begun.wait(20)
        store.remove(SliceId(1), SIZE)
        go_on.set()
        wait_for(lambda: storage.count("delete") == 2)
    assert storage.objects == {}
    assert staged(tmp_path) == []


def test_a_disk_without_room_stages_nothing(tmp_path: Path) -> None:
    storage = FaultyStorage()
    all_of_it = 2.0  # half of the free space asked for must be there
    with opened(tmp_path, storage, free_space=all_of_it, delay_s=3600.0) as (store, staging):
        store.put(block(1), content(1))
        assert staging.waiting() == (0, 0)
    assert list(storage.objects.values()) == [content(1)]


def test_a_disk_that_fails_is_passed_by(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    storage = FaultyStorage()
    with opened(tmp_path, storage, delay_s=3600.0) as (store, staging):
        monkeypatch.setattr(module.blockfile.os, "fsync", full)
        store.put(block(1), content(1))
        monkeypatch.undo()
        assert staging.waiting() == (0, 0)
        assert staged(tmp_path) == []
    assert list(storage.objects.values()) == [content(1)]
    assert "uploaded directly" in caplog.text


def test_only_short_blocks_with_a_threshold(tmp_path: Path) -> None:
    storage = FaultyStorage()
    with opened(tmp_path, storage, threshold=SIZE + 1, delay_s=3600.0) as (store, staging):
        store.put(block(1), content(1))
        store.put(block(2, SIZE + 1), content(2, SIZE + 1))
        assert staging.waiting() == (1, SIZE)
    assert list(storage.objects.values()) == [content(2, SIZE + 1)]


def test_at_most_so_many_are_staged_at_once(tmp_path: Path) -> None:
    storage = FaultyStorage()
    with opened(tmp_path, storage, max_writes=1, delay_s=3600.0) as (store, staging):
        staging.counts.writing = 1
        store.put(block(1), content(1))
        assert staging.waiting() == (0, 0)
        staging.counts.writing = 0
        store.put(block(2), content(2))
        assert staging.waiting() == (1, SIZE)
    assert list(storage.objects.values()) == [content(1)]


def test_a_damaged_staged_block_is_an_error_and_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = FaultyStorage()
    with opened(tmp_path, storage, delay_s=3600.0) as (store, _):
        store.put(block(1), content(1))
    path = next((tmp_path / VOLUME / "rawstaging").rglob("1_0_1000"))
    path.write_bytes(b"?" + path.read_bytes()[1:])
    with opened(tmp_path, storage) as (store, staging):
        wait_for(lambda: staging.counts.errors == 1)
        next((tmp_path / VOLUME / "raw").rglob("1_0_1000")).unlink()
        store.cache.discard(block(1))
        with pytest.raises(OSError, match="damaged") as caught:
            store.read(SliceId(1), SIZE, 0, SIZE)
        assert caught.value.errno == errno.EIO
    assert storage.objects == {}
    assert "its upload failed" in caplog.text


def test_several_disks(tmp_path: Path) -> None:
    storage = FaultyStorage()
    dirs = ":".join(str(tmp_path / name) for name in "abc")
    with opened(tmp_path, storage, dirs=dirs, delay_s=3600.0) as (store, _):
        for number in range(30):
            store.put(block(number + 1), content(number + 1))
    counts = [len(staged(tmp_path / name)) for name in "abc"]
    assert sum(counts) == 30
    assert min(counts) > 0
    with opened(tmp_path, storage, dirs=dirs) as (_, staging):
        wait_for(lambda: staging.waiting() == (0, 0))
    assert len(storage.objects) == 30


@pytest.mark.parametrize(
    ("text", "open_at"), [("0-6", range(6)), ("22-6", [22, 23, *range(6)]), ("1,3", [1, 2])]
)
def test_hours(text: str, open_at: list[int]) -> None:
    options = StagingOptions(hours=text)
    assert [hour for hour in range(24) if options.is_open(hour)] == sorted(open_at)


@pytest.mark.parametrize("text", ["a", "3", "3-3", "1-25", "-1-3", "1-2-3", "x-y"])
def test_hours_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        parse_hours(text)


def test_outside_the_hours_blocks_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FaultyStorage()
    is_open: Callable[[StagingOptions, int], bool] = lambda self, hour: False  # noqa: E731
    monkeypatch.setattr(StagingOptions, "is_open", is_open)
    with opened(tmp_path, storage, hours="0-1") as (store, staging):
        store.put(block(1), content(1))
        assert staging.waiting() == (1, SIZE)
        time.sleep(0.2)
    assert storage.objects == {}
