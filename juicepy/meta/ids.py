"""Inode and slice ids, taken from the engine in batches (spec 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from juicepy.concurrency import Lock

INODE_BATCH = 1024
SLICE_BATCH = 4096


class Ids:
    """Hands out each id of the batches that `allocate(count)` gives once. Thread-safe.

    The rest of a batch is lost at unmount.
    """

    def __init__(self, name: str, batch: int, allocate: Callable[[int], range]) -> None:
        self._lock = Lock(name)  # guards _left; held during an exchange so that one batch is taken
        self._left: Iterator[int] = iter(())
        self._batch, self._allocate = batch, allocate

    def take(self) -> int:
        with self._lock:
            for ident in self._left:
                return ident
            self._left = iter(self._allocate(self._batch))
            return next(self._left)
