"""Whole-file mode: an open brings the file onto this machine, and reads are from there.

A copy is made of the committed slices of a file, and its name tells which they are, so the copy of
an unchanged file is found again by every later open, also after a restart.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from concurrent.futures import Future

from juicepy.cache.whole import WholeFiles
from juicepy.chunk import overlay
from juicepy.chunk.store import BlockStore, Part
from juicepy.concurrency import Lock, Workers
from juicepy.meta.client import MetaClient
from juicepy.types import CHUNK_BITS, CHUNK_SIZE, Inode, Slice
from juicepy.vfs.local_copy import LocalCopy, write_all

logger = logging.getLogger(__name__)

Views = Mapping[int, list[Slice]]  # chunk -> what is seen of its slices, without holes


class WholeFileMode:
    """Brings files here: one at a time for all who open it, its blocks beside each other."""

    def __init__(
        self, meta: MetaClient, store: BlockStore, files: WholeFiles, minimum: int = 0
    ) -> None:
        """Files shorter than `minimum` bytes are left to the block cache."""
        self.files = files
        self._meta, self._store, self._minimum = meta, store, minimum
        fair = store.options.buffer_size // 2 // store.block_size
        self._workers = Workers("whole-file", max(1, min(store.options.max_downloads, fair)))
        self._lock = Lock("whole_file_flights")  # guards _flights
        self._flights: dict[str, Future[None]] = {}

    def close(self) -> None:
        self._workers.close(cancel=True)

    def copy_of(self, ino: Inode, length: int) -> LocalCopy | None:
        """The copy of a file of `length` bytes, made if there is none.

        None if the file is too short, does not fit, or cannot be brought here: it is then read
        block by block, and whoever reads is told what is wrong.
        """
        if length < max(1, self._minimum):
            return None
        try:
            views = self.views(ino, length)
            name = _name(ino, length, views)
            fd = self.files.open(name)
            if fd is None:
                self._bring(name, length, views)
                fd = self.files.open(name)
        except OSError as error:
            logger.info("inode %d is read block by block: %s", ino, error)
            return None
        return None if fd is None else LocalCopy(self, ino, name, fd, length, views)

    def views(self, ino: Inode, length: int) -> dict[int, list[Slice]]:
        """What is seen of the committed slices below `length`, without holes."""
        found = {}
        for index, slices in self._meta.all_slices(ino, length).items():
            end = min(CHUNK_SIZE, length - (index << CHUNK_BITS))
            view = [piece for piece in overlay.build(slices, 0, end) if piece.id]
            if view:
                found[index] = view
        return found

    def lay(self, fd: int, index: int, view: list[Slice]) -> None:
        """Write the pieces of a chunk to their places in the file. OSError after all have ended."""
        self._wait(self._start(fd, index, view))

    def _bring(self, name: str, length: int, views: Views) -> None:
        """Make the copy, or wait until another opener has made it. OSError."""
        with self._lock:
            flight = self._flights.get(name)
            is_mine = flight is None
            if flight is None:
                flight = self._flights[name] = Future()
        if not is_mine:
            flight.result()
            return
        try:
            with self.files.make(name, length) as fd:
                self._wait(
                    [task for index in views for task in self._start(fd, index, views[index])]
                )
        except BaseException as error:
            self._land(name)
            flight.set_exception(error)
            raise
        self._land(name)
        flight.set_result(None)

    def _land(self, name: str) -> None:
        with self._lock:
            del self._flights[name]

    def _start(self, fd: int, index: int, view: list[Slice]) -> list[Future[None]]:
        """One task for each block of the pieces."""
        tasks = []
        for piece in view:
            done = 0
            while done < piece.length:
                off = piece.off + done
                size = min(
                    piece.length - done, self._store.block_size - off % self._store.block_size
                )
                where = (index << CHUNK_BITS) + piece.pos + done
                part = Part(piece.id, piece.size, off, size)
                tasks.append(self._workers.submit(self._put, fd, where, part))
                done += size
        return tasks

    def _put(self, fd: int, where: int, part: Part) -> None:
        with self._store.reading_through(part) as data:
            write_all(fd, memoryview(data), where)

    @staticmethod
    def _wait(tasks: list[Future[None]]) -> None:
        """Return when all have ended, as their descriptor may be closed then; the first error."""
        errors = [error for task in tasks if (error := task.exception())]
        if errors:
            raise errors[0]


def _name(ino: Inode, length: int, views: Views) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for index in sorted(views):
        for piece in views[index]:
            record = (index, piece.pos, piece.id, piece.off, piece.length)
            digest.update(repr(record).encode())
    return f"{ino}_{length}_{digest.hexdigest()}"
