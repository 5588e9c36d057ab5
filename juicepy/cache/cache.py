"""The protocol of a block cache."""

from __future__ import annotations

from typing import Protocol

from juicepy.types import BlockKey, Buffer


class BlockCache(Protocol):
    """Plain blocks on this machine; any of them may vanish at any time. Thread-safe.

    A cache never raises for a sick disk: it logs, misses, and takes the disk out.
    """

    def load(self, block: BlockKey, off: int = 0, size: int | None = None) -> Buffer | None:
        """Bytes [off, off+size) of the block (checked against its checksums), None if absent."""

    def store(self, block: BlockKey, data: Buffer) -> None:
        """Best effort; `data` is the whole plain block and may be kept by reference."""

    def contains(self, block: BlockKey) -> bool: ...

    def discard(self, block: BlockKey) -> None: ...

    def stats(self) -> tuple[int, int]:
        """(blocks, bytes) held."""

    def close(self) -> None: ...
