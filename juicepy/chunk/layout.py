"""How slices are cut into blocks and how their objects are called.

Names (spec objects.md 2), L being the plain length of the block:

| hash prefix | key                                                        |
|-------------|------------------------------------------------------------|
| no          | `chunks/<id // 1000000>/<id // 1000>/<id>_<index>_<L>`      |
| yes         | `chunks/<id % 256, two hex digits>/<id // 1000000>/<id>_<index>_<L>` |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from juicepy.types import BlockKey, SliceId

_KEY = re.compile(r"chunks/(\d+|[0-9A-F]{2})/(\d+)/(\d+)_(\d+)_(\d+)")


@dataclass(frozen=True, slots=True)
class Layout:
    """Arithmetic of a volume's blocks; `block_size` in bytes."""

    block_size: int
    hash_prefix: bool = False

    def object_key(self, block: BlockKey) -> str:
        """The name of the block's object, below the volume's own prefix."""
        number = block.id
        if self.hash_prefix:
            folder = f"{number % 256:02X}/{number // 1_000_000}"
        else:
            folder = f"{number // 1_000_000}/{number // 1000}"
        return f"chunks/{folder}/{number}_{block.index}_{block.size}"

    def block(self, slice_id: SliceId, size: int, index: int) -> BlockKey:
        """Block `index` of the slice of `size` bytes."""
        return BlockKey(slice_id, index, min(self.block_size, size - index * self.block_size))

    def blocks(self, slice_id: SliceId, size: int) -> Iterator[BlockKey]:
        """All blocks of the slice in order; none for an empty one."""
        for index in range((size + self.block_size - 1) // self.block_size):
            yield self.block(slice_id, size, index)

    def parse_key(self, key: str) -> BlockKey | None:
        """The block that `object_key` calls `key`; None for any other name."""
        found = _KEY.fullmatch(key)
        if found is None:
            return None
        block = BlockKey(SliceId(int(found[3])), int(found[4]), int(found[5]))
        return block if self.object_key(block) == key else None
