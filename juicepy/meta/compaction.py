"""Compaction of a chunk's slices: when, and the commit. What to merge is the data path's matter."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from errno import ENOENT

from juicepy.concurrency import Lock, Workers
from juicepy.meta.cleanup import Deleter
from juicepy.meta.engine import MetaEngine
from juicepy.meta.ops import data
from juicepy.types import Inode, Slice, SliceId

logger = logging.getLogger(__name__)

SOON, NOW = 350, 2500  # records in a chunk: compact in the background, before the write returns


@dataclass(frozen=True, slots=True)
class Compacted:
    """`merged`, already stored, may replace records [kept, taken) of a chunk."""

    kept: int
    taken: int
    merged: Slice


# slices of a chunk, oldest first -> copies their data to a new slice; None: not worth it
Compactor = Callable[[tuple[Slice, ...], Callable[[], SliceId]], Compacted | None]


class Compaction:
    """Compacts chunks, one run per chunk at a time."""

    def __init__(
        self, engine: MetaEngine, deleter: Deleter, new_slice: Callable[[], SliceId]
    ) -> None:
        self._engine, self._deleter, self._new_slice = engine, deleter, new_slice
        self.compactor: Compactor | None = None
        self.keeps_old: Callable[[], bool] = lambda: False  # is the trash on?
        self._workers = Workers("compact", 1)
        self._lock = Lock("compaction")  # guards _running
        self._running: set[tuple[Inode, int]] = set()
        self._closed = False

    def written(self, ino: Inode, index: int, count: int) -> None:
        """A chunk has `count` records now (spec 7.4 says when to compact)."""
        if self.compactor is None or self._closed:
            return
        if count >= NOW:
            self._run(ino, index)
        elif count % 100 == 99 or count > SOON:
            with self._lock:
                if (ino, index) in self._running:
                    return
            self._workers.run(self._run, ino, index)

    def _run(self, ino: Inode, index: int) -> None:
        try:
            self.compact(ino, index)
        except OSError as error:
            logger.warning("compaction of inode %d chunk %d: %s", ino, index, error)

    def compact(self, ino: Inode, index: int) -> bool:
        """Merge what is worth it; False if nothing was, or another client was at it."""
        if self.compactor is None:
            return False
        with self._lock:
            if (ino, index) in self._running:
                return False
            self._running.add((ino, index))
        try:
            slices = self._engine.slices(ino, index)
            found = self.compactor(slices, self._new_slice)
            return found is not None and self._commit(ino, index, slices, found)
        finally:
            with self._lock:
                self._running.discard((ino, index))

    def _commit(self, ino: Inode, index: int, slices: tuple[Slice, ...], found: Compacted) -> bool:
        prefix = slices[: found.taken]
        delay_s = int(time.time()) if self.keeps_old() else None
        try:
            _, done = self._engine.transact(
                lambda tx: data.compact(tx, ino, index, prefix, found.kept, found.merged, delay_s)
            )
        except OSError as error:
            if error.errno != ENOENT:
                raise  # the outcome is unknown: the new slice may be in use, gc tells
            if self._deleter.delete_slice is not None and found.merged.id:
                self._deleter.delete_slice(found.merged.id, found.merged.size)
            return False
        self._deleter.slices([ref for ref, left in done.refs.items() if left <= 0])
        return True

    def close(self) -> None:
        self._closed = True
        self._workers.close(cancel=True)
