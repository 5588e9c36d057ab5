"""Whole blocks on their way from the object store: each comes once, however many ask for it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import Any

from juicepy.chunk.recent import BlockId, RecentBlocks
from juicepy.concurrency import Lock, Workers
from juicepy.memory import MemoryBudget
from juicepy.types import BlockKey

BACKLOG = 16  # blocks behind random reads that may wait; more would come too late
SPARE_BLOCKS = 2  # left by what is fetched ahead to who waits for a block


class _Flight:
    """A block on its way. Whoever sets `is_claimed` (under the lock) fetches it."""

    __slots__ = ("block", "is_claimed", "landed")

    def __init__(self, block: BlockKey, *, is_claimed: bool) -> None:
        self.block = block
        self.is_claimed = is_claimed
        self.landed: Future[memoryview] = Future()


class Flights:
    """Fetches blocks with `get` and leaves them in `recent`, within `memory`. Thread-safe.

    `copies`: blocks' worth of memory that one of them needs while it comes. `landed` is told of
    each, once. An error of a block that nobody waits for is told to who reads it next.
    """

    def __init__(
        self,
        get: Callable[[BlockKey], memoryview],
        landed: Callable[[BlockKey, memoryview], None],
        memory: MemoryBudget,
        recent: RecentBlocks,
        *,
        copies: int,
        downloads: int,
        behind: int,
        timeout_s: float,
    ) -> None:
        self._get, self._tell_landed = get, landed
        self._memory, self._recent, self._copies = memory, recent, copies
        self._timeout_s = timeout_s
        self._may_fetch_behind = behind > 0
        self._lock = Lock("flights")  # guards _flights, _backlog
        self._flights: dict[BlockId, _Flight] = {}
        self._backlog = 0
        self._downloads = Workers("download", downloads)
        self._behind = Workers("prefetch", behind)

    def __len__(self) -> int:
        return len(self._flights)

    def is_claimed(self, key: BlockId) -> bool:
        """Whether the block is being fetched, not only waiting for a thread."""
        flight = self._flights.get(key)
        return flight is not None and flight.is_claimed

    def beside(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run `work` on a thread for downloads; see `result`."""
        return self._downloads.submit(work, *args)

    def result(self, future: Future[Any]) -> Any:
        """What the future brings; EIO if it does not come in time."""
        try:
            return future.result(self._timeout_s)
        except TimeoutError as error:
            if future.done():
                raise
            raise OSError(errno.EIO, "a block did not arrive in time") from error
        except CancelledError as error:
            raise OSError(errno.EIO, "the block store is closed") from error

    def ahead(self, block: BlockKey) -> bool:
        """Fetch the block in the background; False if there is no room for it."""
        key, cost = (block.id, block.index), self._cost(block)
        if key in self._flights:
            return True
        if not self._memory.take_coming(cost, spare=SPARE_BLOCKS * cost):
            return False
        with self._lock:
            if key in self._flights:
                flight = None
            else:
                flight = self._flights[key] = _Flight(block, is_claimed=False)
        if flight is None:
            self._memory.give_back_coming(cost)
        else:
            self._downloads.run(self._fetch_unclaimed, flight)
        return True

    def behind(self, block: BlockKey) -> None:
        """Fetch the block in the background after a range of it, if that does not take long."""
        with self._lock:
            if not self._may_fetch_behind or self._backlog >= BACKLOG:
                return
            if (block.id, block.index) in self._flights:
                return
            self._backlog += 1
        self._behind.run(self._fetch_behind, block)

    def load(self, block: BlockKey, *, waits: bool) -> memoryview | None:
        """The whole block; None if there is no room for it and the caller does not wait."""
        key, cost = (block.id, block.index), self._cost(block)
        flight, is_mine = self._join(key)
        if flight is None:
            if waits:
                self._memory.wait_coming(cost, self._timeout_s)
            elif not self._memory.take_coming(cost):
                return None
            with self._lock:
                flight = self._flights.get(key)
                is_mine = flight is None
                if flight is None:
                    flight = self._flights[key] = _Flight(block, is_claimed=True)
            if not is_mine:  # another was quicker
                self._memory.give_back_coming(cost)
                flight, is_mine = self._join(key)
                if flight is None:
                    return self._recent.get(key) or self.load(block, waits=waits)
        if is_mine:
            return self._fetch(flight)
        landed: memoryview = self.result(flight.landed)
        return landed

    @contextmanager
    def room_for(self, block: BlockKey) -> Iterator[None]:
        """Memory for a block that comes another way; waits for it."""
        self._memory.wait_coming(self._cost(block), self._timeout_s)
        try:
            yield
        finally:
            self._memory.give_back_coming(self._cost(block))

    def close(self) -> None:
        self._behind.close(cancel=True)
        self._downloads.close(cancel=True)

    def _cost(self, block: BlockKey) -> int:
        return block.size * self._copies

    def _join(self, key: BlockId) -> tuple[_Flight | None, bool]:
        """The flight in the air; True if the caller has to fetch it, being the first who waits."""
        with self._lock:
            flight = self._flights.get(key)
            is_mine = flight is not None and not flight.is_claimed
            if flight is not None and is_mine:  # waits in a queue: quicker to fetch it here
                flight.is_claimed = True
            return flight, is_mine

    def _fetch_behind(self, block: BlockKey) -> None:
        try:
            if self._recent.get((block.id, block.index)) is None:
                self.load(block, waits=False)
        except OSError:
            return  # whoever reads the block is told
        finally:
            with self._lock:
                self._backlog -= 1

    def _fetch_unclaimed(self, flight: _Flight) -> None:
        with self._lock:
            if flight.is_claimed:
                return
            flight.is_claimed = True
        try:
            self._fetch(flight)
        except OSError:
            return  # whoever reads the block is told

    def _fetch(self, flight: _Flight) -> memoryview:
        """Get the block of a flight that the caller has claimed, and whose memory is counted."""
        block, cost = flight.block, self._cost(flight.block)
        key = (block.id, block.index)
        try:
            data = self._recent.get(key)  # may have landed since the caller looked
            is_new = data is None
            if data is None:
                data = self._get(block)
        except BaseException as error:
            self._memory.give_back_coming(cost)
            self._land(key)
            flight.landed.set_exception(error)
            raise
        if not is_new:
            self._memory.give_back_coming(cost)
        else:
            if cost > block.size:
                self._memory.give_back_coming(cost - block.size)
            if self._memory.keep(block.size):
                self._recent.put(block, data)
        self._land(key)
        flight.landed.set_result(data)
        if is_new:
            self._tell_landed(block, data)
        return data

    def _land(self, key: BlockId) -> None:
        with self._lock:
            self._flights.pop(key, None)
