"""Which blocks of a full cache go first: pure choice, no files (spec cache.md 5)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from juicepy.types import BlockKey

OVERHEAD = 4096  # what a block costs beside its bytes
POLICIES = ("none", "2-random", "lru")


@dataclass(slots=True)
class Cached:
    """A block in the index of a cache; `atime_s` is changed by reads."""

    block: BlockKey
    atime_s: float

    @property
    def cost(self) -> int:
        return self.block.size + OVERHEAD


@dataclass(frozen=True, slots=True)
class Excess:
    """What has to go."""

    cost: int = 0
    items: int = 0

    def __bool__(self) -> bool:
        return self.cost > 0 or self.items > 0

    def without(self, cached: Cached) -> Excess:
        return Excess(self.cost - cached.cost, self.items - 1)


def excess(
    cost: int, items: int, *, limit_cost: int, limit_items: int, lacking_bytes: int, lacking: int
) -> Excess:
    """How far to clean up: to 95 % of the bytes, 99 % of the items, and to what the disk lacks."""
    too_much = cost - limit_cost * 95 // 100 if cost > limit_cost else 0
    too_many = items - limit_items * 99 // 100 if items > limit_items else 0
    return Excess(max(too_much, lacking_bytes), max(too_many, lacking))


def victims(
    policy: str, entries: Sequence[Cached], shuffle: Callable[[list[Cached]], None] = random.shuffle
) -> Iterator[Cached]:
    """Blocks in the order they should go; the caller stops when enough are gone."""
    if policy == "lru":
        yield from sorted(entries, key=lambda cached: (cached.atime_s, -cached.block.size))
    elif policy == "2-random":
        left = list(entries)
        shuffle(left)
        yield from _older_of_pairs(left)


def _older_of_pairs(left: list[Cached]) -> Iterator[Cached]:
    while left:
        kept: list[Cached] = []
        for at in range(0, len(left) - 1, 2):
            one, two = left[at], left[at + 1]
            if one.atime_s > two.atime_s:
                one, two = two, one
            yield one
            kept.append(two)
        if len(left) % 2:
            if len(left) == 1:
                yield left[0]
                return
            kept.append(left[-1])
        left = kept


def expired(entries: Sequence[Cached], before_s: float) -> Iterator[Cached]:
    return (cached for cached in entries if cached.atime_s < before_s)
