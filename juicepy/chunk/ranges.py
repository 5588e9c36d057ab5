"""Which blocks are read so often in small ranges that fetching them whole is cheaper."""

from __future__ import annotations

from collections import OrderedDict

from juicepy.chunk.recent import BlockId
from juicepy.concurrency import Lock

REQUEST_SHARE = 8  # a request costs as much time as this part of a block, whatever its size
BLOCKS = 10_000  # remembered; a random reader of more has no use for whole ones


class RangeReads:
    """What the ranges of each block have cost so far. Thread-safe.

    Fetching a block whole pays once its ranges have cost as much: then at most twice what was
    needed is ever fetched, without knowing what will be read.
    """

    def __init__(self) -> None:
        self._lock = Lock("range_reads")  # guards _cost
        self._cost: OrderedDict[BlockId, int] = OrderedDict()

    def note(self, block: BlockId, size: int, length: int) -> bool:
        """`length` bytes of the block of `size` were fetched; whether to fetch all of it."""
        with self._lock:
            cost = self._cost.pop(block, 0) + length + size // REQUEST_SHARE
            if cost >= size:
                return True
            self._cost[block] = cost
            if len(self._cost) > BLOCKS:
                self._cost.popitem(last=False)
            return False
