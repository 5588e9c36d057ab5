"""The local copy of an open file, and what becomes of it when the file changes.

The kernel may read a copy by itself (passthrough) and cannot be told to stop while the file is
open. So a copy that it got goes on as a **mirror**: it leaves the cache, and is given every change
that this client makes, or finds made by others. A copy that only we read is just let go.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from juicepy.types import CHUNK_BITS, CHUNK_SIZE, Buffer, Inode, Slice

if TYPE_CHECKING:
    from juicepy.vfs.whole import Views, WholeFileMode

logger = logging.getLogger(__name__)

ZEROS = bytes(1 << 20)


class LocalCopy:
    """A file's content in a local file, closed when nobody holds it any more."""

    def __init__(
        self, whole: WholeFileMode, ino: Inode, name: str, fd: int, length: int, views: Views
    ) -> None:
        self.fd, self.length = fd, length
        self._whole, self._ino, self._name, self._views = whole, ino, name, views
        self._is_private = False
        self._written: list[tuple[int, int]] = []  # (begin, end) not known to be committed

    def __del__(self) -> None:
        os.close(self.fd)

    def read(self, offset: int, size: int) -> list[Buffer]:
        data = os.pread(self.fd, max(0, min(size, self.length - offset)), offset)
        return [data] if data else []

    # -- mirroring
    def write(self, offset: int, data: memoryview) -> None:
        self._leave_cache()
        self._written.append((offset, offset + len(data)))
        write_all(self.fd, data, offset)

    def follow(self, length: int) -> None:
        """Become what the committed slices of the file make now. OSError."""
        self._leave_cache()
        views = self._whole.views(self._ino, length)
        written = {index for span in self._written for index in _chunks(*span)}
        for index in views.keys() | self._views.keys() | written:
            self._follow_chunk(index, views.get(index, []), length)
        os.ftruncate(self.fd, length)
        self.length, self._views, self._written = length, views, []

    def _follow_chunk(self, index: int, view: list[Slice], length: int) -> None:
        base = index << CHUNK_BITS
        before = self._views.get(index, [])
        doubtful = [(begin - base, end - base) for begin, end in self._written]
        stale = doubtful + [(old.pos, old.pos + old.length) for old in before]
        known = set(before)
        at = 0
        for piece in view:
            self._clear(base, at, piece.pos, stale)
            at = piece.pos + piece.length
        self._clear(base, at, max(0, min(CHUNK_SIZE, length - base)), stale)
        fresh = [
            piece
            for piece in view
            if piece not in known or _meets(doubtful, piece.pos, piece.pos + piece.length)
        ]
        self._whole.lay(self.fd, index, fresh)

    def _clear(self, base: int, begin: int, end: int, stale: list[tuple[int, int]]) -> None:
        """Zeros in a hole of the chunk at `base`, if something may stand there."""
        if not _meets(stale, begin, end):
            return
        while begin < end:
            size = min(end - begin, len(ZEROS))
            write_all(self.fd, memoryview(ZEROS)[:size], base + begin)
            begin += size

    def _leave_cache(self) -> None:
        if not self._is_private:
            self._is_private = True
            self._whole.files.discard(self._name)


def write_all(fd: int, data: memoryview, offset: int) -> None:
    """pwrite(2) until nothing is left."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)


def _meets(spans: list[tuple[int, int]], begin: int, end: int) -> bool:
    return any(first < end and begin < last for first, last in spans)


def _chunks(begin: int, end: int) -> range:
    return range(begin >> CHUNK_BITS, (max(end, begin + 1) - 1 >> CHUNK_BITS) + 1)


class CopyHolder:
    """The local copy of an open file, if it has one. Thread-safe."""

    def __init__(self, ino: Inode) -> None:
        self._ino = ino
        self._copy: LocalCopy | None = None
        self._is_current = False
        self._is_mirror = False  # the kernel may have it
        self._order = threading.RLock()  # guards the above; held over what changes a mirror

    @property
    def current(self) -> LocalCopy | None:
        """The copy, while it is what the file is."""
        return self._copy if self._is_current else None

    def take(self, copy: LocalCopy) -> None:
        """Read from `copy` from now on. A mirror stays, as the kernel knows no other."""
        with self._order:
            if not self._is_mirror:
                self._copy, self._is_current = copy, True

    def offer(self) -> int | None:
        """The current copy's descriptor for the kernel; the copy is a mirror then."""
        with self._order:
            if self._copy is None or not self._is_current:
                return None
            self._is_mirror = True
            return self._copy.fd

    @contextmanager
    def writing(self, offset: int, data: memoryview) -> Iterator[None]:
        """Around a write to the file, which the mirror then has too, in the same order."""
        if not self._is_mirror:
            yield
            if self._copy is not None:
                self._wrote(offset, data)
            return
        with self._order:
            yield
            self._wrote(offset, data)

    def _wrote(self, offset: int, data: memoryview) -> None:
        with self._order:
            if self._let_go():
                return
            assert self._copy is not None
            try:
                self._copy.write(offset, data)
            except OSError as error:
                self._complain(error)

    def changed(self, length: int, flush: Callable[[], None] = lambda: None) -> None:
        """The committed slices are others now, and the file has `length` bytes.

        What is written here and not committed would be lost to a mirror: `flush` commits it.
        """
        if self._copy is None:
            return
        with self._order:
            if self._let_go():
                return
            assert self._copy is not None
            flush()
            try:
                self._copy.follow(length)
            except OSError as error:
                self._complain(error)

    def _let_go(self) -> bool:
        """The copy is old. True if that is all; False if it is a mirror and has to follow."""
        self._is_current = False
        if not self._is_mirror:
            self._copy = None
        return self._copy is None

    def _complain(self, error: OSError) -> None:
        logger.error(
            "readers that have inode %d open see it as it was before a change: %s", self._ino, error
        )
