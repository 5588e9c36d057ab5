"""Unwritten data of all open files: how much there may be, and what becomes of it with time."""

from __future__ import annotations

import errno
import logging
import threading
from typing import Protocol

from juicepy.concurrency import Lock
from juicepy.types import Inode

logger = logging.getLogger(__name__)

TICK_S = 0.5


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
    """The dirty bytes of a mount, at most `limit_bytes`; made by `start`, ended by `close`.

    A thread looks at the dirty files twice a second, and at once when writers have to wait.
    """

    def __init__(self, limit_bytes: int, wait_timeout_s: float = 660.0) -> None:
        self._limit_bytes, self._wait_timeout_s = limit_bytes, wait_timeout_s
        self._room = threading.Condition()  # guards _used, _uploading, _waiting
        self._used = 0
        self._uploading = 0  # of _used: will be given back without our doing
        self._waiting: list[int] = []  # sizes asked for
        self._lock = Lock("write_buffers")  # guards _dirty
        self._dirty: dict[int, DirtyFile] = {}
        self._wake = threading.Event()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="writeback", daemon=True)

    def start(self) -> WriteBuffers:
        self._thread.start()
        return self

    # -- the limit
    def used_bytes(self) -> int:
        return self._used

    def take(self, size: int) -> None:
        """Count `size` bytes as dirty; waits while there is no room, EIO if that takes too long."""
        with self._room:
            if not self._fits_locked(size):
                self._wait_locked(size)
            self._used += size

    def _fits_locked(self, size: int) -> bool:
        return not self._used or self._used + size <= self._limit_bytes

    def _wait_locked(self, size: int) -> None:
        self._waiting.append(size)
        try:
            self._wake.set()
            has_room = self._room.wait_for(lambda: self._fits_locked(size), self._wait_timeout_s)
        finally:
            self._waiting.remove(size)
        if not has_room:
            raise OSError(errno.EIO, "the write buffer stays full: data cannot be uploaded")

    def note_uploading(self, size: int) -> None:
        """`size` of the bytes taken are on their way, whoever waits for room."""
        with self._room:
            self._uploading += size

    def give_back(self, size: int, *, uploaded: bool) -> None:
        """The end of `size` bytes; `uploaded` if they were noted as uploading."""
        with self._room:
            self._used -= size
            if uploaded:
                self._uploading -= size
            if self._waiting:
                self._room.notify_all()
                if not self._uploading:
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
        with self._room:
            if not self._waiting or self._uploading:
                return False
            return not any(self._fits_locked(size) for size in self._waiting)

    def _round(self, *, force: bool) -> None:
        for file in self._snapshot():
            if not file.advance(force=force):
                self._forget(file)

    def _forget(self, file: DirtyFile) -> None:
        with self._lock:
            self._dirty.pop(id(file), None)
        if file.advance(force=False):  # became dirty between the two
            self.note_dirty(file)
