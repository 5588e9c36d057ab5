"""The end of data: deleted files, slices without references, slices a compaction replaced.

State a crash leaves: an entry in delfiles whose chunks are partly gone, slices whose reference
count is 0 with or without blocks. The hourly job of any client goes on with either.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from errno import ENOENT
from functools import partial

from juicepy.concurrency import Workers
from juicepy.meta.engine import DelayedSlices, MetaEngine
from juicepy.meta.ops import data
from juicepy.meta.tx import Ref, Tx
from juicepy.types import Inode, SliceId

logger = logging.getLogger(__name__)

DeleteSlice = Callable[[SliceId, int], None]

_CLOSE_S = 10.0  # what is not deleted by then is left to the hourly job of any client
_FILES_AT_ONCE = 10_000
_WAITING = 1000  # files that wait for a worker


class Deleter:
    """Deletes data in the background; `delete_slice(id, size)` removes a slice's blocks."""

    def __init__(self, engine: MetaEngine, threads: int) -> None:
        self._engine = engine
        self.delete_slice: DeleteSlice | None = None
        self._workers = Workers("delete", threads)
        self._room = threading.Semaphore(_WAITING)
        self._stopping = threading.Event()

    def later(self, ino: Inode, length: int) -> None:
        """Delete a file's data soon; a failure leaves it to the hourly job.

        Who removes files faster than the workers do this has to lend a hand.
        """
        if self.delete_slice is None or self._stopping.is_set():
            return
        if self._room.acquire(blocking=False):
            self._workers.run(self._waited, ino, length)
        else:
            self._file_quietly(ino, length)

    def _waited(self, ino: Inode, length: int) -> None:
        self._room.release()
        self._file_quietly(ino, length)

    def _file_quietly(self, ino: Inode, length: int) -> None:
        if self._stopping.is_set():
            return
        try:
            self.file(ino, length)
        except OSError as error:
            logger.warning("data of deleted inode %d is left for later: %s", ino, error)

    def file(self, ino: Inode, length: int) -> None:
        """Delete the chunks of a deleted file, then its entry in delfiles."""
        for index in self._engine.chunk_indexes(ino, length):
            _, done = self._engine.transact(partial(_drop_chunk, ino, index))
            self.slices([ref for ref, left in done.refs.items() if left <= 0])
        self._engine.transact(lambda tx: tx.delete_done(ino, length))

    def slices(self, refs: list[Ref]) -> None:
        """Remove blocks, then the records, of slices without references."""
        if self.delete_slice is None:
            return
        for ref in refs:
            self.delete_slice(*ref)
            self._engine.forget_slice(ref)

    # -- hourly jobs, see Jobs in background.py for their guards
    def old_files(self, older_s: int = 3600) -> int:
        files = self._engine.deleted_files(int(time.time()) - older_s, _FILES_AT_ONCE)
        for file in files:
            if self._stopping.is_set():
                break
            self._file_quietly(file.ino, file.length)
        return len(files)

    def unreferenced(self) -> int:
        refs = self._engine.unreferenced(_FILES_AT_ONCE)
        for ref in refs:
            if self._stopping.is_set():
                break
            self.slices([ref])
        return len(refs)

    def delayed(self, before_s: int) -> int:
        """Slices whose time in the trash is over."""
        found = self._engine.delayed_slices(before_s, _FILES_AT_ONCE)
        for item in found:
            if self._stopping.is_set():
                break
            try:
                _, done = self._engine.transact(partial(_drop_delayed, item))
            except OSError as error:
                if error.errno != ENOENT:
                    raise
                continue  # another client was first
            self.slices([ref for ref, left in done.refs.items() if left <= 0])
        return len(found)

    def close(self) -> None:
        """Give what is queued a moment; the rest is on record and some client will do it."""
        timer = threading.Timer(_CLOSE_S, self._stopping.set)
        timer.daemon = True
        timer.start()
        self._workers.close()
        timer.cancel()
        self._stopping.set()


def _drop_chunk(ino: Inode, index: int, tx: Tx) -> None:
    data.delete_chunk(tx, ino, index)


def _drop_delayed(item: DelayedSlices, tx: Tx) -> None:
    data.release_delayed(tx, item)
