"""Answers of the metadata engine that are believed for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from juicepy.concurrency import Lock

_LIMIT = 1000  # answers; one may have 64 KiB

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """What was read within the last `keep_s` seconds. Thread-safe.

    Whoever changes what an answer tells calls `forget` after the change and before saying that
    it is done: later calls of `get` then find the change.
    """

    def __init__(self, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s, self._clock = keep_s, clock
        self._lock = Lock("recent")  # guards both
        self._known: dict[K, tuple[float, V]] = {}
        self._changes = 0

    def get(self, key: K, read: Callable[[], V]) -> V:
        """The answer for `key`, from `read` if it is not known."""
        now_s = self._clock()
        known = self._known.get(key)
        if known is not None and now_s < known[0]:
            return known[1]
        changes = self._changes
        value = read()
        with self._lock:
            if changes == self._changes:  # else it may be older than a change
                if len(self._known) >= _LIMIT:
                    self._known.clear()
                self._known[key] = (now_s + self._keep_s, value)
        return value

    def forget(self, key: K) -> None:
        with self._lock:
            self._changes += 1
            self._known.pop(key, None)
