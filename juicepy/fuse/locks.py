"""Waiting for file locks: SETLKW requests that were refused, tried again until granted.

The file system offers only tries. Waiters stand in one queue served by one thread, so that no
worker is blocked; an unlock through this mount wakes it at once, one elsewhere is found by polling
with a pause that grows.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from juicepy.fuse.deadlocks import Holders, Wanted, closes_circle

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.2
_REMEMBERED = 1024
_LOOKS = 3  # for a deadlock: the caller may not quite sleep yet, see `waits_as_process`

Try = Callable[[], None]
Answer = Callable[[int, int], None]  # (unique, errno or 0)


@dataclass(slots=True)
class _Waiter:
    unique: int
    attempt: Try
    wanted: Wanted | None
    looks: int = 0
    pause_s: float = FIRST_PAUSE_S
    due: float = field(default_factory=time.monotonic)
    is_trying: bool = False
    is_interrupted: bool = False


class LockWaiters:
    """`wait` queues an attempt; `answer` is called once with the outcome, from its thread."""

    def __init__(self, answer: Answer, holders: Holders) -> None:
        self._answer, self._holders = answer, holders
        self._changed = threading.Condition()  # guards all below
        self._waiting: OrderedDict[int, _Waiter] = OrderedDict()
        self._interrupted_early: OrderedDict[int, None] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._closed = False

    def wait(self, unique: int, attempt: Try, wanted: Wanted | None = None) -> None:
        """Repeat `attempt` until it stops raising EAGAIN, or the request is interrupted.

        With `wanted` given, a record lock, EDEADLK ends it if the wait closes a circle.
        """
        with self._changed:
            if not (self._closed or unique in self._interrupted_early):
                self._waiting[unique] = _Waiter(unique, attempt, wanted)
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="fuse-locks", daemon=True
                    )
                    self._thread.start()
                self._changed.notify()
                return
            self._interrupted_early.pop(unique, None)
        self._answer(unique, errno.EINTR)

    def interrupt(self, unique: int) -> None:
        """The caller got a signal. It may come before the request itself was read."""
        with self._changed:
            if unique not in self._waiting:
                self._interrupted_early[unique] = None
                if len(self._interrupted_early) > _REMEMBERED:
                    self._interrupted_early.popitem(last=False)
                return
            waiter = self._waiting[unique]
            if waiter.is_trying:  # it may be granted in this moment: the outcome decides
                waiter.is_interrupted = True
                return
            del self._waiting[unique]
        self._answer(unique, errno.EINTR)

    def kick(self) -> None:
        """A lock was given up through this mount: try all waiters now."""
        if not self._waiting:
            return
        with self._changed:
            for waiter in self._waiting.values():
                waiter.due, waiter.pause_s = 0.0, FIRST_PAUSE_S
            self._changed.notify()

    def _run(self) -> None:
        while True:
            waiter = self._next()
            if waiter is None:
                return
            self._attempt(waiter)

    def _next(self) -> _Waiter | None:
        """The waiter whose turn it is; None once closed."""
        with self._changed:
            while not self._closed:
                waiter = min(self._waiting.values(), key=lambda w: w.due, default=None)
                now = time.monotonic()
                if waiter is not None and waiter.due <= now:
                    waiter.is_trying = True
                    waiter.due = now + waiter.pause_s
                    waiter.pause_s = min(waiter.pause_s * 1.5, LONGEST_PAUSE_S)
                    return waiter
                self._changed.wait(None if waiter is None else waiter.due - now)
        return None

    def _attempt(self, waiter: _Waiter) -> None:
        code = 0
        try:
            waiter.attempt()
        except OSError as error:
            code = error.errno or errno.EIO
            if code in (errno.EAGAIN, errno.EACCES):
                if self._is_deadlock(waiter):
                    code = errno.EDEADLK
                elif not self._gives_up(waiter):
                    return
            if waiter.is_interrupted:
                code = errno.EINTR
        except Exception:
            logger.exception("lock request %d failed", waiter.unique)
            code = errno.EIO
        with self._changed:
            self._waiting.pop(waiter.unique, None)
        self._answer(waiter.unique, code)

    def _is_deadlock(self, waiter: _Waiter) -> bool:
        """Only at first: a circle is closed by the wait that begins last, and all of it stand
        here by then.
        """
        if waiter.wanted is None or waiter.looks >= _LOOKS:
            return False
        waiter.looks += 1
        with self._changed:
            waiting = [other.wanted for other in self._waiting.values() if other.wanted is not None]
        if len(waiting) < 2:
            return False
        try:
            return closes_circle(waiter.wanted, waiting, self._holders)
        except OSError as error:
            logger.debug("no deadlock is looked for: %s", error)
            return False

    def _gives_up(self, waiter: _Waiter) -> bool:
        """It was refused: does it go on waiting, or has a signal come meanwhile?"""
        with self._changed:
            waiter.is_trying = False
            return waiter.is_interrupted

    def close(self) -> None:
        """End the thread; waiters left (the connection is gone) get no answer."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
