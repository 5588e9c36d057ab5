"""Counts and times of the requests that reach a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from juicepy.object.storage import ObjectInfo, ObjectStorage
from juicepy.types import Buffer

R = TypeVar("R")

Observe = Callable[[str, float, int, OSError | None], None]
"""Called after every request: (GET PUT DELETE HEAD LIST, seconds, bytes moved, its error)."""


class Metered:
    """`inner` that tells `observe` of every request. A missing object is an error like any."""

    def __init__(self, inner: ObjectStorage, observe: Observe) -> None:
        self.inner = inner
        self._observe = observe

    def __str__(self) -> str:
        return str(self.inner)

    def get(self, key: str, off: int = 0, size: int | None = None) -> bytes:
        start = time.perf_counter()
        try:
            data = self.inner.get(key, off, size)
        except OSError as error:
            self._observe("GET", time.perf_counter() - start, 0, error)
            raise
        self._observe("GET", time.perf_counter() - start, len(data), None)
        return data

    def put(self, key: str, data: Buffer) -> None:
        self._timed("PUT", len(data), lambda: self.inner.put(key, data))

    def delete(self, key: str) -> None:
        self._timed("DELETE", 0, lambda: self.inner.delete(key))

    def head(self, key: str) -> ObjectInfo:
        return self._timed("HEAD", 0, lambda: self.inner.head(key))

    def list_from(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """One LIST is counted, timed up to its first object; the rest depends on the caller."""
        found = self.inner.list_from(prefix, after)
        first = self._timed("LIST", 0, lambda: next(found, None))
        if first is not None:
            yield first
            yield from found

    def create(self) -> None:
        self.inner.create()

    def close(self) -> None:
        self.inner.close()

    def _timed(self, method: str, size: int, call: Callable[[], R]) -> R:
        start = time.perf_counter()
        try:
            result = call()
        except OSError as error:
            self._observe(method, time.perf_counter() - start, 0, error)
            raise
        self._observe(method, time.perf_counter() - start, size, None)
        return result
