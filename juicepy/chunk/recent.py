"""The read buffer: plain blocks fetched a moment ago, kept in memory by reference."""

from __future__ import annotations

from collections import OrderedDict

from juicepy.concurrency import Lock
from juicepy.types import BlockKey, SliceId

BlockId = tuple[SliceId, int]  # what tells blocks apart: a tuple hashes in C, a dataclass does not


class RecentBlocks:
    """At most `limit_bytes` of blocks, the least recently used one goes first. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = Lock("recent_blocks")  # guards what follows
        self._blocks: OrderedDict[BlockId, memoryview] = OrderedDict()
        self._bytes = 0

    def get(self, block: BlockId) -> memoryview | None:
        # Without the lock for the common miss; the lock orders move_to_end against eviction.
        if block not in self._blocks:
            return None
        with self._lock:
            data = self._blocks.get(block)
            if data is not None:
                self._blocks.move_to_end(block)
            return data

    def put(self, block: BlockKey, data: memoryview) -> None:
        """`data` is the whole block, read-only."""
        with self._lock:
            self._drop_locked((block.id, block.index))
            self._blocks[block.id, block.index] = data
            self._bytes += len(data)
            while self._bytes > self._limit_bytes and len(self._blocks) > 1:
                self._drop_locked(next(iter(self._blocks)))

    def discard(self, block: BlockKey) -> None:
        with self._lock:
            self._drop_locked((block.id, block.index))

    def clear(self) -> None:
        with self._lock:
            self._blocks.clear()
            self._bytes = 0

    def stats(self) -> tuple[int, int]:
        """(blocks, bytes) held."""
        return len(self._blocks), self._bytes

    def _drop_locked(self, block: BlockId) -> None:
        data = self._blocks.pop(block, None)
        if data is not None:
            self._bytes -= len(data)
