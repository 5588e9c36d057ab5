"""Blocks on their way to a cache disk: they wait in memory, a few threads write them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from juicepy.memory import MemoryBudget
from juicepy.types import BlockKey, Buffer, SliceId

logger = logging.getLogger(__name__)

BlockId = tuple[SliceId, int]


class WriteQueue:
    """At most `limit_bytes` that wait for `threads` writers; they are counted in `memory`, too.

    `admits` tells whether the disk has room for a block beside all that wait; no other thread asks
    at the same time. `write` is to put a block into its file and tell whether it did; `undo` takes
    one away that was taken back while it was written.
    """

    def __init__(
        self,
        admits: Callable[[BlockKey], bool],
        write: Callable[[BlockKey, Buffer], bool],
        undo: Callable[[BlockKey], None],
        memory: MemoryBudget,
        limit_bytes: int,
        threads: int,
    ) -> None:
        self._admits, self._write, self._undo = admits, write, undo
        self._memory, self._limit = memory, limit_bytes
        self._changed = threading.Condition()  # guards the rest
        self._waiting: dict[BlockId, tuple[BlockKey, memoryview]] = {}
        self._order: deque[BlockId] = deque()
        self.bytes = 0
        self._is_closing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"cache-write-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: BlockId) -> bool:
        return key in self._waiting

    def get(self, key: BlockId) -> memoryview | None:
        found = self._waiting.get(key)
        return found[1] if found is not None else None

    def put(self, block: BlockKey, data: Buffer) -> bool:
        """False if there is no room, here or on the disk."""
        if not self._memory.take_queued(block.size):
            return False
        key = (block.id, block.index)
        with self._changed:
            is_waiting = key in self._waiting
            fits = self.bytes + block.size <= self._limit
            is_taken = not is_waiting and fits and self._admits(block)
            if is_taken:
                self._waiting[key] = block, memoryview(data).toreadonly()
                self._order.append(key)
                self.bytes += block.size
                self._changed.notify()
        if not is_taken:
            self._memory.give_back_queued(block.size)
        return is_taken or is_waiting

    def take_back(self, key: BlockId) -> bool:
        """The block waits no more; whether it did."""
        with self._changed:
            found = self._waiting.pop(key, None)
            if found is None:
                return False
            self.bytes -= found[0].size
        self._memory.give_back_queued(found[0].size)
        return True

    def wait_empty(self, timeout_s: float) -> bool:
        """Return when every block put before is written or given up; False after `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        while self._waiting and time.monotonic() < end_s:
            time.sleep(0.002)
        return not self._waiting

    def close(self, timeout_s: float = 30.0) -> None:
        """What waits is written first."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._order or self._is_closing)
                if not self._order:
                    return
                key = self._order.popleft()
                found = self._waiting.get(key)
            if found is not None:
                self._store(key, found[0], found[1])

    def _store(self, key: BlockId, block: BlockKey, data: Buffer) -> None:
        is_stored = False
        try:
            is_stored = self._write(block, data)
        except Exception:
            logger.exception("writing the block %s to the cache failed", block)
        if not self.take_back(key) and is_stored:
            self._undo(block)
