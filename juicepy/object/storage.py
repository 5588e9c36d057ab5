"""The protocol of an object store, and the small protocols of what only some can do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from juicepy.types import Buffer


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    size: int
    mtime_ns: int


class ObjectStorage(Protocol):
    """Named bytes, written whole and never changed. Thread-safe; every call may be repeated.

    Raises ObjectNotFound (ENOENT), EACCES (403), ENOSPC (disk full), ETIMEDOUT, EIO; nothing else.
    """

    def __str__(self) -> str:
        """Where it is, without credentials: `s3://bucket/name/`."""

    def get(self, key: str, off: int = 0, size: int | None = None) -> bytes:
        """Bytes [off, off+size) or to the end; short or empty beyond the end."""

    def put(self, key: str, data: Buffer) -> None:
        """Store whole; readers see the old or the new object, never a part."""

    def delete(self, key: str) -> None:
        """Absent is fine."""

    def head(self, key: str) -> ObjectInfo: ...

    def list_from(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Objects whose key begins with `prefix` and is > `after`, in key order."""

    def create(self) -> None:
        """Make the bucket or directory if it is absent."""

    def close(self) -> None: ...


@runtime_checkable
class Durable(Protocol):
    """A storage whose puts return before the data is on the disk."""

    def sync(self) -> None:
        """Return when all that was put before survives a power cut. EIO, ENOSPC."""


@runtime_checkable
class Wrapper(Protocol):
    """A storage around another."""

    inner: ObjectStorage


A = TypeVar("A")


def ability(storage: ObjectStorage, protocol: type[A]) -> A | None:
    """The storage, or the one it wraps, that can do `protocol`; None if none can."""
    if isinstance(storage, protocol):
        return storage
    if isinstance(storage, Wrapper):
        return ability(storage.inner, protocol)
    return None
