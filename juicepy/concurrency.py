"""Locks, periodic work and worker pools: threads with an owner, a name and an end.

A thread that dies of an exception is logged as ERROR with its traceback; `Periodic` goes on with
the next round, `Workers` hand the exception to whoever waits for the result.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class Lock:
    """A leaf lock with a name for the debugger; says what it guards where it is made."""

    __slots__ = ("_lock", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()


class Periodic:
    """Calls `work` every `interval_s` (varied by `jitter`) on a thread of its own until closed."""

    def __init__(
        self, name: str, interval_s: float, work: Callable[[], None], *, jitter: float = 0.0
    ) -> None:
        self._name, self._interval_s, self._work, self._jitter = name, interval_s, work, jitter
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Periodic:
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.wait(self._pause()):
            try:
                self._work()
            except Exception:
                logger.exception("%s failed, next try in %.0f s", self._name, self._interval_s)

    def _pause(self) -> float:
        return self._interval_s * random.uniform(1 - self._jitter, 1 + self._jitter)

    def close(self, timeout_s: float = 30.0) -> None:
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


class Workers:
    """A pool of at most `count` threads; `submit` waits for no one, `run` logs what fails."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._pool = ThreadPoolExecutor(max(1, count), thread_name_prefix=name)

    def submit(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        return self._pool.submit(work, *args, **kwargs)

    def run(self, work: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Fire and forget; a failure is one ERROR line with its traceback."""
        self._pool.submit(self._logged, work, *args, **kwargs)

    def _logged(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        try:
            work(*args, **kwargs)
        except Exception:
            logger.exception("%s: %s failed", self._name, getattr(work, "__name__", work))

    def close(self, *, cancel: bool = False) -> None:
        self._pool.shutdown(wait=True, cancel_futures=cancel)
