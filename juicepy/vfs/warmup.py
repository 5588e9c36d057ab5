"""Bringing files into the cache of this machine, checking that they are there, dropping them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from threading import Event
from typing import Any, TypeVar

from juicepy.cache.disk import DiskCache
from juicepy.cache.disks import DiskCaches
from juicepy.chunk import overlay
from juicepy.chunk.layout import Layout
from juicepy.chunk.store import BlockStore
from juicepy.concurrency import Workers
from juicepy.meta import tree
from juicepy.meta.client import MetaClient
from juicepy.types import CHUNK_BITS, CHUNK_SIZE, Attr, BlockKey, Cred, Inode, Kind, Slice
from juicepy.vfs.control import Cancelled, Job
from juicepy.vfs.open_cache import OpenCache, Views

logger = logging.getLogger(__name__)

T = TypeVar("T")

WARM, EVICT, CHECK = 0, 1, 2


@dataclass(slots=True)
class _Totals:
    files: int = 0
    slices: int = 0
    size: int = 0
    missed: int = 0  # in bytes: not cached, or could not be
    here: int = 0  # in bytes: were cached before
    absent: int = 0  # paths
    places: dict[str, int] = field(default_factory=dict)

    def shown(self) -> dict[str, Any]:
        return {
            "FileCount": self.files,
            "SliceCount": self.slices,
            "TotalBytes": self.size,
            "MissBytes": self.missed,
            "CachedBytes": self.here,  # these two are not in JuiceFS
            "FailedPaths": self.absent,
            "Locations": self.places,
        }


class _Detached:
    """The job of a request that has been answered already."""

    def __init__(self, closing: Event) -> None:
        self._closing = closing

    def add(self, first: int, second: int) -> None:
        if self._closing.is_set():
            raise Cancelled


class WarmUp:
    """Work on the blocks of whole trees. Thread-safe."""

    def __init__(self, meta: MetaClient, store: BlockStore, known: OpenCache) -> None:
        """`known`: where attributes and chunks are kept for the opens to come."""
        self._meta, self._store, self._known = meta, store, known
        self._closing = Event()
        self._background = Workers("warmup", 2)

    def close(self) -> None:
        """Also ends what runs in the background."""
        self._closing.set()
        self._background.close(cancel=True)

    def run(
        self, cred: Cred, paths: list[bytes], action: int, threads: int, background: bool, job: Job
    ) -> dict[str, Any]:
        """Counts of what was found. Paths that do not exist are passed over with a warning."""
        if background:
            detached = _Detached(self._closing)
            self._background.run(self._run_detached, cred, paths, action, threads, detached)
            return _Totals().shown()
        return self._run(cred, paths, action, threads, job).shown()

    def each_chunk(
        self, ino: Inode, threads: int, job: Job, work: Callable[[Inode, int], object]
    ) -> None:
        """Do `work` on every chunk of the tree; the job counts chunks found and chunks done."""

        def one(chunk: tuple[Inode, int]) -> None:
            work(*chunk)
            job.add(0, 1)

        with ThreadPoolExecutor(max(1, threads), thread_name_prefix="chunks") as pool:
            for found, attr in self._tree(ino):
                for batch in _batches(_indexes(attr), 4 * max(1, threads)):
                    job.add(len(batch), 0)
                    for _ in pool.map(one, [(found, index) for index in batch]):
                        continue

    # -- private
    def _run_detached(
        self, cred: Cred, paths: list[bytes], action: int, threads: int, job: Job
    ) -> None:
        try:
            totals = self._run(cred, paths, action, threads, job)
            logger.info("warm-up is done: %d files, %d bytes", totals.files, totals.size)
        except Cancelled:
            logger.info("warm-up was cut short by the unmount")

    def _run(self, cred: Cred, paths: list[bytes], action: int, threads: int, job: Job) -> _Totals:
        totals = _Totals()
        threads = max(1, threads)
        with ThreadPoolExecutor(threads, thread_name_prefix="warmup") as pool:
            files = (found for path in paths for found in self._files(cred, path, totals))
            for batch in _batches(files, 4 * threads):
                lists = list(
                    pool.map(lambda found: self._blocks(found[0], found[1], action), batch)
                )
                totals.files += len(batch)
                totals.slices += sum(slices for slices, _ in lists)
                job.add(len(batch), 0)
                blocks = (block for _, found in lists for block in found)
                for some in _batches(blocks, 4 * threads):
                    self._handle(pool, some, action, totals)
                    job.add(0, sum(block.size for block in some))
        return totals

    def _handle(
        self, pool: ThreadPoolExecutor, blocks: list[BlockKey], action: int, totals: _Totals
    ) -> None:
        work = {EVICT: self._evict, CHECK: self._check}.get(action, self._warm)
        for block, place in zip(blocks, pool.map(work, blocks), strict=True):
            totals.size += block.size
            if place is None:
                totals.missed += block.size
            elif action == WARM:
                totals.here += block.size if place else 0
            elif place:
                totals.places[place] = totals.places.get(place, 0) + block.size

    def _warm(self, block: BlockKey) -> str | None:
        """None if it cannot be cached; a word if it is there already."""
        try:
            return "" if self._store.fill(block) else "cached"
        except OSError as error:
            logger.warning("block %s could not be cached: %s", block, error)
            return None

    def _evict(self, block: BlockKey) -> str | None:
        self._store.drop_cached(block)
        return ""

    def _check(self, block: BlockKey) -> str | None:
        cache = self._store.cache
        if not cache.contains(block):
            return None
        if isinstance(cache, DiskCaches):
            cache = cache.disk(block) or cache
        return f"{cache.root}/" if isinstance(cache, DiskCache) else "memory"

    def _files(self, cred: Cred, path: bytes, totals: _Totals) -> Iterator[tuple[Inode, Attr]]:
        try:
            if path.startswith(b"inode:"):
                ino = Inode(int(path[6:]))
            else:
                ino, _ = self._meta.resolve(cred, path)
            yield from self._tree(ino)
        except (OSError, ValueError) as error:
            logger.warning("nothing to warm up at %r: %s", path, error)
            totals.absent += 1

    def _tree(self, top: Inode) -> Iterator[tuple[Inode, Attr]]:
        """The regular files of the tree, or the file `top` itself."""
        attr = self._meta.getattr(top)
        if attr.kind is Kind.FILE:
            yield top, attr
        if not attr.is_dir:
            return
        start = self._meta.root if top == 1 else top
        for _, page in tree.walk(self._meta.engine, start):
            for entry in page:
                if entry.kind is Kind.FILE and entry.attr is not None:
                    yield entry.ino, entry.attr

    def _blocks(self, ino: Inode, attr: Attr, action: int) -> tuple[int, list[BlockKey]]:
        """(number of slices, the blocks that are seen of them) of a file."""
        layout, slices = self._store.layout, 0
        changes = self._known.changes
        views = {index: overlay.build(self._meta.slices(ino, index)) for index in _indexes(attr)}
        if action == WARM and self._known.is_on:
            self._keep(ino, attr, views, changes)
        found: dict[BlockKey, None] = {}
        for view in views.values():
            for piece in view:
                if piece.id:
                    slices += 1
                    found.update((block, None) for block, _, _ in cut(layout, piece))
        return slices, list(found)

    def _keep(self, ino: Inode, attr: Attr, views: Views, changes: int) -> None:
        """Have the next opens know the file, if it has not changed since `attr` was told."""
        try:
            now = self._meta.getattr(ino)
        except FileNotFoundError:
            return
        if (now.mtime_ns, now.length) == (attr.mtime_ns, attr.length):
            self._known.note(ino, now, changes, views)


def cut(layout: Layout, piece: Slice) -> Iterator[tuple[BlockKey, int, int]]:
    """The blocks under a piece of a slice, each with the part (offset, length) that is meant."""
    off, end = piece.off, piece.off + piece.length
    while off < end:
        index, start = divmod(off, layout.block_size)
        length = min(end - off, layout.block_size - start)
        yield layout.block(piece.id, piece.size, index), start, length
        off += length


def _indexes(attr: Attr) -> range:
    return range((attr.length + CHUNK_SIZE - 1) >> CHUNK_BITS)


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch
