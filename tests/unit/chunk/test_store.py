"""BlockStore: what is cached when, what errors mean, and removal."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from juicepy.cache.cache import BlockCache
from juicepy.cache.memory import MemoryCache, NoCache
from juicepy.chunk.layout import Layout
from juicepy.chunk.store import BlockLost, BlockStore, Part, StoreOptions
from juicepy.types import BlockKey, SliceId
from tests.unit.chunk.fakes import FaultyStorage

BLOCK = 65536
ONE = SliceId(1)


@contextmanager
def opened(
    storage: FaultyStorage, cache: BlockCache, options: StoreOptions, compression: str = "none"
) -> Iterator[BlockStore]:
    store = BlockStore(storage, cache, Layout(BLOCK), compression, options)
    try:
        yield store
    finally:
        storage.before = lambda *_: None
        store.close()


def put(store: BlockStore, number: int, content: bytes) -> list[BlockKey]:
    blocks = list(store.layout.blocks(SliceId(number), len(content)))
    for block in blocks:
        start = block.index * BLOCK
        store.put(block, content[start : start + block.size])
    return blocks


@pytest.mark.parametrize(
    ("options", "full", "short"),
    [
        (StoreOptions(), False, True),
        (StoreOptions(cache_large_write=True), True, True),
        (StoreOptions(cache_large_write=True, cache_partial_only=True), False, True),
    ],
)
def test_what_is_cached_after_an_upload(options: StoreOptions, full: bool, short: bool) -> None:
    cache = MemoryCache(1 << 30)
    with opened(FaultyStorage(), cache, options) as store:
        first, last = put(store, 1, bytes(BLOCK + 10))
        assert (cache.contains(first), cache.contains(last)) == (full, short)


@pytest.mark.parametrize(
    ("options", "full"), [(StoreOptions(), True), (StoreOptions(cache_partial_only=True), False)]
)
def test_what_is_cached_after_a_download(options: StoreOptions, full: bool) -> None:
    storage, cache = FaultyStorage(), MemoryCache(1 << 30)
    with opened(storage, NoCache(), options) as writing:
        first, last = put(writing, 1, bytes(BLOCK + 10))
    with opened(storage, cache, options) as store:
        assert b"".join(store.read(ONE, BLOCK + 10, 0, BLOCK + 10)) == bytes(BLOCK + 10)
        store.fill(last)  # ends after the block is cached
        store.read(ONE, BLOCK + 10, 0, 1)
    assert (cache.contains(first), cache.contains(last)) == (full, True)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_slices_of_many_blocks_are_read_in_any_range(compression: str) -> None:
    content = bytes(range(251)) * 1200
    with opened(FaultyStorage(), NoCache(), StoreOptions(), compression) as store:
        put(store, 1, content)
        for off, length in ((0, len(content)), (BLOCK - 1, 2), (5, 3 * BLOCK), (BLOCK, BLOCK)):
            pieces = store.read(ONE, len(content), off, length)
            assert b"".join(pieces) == content[off : off + length]
        parts = [Part(ONE, len(content), off, 10) for off in (0, 3 * BLOCK, BLOCK, 0)]
        expected = b"".join(content[part.off : part.off + 10] for part in parts)
        assert b"".join(store.read_parts(parts)) == expected


def test_empty_ranges_are_empty() -> None:
    with opened(FaultyStorage(), NoCache(), StoreOptions()) as store:
        assert store.read(ONE, 10, 5, 0) == []
        assert store.read_parts([]) == []


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (errno.EACCES, errno.EIO),
        (errno.ETIMEDOUT, errno.EIO),
        (errno.ENOSPC, errno.ENOSPC),
        (errno.EIO, errno.EIO),
    ],
)
def test_errors_of_objects_become_errors_of_files(given: int, seen: int) -> None:
    storage = FaultyStorage()

    def fail(method: str, key: str) -> None:
        raise OSError(given, "injected", key)

    with opened(storage, NoCache(), StoreOptions()) as store:
        storage.before = fail
        with pytest.raises(OSError) as caught:
            store.put(BlockKey(ONE, 0, 5), b"hello")
        assert caught.value.errno == seen
        with pytest.raises(OSError) as caught:
            store.read(ONE, 5, 0, 5)
        assert caught.value.errno == seen


def test_missing_object_is_a_lost_block() -> None:
    with (
        opened(FaultyStorage(), NoCache(), StoreOptions()) as store,
        pytest.raises(BlockLost) as (caught),
    ):
        store.read(ONE, 5, 0, 5)
    assert caught.value.errno == errno.EIO


def test_removed_slices_are_gone_everywhere_and_removing_again_is_fine() -> None:
    storage, cache = FaultyStorage(), MemoryCache(1 << 30)
    with opened(storage, cache, StoreOptions(cache_large_write=True)) as store:
        put(store, 1, bytes(2 * BLOCK + 5))
        store.read(ONE, 2 * BLOCK + 5, 0, 10)
        for _ in range(2):
            store.remove(ONE, 2 * BLOCK + 5)
            assert storage.objects == {}
            assert cache.stats() == (0, 0)
        with pytest.raises(BlockLost):
            store.read(ONE, 2 * BLOCK + 5, 0, 10)


def test_uploads_and_downloads_keep_to_their_numbers() -> None:
    storage = FaultyStorage()
    options = StoreOptions(max_uploads=2, max_downloads=3)
    now, most = {"put": 0, "get": 0}, {"put": 0, "get": 0}
    lock, pause = threading.Lock(), threading.Event()

    def before(method: str, key: str) -> None:
        with lock:
            now[method] += 1
            most[method] = max(most[method], now[method])
        pause.wait(0.01)
        with lock:
            now[method] -= 1

    with opened(storage, NoCache(), options) as store:
        storage.before = before
        blocks = list(store.layout.blocks(ONE, 12 * BLOCK))
        uploads = [
            store.upload(lambda block=block: store.put(block, bytes(BLOCK)))  # type: ignore[misc]
            for block in blocks
        ]
        for upload in uploads:
            upload.result(20)
        store.read(ONE, 12 * BLOCK, 0, 12 * BLOCK)
    assert most["put"] <= 2
    assert most["get"] <= 3


def test_a_waiting_prefetch_is_taken_over_by_who_needs_the_block() -> None:
    storage = FaultyStorage()
    options = StoreOptions(max_downloads=2)
    with opened(storage, NoCache(), options) as store:
        put(store, 1, b"x" * 4 * BLOCK)
        blocks = list(store.layout.blocks(ONE, 4 * BLOCK))
        gate, held = threading.Event(), threading.Event()

        def before(method: str, key: str) -> None:
            if "_0_" in key:
                held.set()
                gate.wait(20)

        storage.before = before
        assert store.prefetch(blocks[0])
        assert held.wait(20)
        for block in blocks[1:]:
            assert store.prefetch(block)
        assert b"".join(store.read(ONE, 4 * BLOCK, 3 * BLOCK, BLOCK)) == b"x" * BLOCK
        gate.set()
        assert b"".join(store.read(ONE, 4 * BLOCK, 0, 4 * BLOCK)) == b"x" * 4 * BLOCK
        assert storage.count("get") == 4


def test_counts_tell_hits_and_misses() -> None:
    cache = MemoryCache(1 << 30)
    with opened(FaultyStorage(), cache, StoreOptions()) as store:
        put(store, 1, bytes(BLOCK + 10))
        store.read(ONE, BLOCK + 10, BLOCK, 10)
        store.read(ONE, BLOCK + 10, 0, 100)
        stats = store.stats()
        assert (stats.hits, stats.hit_bytes) == (1, 10)
        assert (stats.misses, stats.miss_bytes) == (1, 100)
        assert stats.uploading == 0
