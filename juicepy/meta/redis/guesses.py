"""Raw values this client saw or wrote of late. They may be out of date: a commit verifies them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

from juicepy.concurrency import Lock
from juicepy.types import Inode

Name = tuple[Inode, bytes]  # (directory, name)
K = TypeVar("K")
V = TypeVar("V")

_LIMIT = 100_000


class Guesses:
    """Bounded memory of attribute records and entries.

    A name nobody remembers is guessed to be free, which creation needs; a body that fails for it
    is run again with what the server says.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._lock = Lock("redis guesses")  # guards changes; lookups need none
        self._attrs: dict[Inode, bytes] = {}
        self._entries: dict[Name, bytes] = {}

    def attr(self, ino: Inode) -> bytes | None:
        return self._attrs.get(ino)

    def entry(self, parent: Inode, name: bytes) -> bytes | None:
        return self._entries.get((parent, name))

    def learn(
        self,
        attrs: Iterable[tuple[Inode, bytes | None]] = (),
        entries: Iterable[tuple[Name, bytes | None]] = (),
    ) -> None:
        """Remember values; what is absent (None) is forgotten."""
        with self._lock:
            _update(self._attrs, attrs)
            _update(self._entries, entries)
            _shrink(self._attrs, self._limit)
            _shrink(self._entries, self._limit)

    def forget(self) -> None:
        with self._lock:
            self._attrs.clear()
            self._entries.clear()


def _update(values: dict[K, bytes], news: Iterable[tuple[K, bytes | None]]) -> None:
    for key, new in news:
        if new is None:
            values.pop(key, None)
        else:
            values[key] = new


def _shrink(values: dict[K, V], limit: int) -> None:
    """Drop what was learned first."""
    excess = len(values) - limit
    if excess > 0:
        for key in list(islice(values, excess + limit // 8)):
            del values[key]
