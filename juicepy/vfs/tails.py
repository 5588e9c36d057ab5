"""The bytes of a block that grows, in memory that is used again.

New pages of memory cost the kernel as much as the copy into them: written in sequence, a file was
stored at 0.6 of the speed when each block had its own.
"""

from __future__ import annotations

import sys

from juicepy.concurrency import Lock
from juicepy.types import Buffer

SMALL = 256 << 10  # up to here a block has memory of its own, for most files are small
KEPT = 8


class BlockRoom:
    """Room for blocks of `size` bytes; up to `kept` of it waits for its next use. Thread-safe."""

    def __init__(self, size: int, kept: int = KEPT) -> None:
        self._size, self._kept = size, kept
        self._lock = Lock("block_room")  # guards _free
        self._free: list[bytearray] = []

    def take(self) -> bytearray:
        with self._lock:
            if self._free:
                return self._free.pop()
        return bytearray(self._size)

    def give(self, holder: list[bytearray]) -> None:
        """Take back what is in `holder`, the last to know of it; unless somebody else still holds
        it, a cache or a request that was given up: then its bytes must not change, ever.
        """
        room = holder.pop()
        if sys.getrefcount(room) > 2:  # `room`, and the argument of this call
            return
        with self._lock:
            if len(self._free) < self._kept:
                self._free.append(room)

    def clear(self) -> None:
        """Nobody writes: the memory is for others."""
        with self._lock:
            self._free.clear()


class Tail:
    """Up to a block of bytes. Not thread-safe."""

    __slots__ = ("_own", "_pool", "_room", "_size")

    def __init__(self, pool: BlockRoom) -> None:
        self._pool = pool
        self._own = bytearray()
        self._room: list[bytearray] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, at: int, data: memoryview) -> None:
        """Write `data` at `at`, not behind the end."""
        end = at + len(data)
        if not self._room and end > SMALL:
            self._room.append(self._pool.take())
            self._room[0][: self._size] = self._own
            self._own = bytearray()
        if self._room:
            memoryview(self._room[0])[at:end] = data  # bytearray itself would copy `data` first
        elif at == self._size:
            self._own += data
        else:
            self._own[at:end] = data
        self._size = max(self._size, end)

    def data(self) -> Buffer:
        """All bytes; to be dropped before `release`."""
        return memoryview(self._room[0])[: self._size] if self._room else self._own

    def release(self) -> None:
        """The bytes are stored, or of no use."""
        if self._room:
            self._pool.give(self._room)
        self._own, self._size = bytearray(), 0
