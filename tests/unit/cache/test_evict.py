"""Which blocks go first."""

from __future__ import annotations

import random

import pytest

from juicepy.cache import evict
from juicepy.cache.evict import Excess, Limits, oldest, pairs
from juicepy.cache.index import Entry, block_of, key_of, stamp_of
from juicepy.types import BlockKey, SliceId


def cached(number: int, atime_s: float, size: int = 100) -> Entry:
    return stamp_of(size, 1.8e9 + atime_s), key_of(BlockKey(SliceId(number), 0, size))


def numbers(entries: list[Entry]) -> list[int]:
    return [block_of(entry).id for entry in entries]


def test_lru_takes_the_oldest_and_of_equals_the_larger() -> None:
    entries = [cached(1, 30.0), cached(2, 10.0, 5), cached(3, 10.0, 50), cached(4, 20.0)]
    assert numbers(oldest([entries], Excess(items=9))) == [3, 2, 4, 1]
    assert numbers(oldest([entries], Excess(items=2))) == [3, 2]
    assert numbers(oldest([entries], Excess(cost=2 * 4096 + 56))) == [3, 2, 4]
    assert oldest([entries], Excess()) == []


def test_lru_compares_over_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evict, "LEAST_KEPT", 10)
    entries = [cached(number, float(number)) for number in range(1000)]
    random.Random(3).shuffle(entries)
    groups = [entries[at : at + 7] for at in range(0, 1000, 7)]
    assert numbers(oldest(groups, Excess(items=50))) == list(range(50))


def test_two_random_takes_the_older_of_each_pair() -> None:
    entries = [cached(1, 1.0), cached(2, 2.0), cached(3, 4.0), cached(4, 3.0), cached(5, 5.0)]
    assert numbers(list(pairs([entries], shuffle=lambda _: None))) == [1, 4, 5]


def test_clean_up_goes_below_the_limits() -> None:
    limits = Limits(1000, 100)
    assert not limits.excess(1000, 100)
    assert limits.excess(1001, 5) == Excess(51, 0)
    assert limits.excess(5, 101) == Excess(0, 6)
    assert limits.excess(1000, 5, urgent=True) == Excess(50, 0)
    early = Limits(1000, 100, above=0.8, to=0.5)
    assert not early.excess(800, 80)
    assert early.excess(801, 81) == Excess(301, 31)
