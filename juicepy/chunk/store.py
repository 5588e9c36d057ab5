"""BlockStore: slices read and written as blocks, through the cache, from and to the objects.

Reading asks the read buffer, then the cache, then the store. A block is fetched once however many
ask for it at a time. A small read inside an uncompressed block gets just its range; where many of
them meet in one block, it follows in the background. Whole blocks come as far as there is memory
(`juicepy/memory.py`), then reads get just their ranges. What is handed out is never changed.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace

from juicepy.cache.cache import BlockCache
from juicepy.cache.options import Watchable
from juicepy.cache.staging import Staging
from juicepy.chunk.compress import Compressor, compressor
from juicepy.chunk.flights import Flights
from juicepy.chunk.layout import Layout
from juicepy.chunk.ranges import RangeReads
from juicepy.chunk.recent import RecentBlocks
from juicepy.concurrency import Lock, Workers
from juicepy.errors import ObjectNotFound
from juicepy.memory import MemoryBudget
from juicepy.object.encrypt import Encrypted
from juicepy.object.storage import Durable, ObjectStorage, ability
from juicepy.types import BlockKey, Buffer, SliceId

MiB = 1 << 20
FLOOR_BLOCKS = 8  # that reads can have however much is written


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How data travels. Limits in Mbps (0: none) and retries are applied by the object layer."""

    max_uploads: int = 20
    max_downloads: int = 200
    buffer_size: int = 300 * MiB  # bytes of all buffers together
    readahead: int = 0  # bytes a stream may be ahead; 0: a fair part of the buffer
    prefetch: int = 1  # blocks fetched at once behind small random reads; 0: none
    object_copies: int = 0  # that the object layer makes of what it uploads
    get_timeout_s: float = 60.0
    put_timeout_s: float = 60.0
    io_retries: int = 10
    upload_limit: int = 0
    download_limit: int = 0
    cache_large_write: bool = False  # full blocks enter the cache after upload too
    cache_partial_only: bool = False  # only blocks shorter than the block size enter it


class BlockLost(OSError):
    """EIO: the object of a block that a slice list names is not there."""

    def __init__(self, key: str) -> None:
        super().__init__(errno.EIO, "a block is missing in the object store", key)


@dataclass(frozen=True, slots=True)
class Part:
    """`length` bytes from `off` on of slice `id`, whose whole size is `size`."""

    id: SliceId
    size: int
    off: int
    length: int


@dataclass(slots=True)
class StoreStats:
    """Counts since the start; a snapshot when handed out."""

    hits: int = 0
    hit_bytes: int = 0
    misses: int = 0
    miss_bytes: int = 0
    writes: int = 0  # blocks given to the cache
    write_bytes: int = 0
    uploading: int = 0  # objects, now
    fetching: int = 0


@contextmanager
def _object_errors(key: str) -> Iterator[None]:
    """What an object's error means to a file: EIO, if it is not lack of space."""
    try:
        yield
    except ObjectNotFound as error:
        raise BlockLost(key) from error
    except OSError as error:
        if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(errno.EIO, f"object store: {error.strerror or error}", key) from error


class BlockStore:
    """The blocks of one volume. Thread-safe. Errors are OSError: EIO for lost or damaged blocks."""

    def __init__(
        self,
        storage: ObjectStorage,
        cache: BlockCache,
        layout: Layout,
        compression: str | Compressor = "none",
        options: StoreOptions | None = None,
        metrics: Watchable | None = None,
        staging: Staging | None = None,
        memory: MemoryBudget | None = None,
    ) -> None:
        """`staging` takes the blocks that are uploaded later; whoever gives it closes it.

        `memory` is that of all buffers of the mount; one of its own if None.
        """
        self.options = options = options or StoreOptions()
        self._staging = staging
        self.layout, self.cache, self.storage = layout, cache, storage
        self._durable = ability(storage, Durable)
        self.block_size = layout.block_size
        self._codec = compressor(compression) if isinstance(compression, str) else compression
        self._has_ranges = self._codec.is_plain and ability(storage, Encrypted) is None
        self.memory = memory = memory or new_budget(options, layout.block_size)
        self._recent = RecentBlocks(memory)
        self._ranges = RangeReads()
        self._lock = Lock("block_store")  # guards _stats
        self._stats = StoreStats()
        self._flights = Flights(
            self._get,
            self._landed,
            memory,
            self._recent,
            copies=1 if self._has_ranges else 2,
            downloads=options.max_downloads,
            behind=options.prefetch,
            timeout_s=options.get_timeout_s * (options.io_retries + 1),
        )
        uploads = self._uploads_at_once()
        self._uploads = Workers("upload", uploads)
        self._get_slots = threading.BoundedSemaphore(max(1, options.max_downloads))
        self._put_slots = threading.BoundedSemaphore(uploads)
        if metrics is not None:
            self._tell(metrics)
        if staging is not None:
            staging.start(self._put, self._delete)

    # -- reading
    def read(self, slice_id: SliceId, size: int, off: int, length: int) -> list[Buffer]:
        """`length` bytes from `off` on of the slice of `size` bytes, in pieces.

        BlockLost if an object is absent, EIO if one is damaged.
        """
        index, start = divmod(off, self.block_size)
        if 0 < length <= self.block_size - start:  # nearly all reads
            data = self._near(slice_id, size, index, start, length)
            if data is None:
                data = self._far(self.layout.block(slice_id, size, index), start, length)
            return [data]
        return self.read_parts([Part(slice_id, size, off, length)])

    def read_parts(self, parts: Sequence[Part]) -> list[Buffer]:
        """The parts' bytes, in order; blocks that are not on this machine are fetched at once."""
        pieces: list[Buffer | None] = []
        missing: list[tuple[int, BlockKey, int, int]] = []
        for part in parts:
            off, left = part.off, part.length
            while left > 0:
                index, start = divmod(off, self.block_size)
                length = min(left, self.block_size - start)
                data = self._near(part.id, part.size, index, start, length)
                if data is None:
                    block = self.layout.block(part.id, part.size, index)
                    missing.append((len(pieces), block, start, length))
                pieces.append(data)
                off, left = off + length, left - length
        if missing:
            self._fill(pieces, missing)
        return pieces  # type: ignore[return-value]  # _fill leaves no None

    def prefetch(self, block: BlockKey) -> bool:
        """Fetch the block in the background; False if there is no room for it."""
        return self.contains(block) or self._flights.ahead(block)

    def fill(self, block: BlockKey) -> bool:
        """Bring the block into the cache of this machine, whatever its size; False: it is there."""
        if self.cache.contains(block):
            return False
        self._cache(block, self._whole(block))
        return True

    @contextmanager
    def reading_through(self, part: Part) -> Iterator[Buffer]:
        """A part within one block, which is not kept on this machine unless it is there already."""
        index, start = divmod(part.off, self.block_size)
        near = self._near(part.id, part.size, index, start, part.length)
        if near is not None:
            yield near
            return
        block = self.layout.block(part.id, part.size, index)
        with self._flights.room_for(block):
            if self._has_ranges and part.length < block.size:
                yield self._get(block, start, part.length)
            else:
                yield self._get(block)[start : start + part.length]

    def contains(self, block: BlockKey) -> bool:
        """Whether the block is on this machine."""
        return self._recent.get((block.id, block.index)) is not None or self.cache.contains(block)

    def _near(
        self, slice_id: SliceId, size: int, index: int, start: int, length: int
    ) -> Buffer | None:
        recent = self._recent.read((slice_id, index), start, length)
        if recent is not None:
            return recent
        block = self.layout.block(slice_id, size, index)
        found = self.cache.load(block, start, length)
        with self._lock:
            if found is None:
                self._stats.misses += 1
                self._stats.miss_bytes += length
            else:
                self._stats.hits += 1
                self._stats.hit_bytes += length
        return found

    def _fill(
        self, pieces: list[Buffer | None], missing: list[tuple[int, BlockKey, int, int]]
    ) -> None:
        """Fetch the missing ranges: the first here, the others beside it."""
        futures = [
            (slot, self._flights.beside(self._far, block, start, length))
            for slot, block, start, length in missing[1:]
        ]
        slot, block, start, length = missing[0]
        pieces[slot] = self._far(block, start, length)
        for slot, future in futures:
            pieces[slot] = self._flights.result(future)

    def _far(self, block: BlockKey, start: int, length: int) -> Buffer:
        """A range of a block that is not on this machine."""
        key = (block.id, block.index)
        if not self._has_ranges:
            whole: memoryview | None = self._whole(block)
        elif start > 0 and 4 * length <= block.size and not self._flights.is_claimed(key):
            data = self._get(block, start, length)
            if self._ranges.note(key, block.size, length):
                self._flights.behind(block)
            return data
        else:
            whole = self._flights.load(block, waits=False)
        if whole is None:
            return self._get(block, start, length)
        kept = self._recent.read(key, start, length)
        return whole[start : start + length] if kept is None else kept

    def _whole(self, block: BlockKey) -> memoryview:
        whole = self._flights.load(block, waits=True)
        assert whole is not None
        return whole

    def _landed(self, block: BlockKey, data: memoryview) -> None:
        if not (self.options.cache_partial_only and block.size == self.block_size):
            self._cache(block, data)

    def _get(self, block: BlockKey, start: int = 0, length: int | None = None) -> memoryview:
        """Plain bytes from the object store: a range, or with `length` None all."""
        if self._staging is not None:
            staged = self._staging.load(
                block, start, block.size - start if length is None else length
            )
            if staged is not None:
                return memoryview(staged).toreadonly()
        key = self.layout.object_key(block)
        with _object_errors(key), self._get_slots:
            if length is not None:
                data: Buffer = self.storage.get(key, start, length)
            else:
                data = self._codec.decompress(self.storage.get(key), block.size)
        if length is not None and len(data) != length:
            raise OSError(errno.EIO, f"an object is shorter than {block.size} bytes", key)
        return memoryview(data).toreadonly()

    # -- writing
    def put(self, block: BlockKey, data: Buffer) -> None:
        """Store the whole block; returns when it is safe. `data` is not changed any more."""
        if self._staging is not None and self._staging.stage(block, data):
            return
        self._put(block, data)
        if self._is_cached_after_upload(block):
            self._cache(block, memoryview(data).toreadonly())

    def _put(self, block: BlockKey, data: Buffer) -> None:
        """Upload the whole block."""
        packed = self._codec.compress(data)
        key = self.layout.object_key(block)
        with _object_errors(key), self._put_slots:
            with self._lock:
                self._stats.uploading += 1
            try:
                self.storage.put(key, packed)
            finally:
                with self._lock:
                    self._stats.uploading -= 1

    def _cache(self, block: BlockKey, data: memoryview) -> None:
        with self._lock:
            self._stats.writes += 1
            self._stats.write_bytes += block.size
        self.cache.store(block, data)

    def upload(self, work: Callable[[], None]) -> Future[None]:
        """Run `work`, which calls `put`, on one of the threads for uploads."""
        return self._uploads.submit(work)

    def _is_cached_after_upload(self, block: BlockKey) -> bool:
        if block.size < self.block_size:
            return True
        return self.options.cache_large_write and not self.options.cache_partial_only

    def remove(self, slice_id: SliceId, size: int) -> None:
        """Delete all blocks of the slice; absent ones are fine."""
        for block in self.layout.blocks(slice_id, size):
            self.drop_cached(block)
            if self._staging is not None:
                self._staging.drop(block)
            self._delete(block)

    def _delete(self, block: BlockKey) -> None:
        self.storage.delete(self.layout.object_key(block))

    def discard(self, slice_id: SliceId, size: int) -> None:
        """Remove the slice in the background: no record names it."""
        self._uploads.run(self.remove, slice_id, size)

    def drop_cached(self, block: BlockKey) -> None:
        """Forget this machine's copy of the block."""
        self._recent.discard(block)
        self.cache.discard(block)

    # -- life
    def _tell(self, metrics: Watchable) -> None:
        stats = self._stats
        metrics.watch("object_request_uploading", lambda: stats.uploading)
        metrics.watch("blockcache_writes", lambda: stats.writes)
        metrics.watch("blockcache_write_bytes", lambda: stats.write_bytes)

    def stats(self) -> StoreStats:
        with self._lock:
            return replace(self._stats, fetching=len(self._flights))

    def _uploads_at_once(self) -> int:
        """As many as asked for, if there is memory for the copies that are made for them."""
        copies = self.options.object_copies + (not self._codec.is_plain)
        most = self.options.max_uploads
        if copies:
            each = copies * self.block_size
            most = min(most, self.memory.limit_bytes // 3 // each)
            self.memory.set_aside(max(1, most) * each)
        return max(1, most)

    def sync(self) -> None:
        """Return when the blocks that were put survive a power cut, where a store can tell."""
        if self._durable is not None:
            with _object_errors("sync"):
                self._durable.sync()

    def buffered_bytes(self) -> int:
        """Bytes in the read buffer and on their way to it."""
        used = self.memory.stats()
        return used.coming + used.kept

    def close(self) -> None:
        """End the threads; uploads under way are finished. The cache and storage stay open."""
        self._flights.close()
        self._uploads.close()
        self._recent.clear()


def new_budget(options: StoreOptions, block_size: int) -> MemoryBudget:
    """The memory of a mount with these options."""
    limit = options.buffer_size
    return MemoryBudget(limit, min(limit // 4, FLOOR_BLOCKS * block_size))
