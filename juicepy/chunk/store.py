"""BlockStore: slices read and written as blocks, through the cache, from and to the objects.

Reading asks the read buffer, then the cache, then the store. A block is fetched once however many
ask for it at a time. A small read inside an uncompressed block gets just its range, and the block
follows in the background (spec cache.md 6). What is handed out is never changed afterwards.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from juicepy.cache.cache import BlockCache
from juicepy.cache.options import Watchable
from juicepy.cache.staging import Staging
from juicepy.chunk.compress import Compressor, compressor
from juicepy.chunk.layout import Layout
from juicepy.chunk.recent import BlockId, RecentBlocks
from juicepy.concurrency import Lock, Workers
from juicepy.errors import ObjectNotFound
from juicepy.object.storage import Durable, ObjectStorage, ability
from juicepy.types import BlockKey, Buffer, SliceId

MiB = 1 << 20
PREFETCH_BACKLOG = 16  # blocks behind random reads that may wait; more would come too late


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How data travels. Limits in Mbps (0: none) and retries are applied by the object layer."""

    max_uploads: int = 20
    max_downloads: int = 200
    buffer_size: int = 300 * MiB  # bytes of dirty data, and of data read ahead
    readahead: int = 0  # bytes a stream may be ahead; 0: a fair part of the buffer
    prefetch: int = 1  # blocks fetched at once behind small random reads; 0: none
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


class _Flight:
    """A block on its way. Whoever sets `is_claimed` (under the store's lock) fetches it."""

    __slots__ = ("block", "is_claimed", "landed")

    def __init__(self, block: BlockKey, *, is_claimed: bool) -> None:
        self.block = block
        self.is_claimed = is_claimed
        self.landed: Future[memoryview] = Future()


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
    ) -> None:
        """`staging` takes the blocks that are uploaded later; whoever gives it closes it."""
        self.options = options = options or StoreOptions()
        self._staging = staging
        self.layout, self.cache, self.storage = layout, cache, storage
        self._durable = ability(storage, Durable)
        self.block_size = layout.block_size
        self._codec = compressor(compression) if isinstance(compression, str) else compression
        self._recent = RecentBlocks(max(options.buffer_size // 2, 2 * layout.block_size))
        self._lock = Lock("block_store")  # guards _flights, _ahead_bytes, _backlog, _stats
        self._flights: dict[BlockId, _Flight] = {}
        self._ahead_bytes = 0  # of flights that nobody waits for yet
        self._backlog = 0
        self._stats = StoreStats()
        self._downloads = Workers("download", options.max_downloads)
        self._prefetches = Workers("prefetch", options.prefetch)
        self._uploads = Workers("upload", options.max_uploads)
        self._get_slots = threading.BoundedSemaphore(max(1, options.max_downloads))
        self._put_slots = threading.BoundedSemaphore(max(1, options.max_uploads))
        self._get_wait_s = options.get_timeout_s * (options.io_retries + 1)
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
        """Fetch the block in the background; False if too much is on its way already."""
        key = (block.id, block.index)
        if self._recent.get(key) is not None or self.cache.contains(block):
            return True
        with self._lock:
            if key in self._flights:
                return True
            if self._ahead_bytes + block.size > self.options.buffer_size // 2:
                return False
            flight = self._flights[key] = _Flight(block, is_claimed=False)
            self._ahead_bytes += block.size
        self._downloads.run(self._fetch_unclaimed, flight)
        return True

    def fill(self, block: BlockKey) -> None:
        """Bring the block into the cache of this machine, whatever its size."""
        if not self.cache.contains(block):
            self._cache(block, self._load(block))

    def read_through(self, part: Part) -> Buffer:
        """A part within one block, which is not kept on this machine unless it is there already."""
        index, start = divmod(part.off, self.block_size)
        data = self._near(part.id, part.size, index, start, part.length)
        if data is not None:
            return data
        block = self.layout.block(part.id, part.size, index)
        if self._codec.is_plain and part.length < block.size:
            return self._get(block, start, part.length)
        return self._get(block)[start : start + part.length]

    def contains(self, block: BlockKey) -> bool:
        """Whether the block is on this machine."""
        return self._recent.get((block.id, block.index)) is not None or self.cache.contains(block)

    def _near(
        self, slice_id: SliceId, size: int, index: int, start: int, length: int
    ) -> Buffer | None:
        recent = self._recent.get((slice_id, index))
        if recent is not None:
            return recent[start : start + length]
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
            (slot, self._downloads.submit(self._far, block, start, length))
            for slot, block, start, length in missing[1:]
        ]
        slot, block, start, length = missing[0]
        pieces[slot] = self._far(block, start, length)
        for slot, future in futures:
            pieces[slot] = self._landed(future)

    def _far(self, block: BlockKey, start: int, length: int) -> Buffer:
        if start > 0 and 4 * length <= block.size and self._codec.is_plain:
            with self._lock:
                flight = self._flights.get((block.id, block.index))
                is_coming = flight is not None and flight.is_claimed
            if not is_coming:
                data = self._get(block, start, length)
                self._prefetch_behind(block)
                return data
        return self._load(block)[start : start + length]

    def _prefetch_behind(self, block: BlockKey) -> None:
        with self._lock:
            if self.options.prefetch <= 0 or self._backlog >= PREFETCH_BACKLOG:
                return
            if (block.id, block.index) in self._flights:
                return
            self._backlog += 1
        self._prefetches.run(self._prefetch_now, block)

    def _prefetch_now(self, block: BlockKey) -> None:
        try:
            if not self.contains(block):
                self._load(block)
        except OSError:
            return  # whoever reads the block is told
        finally:
            with self._lock:
                self._backlog -= 1

    def _load(self, block: BlockKey) -> memoryview:
        """The whole block: from the read buffer, a flight in the air, or the store."""
        key = (block.id, block.index)
        with self._lock:
            flight = self._flights.get(key)
            mine = flight is None or not flight.is_claimed
            if flight is None:
                flight = self._flights[key] = _Flight(block, is_claimed=True)
            elif mine:  # waits in a queue: quicker to fetch it here
                flight.is_claimed = True
                self._ahead_bytes -= block.size
        return self._fetch(flight) if mine else self._landed(flight.landed)

    def _landed(self, future: Future[Any]) -> Any:
        try:
            return future.result(self._get_wait_s)
        except TimeoutError as error:
            if future.done():
                raise
            raise OSError(errno.EIO, "a block did not arrive in time") from error
        except CancelledError as error:
            raise OSError(errno.EIO, "the block store is closed") from error

    def _fetch_unclaimed(self, flight: _Flight) -> None:
        with self._lock:
            if flight.is_claimed:
                return
            flight.is_claimed = True
        try:
            self._fetch(flight)
        except OSError:
            return  # whoever reads the block is told
        finally:
            with self._lock:
                self._ahead_bytes -= flight.block.size

    def _fetch(self, flight: _Flight) -> memoryview:
        block = flight.block
        key = (block.id, block.index)
        try:
            data = self._recent.get(key)  # may have landed since the caller looked
            is_new = data is None
            if data is None:
                data = self._get(block)
                self._recent.put(block, data)
        except BaseException as error:
            self._land(key)
            flight.landed.set_exception(error)
            raise
        self._land(key)
        flight.landed.set_result(data)
        if is_new and not (self.options.cache_partial_only and block.size == self.block_size):
            self._cache(block, data)
        return data

    def _land(self, key: BlockId) -> None:
        with self._lock:
            self._flights.pop(key, None)

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

    def sync(self) -> None:
        """Return when the blocks that were put survive a power cut, where a store can tell."""
        if self._durable is not None:
            with _object_errors("sync"):
                self._durable.sync()

    def buffered_bytes(self) -> int:
        """Bytes in the read buffer and on their way to it."""
        return self._recent.stats()[1] + self._ahead_bytes

    def close(self) -> None:
        """End the threads; uploads under way are finished. The cache and storage stay open."""
        self._prefetches.close(cancel=True)
        self._downloads.close(cancel=True)
        self._uploads.close()
        self._recent.clear()
