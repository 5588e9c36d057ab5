"""The block cache in one directory, shared with other clients of the volume on this machine.

| path below the directory | content                                             |
|--------------------------|-----------------------------------------------------|
| `.lock`                  | id of the directory: a UUID, written once           |
| `raw/<object key>`       | a block (see `blockfile`)                           |
| `*.tmp`                  | a block being written; after a minute, garbage      |

One thread writes blocks, another keeps the limits and knows what is there (spec cache.md 5).
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
import uuid
from collections import OrderedDict

from juicepy.cache import blockfile
from juicepy.cache.blockfile import BlockFile, Corrupt
from juicepy.cache.directory import identity, is_on_device, make, walk, write_identity
from juicepy.cache.evict import Cached, Excess, excess, expired, victims
from juicepy.cache.options import BlockNames, CacheCounts, CacheOptions
from juicepy.cache.whole import WholeDirectory
from juicepy.concurrency import Lock
from juicepy.memory import MemoryBudget
from juicepy.types import BlockKey, Buffer, SliceId

logger = logging.getLogger(__name__)

BlockId = tuple[SliceId, int]

OPEN_FILES = 128  # kept open for reading: opening costs more than reading 4 KiB
PENDING_BYTES = 64 << 20  # waiting to be written, where nobody gives a budget
FAILURES = 3  # in a row, after which the disk is given up
GARBAGE_AGE_S = 60.0
KEEP_INTERVAL_S = 1.0


class DiskCache:
    """Blocks below `root`. `open` makes the directory and starts the threads, `close` ends them.

    `is_down`: the disk failed or vanished; everything is a miss from then on.
    """

    def __init__(
        self,
        root: str,
        names: BlockNames,
        options: CacheOptions,
        memory: MemoryBudget | None = None,
    ) -> None:
        """Blocks that wait for the disk are counted in `memory`; if it is full none is taken."""
        self.root = root
        self._memory = memory or MemoryBudget(4 * PENDING_BYTES)
        self.ident = ""
        self.is_down = False
        self.counts = CacheCounts()
        self._names, self.options = names, options
        self._raw = os.path.join(root, "raw", "")
        self.whole: WholeDirectory | None = None  # what it holds comes before blocks
        self._device = 0
        self._failures = 0
        self._is_full = False
        self._lock = Lock("disk_cache")  # guards the four below
        self._index: dict[BlockId, Cached] = {}
        self._cost = 0
        self._opened: OrderedDict[BlockId, BlockFile] = OrderedDict()
        self._pending: OrderedDict[BlockId, tuple[BlockKey, memoryview]] = OrderedDict()
        self._work = threading.Condition()  # wakes the writer; guards nothing
        self._wake = threading.Event()  # wakes the keeper
        self._is_closing = False
        self._writer = threading.Thread(target=self._write_loop, name="cache-write", daemon=True)
        self._keeper = threading.Thread(target=self._keep_loop, name="cache-keep", daemon=True)

    def open(self) -> DiskCache:
        """OSError if the directory cannot be made or written."""
        os.makedirs(self.root, exist_ok=True)
        make(os.path.join(self.root, "raw"), self.options.mode)
        self.ident = identity(os.path.join(self.root, ".lock"))
        probe = os.path.join(self.root, "raw", f"probe-{uuid.uuid4()}.tmp")
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.unlink(probe)
        self._device = os.stat(self.root).st_dev
        self._writer.start()
        self._keeper.start()
        return self

    # -- the protocol
    def load(self, block: BlockKey, off: int = 0, size: int | None = None) -> Buffer | None:
        if size is None:
            size = block.size - off
        key = (block.id, block.index)
        with self._lock:
            waiting = self._pending.get(key)
            file = self._opened.get(key)
            if file is not None:
                self._opened.move_to_end(key)
        if waiting is not None:
            return waiting[1][off : off + size]
        try:
            if file is None:
                if self.is_down:
                    return None
                file = self._open(block)
            data = file.read(off, size, self.options.checksum)
        except FileNotFoundError:
            self._forget(block)
            return None
        except Corrupt as problem:
            logger.warning("cached block %s is dropped: %s", self._path(block), problem)
            self.discard(block)
            return None
        except OSError as error:
            self._failed("read", error)
            return None
        self._failures = 0
        cached = self._index.get(key)
        if cached is not None:
            cached.atime_s = time.time()
        return data

    def store(self, block: BlockKey, data: Buffer) -> None:
        key = (block.id, block.index)
        if self.is_down or self._is_full or key in self._index:
            return
        if not self._memory.take_queued(block.size):
            self.counts.drops += 1
            return
        with self._lock:
            is_new = key not in self._pending
            if is_new:
                self._pending[key] = block, memoryview(data).toreadonly()
            is_first = len(self._pending) == 1
        if not is_new:
            self._memory.give_back_queued(block.size)
        elif is_first:
            with self._work:
                self._work.notify()

    def contains(self, block: BlockKey) -> bool:
        key = (block.id, block.index)
        if key in self._index or key in self._pending:
            return True
        return not self.is_down and os.path.exists(self._path(block))

    def discard(self, block: BlockKey) -> None:
        self._drop_pending((block.id, block.index))
        self._forget(block)
        if not self.is_down:
            self._unlink(block)

    def stats(self) -> tuple[int, int]:
        return len(self._index), self._cost

    def close(self) -> None:
        """Blocks that wait are written first."""
        self._is_closing = True
        with self._work:
            self._work.notify()
        self._wake.set()
        for thread in (self._writer, self._keeper):
            if thread.is_alive():
                thread.join(30)
        with self._lock:
            self._opened.clear()

    def wait_stored(self, timeout_s: float = 30.0) -> bool:
        """Return when every block stored before is in its file; False if that takes too long."""
        end = time.monotonic() + timeout_s
        while self._pending and time.monotonic() < end:
            time.sleep(0.002)
        return not self._pending

    # -- staging (`cache/staging.py`)
    @property
    def has_checksums(self) -> bool:
        return self.options.checksum != "none"

    def may_stage(self) -> bool:
        """Whether the disk takes blocks that nothing may evict."""
        if self.is_down:
            return False
        disk = os.statvfs(self.root)
        return disk.f_bavail >= disk.f_blocks * self.options.free_space / 2

    def is_short_of_space(self) -> bool:
        return self._is_full

    def adopt(self, block: BlockKey, path: str) -> None:
        """Serve the staged file `path` as a cached block."""
        try:
            make(os.path.dirname(self._path(block)), self.options.mode)
            os.link(path, self._path(block))
        except FileExistsError:
            return  # it is in the cache already
        self._add(block, time.time())

    # -- files
    def _path(self, block: BlockKey) -> str:
        return self._raw + self._names.object_key(block)

    def _open(self, block: BlockKey) -> BlockFile:
        file = BlockFile(self._path(block), block.size)
        oldest: list[BlockFile] = []  # closed after the lock
        with self._lock:
            self._opened[block.id, block.index] = file
            if len(self._opened) > OPEN_FILES:
                oldest.append(self._opened.popitem(last=False)[1])
        if (block.id, block.index) not in self._index:
            self._add(block, time.time())  # written by another client
        return file

    def _unlink(self, block: BlockKey) -> None:
        try:
            os.unlink(self._path(block))
        except FileNotFoundError:
            return
        except OSError as error:
            self._failed("remove", error)

    def _failed(self, what: str, error: OSError) -> None:
        self._failures += 1
        if self._failures < FAILURES or self.is_down:
            return
        self.is_down = True
        logger.warning("cache directory %s is given up, cannot %s: %s", self.root, what, error)

    # -- the index
    def _add(self, block: BlockKey, atime_s: float) -> None:
        with self._lock:
            if (block.id, block.index) not in self._index:
                cached = self._index[block.id, block.index] = Cached(block, atime_s)
                self._cost += cached.cost

    def _forget(self, block: BlockKey) -> None:
        key = (block.id, block.index)
        with self._lock:
            cached = self._index.pop(key, None)
            if cached is not None:
                self._cost -= cached.cost
            file = self._opened.pop(key, None)
        del file  # closes it, after the lock

    # -- the writer
    def _write_loop(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._pending or self._is_closing)
            if not self._pending:
                return
            self._write_pending()

    def _write_pending(self) -> None:
        with self._lock:
            keys = list(self._pending)
        for key in keys:
            waiting = self._pending.get(key)
            if waiting is None:
                continue
            block, data = waiting
            is_stored = self._write(block, data)
            if is_stored:
                self._add(block, time.time())
            was_waiting = self._drop_pending(key)
            if is_stored and not was_waiting:  # discarded meanwhile
                self._forget(block)
                self._unlink(block)
        if self._cost > self.options.size:
            self._wake.set()

    def _drop_pending(self, key: BlockId) -> bool:
        with self._lock:
            waiting = self._pending.pop(key, None)
        if waiting is not None:
            self._memory.give_back_queued(waiting[0].size)
        return waiting is not None

    def _write(self, block: BlockKey, data: Buffer) -> bool:
        path = self._path(block)
        mode, checksums = self.options.mode, self.has_checksums
        try:
            try:
                blockfile.write(path, data, mode=mode, checksums=checksums)
            except FileNotFoundError:
                make(os.path.dirname(path), mode)
                blockfile.write(path, data, mode=mode, checksums=checksums)
        except FileExistsError:
            return False  # another client is at it
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self._is_full = True
                self._wake.set()
            else:
                self._failed("write", error)
            return False
        self._failures = 0
        return True

    # -- the keeper
    def _keep_loop(self) -> None:
        next_scan_s = 0.0
        while not self._is_closing:
            try:
                if time.monotonic() >= next_scan_s:
                    self._scan()
                    interval_s = self.options.scan_interval_s
                    next_scan_s = time.monotonic() + interval_s if interval_s > 0 else 2.0**62
                self.keep()
            except OSError as error:
                self._failed("clean", error)
            except Exception:
                logger.exception("keeping cache directory %s in its limits failed", self.root)
            self._wake.wait(KEEP_INTERVAL_S)
            self._wake.clear()

    def keep(self) -> None:
        """One round: see that the directory is there, drop what is too old or too much."""
        if self.is_down or not self._is_there():
            return
        with self._lock:
            gone = [key for key, file in self._opened.items() if file.is_unlinked()]
            files = [self._opened.pop(key) for key in gone]
        del files  # closes them: only then the space is free
        if self.options.expire_s > 0:
            before_s = time.time() - max(self.options.expire_s, 1.0)
            for cached in expired(self._entries(), before_s):
                self._evict(cached)
        todo = self._excess()
        if self.options.eviction == "none":
            self._is_full = bool(todo)
            return
        if todo:
            for cached in victims(self.options.eviction, self._entries()):
                if self._evict(cached):
                    todo = todo.without(cached)
                if not todo:
                    break
        self._is_full = todo.cost > 0 and self._lacking()[0] > 0

    def _entries(self) -> list[Cached]:
        with self._lock:
            return list(self._index.values())

    def _evict(self, cached: Cached) -> bool:
        """Remove the block, unless it is staged: then its file has a second name."""
        try:
            if os.stat(self._path(cached.block)).st_nlink > 1:
                return False
        except FileNotFoundError:
            self._forget(cached.block)
            return True
        self._forget(cached.block)
        self._unlink(cached.block)
        self.counts.evicts += 1
        return True

    def _excess(self) -> Excess:
        disk = os.statvfs(self.root)
        share = 1 - self.options.free_space
        limit = min(self.options.size, int(disk.f_blocks * disk.f_frsize * share))
        if self.whole is not None:
            limit = max(0, limit - self.whole.used_bytes())
        items = self.options.items or int(disk.f_files * share) or 1 << 62
        lacking_bytes, lacking = self._lacking()
        if self.options.eviction == "none" and self._cost >= limit:
            return Excess(1)
        return excess(
            self._cost,
            len(self._index),
            limit_cost=limit,
            limit_items=items,
            lacking_bytes=lacking_bytes,
            lacking=lacking,
        )

    def _lacking(self) -> tuple[int, int]:
        """Bytes and inodes that the disk has too few of."""
        disk = os.statvfs(self.root)
        wanted_bytes = int(disk.f_blocks * self.options.free_space) - disk.f_bavail
        wanted = int(disk.f_files * self.options.free_space) - disk.f_favail
        return max(0, wanted_bytes * disk.f_frsize), max(0, wanted)

    def _is_there(self) -> bool:
        """Whether the directory is still the one that was opened; if it was wiped, begin anew."""
        lock = os.path.join(self.root, ".lock")
        if os.path.exists(lock):
            return True
        if not is_on_device(self.root, self._device):
            self.is_down = True
            logger.warning("cache directory %s is gone: its disk is not mounted", self.root)
            return False
        os.makedirs(self.root, exist_ok=True)
        make(os.path.join(self.root, "raw"), self.options.mode)
        write_identity(lock, self.ident)
        for cached in self._entries():
            self._forget(cached.block)
        return True

    def _scan(self) -> None:
        """Bring the index in line with the files."""
        started_s = time.time()
        found: set[BlockId] = set()
        for entry in walk(self._raw):
            block = self._names.parse_key(entry.path[len(self._raw) :])
            try:
                status = entry.stat(follow_symlinks=False)
                if block is not None:
                    found.add((block.id, block.index))
                    self._add(block, status.st_atime)
                elif entry.name.endswith(".tmp") and status.st_mtime < started_s - GARBAGE_AGE_S:
                    os.unlink(entry.path)
            except FileNotFoundError:
                continue  # removed by another client
        for cached in self._entries():
            key = (cached.block.id, cached.block.index)
            if key not in found and not os.path.exists(self._path(cached.block)):
                self._forget(cached.block)
