"""Unwritten data of all open files: what becomes of it with time, and when memory is short."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from juicepy.concurrency import Lock
from juicepy.memory import MemoryBudget
from juicepy.types import Inode
from juicepy.vfs.tails import BlockRoom

logger = logging.getLogger(__name__)

TICK_S = 0.5
IDLE_S = 5.0  # after the last dirty file, memory for blocks is kept so long


class DirtyFile(Protocol):
    """A writer as its buffers see it."""

    ino: Inode

    def advance(self, *, force: bool) -> bool:
        """Freeze what is old (with `force`: all), commit what is uploaded. False: nothing is left.

        Never raises: what fails is kept for the file's next write or flush.
        """

    def flush(self) -> None:
        """Upload and commit all, or raise what failed."""


class WriteBuffers:
    """The dirty files of a mount; made by `start`, ended by `close`.

    A thread looks at them twice a second, and at once when writers have to wait for memory.
    """

    def __init__(
        self, memory: MemoryBudget, block_size: int, wait_timeout_s: float = 660.0
    ) -> None:
        self._memory, self._wait_timeout_s = memory, wait_timeout_s
        self.room = BlockRoom(block_size)
        self._busy_s = 0.0
        self._counts = Lock("uploading")  # guards _uploading
        self._uploading = 0  # dirty bytes that will be given back without our doing
        self._lock = Lock("write_buffers")  # guards _dirty
        self._dirty: dict[int, DirtyFile] = {}
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="writeback", daemon=True)
        memory.when_full = self._wake.set

    def start(self) -> WriteBuffers:
        self._thread.start()
        return self

    # -- the limit
    def used_bytes(self) -> int:
        return self._memory.stats().dirty

    def take(self, size: int) -> None:
        """Count `size` bytes as dirty; waits while there is no room, EIO if that takes too long."""
        self._memory.take(size, self._wait_timeout_s)

    def note_uploading(self, size: int) -> None:
        """`size` of the bytes taken are on their way, whoever waits for room."""
        with self._counts:
            self._uploading += size

    def give_back(self, size: int, *, uploaded: bool) -> None:
        """The end of `size` bytes; `uploaded` if they were noted as uploading."""
        if uploaded:
            with self._counts:
                self._uploading -= size
        self._memory.give_back(size)
        if self._is_stuck():
            self._wake.set()

    # -- the dirty files
    def note_dirty(self, file: DirtyFile) -> None:
        with self._lock:
            self._dirty[id(file)] = file

    def flush_all(self) -> None:
        """Flush every dirty file; raises the first error after all were tried."""
        first: OSError | None = None
        for file in self._snapshot():
            try:
                file.flush()
            except OSError as error:
                logger.error("data of inode %d could not be written: %s", file.ino, error)
                first = first or error
        if first is not None:
            raise first

    def close(self) -> None:
        """End the thread; flush before."""
        self._is_closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(30)

    def _snapshot(self) -> list[DirtyFile]:
        with self._lock:
            return list(self._dirty.values())

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait(TICK_S)
            self._wake.clear()
            try:
                self._round(force=self._is_stuck())
            except Exception:
                logger.exception("writing back failed, next try in %.1f s", TICK_S)

    def _is_stuck(self) -> bool:
        """Somebody waits and no upload will bring room: open slices have to be cut."""
        return self._memory.has_waiting_writer() and not self._uploading

    def _round(self, *, force: bool) -> None:
        now_s, dirty = time.monotonic(), self._snapshot()
        if dirty:
            self._busy_s = now_s
        elif now_s - self._busy_s > IDLE_S:
            self.room.clear()
        for file in dirty:
            if not file.advance(force=force):
                self._forget(file)

    def _forget(self, file: DirtyFile) -> None:
        with self._lock:
            self._dirty.pop(id(file), None)
        if file.advance(force=False):  # became dirty between the two
            self.note_dirty(file)
