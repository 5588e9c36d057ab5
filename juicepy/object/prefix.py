"""Objects of one volume: every key begins with its name and a slash."""

from __future__ import annotations

from collections.abc import Iterator

from juicepy.object.storage import ObjectInfo, ObjectStorage
from juicepy.types import Buffer


class Prefixed:
    """`inner` seen below `prefix`. Errors name the whole key."""

    def __init__(self, inner: ObjectStorage, prefix: str) -> None:
        self.inner = inner
        self._prefix = prefix

    def __str__(self) -> str:
        return f"{self.inner}{self._prefix}"

    def get(self, key: str, off: int = 0, size: int | None = None) -> bytes:
        return self.inner.get(self._prefix + key, off, size)

    def put(self, key: str, data: Buffer) -> None:
        self.inner.put(self._prefix + key, data)

    def delete(self, key: str) -> None:
        self.inner.delete(self._prefix + key)

    def head(self, key: str) -> ObjectInfo:
        return self._stripped(self.inner.head(self._prefix + key))

    def list_from(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        whole_after = self._prefix + after if after else ""
        for found in self.inner.list_from(self._prefix + prefix, whole_after):
            yield self._stripped(found)

    def create(self) -> None:
        self.inner.create()

    def close(self) -> None:
        self.inner.close()

    def _stripped(self, found: ObjectInfo) -> ObjectInfo:
        return ObjectInfo(found.key[len(self._prefix) :], found.size, found.mtime_ns)
