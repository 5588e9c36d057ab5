"""The caches without a disk."""

from __future__ import annotations

from juicepy.cache.memory import MemoryCache, NoCache
from juicepy.types import BlockKey, SliceId


def block(number: int, size: int = 1000) -> BlockKey:
    return BlockKey(SliceId(number), 0, size)


def test_no_cache_holds_nothing() -> None:
    cache = NoCache()
    cache.store(block(1), b"x" * 1000)
    assert cache.load(block(1)) is None
    assert not cache.contains(block(1))
    assert cache.stats() == (0, 0)


def test_ranges_are_read_only_views_of_what_was_stored() -> None:
    cache = MemoryCache(1 << 20)
    cache.store(block(1), bytearray(b"ab" * 500))
    found = cache.load(block(1), 1, 3)
    assert isinstance(found, memoryview)
    assert found.readonly
    assert bytes(found) == b"bab"
    assert bytes(cache.load(block(1), 998) or b"") == b"ab"
    assert len(cache.load(block(1)) or b"") == 1000


def test_least_recently_used_block_goes_first() -> None:
    cache = MemoryCache(3 * (1000 + 4096))
    for number in (1, 2, 3):
        cache.store(block(number), bytes(1000))
    cache.load(block(1))
    cache.store(block(4), bytes(1000))
    assert [number for number in range(1, 5) if cache.contains(block(number))] == [1, 3, 4]
    assert cache.stats() == (3, 3 * (1000 + 4096))


def test_full_cache_without_eviction_takes_no_more() -> None:
    cache = MemoryCache(1 << 20, limit_items=2, eviction="none")
    for number in (1, 2, 3):
        cache.store(block(number), bytes(1000))
    assert [number for number in (1, 2, 3) if cache.contains(block(number))] == [1, 2]


def test_discarded_and_replaced_blocks_are_not_counted() -> None:
    cache = MemoryCache(1 << 20)
    cache.store(block(1), bytes(1000))
    cache.store(block(1), bytes(1000))
    cache.discard(block(1))
    cache.discard(block(1))
    assert cache.stats() == (0, 0)
