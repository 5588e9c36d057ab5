"""Which blocks go first."""

from __future__ import annotations

from juicepy.cache.evict import Cached, Excess, excess, victims
from juicepy.types import BlockKey, SliceId


def cached(number: int, atime_s: float, size: int = 100) -> Cached:
    return Cached(BlockKey(SliceId(number), 0, size), atime_s)


def order(policy: str, entries: list[Cached]) -> list[int]:
    return [found.block.id for found in victims(policy, entries, shuffle=lambda _: None)]


def test_lru_takes_the_oldest_and_of_equals_the_larger() -> None:
    entries = [cached(1, 30.0), cached(2, 10.0, 5), cached(3, 10.0, 50), cached(4, 20.0)]
    assert order("lru", entries) == [3, 2, 4, 1]


def test_two_random_takes_the_older_of_each_pair_and_in_the_end_all() -> None:
    entries = [cached(1, 1.0), cached(2, 2.0), cached(3, 4.0), cached(4, 3.0), cached(5, 5.0)]
    found = order("2-random", entries)
    assert found[:2] == [1, 4]
    assert sorted(found) == [1, 2, 3, 4, 5]


def test_none_takes_nothing() -> None:
    assert order("none", [cached(1, 1.0)]) == []


def test_clean_up_goes_below_the_limits() -> None:
    limits = {"limit_cost": 1000, "limit_items": 100}
    assert not excess(1000, 100, **limits, lacking_bytes=0, lacking=0)
    assert excess(1001, 5, **limits, lacking_bytes=0, lacking=0) == Excess(51, 0)
    assert excess(5, 101, **limits, lacking_bytes=0, lacking=0) == Excess(0, 2)
    assert excess(5, 5, **limits, lacking_bytes=70, lacking=3) == Excess(70, 3)
