"""The read buffer: plain blocks that came a moment ago, kept in memory by reference.

Blocks are dropped when others need the memory, first those that were read to the end. A block
that readers have begun or that was read ahead for them is dropped for another one only when nobody
has asked for it for a while: else more streams than there is room would throw out each other's
blocks, and fetch each many times. Writers get its memory at any time.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from juicepy.concurrency import Lock
from juicepy.memory import MemoryBudget
from juicepy.types import BlockKey, SliceId

BlockId = tuple[SliceId, int]  # what tells blocks apart: a tuple hashes in C, a dataclass does not

IDLE_S = 5.0
SPENT_SHARE = 4  # of the limit, for blocks that were read to the end: their pages are the kernel's


class _Kept:
    __slots__ = ("asked_s", "data", "left")

    def __init__(self, data: memoryview, now_s: float) -> None:
        self.data, self.left, self.asked_s = data, len(data), now_s


class RecentBlocks:
    """Blocks within the room that `memory` has for them, the oldest goes first. Thread-safe."""

    def __init__(self, memory: MemoryBudget, clock: Callable[[], float] = time.monotonic) -> None:
        self._memory, self._clock = memory, clock
        self._lock = Lock("recent_blocks")  # guards what follows
        self._awaited: OrderedDict[BlockId, _Kept] = OrderedDict()
        self._spent: OrderedDict[BlockId, memoryview] = OrderedDict()
        self._spent_bytes = 0
        memory.on_drop(self._drop)

    def get(self, block: BlockId) -> memoryview | None:
        kept = self._awaited.get(block)
        return kept.data if kept is not None else self._spent.get(block)

    def read(self, block: BlockId, start: int, length: int) -> memoryview | None:
        """A range of the block, if it is here."""
        # Without the lock for the common miss.
        if block not in self._awaited and block not in self._spent:
            return None
        freed = 0
        with self._lock:
            kept = self._awaited.get(block)
            if kept is None:
                data = self._spent.get(block)
                if data is None:
                    return None
                self._spent.move_to_end(block)
            else:
                data = kept.data
                kept.left -= length
                kept.asked_s = self._clock()
                if kept.left > 0:
                    self._awaited.move_to_end(block)
                else:
                    freed = self._spend_locked(block, data)
        if freed:
            self._memory.dropped(freed)
        return data[start : start + length]

    def put(self, block: BlockKey, data: memoryview) -> None:
        """`data` is the whole block, read-only, and counted as kept in the budget."""
        key = (block.id, block.index)
        with self._lock:
            freed = self._pop_locked(key)
            self._awaited[key] = _Kept(data, self._clock())
        if freed:
            self._memory.dropped(freed)

    def discard(self, block: BlockKey) -> None:
        with self._lock:
            freed = self._pop_locked((block.id, block.index))
        if freed:
            self._memory.dropped(freed)

    def clear(self) -> None:
        self._drop(1 << 62, True)

    def stats(self) -> tuple[int, int]:
        """(blocks, bytes) held."""
        with self._lock:
            awaited = sum(len(kept.data) for kept in self._awaited.values())
            return len(self._awaited) + len(self._spent), awaited + self._spent_bytes

    def _drop(self, size: int, urgent: bool) -> None:
        """Drop blocks until `size` bytes are free; unless `urgent`, those that nobody reads on."""
        freed = 0
        before_s = self._clock() - IDLE_S
        with self._lock:
            while freed < size and self._spent:
                freed += self._pop_locked(next(iter(self._spent)))
            while freed < size and self._awaited:
                key = next(iter(self._awaited))
                if not urgent and self._awaited[key].asked_s > before_s:
                    break
                freed += self._pop_locked(key)
        if freed:
            self._memory.dropped(freed)

    def _spend_locked(self, block: BlockId, data: memoryview) -> int:
        """The block was read to the end; bytes of others that go for it."""
        del self._awaited[block]
        self._spent[block] = data
        self._spent_bytes += len(data)
        freed = 0
        while self._spent_bytes > self._memory.limit_bytes // SPENT_SHARE and len(self._spent) > 1:
            freed += self._pop_locked(next(iter(self._spent)))
        return freed

    def _pop_locked(self, block: BlockId) -> int:
        kept = self._awaited.pop(block, None)
        if kept is not None:
            return len(kept.data)
        data = self._spent.pop(block, None)
        if data is None:
            return 0
        self._spent_bytes -= len(data)
        return len(data)
