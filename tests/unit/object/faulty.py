"""A storage that fails as it is told."""

from __future__ import annotations

from collections.abc import Iterator

from juicepy.object.mem import MemoryStorage
from juicepy.object.storage import ObjectInfo
from juicepy.types import Buffer


class Faulty:
    """A memory storage; each call takes the next of `failures` and raises it if it is an error."""

    def __init__(self, *failures: OSError | None) -> None:
        self.objects = MemoryStorage("faulty")
        self.failures = list(failures)
        self.calls: list[tuple[str, str]] = []
        self.closed = False

    def __str__(self) -> str:
        return "faulty://"

    def get(self, key: str, off: int = 0, size: int | None = None) -> bytes:
        self._call("get", key)
        return self.objects.get(key, off, size)

    def put(self, key: str, data: Buffer) -> None:
        self._call("put", key)
        self.objects.put(key, data)

    def delete(self, key: str) -> None:
        self._call("delete", key)
        self.objects.delete(key)

    def head(self, key: str) -> ObjectInfo:
        self._call("head", key)
        return self.objects.head(key)

    def list_from(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Fails before any of its objects, each of which takes one of `failures`."""
        for found in self.objects.list_from(prefix, after):
            self._call("list", found.key)
            yield found

    def create(self) -> None:
        self._call("create", "")

    def close(self) -> None:
        self.closed = True

    def _call(self, name: str, key: str) -> None:
        self.calls.append((name, key))
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
