"""Whether a disk can be used: what speaks against it, and when to try it again.

A disk is out after `FAILURES` failures of a kind in a row, or when a call on it does not return for
`SLOW_S`. Then nobody waits for it; it is tried again after a pause that doubles with each vain try,
and with each time that it fails again soon.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from juicepy.cache.blockfile import Corrupt
from juicepy.concurrency import Lock

logger = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT)  # no failure: room can be made
FAILURES = 3
SLOW_S = 10.0
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
PROBATION_S = 120.0  # who fails again within it was not really healthy


class DiskHealth:
    """The state of the disk of one cache directory. Thread-safe."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._lock = Lock("disk_health")  # guards the five below
        self._failures: dict[str, int] = {}  # by what: a disk may be readable, but not writable
        self._reason = ""
        self._pause_s = 0.0
        self._due_s = 0.0
        self._back_s = float("-inf")
        self._begun: dict[int, float] = {}  # by thread: its call on the disk

    @property
    def is_out(self) -> bool:
        return bool(self._reason) or self._is_stuck()

    @property
    def reason(self) -> str:
        """Why the disk is out; empty if it is not."""
        return self._reason

    def is_due(self) -> bool:
        """Whether a disk that is out should be tried."""
        return time.monotonic() >= self._due_s

    @contextmanager
    def using(self, what: str) -> Iterator[None]:
        """Around every call on the disk: failures and slowness count, and are raised again."""
        thread, begun_s = threading.get_ident(), time.monotonic()
        self._begun[thread] = begun_s
        try:
            yield
        except (FileNotFoundError, FileExistsError, IsADirectoryError):
            raise  # says nothing about the disk
        except (OSError, Corrupt) as error:
            if not isinstance(error, OSError) or error.errno not in FULL:
                self._failed(what, f"cannot {what}: {error}")
            raise
        finally:
            del self._begun[thread]
        took_s = time.monotonic() - begun_s
        if took_s > SLOW_S:
            self._failed(what, f"{took_s:.0f} s to {what}")
        elif self._failures:
            self._failures.pop(what, None)

    def take_out(self, reason: str) -> None:
        now_s = time.monotonic()
        with self._lock:
            if self._reason:
                return
            self._reason = reason
            is_again = now_s - self._back_s < PROBATION_S
            self._lengthen_locked(now_s, FIRST_PAUSE_S if not is_again else self._pause_s * 2)
        logger.warning("cache directory %s is out of use: %s", self._root, reason)

    def still_out(self) -> None:
        """It was tried in vain."""
        with self._lock:
            self._lengthen_locked(time.monotonic(), self._pause_s * 2)

    def bring_back(self) -> None:
        with self._lock:
            if not self._reason:
                return
            self._reason, self._failures = "", {}
            self._back_s = time.monotonic()
        logger.warning("cache directory %s is in use again", self._root)

    def _failed(self, what: str, text: str) -> None:
        with self._lock:
            count = self._failures[what] = self._failures.get(what, 0) + 1
            is_too_often = count >= FAILURES
        if is_too_often:
            self.take_out(text)

    def _lengthen_locked(self, now_s: float, pause_s: float) -> None:
        self._pause_s = min(pause_s, MAX_PAUSE_S)
        self._due_s = now_s + self._pause_s

    def _is_stuck(self) -> bool:
        before_s = time.monotonic() - SLOW_S
        if all(begun_s > before_s for begun_s in list(self._begun.values())):
            return False
        self.take_out(f"a call has not returned for {SLOW_S:.0f} s")
        return True
