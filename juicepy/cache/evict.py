"""Which blocks of a full cache go first: pure choice, no files (spec cache.md 5)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from juicepy.cache.index import Entry, cost_of

POLICIES = ("none", "2-random", "lru")
LEAST_KEPT = 1024  # entries that `oldest` compares at once


@dataclass(frozen=True, slots=True)
class Excess:
    """What has to go."""

    cost: int = 0
    items: int = 0

    def __bool__(self) -> bool:
        return self.cost > 0 or self.items > 0

    def without(self, entry: Entry) -> Excess:
        return Excess(self.cost - cost_of(entry), self.items - 1)


@dataclass(frozen=True, slots=True)
class Limits:
    """Most bytes and blocks of a directory; above `above` of them it is cleaned to `to` of them."""

    cost: int
    items: int
    above: float = 1.0
    to: float = 0.95

    def excess(self, cost: int, items: int, *, urgent: bool = False) -> Excess:
        """What has to go; `urgent`: a block found no room, so even where no limit is passed."""
        return Excess(
            self._over(cost, self.cost, urgent),
            self._over(items, self.items, urgent),
        )

    def _over(self, held: int, limit: int, urgent: bool) -> int:
        if held > limit * self.above or (urgent and held >= limit * self.to):
            return max(0, held - int(limit * self.to))
        return 0


def pairs(
    groups: Iterable[list[Entry]], shuffle: Callable[[list[Entry]], None] = random.shuffle
) -> Iterator[Entry]:
    """The older of any two; one that has no partner goes, too."""
    for group in groups:
        shuffle(group)
        for at in range(0, len(group), 2):
            yield min(group[at : at + 2])


def oldest(groups: Iterable[list[Entry]], todo: Excess) -> list[Entry]:
    """The least recently used entries that make up `todo`, or all; in order."""
    found: list[Entry] = []
    most = LEAST_KEPT
    for group in groups:
        found += group
        if len(found) > most:
            found = _covering(found, todo)
            most = max(LEAST_KEPT, 2 * len(found))
    return _covering(found, todo)


def _covering(entries: list[Entry], todo: Excess) -> list[Entry]:
    entries.sort()
    for number, entry in enumerate(entries):
        if not todo:
            return entries[:number]
        todo = todo.without(entry)
    return entries
