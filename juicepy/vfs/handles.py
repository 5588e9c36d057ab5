"""Handles: their numbers, open virtual files, open directories with their streams of entries."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Generic, Protocol, TypeVar

from juicepy.concurrency import Lock
from juicepy.errors import posix_error
from juicepy.types import Attr, Cred, DirEntry, Fh, Inode

H = TypeVar("H")

Listing = Callable[[bool], Iterator[list[DirEntry]]]  # with attributes? -> pages without . and ..


class Stream(Protocol):
    """An open virtual file."""

    def read(self, cred: Cred, offset: int, size: int) -> bytes: ...


@dataclass(slots=True)
class StreamHandle:
    ino: Inode
    stream: Stream


class DirHandle:
    """An open directory: entries in the order they were first seen, a cookie being a position.

    The names are kept while it is open, so a cookie leads to the same entry again; offset 0 after
    the first reading lists anew. Attributes are kept of the newest two pages only.
    """

    def __init__(self, ino: Inode, list_pages: Listing) -> None:
        self.ino = ino
        self.attr: Attr | None = None  # as last known, for an fstat after its removal
        self._list_pages = list_pages
        # guards all below; held while a page is fetched, which is what threads on one handle want
        self._lock = Lock("open_directory")
        self._entries: list[DirEntry] = []
        self._pages: Iterator[list[DirEntry]] | None = None
        self._bare = 0  # entries before this have no attributes any more
        self._newest = 0  # where the newest page begins

    def stream(self, offset: int, *, plus: bool) -> Iterator[tuple[int, DirEntry]]:
        if offset == 0:
            self._rewind(plus)
        while (entry := self._at(offset)) is not None:
            offset += 1
            yield offset, entry

    def _rewind(self, plus: bool) -> None:
        with self._lock:
            self._entries, self._bare, self._newest = [], 0, 0
            self._pages = self._list_pages(plus)

    def _at(self, position: int) -> DirEntry | None:
        entries = self._entries
        if position < len(entries):
            return entries[position]
        with self._lock:
            while position >= len(self._entries) and self._pages is not None:
                page = next(self._pages, None)
                if page is None:
                    self._pages = None
                else:
                    self._append_locked(page)
            return self._entries[position] if position < len(self._entries) else None

    def _append_locked(self, page: list[DirEntry]) -> None:
        entries = self._entries
        for position in range(self._bare, self._newest):
            old = entries[position]
            if old.attr is not None:  # another thread may look at the old one: replace it
                entries[position] = DirEntry(old.name, old.ino, old.kind)
        self._bare, self._newest = self._newest, len(entries)
        entries.extend(page)


class HandleTable(Generic[H]):
    """Handles by number. Numbers are not used twice. Thread-safe."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._handles: dict[int, H] = {}  # single operations on it are atomic

    def add(self, handle: H) -> Fh:
        fh = Fh(next(self._numbers))
        self._handles[fh] = handle
        return fh

    def get(self, fh: int) -> H:
        """EBADF if there is no such handle."""
        try:
            return self._handles[fh]
        except KeyError:
            raise posix_error(errno.EBADF) from None

    def find(self, fh: int) -> H | None:
        return self._handles.get(fh)

    def remove(self, fh: int) -> H:
        try:
            return self._handles.pop(fh)
        except KeyError:
            raise posix_error(errno.EBADF) from None

    def all(self) -> list[H]:
        return list(self._handles.values())

    def __len__(self) -> int:
        return len(self._handles)


def handle_numbers() -> Iterator[int]:
    """1, 2, ...; `next` on it is atomic."""
    return count(1)
