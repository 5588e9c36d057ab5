"""The memory of a mount's buffers: who may have how much of `--buffer-size`, and who waits.

| bytes    | of                                      | if there is no room                     |
|----------|-----------------------------------------|-----------------------------------------|
| `dirty`  | data written and not uploaded           | the writer waits                        |
| `coming` | blocks on their way to readers          | who can do with less does, others wait  |
| `queued` | blocks that wait for the cache disk     | the block is not cached                 |
| `kept`   | blocks that came, for who reads on      | they are dropped for others             |

Writers come first: while one waits, readers have no more than their floor. Nobody waits for who
waits: dirty data leaves by uploads, coming blocks land, and both have timeouts of their own; what
nobody of a kind holds is given to one even where it exceeds the limit.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from juicepy.concurrency import Lock

HUNGRY_S = 1.0  # so long writers leave the floor to readers who found no room
LOOK_S = 0.5  # a waiter looks itself now and then: hunger ends without an event


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes by what they are for; a snapshot."""

    dirty: int
    coming: int
    queued: int
    kept: int

    @property
    def total(self) -> int:
        return self.dirty + self.coming + self.queued + self.kept


class _Waiter:
    __slots__ = ("granted", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.granted = threading.Event()


class MemoryBudget:
    """At most `limit_bytes` of buffers, by the table above. Thread-safe.

    `floor_bytes` of them readers get even from writers. `when_full` is called, without a lock,
    when a writer begins to wait: dirty data that no upload has taken must move.
    """

    def __init__(self, limit_bytes: int, floor_bytes: int = 0) -> None:
        self._limit, self._floor = limit_bytes, min(floor_bytes, limit_bytes // 2)
        self._lock = Lock("memory")  # guards what follows
        self._dirty = self._coming = self._queued = self._kept = 0
        self._writers: deque[_Waiter] = deque()
        self._readers: deque[_Waiter] = deque()
        self._hungry_until_s = 0.0
        self._drop: Callable[[int, bool], None] = lambda size, urgent: None
        self.when_full: Callable[[], None] = lambda: None

    @property
    def limit_bytes(self) -> int:
        return self._limit

    def stats(self) -> MemoryStats:
        with self._lock:
            return MemoryStats(self._dirty, self._coming, self._queued, self._kept)

    def set_aside(self, size: int) -> None:
        """Lower the limit by `size`, at most by half, for what is not counted one by one."""
        with self._lock:
            self._limit -= min(size, self._limit // 2)
            self._floor = min(self._floor, self._limit // 2)

    def on_drop(self, drop: Callable[[int, bool], None]) -> None:
        """`drop(size, urgent)` drops kept blocks of `size` bytes if it can, telling `dropped`.

        Unless it is `urgent`, only blocks that nobody is expected to read on.
        """
        self._drop = drop

    # -- writers
    def take(self, size: int, timeout_s: float = 660.0) -> None:
        """Count `size` bytes as dirty; waits while there is no room, EIO if that takes too long."""
        with self._lock:
            if not self._writers and self._fits_writer_locked(size):
                self._dirty += size
                return
            waiter = _Waiter(size)
            self._writers.append(waiter)
        self._make_room_for_writers()
        if not waiter.granted.is_set():
            self.when_full()
        if not self._wait(waiter, self._writers, timeout_s):
            raise OSError(errno.EIO, "the write buffer stays full: data cannot be uploaded")

    def give_back(self, size: int) -> None:
        """Dirty bytes are no more."""
        with self._lock:
            self._dirty -= size
            self._grant_locked()

    def has_waiting_writer(self) -> bool:
        return bool(self._writers)

    # -- readers
    def take_coming(self, size: int, *, spare: int = 0) -> bool:
        """Count a block that will come, if there is room for it and `spare` bytes more.

        Without `spare` a reader waits for it.
        """
        with self._lock:
            if self._fits_reader_locked(size + spare):
                self._coming += size
                return True
            lacking = self._lacking_locked(size + spare)
        if lacking > 0:
            self._drop(lacking, False)
        with self._lock:
            if self._fits_reader_locked(size + spare):
                self._coming += size
                return True
            if not spare:
                self._hungry_until_s = time.monotonic() + HUNGRY_S
            return False

    def wait_coming(self, size: int, timeout_s: float) -> None:
        """Like `take_coming`, for who cannot do without the block; EIO if that takes too long."""
        if self.take_coming(size):
            return
        waiter = _Waiter(size)
        with self._lock:
            self._readers.append(waiter)
            self._grant_locked()
        if not self._wait(waiter, self._readers, timeout_s):
            raise OSError(errno.EIO, "the read buffer stays full: blocks do not arrive")

    def give_back_coming(self, size: int) -> None:
        with self._lock:
            self._coming -= size
            self._grant_locked()

    def keep(self, size: int) -> bool:
        """Coming bytes have come; whether there is room to keep them."""
        with self._lock:
            is_kept = self._reading_locked() <= self._share_locked()
            self._coming -= size
            if is_kept:
                self._kept += size
            self._grant_locked()
            return is_kept

    def dropped(self, size: int) -> None:
        """Kept bytes are no more."""
        with self._lock:
            self._kept -= size
            self._grant_locked()

    # -- the cache
    def take_queued(self, size: int) -> bool:
        """Count a block that waits for the cache disk; at most a quarter of all does so."""
        with self._lock:
            if self._queued + size > self._limit // 4 or not self._fits_reader_locked(size):
                return False
            self._queued += size
            return True

    def give_back_queued(self, size: int) -> None:
        with self._lock:
            self._queued -= size
            self._grant_locked()

    # -- who gets what
    def _reading_locked(self) -> int:
        return self._coming + self._queued + self._kept

    def _fits_writer_locked(self, size: int) -> bool:
        reading = self._reading_locked()
        if time.monotonic() < self._hungry_until_s:
            reading = max(reading, self._floor)
        return self._dirty + size + reading <= self._limit

    def _share_locked(self) -> int:
        """Bytes that readers may have now."""
        free = self._limit - self._dirty
        return min(free, self._floor) if self._writers else free

    def _fits_reader_locked(self, size: int) -> bool:
        return self._reading_locked() + size <= self._share_locked()

    def _lacking_locked(self, size: int) -> int:
        return min(self._kept, self._reading_locked() + size - self._share_locked())

    def _make_room_for_writers(self) -> None:
        """Drop what readers have above their floor and the writers who wait could use."""
        with self._lock:
            wanted = sum(waiter.size for waiter in self._writers)
            excess = self._dirty + wanted + self._reading_locked() - self._limit
            lacking = min(excess, self._reading_locked() - self._floor, self._kept)
        if lacking > 0:
            self._drop(lacking, True)
        with self._lock:
            self._grant_locked()

    def _grant_locked(self) -> None:
        while self._readers:
            waiter = self._readers[0]
            if self._coming and not self._fits_reader_locked(waiter.size):
                break
            self._coming += self._readers.popleft().size
            waiter.granted.set()
        while self._writers:
            waiter = self._writers[0]
            if self._dirty and not self._fits_writer_locked(waiter.size):
                break
            self._dirty += self._writers.popleft().size
            waiter.granted.set()

    def _wait(self, waiter: _Waiter, queue: deque[_Waiter], timeout_s: float) -> bool:
        """Return when the waiter got its bytes; False, and it waits no more, after `timeout_s`."""
        until_s = time.monotonic() + timeout_s
        while not waiter.granted.wait(min(LOOK_S, max(0.0, until_s - time.monotonic()))):
            with self._lock:
                self._grant_locked()
                if not waiter.granted.is_set() and time.monotonic() >= until_s:
                    queue.remove(waiter)
                    return False
        return True
