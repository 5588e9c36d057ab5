"""The block cache in one directory, shared with other clients of the volume on this machine.

| path below the directory | content                                                            |
|--------------------------|--------------------------------------------------------------------|
| `.lock`                  | id of the directory: a UUID, written once                          |
| `raw/<object key>`       | a block (see `blockfile`)                                          |
| `*.tmp`                  | a block being written; after a minute, garbage                     |
| `index.msgpack`          | what was in `raw` at the last clean end (see `index`); a hint only |

Threads of a `WriteQueue` write blocks, that of a `Keeper` keeps the limits (spec cache.md 5).
"""

from __future__ import annotations

import errno
import logging
import os
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator

from juicepy.cache import blockfile
from juicepy.cache.blockfile import BlockFile, Corrupt
from juicepy.cache.directory import Space, identity, make, mount_point, write_identity
from juicepy.cache.health import FULL, DiskHealth
from juicepy.cache.index import Entry, Index
from juicepy.cache.keeper import Keeper
from juicepy.cache.options import BlockNames, CacheCounts, CacheOptions
from juicepy.cache.whole import WholeDirectory
from juicepy.cache.writing import BlockId, WriteQueue
from juicepy.concurrency import Lock
from juicepy.memory import MemoryBudget
from juicepy.types import BlockKey, Buffer

logger = logging.getLogger(__name__)

OPEN_FILES = 128  # kept open for reading: opening costs more than reading 4 KiB
SWEEP_SLOTS = 4096  # of the index, looked at under one lock
PROBE = bytes(range(256)) * 16


class DiskCache:
    """Blocks below `root`. `open` makes the directory and starts the threads, `close` ends them.

    `is_down`: the disk is out of use, everything is a miss. `keeper` tries it again.
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
        self.ident = ""
        self.names, self.options = names, options
        self.counts = CacheCounts()
        self.health = DiskHealth(root)
        self.raw = os.path.join(root, "raw", "")
        self.whole: WholeDirectory | None = None  # what it holds comes before blocks
        self._mount_point = ""
        self._lock = Lock("disk_cache")  # guards the two below
        self._index = Index()
        self._opened: OrderedDict[BlockId, BlockFile] = OrderedDict()
        memory = memory or MemoryBudget(4 * options.write_pending)
        pending, writers = options.write_pending, options.writers
        self.keeper = Keeper(self)
        admits = self.keeper.admits
        self.queue = WriteQueue(admits, self._write, self._undo, memory, pending, writers)

    def open(self) -> DiskCache:
        """OSError if the directory cannot be made or written."""
        os.makedirs(self.root, exist_ok=True)
        make(os.path.join(self.root, "raw"), self.options.mode)
        self.ident = identity(self._lock_path)
        self._mount_point = mount_point(self.root)
        self._try_writing()
        is_known = self._load_index()
        self.queue.start()
        self.keeper.start(scan_at_once=not is_known)
        return self

    @property
    def is_down(self) -> bool:
        return self.health.is_out

    # -- the protocol
    def load(self, block: BlockKey, off: int = 0, size: int | None = None) -> Buffer | None:
        if size is None:
            size = block.size - off
        key = (block.id, block.index)
        waiting = self.queue.get(key)
        if waiting is not None:
            return waiting[off : off + size]
        if self.is_down:
            return None
        with self._lock:
            self._index.touch(block, time.time())
            file = self._opened.get(key)
            if file is not None:
                self._opened.move_to_end(key)
        try:
            with self.health.using("read"):
                return (file or self._open(block)).read(off, size, self.options.checksum)
        except FileNotFoundError:
            self.forget(block)
        except Corrupt as problem:
            logger.warning("cached block %s is dropped: %s", self.path(block), problem)
            self.discard(block)
        except OSError as error:
            logger.debug("cached block %s cannot be read: %s", self.path(block), error)
        return None

    def store(self, block: BlockKey, data: Buffer) -> None:
        key = (block.id, block.index)
        if self.is_down or key in self.queue:
            return
        with self._lock:
            if block in self._index:
                return
        if not self.queue.put(block, data):
            self.counts.drops += 1

    def contains(self, block: BlockKey) -> bool:
        if (block.id, block.index) in self.queue:
            return True
        return not self.is_down and os.path.exists(self.path(block))

    def discard(self, block: BlockKey) -> None:
        self.queue.take_back((block.id, block.index))
        self._undo(block)

    def stats(self) -> tuple[int, int]:
        return len(self._index), self._index.cost

    def close(self) -> None:
        """Blocks that wait are written first; then the index is saved."""
        self.queue.close()
        self.keeper.close()
        self.close_files()
        if self.ident and not self.is_down:
            self._save_index()

    def wait_stored(self, timeout_s: float = 30.0) -> bool:
        """Return when every block stored before is in its file; False if that takes too long."""
        return self.queue.wait_empty(timeout_s)

    # -- staging (`cache/staging.py`)
    @property
    def has_checksums(self) -> bool:
        return self.options.checksum != "none"

    def may_stage(self) -> bool:
        """Whether the disk takes blocks that nothing may evict."""
        if self.is_down:
            return False
        try:
            with self.health.using("see the free space"):
                space = Space.of(self.root)
        except OSError as error:
            logger.debug("%s: %s", self.root, error)
            return False
        return space.free >= space.reserve(self.options) / 2

    def is_short_of_space(self) -> bool:
        return self.keeper.is_full

    def adopt(self, block: BlockKey, path: str) -> None:
        """Serve the staged file `path` as a cached block."""
        try:
            self.make_parents(self.path(block))
            os.link(path, self.path(block))
        except FileExistsError:
            return  # it is in the cache already
        self.add(block, time.time())

    # -- files
    @property
    def _lock_path(self) -> str:
        return os.path.join(self.root, ".lock")

    def path(self, block: BlockKey) -> str:
        return self.raw + self.names.object_key(block)

    def is_mounted(self) -> bool:
        """Whether the file system that the directory was opened on is (still, or again) there."""
        return os.path.ismount(self._mount_point)

    def is_there(self) -> bool:
        return self.is_mounted() and os.path.exists(self._lock_path)

    def make_parents(self, path: str) -> list[str]:
        """Make the directories of a file; those that had a name added. OSError if the disk is gone.

        Below a mount point without its disk nothing may be made: it would fill another disk.
        """
        if not self.is_there():
            raise OSError(errno.ENODEV, "the cache directory is gone", self.root)
        return make(os.path.dirname(path), self.options.mode)

    def restore(self) -> None:
        """See that the directory can be used; a wiped one begins anew. OSError, Corrupt if not."""
        if not self.is_mounted():
            raise OSError(errno.ENODEV, "its disk is not mounted", self._mount_point)
        if not os.path.exists(self._lock_path):
            os.makedirs(self.root, exist_ok=True)
            make(os.path.join(self.root, "raw"), self.options.mode)
            write_identity(self._lock_path, self.ident)
            with self._lock:
                self._index = Index()
            self.close_files()

    def try_out(self) -> None:
        """`restore` the directory, then write and read in it."""
        self.restore()
        self._try_writing()

    def _try_writing(self) -> None:
        path = os.path.join(self.raw, f"probe-{uuid.uuid4()}")
        blockfile.write(path, PROBE, mode=0o600, checksums=False, sync=True)
        try:
            data = BlockFile(path, len(PROBE)).read(0, len(PROBE), "none")
        finally:
            os.unlink(path)
        if data != PROBE:
            raise Corrupt("a file does not hold what was written to it")

    def _open(self, block: BlockKey) -> BlockFile:
        file = BlockFile(self.path(block), block.size)
        oldest: list[BlockFile] = []  # closed after the lock
        with self._lock:
            self._opened[block.id, block.index] = file
            if len(self._opened) > OPEN_FILES:
                oldest.append(self._opened.popitem(last=False)[1])
            self._index.add(block, time.time())  # new if it was written by another client
        return file

    def close_files(self, *, unlinked: bool = False) -> None:
        """Close all that are kept open, or those that have no name any more and waste space."""
        with self._lock:
            gone = [key for key, file in self._opened.items() if not unlinked or file.is_unlinked()]
            files = [self._opened.pop(key) for key in gone]
        del files  # closes them, after the lock

    def _undo(self, block: BlockKey) -> None:
        self.forget(block)
        if not self.is_down:
            self.unlink(block)

    def unlink(self, block: BlockKey) -> None:
        try:
            with self.health.using("remove"):
                os.unlink(self.path(block))
        except FileNotFoundError:
            return
        except OSError as error:
            logger.debug("cached block %s cannot be removed: %s", self.path(block), error)

    def _write(self, block: BlockKey, data: Buffer) -> bool:
        if self.is_down:
            return False
        path = self.path(block)
        mode, checksums = self.options.mode, self.has_checksums
        try:
            with self.health.using("write"):
                try:
                    blockfile.write(path, data, mode=mode, checksums=checksums)
                except FileNotFoundError:
                    self.make_parents(path)
                    blockfile.write(path, data, mode=mode, checksums=checksums)
        except FileExistsError:
            return False  # another client is at it
        except OSError as error:
            if error.errno in FULL:
                self.keeper.found_full()
            logger.debug("block %s cannot be cached: %s", path, error)
            return False
        self.add(block, time.time())
        return True

    # -- the index
    def add(self, block: BlockKey, atime_s: float) -> None:
        with self._lock:
            self._index.add(block, atime_s)

    def forget(self, block: BlockKey) -> None:
        with self._lock:
            self._index.remove(block)
            file = self._opened.pop((block.id, block.index), None)
        del file  # closes it, after the lock

    def sweep(self) -> Iterator[list[Entry]]:
        """What the index holds, in groups; what comes or goes meanwhile may be left out."""
        first = 0
        while True:
            with self._lock:
                if first >= self._index.slots():
                    return
                group = self._index.entries(first, SWEEP_SLOTS)
            yield group
            first += SWEEP_SLOTS

    @property
    def _index_path(self) -> str:
        return os.path.join(self.root, "index.msgpack")

    def _load_index(self) -> bool:
        """Take the saved index, if there is one: it is used once, as the directory changes now."""
        try:
            with open(self._index_path, "rb") as file:
                saved = file.read()
            os.unlink(self._index_path)
            self._index.load(saved)
        except FileNotFoundError:
            return False
        except ValueError as problem:
            logger.warning("the index of %s is of no use: %s", self.root, problem)
            return False
        logger.info("%d cached blocks are known in %s", len(self._index), self.root)
        return True

    def _save_index(self) -> None:
        partial = f"{self._index_path}.{uuid.uuid4()}"
        try:
            if self.is_there():
                blockfile.write(
                    partial, self._index.dump(), mode=self.options.mode, checksums=False, sync=True
                )
                os.rename(partial, self._index_path)
        except OSError as error:
            logger.warning("the index of %s cannot be saved: %s", self.root, error)
