"""Caches without a disk: none at all, and blocks in memory."""

from __future__ import annotations

from collections import OrderedDict

from juicepy.cache.options import CacheCounts
from juicepy.concurrency import Lock
from juicepy.types import BlockKey, Buffer

OVERHEAD = 4096  # what a block costs beside its bytes, as the disk cache counts


class NoCache:
    """Holds nothing (`--cache-size 0`)."""

    def load(self, block: BlockKey, off: int = 0, size: int | None = None) -> Buffer | None:
        return None

    def store(self, block: BlockKey, data: Buffer) -> None:
        return None

    def contains(self, block: BlockKey) -> bool:
        return False

    def discard(self, block: BlockKey) -> None:
        return None

    def stats(self) -> tuple[int, int]:
        return 0, 0

    def close(self) -> None:
        return None


class MemoryCache:
    """Blocks by reference, the least recently used one goes first.

    With `eviction` "none" a full cache takes no more. `limit_items` 0: any number.
    """

    def __init__(self, limit_bytes: int, limit_items: int = 0, eviction: str = "lru") -> None:
        self._limit_bytes, self._limit_items = limit_bytes, limit_items
        self.counts = CacheCounts()
        self._evicts = eviction != "none"
        self._lock = Lock("memory_cache")  # guards what follows
        self._blocks: OrderedDict[tuple[int, int], memoryview] = OrderedDict()
        self._bytes = 0

    def load(self, block: BlockKey, off: int = 0, size: int | None = None) -> Buffer | None:
        key = (block.id, block.index)
        with self._lock:
            data = self._blocks.get(key)
            if data is None:
                return None
            self._blocks.move_to_end(key)
        if off == 0 and (size is None or size >= len(data)):
            return data
        return data[off:] if size is None else data[off : off + size]

    def store(self, block: BlockKey, data: Buffer) -> None:
        key = (block.id, block.index)
        with self._lock:
            self._drop_locked(key)
            if not self._evicts and self._is_full_locked(len(data) + OVERHEAD, 1):
                return
            self._blocks[key] = memoryview(data).toreadonly()
            self._bytes += len(data) + OVERHEAD
            while self._blocks and self._is_full_locked(0, 0):
                self._drop_locked(next(iter(self._blocks)))
                self.counts.evicts += 1

    def contains(self, block: BlockKey) -> bool:
        return (block.id, block.index) in self._blocks

    def discard(self, block: BlockKey) -> None:
        with self._lock:
            self._drop_locked((block.id, block.index))

    def stats(self) -> tuple[int, int]:
        return len(self._blocks), self._bytes

    def close(self) -> None:
        with self._lock:
            self._blocks.clear()
            self._bytes = 0

    def _is_full_locked(self, more_bytes: int, more_items: int) -> bool:
        if self._limit_items and len(self._blocks) + more_items > self._limit_items:
            return True
        return self._bytes + more_bytes > self._limit_bytes

    def _drop_locked(self, key: tuple[int, int]) -> None:
        data = self._blocks.pop(key, None)
        if data is not None:
            self._bytes -= len(data) + OVERHEAD
