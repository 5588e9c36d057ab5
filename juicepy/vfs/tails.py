"""The bytes of a block that grows, in memory that is used again.

New pages of memory cost the kernel as much as the copy into them: written in sequence, a file was
stored at 0.6 of the speed when each block had its own.
"""

from __future__ import annotations

import sys

from juicepy.concurrency import Lock
from juicepy.types import Buffer

SMALL = 256 << 10  # up to here a block has memory of its own, for most files are small
ROOMS = 4


class BlockRoom:
    """Room for `rooms` blocks of `size` bytes, in use or not. Thread-safe.

    No more, for a room takes its whole size from the machine however little is written into it.
    """

    def __init__(self, size: int, rooms: int = ROOMS) -> None:
        self._size, self._left = size, rooms
        self._lock = Lock("block_room")  # guards _left, _free
        self._free: list[bytearray] = []

    def take(self) -> bytearray | None:
        """None if all are in use."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if not self._left:
                return None
            self._left -= 1
        return bytearray(self._size)

    def give(self, holder: list[bytearray]) -> None:
        """Take back what is in `holder`, the last to know of it; unless somebody else still holds
        it, a cache or a request that was given up: then its bytes must not change, ever.
        """
        room = holder.pop()
        is_ours = sys.getrefcount(room) == 2  # `room`, and the argument of this call
        with self._lock:
            if is_ours:
                self._free.append(room)
            else:
                self._left += 1

    def clear(self) -> None:
        """Nobody writes: the memory is for others."""
        with self._lock:
            self._left += len(self._free)
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
        if self._size <= SMALL < end:
            self._move()
        if self._room:
            memoryview(self._room[0])[at:end] = data  # bytearray itself would copy `data` first
        elif at == self._size:
            self._own += data
        else:
            self._own[at:end] = data
        self._size = max(self._size, end)

    def _move(self) -> None:
        """Into a room, if there is one."""
        room = None if self._room else self._pool.take()
        if room is not None:
            room[: self._size] = self._own
            self._room.append(room)
            self._own = bytearray()

    def data(self) -> Buffer:
        """All bytes; to be dropped before `release`."""
        return memoryview(self._room[0])[: self._size] if self._room else self._own

    def release(self) -> None:
        """The bytes are stored, or of no use."""
        if self._room:
            self._pool.give(self._room)
        self._own, self._size = bytearray(), 0
