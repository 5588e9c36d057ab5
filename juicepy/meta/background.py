"""Background work of a mounted client: heartbeats, flushes, hourly jobs (spec 15).

Guards are counters in the store: of all clients of a volume one runs a job in an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from juicepy.concurrency import Periodic
from juicepy.meta.engine import MetaEngine

STATS_FLUSH_S = 1.0
QUOTA_FLUSH_S = 3.0
HOUR_S = 3600
GUARD_S = 3240


@dataclass(frozen=True, slots=True)
class Job:
    """`work` runs hourly if no other client ran it within the guard."""

    counter: str
    work: Callable[[], object]


class Background:
    """Owns the threads; `close` ends them."""

    def __init__(self, engine: MetaEngine) -> None:
        self._engine = engine
        self._threads: list[Periodic] = []

    def every(self, name: str, interval_s: float, work: Callable[[], None]) -> None:
        self._threads.append(Periodic(name, interval_s, work, jitter=0.1).start())

    def hourly(self, job: Job) -> None:
        self.every(job.counter, HOUR_S, lambda: self._guarded(job))

    def _guarded(self, job: Job) -> None:
        if self._engine.set_if_small(job.counter, int(time.time()), GUARD_S):
            job.work()

    def close(self) -> None:
        for thread in self._threads:
            thread.close()
        self._threads.clear()
