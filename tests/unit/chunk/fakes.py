"""An object store in memory that counts, waits and fails when told to."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator

from juicepy.errors import ObjectNotFound
from juicepy.object.storage import ObjectInfo
from juicepy.types import Buffer


class FaultyStorage:
    """`before(method, key)` runs ahead of each call and may raise or wait."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.calls: list[tuple[str, str, int, int | None]] = []
        self.before: Callable[[str, str], None] = lambda method, key: None
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return "faulty://"

    def _call(self, method: str, key: str, off: int = 0, size: int | None = None) -> None:
        with self._lock:
            self.calls.append((method, key, off, size))
        self.before(method, key)

    def count(self, method: str) -> int:
        with self._lock:
            return sum(1 for call in self.calls if call[0] == method)

    def get(self, key: str, off: int = 0, size: int | None = None) -> bytes:
        self._call("get", key, off, size)
        if key not in self.objects:
            raise ObjectNotFound(key)
        data = self.objects[key]
        return data[off:] if size is None else data[off : off + size]

    def put(self, key: str, data: Buffer) -> None:
        self._call("put", key)
        self.objects[key] = bytes(data)

    def delete(self, key: str) -> None:
        self._call("delete", key)
        self.objects.pop(key, None)

    def head(self, key: str) -> ObjectInfo:
        self._call("head", key)
        if key not in self.objects:
            raise ObjectNotFound(key)
        return ObjectInfo(key, len(self.objects[key]), 0)

    def list_from(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > after:
                yield ObjectInfo(key, len(self.objects[key]), 0)

    def create(self) -> None:
        return None

    def close(self) -> None:
        return None


def failing(methods: str, code: int = errno.EIO) -> Callable[[str, str], None]:
    """A `before` that fails the methods named in `methods`."""

    def before(method: str, key: str) -> None:
        if method in methods.split():
            raise OSError(code, "injected", key)

    return before
