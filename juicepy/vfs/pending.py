"""Slices that are not committed yet, and the uploads of their blocks."""

from __future__ import annotations

import errno
import logging
from concurrent.futures import Future

from juicepy.chunk.store import BlockStore
from juicepy.types import CHUNK_BITS, BlockKey, SliceId
from juicepy.vfs.buffers import WriteBuffers
from juicepy.vfs.tails import Tail

logger = logging.getLogger(__name__)


class OpenSlice:
    """A slice that is not committed. Its `tail` is what no upload has taken yet.

    Once `is_frozen` nothing but `uploads` and `stored` change. Changed under the writer's lock.
    """

    __slots__ = (
        "id", "index", "is_frozen", "mtime_ns", "number", "pos", "sealed", "started_ns", "tail",
        "uploads",
    )  # fmt: skip

    def __init__(
        self, number: int, slice_id: SliceId, index: int, pos: int, now_ns: int, tail: Tail
    ) -> None:
        self.number, self.id, self.index, self.pos = number, slice_id, index, pos
        self.started_ns = self.mtime_ns = now_ns
        self.sealed = 0  # bytes given to uploads
        self.tail = tail
        self.uploads: list[Future[None]] = []
        self.is_frozen = False

    @property
    def length(self) -> int:
        return self.sealed + len(self.tail)

    @property
    def offset(self) -> int:
        return (self.index << CHUNK_BITS) + self.pos


class Upload:
    """One block to be stored, here (`run`) or on a thread for uploads (`start`)."""

    __slots__ = ("_block", "_buffers", "_store", "_tail", "done")

    def __init__(
        self, store: BlockStore, buffers: WriteBuffers, block: BlockKey, tail: Tail
    ) -> None:
        self._store, self._buffers, self._block, self._tail = store, buffers, block, tail
        self.done: Future[None] = Future()
        buffers.note_uploading(block.size)

    def start(self) -> None:
        self._store.upload(self.run)

    def run(self) -> None:
        """Never raises: the outcome is in `done`."""
        try:
            self._store.put(self._block, self._tail.data())
        except Exception as problem:
            error = as_oserror(problem)
            self._end()
            self.done.set_exception(error)
        else:
            self._end()
            self.done.set_result(None)

    def _end(self) -> None:
        self._tail.release()
        self._buffers.give_back(self._block.size, uploaded=True)


def as_oserror(problem: Exception) -> OSError:
    """What the writer is told. What is no OSError is a bug below, but must be reported too."""
    if isinstance(problem, OSError):
        return problem
    logger.error("a block or slice could not be stored", exc_info=problem)
    return OSError(errno.EIO, f"could not be stored: {problem!r}")
