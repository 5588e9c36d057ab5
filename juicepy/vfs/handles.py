"""Handles: their numbers, open virtual files, open directories with their streams of entries."""

from __future__ import annotations

import errno
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Generic, Protocol, TypeVar

from juicepy.concurrency import Lock
from juicepy.errors import posix_error
from juicepy.types import Attr, Cred, DirEntry, Fh, Inode, Kind

H = TypeVar("H")

Listing = Callable[[bool], Iterator[list[DirEntry]]]  # with attributes? -> pages without . and ..


class Stream(Protocol):
    """An open virtual file."""

    def read(self, cred: Cred, offset: int, size: int) -> bytes: ...


@dataclass(slots=True)
class StreamHandle:
    ino: Inode
    stream: Stream


@dataclass(frozen=True, slots=True)
class _Packed:
    """A page without attributes, in a fifth of the room."""

    names: bytes  # joined by NUL, which no name contains
    inodes: array[int]
    kinds: bytes

    @staticmethod
    def of(page: list[DirEntry]) -> _Packed:
        names = b"\0".join([entry.name for entry in page])
        inodes = array("Q", [entry.ino for entry in page])
        return _Packed(names, inodes, bytes([entry.kind for entry in page]))

    def entries(self) -> list[DirEntry]:
        found = zip(self.names.split(b"\0"), self.inodes, self.kinds, strict=True)
        return [DirEntry(name, Inode(ino), Kind(kind)) for name, ino, kind in found]


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
        self._coming: Iterator[list[DirEntry]] | None = None
        self._begins: list[int] = []  # the first position of each page
        self._pages: list[list[DirEntry] | _Packed] = []
        self._end = 0
        self._unpacked: tuple[int, list[DirEntry]] = (-1, [])  # the packed page used last

    def stream(self, offset: int, *, plus: bool) -> Iterator[tuple[int, DirEntry]]:
        if offset == 0:
            self._rewind(plus)
        while (found := self._page_of(offset)) is not None:
            begin, page = found
            for index in range(offset - begin, len(page)):
                offset += 1
                yield offset, page[index]

    def _rewind(self, plus: bool) -> None:
        with self._lock:
            self._begins, self._pages, self._end, self._unpacked = [], [], 0, (-1, [])
            self._coming = self._list_pages(plus)

    def _page_of(self, position: int) -> tuple[int, list[DirEntry]] | None:
        """The page that holds the position, and where it begins; None behind the last entry."""
        with self._lock:
            while position >= self._end:
                page = next(self._coming, None) if self._coming is not None else None
                if page is None:
                    self._coming = None
                    return None
                self._append_locked(page)
            number = bisect_right(self._begins, position) - 1
            found = self._pages[number]
            if isinstance(found, _Packed):
                if self._unpacked[0] != number:
                    self._unpacked = (number, found.entries())
                found = self._unpacked[1]
            return self._begins[number], found

    def _append_locked(self, page: list[DirEntry]) -> None:
        if len(self._pages) >= 2:
            old = self._pages[-2]
            assert isinstance(old, list)
            self._pages[-2] = _Packed.of(old)
        self._begins.append(self._end)
        self._pages.append(page)
        self._end += len(page)


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


def handle_numbers(worker: int = 0, workers: int = 1) -> Iterator[int]:
    """1, 2, ..., shared among `workers` processes in turn; `next` on it is atomic."""
    return count(1 + worker, workers)
