"""Which of several cache directories holds a block: the ring all clients share (spec cache.md)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import mmh3

POINTS = 100  # of a member, before the shares are evened out
ROUNDS = 5
DAMPING = 0.75
CIRCLE = 1 << 32


class Ring:
    """A weighted consistent-hash ring over members' ids; a key belongs to a member's number."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = list(ids)
        points = [POINTS] * len(ids)
        self._place(points)
        if len(ids) > 1:
            for _ in range(ROUNDS):
                if not self._even_out(points):
                    break
                self._place(points)

    def member(self, key: str) -> int:
        """The number of the member that owns `key`: of the first point at or behind its hash."""
        at = bisect_left(self._hashes, hash_of(key))
        return self._owners[at if at < len(self._hashes) else 0]

    def _place(self, points: Sequence[int]) -> None:
        ring = sorted(
            (hash_of(f"{number}{ident}"), member)
            for member, ident in enumerate(self._ids)
            for number in range(points[member])
        )
        self._hashes = [point for point, _ in ring]
        self._owners = [member for _, member in ring]

    def _even_out(self, points: list[int]) -> bool:
        """Give more points to members that own too little of the circle; whether any changed."""
        expected = 1 / len(points)
        has_changed = False
        for member, share in enumerate(self._shares()):
            change = int(points[member] * (expected - share) / expected * DAMPING)
            if change != 1:
                points[member] += change
                has_changed = True
        return has_changed

    def _shares(self) -> list[float]:
        shares = [0] * len(self._ids)
        before = self._hashes[-1] - CIRCLE
        for point, member in zip(self._hashes, self._owners, strict=True):
            shares[member] += point - before
            before = point
        return [share / CIRCLE for share in shares]


def hash_of(text: str) -> int:
    """MurmurHash3, 32 bits, seed 0."""
    value: int = mmh3.hash(text, 0, signed=False)
    return value


def legacy_member(key: str, count: int) -> int:
    """Where clients without a ring kept `key`: FNV-1, 32 bits, over the sorted directories."""
    value = 0x811C9DC5
    for byte in key.encode():
        value = (value * 0x01000193 & 0xFFFFFFFF) ^ byte
    return value % count
