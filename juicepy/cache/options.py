"""What a mount chose for its cache (spec cache.md 4, 5). Sizes in bytes, times in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from juicepy.types import BlockKey


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """`dirs` as given: `a:b`, with wildcards, or `memory`. `size` 0: no cache.

    `items` 0: as many as the file system has room for. `expire_s` 0: blocks do not age.
    `checksum`: none, full, shrink or extend; `eviction`: none, 2-random or lru.
    """

    dirs: str = "memory"
    mode: int = 0o600
    size: int = 100 << 30
    items: int = 0
    checksum: str = "extend"
    eviction: str = "2-random"
    scan_interval_s: float = 3600.0  # negative: only at the start
    expire_s: float = 0.0
    free_space: float = 0.1
    reserve: int = 150 << 20  # free bytes, where `free_space` is less
    prune_above: float = 1.0  # share of the limits at which a cache is cleaned up
    prune_to: float = 0.95  # and down to which
    write_pending: int = 64 << 20  # bytes waiting for one disk
    writers: int = 1  # threads of one disk


@dataclass(slots=True)
class CacheCounts:
    """Blocks since the start: removed to make room, and not taken because the disk is too slow."""

    evicts: int = 0
    drops: int = 0


class Watchable(Protocol):
    """Where a metric is told how to find its value."""

    def watch(self, name: str, source: Callable[[], float], /) -> None: ...


class BlockNames(Protocol):
    """How blocks are called on disk: as their objects."""

    def object_key(self, block: BlockKey, /) -> str: ...

    def parse_key(self, key: str, /) -> BlockKey | None: ...
