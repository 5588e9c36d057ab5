"""A volume over several buckets: the key tells the bucket.

The bucket of a key is FNV-1a (32 bit) of the whole key, volume prefix included, modulo the number
of buckets (shared format); so the prefix is added outside of this wrapper.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from operator import attrgetter

from juicepy.object.storage import Durable, ObjectInfo, ObjectStorage, ability
from juicepy.types import Buffer

_FNV_BASIS = 0x811C9DC5  # stored: never change
_FNV_PRIME = 0x01000193  # stored: never change


def fnv1a(data: bytes) -> int:
    """The 32-bit FNV-1a hash."""
    digest = _FNV_BASIS
    for byte in data:
        digest = (digest ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return digest


class Sharded:
    """One storage made of `shards`, in their order."""

    def __init__(self, shards: Sequence[ObjectStorage]) -> None:
        self.shards = tuple(shards)

    def __str__(self) -> str:
        return f"shard{len(self.shards)}+{self.shards[0]}"

    def shard(self, key: str) -> ObjectStorage:
        """The storage that holds `key`."""
        return self.shards[fnv1a(key.encode()) % len(self.shards)]

    def get(self, key: str, off: int = 0, size: int | None = None) -> bytes:
        return self.shard(key).get(key, off, size)

    def put(self, key: str, data: Buffer) -> None:
        self.shard(key).put(key, data)

    def delete(self, key: str) -> None:
        self.shard(key).delete(key)

    def head(self, key: str) -> ObjectInfo:
        return self.shard(key).head(key)

    def list_from(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        lists = [shard.list_from(prefix, after) for shard in self.shards]
        return heapq.merge(*lists, key=attrgetter("key"))

    def create(self) -> None:
        for shard in self.shards:
            shard.create()

    def sync(self) -> None:
        """Of the shards that need it."""
        for shard in self.shards:
            durable = ability(shard, Durable)
            if durable is not None:
                durable.sync()

    def close(self) -> None:
        for shard in self.shards:
            shard.close()
