"""Driver `mem`: objects in the memory of this process, gone with it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from juicepy.concurrency import Lock
from juicepy.errors import ObjectNotFound
from juicepy.object.storage import ObjectInfo
from juicepy.object.target import Target
from juicepy.types import Buffer


def open_mem(target: Target) -> MemoryStorage:
    return MemoryStorage(target.bucket)


class MemoryStorage:
    """ObjectStorage in a dictionary."""

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._lock = Lock("mem_objects")  # guards the listing against changes
        self._objects: dict[str, tuple[bytes, int]] = {}

    def __str__(self) -> str:
        return f"mem://{self._name.strip('/')}/" if self._name else "mem://"

    def get(self, key: str, off: int = 0, size: int | None = None) -> bytes:
        data = self._load(key)[0]
        if off == 0 and (size is None or size >= len(data)):
            return data
        return data[off:] if size is None else data[off : off + max(size, 0)]

    def put(self, key: str, data: Buffer) -> None:
        with self._lock:
            self._objects[key] = (bytes(data), time.time_ns())

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(key, None)

    def head(self, key: str) -> ObjectInfo:
        data, mtime_ns = self._load(key)
        return ObjectInfo(key, len(data), mtime_ns)

    def list_from(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        with self._lock:
            keys = [key for key in self._objects if key.startswith(prefix) and key > after]
        for key in sorted(keys):
            found = self._objects.get(key)
            if found is not None:
                yield ObjectInfo(key, len(found[0]), found[1])

    def create(self) -> None:
        """There is nothing to make."""

    def close(self) -> None:
        with self._lock:
            self._objects.clear()

    def _load(self, key: str) -> tuple[bytes, int]:
        found = self._objects.get(key)
        if found is None:
            raise ObjectNotFound(key)
        return found
