"""Filling the kernel's page cache: what is read here and there is given to it by whole blocks.

Small reads that jump about in a file cost a request each, and the kernel reads nothing ahead of
them. Once some of them fell into the same block, and its bytes are on this machine, the block is
pushed to the kernel (NOTIFY_STORE): further reads of it need no request. A block is pushed once
while the file is open, so that at most the file itself is read in excess.

The kernel believes what is pushed, contents and length. So nothing may be pushed that is from
before a change: files that are open for writing here are left alone, whoever changes or truncates
one waits for the push under way (`stop`), and if others were found to have changed it meanwhile,
what was pushed is dropped again.

A push waits for pages that are locked by a READ or a WRITE under way: so it has a thread of its
own, and those two operations never wait for it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import Protocol

from juicepy.types import Buffer, Inode
from juicepy.vfs.api import PageStore

logger = logging.getLogger(__name__)

SMALL = 64 << 10  # bytes: to push a block costs as much as some dozens of larger reads
HITS = 3  # jumps into a block until it is pushed
WINDOW = 256  # blocks of a file among which hits are counted: those of larger files do not meet
QUEUE = 64  # blocks that wait; what comes on top is left to ordinary reads
PIECE = 1 << 20  # bytes of one message
STOP_WAIT_S = 10.0


class Scattered:
    """Counts the small reads of one file that do not continue the one before. Thread-safe."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._lock = threading.Lock()  # guards what follows
        self._hits: OrderedDict[int, tuple[int, int]] = OrderedDict()  # jumps, end of the last
        self._done: set[int] = set()

    def note(self, offset: int, size: int) -> int | None:
        """A read happens; the index of its block if that is worth pushing and not `done`."""
        index = offset // self._block_size
        if size > SMALL or index in self._done:
            return None
        with self._lock:
            jumps, end = self._hits.pop(index, (0, -1))
            jumps += offset != end
            self._hits[index] = jumps, offset + size
            if len(self._hits) > WINDOW:
                self._hits.popitem(last=False)
        return index if jumps >= HITS else None

    def done(self, index: int) -> bool:
        """Whether it was not done before: whoever is told so has it pushed."""
        with self._lock:
            if index in self._done:
                return False
            self._hits.pop(index, None)
            self._done.add(index)
            return True


class Pushable(Protocol):
    """An open file.

    `content_epoch` changes whenever its bytes or length may have; None while it must not be pushed.
    """

    ino: Inode
    length: int

    @property
    def content_epoch(self) -> int | None: ...

    def peek(self, offset: int, size: int) -> list[Buffer] | None:
        """The bytes as `read` gives them if they are all on this machine, else None."""


class PageFiller:
    """Pushes blocks from a thread that starts with the first. `close` before the mount ends."""

    def __init__(self, kernel: PageStore, block_size: int) -> None:
        self._kernel, self._block_size = kernel, block_size
        self._changed = threading.Condition()  # guards what follows
        self._queue: OrderedDict[tuple[Inode, int], Pushable] = OrderedDict()
        self._busy: Inode | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def want(self, file: Pushable, index: int) -> None:
        """Push that block of the file soon; waits for nothing."""
        with self._changed:
            if self._is_closed or len(self._queue) >= QUEUE:
                return
            self._queue[file.ino, index] = file
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="page-fill", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def stop(self, ino: Inode) -> None:
        """Return when nothing of the file is being pushed any more. Never call it in READ, WRITE.

        What is pushed later is as the file was later.
        """
        if self._thread is None:
            return
        with self._changed:
            for key in [key for key in self._queue if key[0] == ino]:
                del self._queue[key]
            if not self._changed.wait_for(lambda: self._busy != ino, STOP_WAIT_S):
                logger.warning("pages of inode %d are still being pushed", ino)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._queue.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(STOP_WAIT_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._is_closed)
                if self._is_closed:
                    return
                (ino, index), file = self._queue.popitem(last=False)
                self._busy = ino
            try:
                self._push(file, index * self._block_size)
            except OSError as error:  # whoever reads the block is told
                logger.debug("pages of inode %d: %s", ino, error)
            except Exception:
                logger.exception("pages of inode %d could not be pushed", ino)

    def _push(self, file: Pushable, offset: int) -> None:
        epoch = file.content_epoch
        size = min(self._block_size, file.length - offset)
        if epoch is None or size <= 0:
            return
        pieces = file.peek(offset, size)
        if pieces is None:
            return
        at = offset
        for piece in pieces:
            view = memoryview(piece)
            for begin in range(0, len(view), PIECE):
                if file.content_epoch != epoch or self._is_closed:
                    break
                self._kernel.store(file.ino, at + begin, view[begin : begin + PIECE])
            at += len(view)
        if file.content_epoch != epoch:
            self._kernel.inval_inode(file.ino, offset, size)
