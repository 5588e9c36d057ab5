"""The block cache over several directories, and the opening of the cache a mount asked for."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import compress

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from juicepy.cache.blockfile import LEVELS
from juicepy.cache.cache import BlockCache
from juicepy.cache.disk import DiskCache
from juicepy.cache.evict import POLICIES
from juicepy.cache.memory import MemoryCache, NoCache
from juicepy.cache.options import BlockNames, CacheCounts, CacheOptions, Watchable
from juicepy.cache.ring import Ring, legacy_member
from juicepy.cache.staging import Staging, StagingOptions
from juicepy.cache.whole import WholeDirectory, WholeFiles
from juicepy.errors import Refused
from juicepy.memory import MemoryBudget
from juicepy.types import BlockKey, Buffer

logger = logging.getLogger(__name__)


def open_cache(
    options: CacheOptions,
    volume_id: str,
    names: BlockNames,
    metrics: Watchable | None = None,
    memory: MemoryBudget | None = None,
) -> BlockCache:
    """The cache of the volume whose UUID is `volume_id`, with its threads running.

    What waits for its disks is counted in `memory`, which all buffers of a mount share.
    Refused for an unknown setting or a directory that cannot be used.
    """
    if options.checksum not in LEVELS:
        raise Refused(f"unknown cache checksum level {options.checksum!r}: {', '.join(LEVELS)}")
    if options.eviction not in POLICIES:
        raise Refused(f"unknown cache eviction {options.eviction!r}: {', '.join(POLICIES)}")
    if options.size <= 0:
        return NoCache()
    if options.dirs == "memory":
        blocks = MemoryCache(options.size, options.items, options.eviction)
        _tell(metrics, [blocks.counts])
        return blocks
    disks = _open_disks(options, volume_id, names, memory)
    _tell(metrics, [disk.counts for disk in disks])
    return disks[0] if len(disks) == 1 else DiskCaches(disks, names)


def open_whole(cache: BlockCache) -> WholeFiles:
    """The whole files beside the blocks of a cache on disk. Refused for any other."""
    disks = cache.disks if isinstance(cache, DiskCaches) else [cache]
    directories = []
    for disk in disks:
        if not isinstance(disk, DiskCache):
            raise Refused("whole files need a cache on disk")
        disk.whole = disk.whole or WholeDirectory(disk.root, disk.options)
        directories.append(disk.whole)
    return WholeFiles(directories)


def open_staging(
    cache: BlockCache, options: StagingOptions, names: BlockNames, max_uploads: int
) -> Staging | None:
    """Where blocks of a mount that writes back wait; None if it does not, or has no cache disk."""
    if not options.enabled:
        return None
    if isinstance(cache, DiskCaches):
        return Staging(cache.disks, cache.disk, names, options, max_uploads)
    if isinstance(cache, DiskCache):
        return Staging([cache], lambda _: cache, names, options, max_uploads)
    logger.warning("--writeback is off: it needs a cache on disk")
    return None


class DiskStates:
    """The metric `blockcache_disk_state` of each directory: 0 in use, 1 full, 2 out of use."""

    def __init__(self, cache: BlockCache) -> None:
        self._disks = cache.disks if isinstance(cache, DiskCaches) else [cache]

    def collect(self) -> Iterator[Metric]:
        text = "Cache directories: 0 in use, 1 full, 2 out of use."
        states = GaugeMetricFamily("juicefs_blockcache_disk_state", text, labels=["dir"])
        for disk in self._disks:
            if isinstance(disk, DiskCache):
                states.add_metric([disk.root], 2 if disk.is_down else int(disk.keeper.is_full))
        yield states


def _tell(metrics: Watchable | None, counts: Sequence[CacheCounts]) -> None:
    if metrics is not None:
        metrics.watch("blockcache_evicts", lambda: sum(each.evicts for each in counts))
        metrics.watch("blockcache_drops", lambda: sum(each.drops for each in counts))


def _open_disks(
    options: CacheOptions, volume_id: str, names: BlockNames, memory: MemoryBudget | None
) -> list[DiskCache]:
    roots = sorted(os.path.join(path, volume_id) for path in expand(options.dirs))
    share = replace(options, size=options.size // len(roots), items=-(-options.items // len(roots)))
    disks: list[DiskCache] = []
    for root in roots:
        try:
            disks.append(DiskCache(root, names, share, memory).open())
        except OSError as error:
            for disk in disks:
                disk.close()
            where = os.path.dirname(root)
            raise Refused(f"cache directory {where} cannot be used: {error.strerror}") from error
    return disks


def expand(dirs: str) -> list[str]:
    """The directories that `--cache-dir` names: `a:b`, or `a,b`, each may have wildcards.

    A wildcard stands for directories that exist; what follows the last one is made below each.
    """
    parts = [part for part in dirs.split(":") if part]
    if len(parts) == 1:
        parts = [part for part in dirs.split(",") if part]
    found: list[str] = []
    for part in parts:
        found += _matching(os.path.expanduser(part))
    if not found:
        raise Refused(f"no cache directory matches {dirs!r}")
    return sorted(dict.fromkeys(found))


def _matching(pattern: str) -> list[str]:
    names = pattern.rstrip("/").split("/")
    wild = [at for at, name in enumerate(names) if any(sign in name for sign in "*?[")]
    if not wild:
        return [os.path.abspath(pattern)]
    head, tail = "/".join(names[: wild[-1] + 1]), names[wild[-1] + 1 :]
    return [os.path.join(os.path.abspath(path), *tail) for path in glob.glob(head)]


class DiskCaches:
    """One cache over several directories; a disk that is out of use is left out. Thread-safe."""

    def __init__(self, disks: Sequence[DiskCache], names: BlockNames) -> None:
        self.disks = list(disks)  # sorted by path, as the legacy location needs
        self._names = names
        self._rings: dict[tuple[bool, ...], tuple[list[DiskCache], Ring]] = {}

    def disk(self, block: BlockKey) -> DiskCache | None:
        """The directory that the block belongs to; None if none is left."""
        alive, ring = self._in_use()
        return alive[ring.member(self._names.object_key(block))] if alive else None

    def _in_use(self) -> tuple[list[DiskCache], Ring]:
        """The directories whose disks can be used now, and the ring that they make."""
        state = tuple(not disk.is_down for disk in self.disks)
        found = self._rings.get(state)
        if found is None:
            alive = list(compress(self.disks, state))
            found = alive, Ring([disk.ident for disk in alive])
            self._rings = {state: found}
        return found

    def _legacy(self, block: BlockKey) -> DiskCache:
        return self.disks[legacy_member(self._names.object_key(block), len(self.disks))]

    def load(self, block: BlockKey, off: int = 0, size: int | None = None) -> Buffer | None:
        disk = self.disk(block)
        data = disk.load(block, off, size) if disk is not None else None
        if data is None:
            legacy = self._legacy(block)
            if legacy is not disk:
                data = legacy.load(block, off, size)
        return data

    def store(self, block: BlockKey, data: Buffer) -> None:
        disk = self.disk(block)
        if disk is not None:
            disk.store(block, data)

    def contains(self, block: BlockKey) -> bool:
        disk = self.disk(block)
        if disk is not None and disk.contains(block):
            return True
        return self._legacy(block).contains(block)

    def discard(self, block: BlockKey) -> None:
        disk = self.disk(block)
        if disk is not None:
            disk.discard(block)
        legacy = self._legacy(block)
        if legacy is not disk:
            legacy.discard(block)

    def stats(self) -> tuple[int, int]:
        """(blocks, bytes) held by all directories."""
        each = [disk.stats() for disk in self.disks]
        return sum(blocks for blocks, _ in each), sum(size for _, size in each)

    def close(self) -> None:
        for disk in self.disks:
            disk.close()
