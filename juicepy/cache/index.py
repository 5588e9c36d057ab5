"""What a cache directory holds: a table of 16 bytes a slot, as there may be millions of blocks.

| word  | bits | content                                                               |
|-------|------|-----------------------------------------------------------------------|
| key   | 54   | slice                                                                 |
|       | 10   | block of the slice                                                    |
| stamp | 40   | last use, in 1/1024 s since 2020; never 0, as a stamp of 0 is no block |
|       | 24   | 2^24 less the size, so that of equally old blocks the larger is less  |

Open addressing with linear probing: at most two thirds of the slots are taken, and what is removed
leaves no mark. The saved form is the table itself: stored: a change needs a new `VERSION`.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterator

import msgpack

from juicepy.types import BlockKey, SliceId

OVERHEAD = 4096  # what a block costs beside its bytes
VERSION = 1
LEAST_SLOTS = 1 << 10
_EPOCH_S = 1577836800
_SPREAD = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: neighbours land far apart
_WORD = (1 << 64) - 1
_SIZES = 1 << 24

Entry = tuple[int, int]  # stamp, key: they sort by age


def is_indexable(block: BlockKey) -> bool:
    """Whether the numbers of the block fit; those of a volume do, a foreign file's may not."""
    return 0 <= block.id < 1 << 54 and 0 <= block.index < 1 << 10 and 0 < block.size <= _SIZES


def stamp_of(size: int, atime_s: float) -> int:
    ticks = min(max(int((atime_s - _EPOCH_S) * 1024), 1), (1 << 40) - 1)
    return ticks << 24 | (_SIZES - size)


def size_of(entry: Entry) -> int:
    return _SIZES - (entry[0] & (_SIZES - 1))


def cost_of(entry: Entry) -> int:
    return size_of(entry) + OVERHEAD


def block_of(entry: Entry) -> BlockKey:
    return BlockKey(SliceId(entry[1] >> 10), entry[1] & 1023, size_of(entry))


def key_of(block: BlockKey) -> int:
    return block.id << 10 | block.index


class Index:
    """Blocks and when each was used last. Not thread-safe: its owner has a lock."""

    def __init__(self) -> None:
        self.cost = 0
        self._count = 0
        self._set_table(_zeros(LEAST_SLOTS), _zeros(LEAST_SLOTS))

    def __len__(self) -> int:
        return self._count

    def __contains__(self, block: BlockKey) -> bool:
        return is_indexable(block) and self._stamps[self._slot(key_of(block))] != 0

    def add(self, block: BlockKey, atime_s: float) -> bool:
        """Whether the block is new, and can be held."""
        if not is_indexable(block):
            return False
        key = key_of(block)
        slot = self._slot(key)
        if self._stamps[slot]:
            return False
        if 3 * self._count >= 2 * len(self._keys):
            self._resize(2 * len(self._keys))
            slot = self._slot(key)
        self._keys[slot], self._stamps[slot] = key, stamp_of(block.size, atime_s)
        self._count += 1
        self.cost += block.size + OVERHEAD
        return True

    def touch(self, block: BlockKey, atime_s: float) -> None:
        """The block was used, if it is here."""
        if is_indexable(block):
            slot = self._slot(key_of(block))
            stamp = self._stamps[slot]
            if stamp:
                self._stamps[slot] = stamp_of(size_of((stamp, 0)), atime_s)

    def remove(self, block: BlockKey) -> bool:
        if block not in self:
            return False
        slot = self._slot(key_of(block))
        self._count -= 1
        self.cost -= cost_of((self._stamps[slot], 0))
        self._vacate(slot)
        if len(self._keys) > LEAST_SLOTS and 8 * self._count < len(self._keys):
            self._resize(len(self._keys) // 2)
        return True

    def slots(self) -> int:
        return len(self._keys)

    def entries(self, first: int = 0, count: int | None = None) -> list[Entry]:
        """The blocks in `count` slots from `first` on; slots are in no order of age or number."""
        end = None if count is None else first + count
        stamps, keys = self._stamps[first:end], self._keys[first:end]
        return [entry for entry in zip(stamps, keys, strict=True) if entry[0]]

    # -- the saved form
    def dump(self) -> bytes:
        table = self._keys.tobytes(), self._stamps.tobytes()
        checksum = _checksum(self._count, self.cost, *table)
        head = [VERSION, sys.byteorder, self._count, self.cost, checksum]
        packed: bytes = msgpack.packb([*head, *table])
        return packed

    def load(self, data: bytes) -> None:
        """Hold what `dump` told. ValueError if it is no such thing, and nothing has changed."""
        try:
            version, order, count, cost, checksum, keys, stamps = msgpack.unpackb(data)
        except (msgpack.UnpackException, TypeError) as error:
            raise ValueError(str(error) or "cut off") from error
        if (version, order) != (VERSION, sys.byteorder):
            raise ValueError(f"version {version}, {order}-endian")
        if checksum != _checksum(count, cost, keys, stamps):
            raise ValueError("wrong checksum")
        loaded = array("Q", stamps)
        slots = len(loaded)
        is_whole = slots >= LEAST_SLOTS and not slots & (slots - 1) and len(keys) == 8 * slots
        if not is_whole or loaded.count(0) != slots - count:
            raise ValueError(f"{count} blocks in a table of {slots}")
        self._set_table(array("Q", keys), loaded)
        self._count, self.cost = count, cost

    # -- slots
    def _set_table(self, keys: array[int], stamps: array[int]) -> None:
        self._keys, self._stamps = keys, stamps
        self._mask = len(keys) - 1
        self._shift = 64 - self._mask.bit_length()

    def _slot(self, key: int) -> int:
        """Where the key is, or else would be put."""
        at = (key * _SPREAD & _WORD) >> self._shift
        keys, stamps, mask = self._keys, self._stamps, self._mask
        while stamps[at] and keys[at] != key:
            at = (at + 1) & mask
        return at

    def _vacate(self, hole: int) -> None:
        """Empty a slot; those behind it that would not be found any more move up."""
        keys, stamps, mask = self._keys, self._stamps, self._mask
        at = hole
        while stamps[at := (at + 1) & mask]:
            home = (keys[at] * _SPREAD & _WORD) >> self._shift
            if (at - home) & mask >= (at - hole) & mask:
                keys[hole], stamps[hole] = keys[at], stamps[at]
                hole = at
        stamps[hole] = 0

    def _resize(self, slots: int) -> None:
        before = self._occupied()
        self._set_table(_zeros(slots), _zeros(slots))
        for stamp, key in before:
            at = self._slot(key)
            self._keys[at], self._stamps[at] = key, stamp

    def _occupied(self) -> Iterator[Entry]:
        pairs = zip(self._stamps, self._keys, strict=True)
        return (entry for entry in pairs if entry[0])


def _checksum(count: int, cost: int, keys: bytes, stamps: bytes) -> int:
    return zlib.crc32(stamps, zlib.crc32(keys, zlib.crc32(f"{count} {cost}".encode())))


def _zeros(slots: int) -> array[int]:
    return array("Q", bytes(8 * slots))
