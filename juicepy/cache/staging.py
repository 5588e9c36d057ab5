"""Blocks that wait on a local disk to be uploaded (`--writeback`), as JuiceFS keeps them.

| path below a cache directory | content                                                      |
|------------------------------|--------------------------------------------------------------|
| `rawstaging/<object key>`    | a block that waits for its upload (see `blockfile`)          |
| `raw/<object key>`           | the same file, for the cache: a second link (spec cache.md 3) |

A block is safe when `stage` returns: its file and directories are on the disk. It leaves by being
uploaded, or because its slice was deleted. What an earlier process left is found at the start.
Where a block cannot be staged the caller uploads it directly.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from juicepy.cache import blockfile
from juicepy.cache.blockfile import BlockFile, Corrupt
from juicepy.cache.directory import walk
from juicepy.cache.disk import DiskCache
from juicepy.cache.keeper import GARBAGE_AGE_S
from juicepy.cache.options import BlockNames, Watchable
from juicepy.concurrency import Lock, Periodic, Workers
from juicepy.types import BlockKey, Buffer, SliceId

logger = logging.getLogger(__name__)

BlockId = tuple[SliceId, int]

ROUND_S = 60.0  # between looks for what is due
ORPHAN_AGE_S = 600.0  # after which a block of another process is taken for left behind


@dataclass(frozen=True, slots=True)
class StagingOptions:
    """`threshold`: only shorter blocks are staged (0: all). `hours` as given: `start-end`."""

    enabled: bool = False
    threshold: int = 0
    delay_s: float = 0.0
    hours: str = ""
    max_writes: int = 1000

    def is_open(self, hour: int) -> bool:
        """Whether uploads may begin in this hour of the day; `22-6` goes over midnight."""
        if not self.hours:
            return True
        begin, end = parse_hours(self.hours)
        if begin <= end:
            return begin <= hour < end
        return hour >= begin or hour < end


def parse_hours(text: str) -> tuple[int, int]:
    """ValueError for anything but two different hours of the day."""
    begin, separator, end = text.partition("-" if "-" in text else ",")
    hours = int(begin), int(end)
    if not separator or hours[0] == hours[1] or not all(0 <= hour <= 24 for hour in hours):
        raise ValueError(text)
    return hours


@dataclass(slots=True)
class Staged:
    """A block in the staging directory of `disk`."""

    block: BlockKey
    path: str
    disk: DiskCache
    since_s: float
    is_leaving: bool = False  # an upload has begun


@dataclass(slots=True)
class StagingCounts:
    """Since the start, but `writing`: blocks being written now."""

    writing: int = 0
    write_bytes: int = 0
    errors: int = 0
    delay_s: float = 0.0


class Staging:
    """The staged blocks of a mount. Thread-safe; `start` begins uploading, `close` ends it."""

    def __init__(
        self,
        disks: Sequence[DiskCache],
        choose: Callable[[BlockKey], DiskCache | None],
        names: BlockNames,
        options: StagingOptions,
        max_uploads: int = 20,
    ) -> None:
        """`choose` tells the directory that a block belongs to."""
        self.options, self.counts = options, StagingCounts()
        self._disks, self._choose, self._names = list(disks), choose, names
        self._put: Callable[[BlockKey, Buffer], None] | None = None
        self._delete: Callable[[BlockKey], None] | None = None
        self._lock = Lock("staging")  # guards what follows, and the counts
        self._waiting: dict[BlockId, Staged] = {}
        self._bytes = 0
        self._workers = Workers("stage-upload", max_uploads)
        pause_s = min(ROUND_S, max(1.0, options.delay_s or ROUND_S))
        self._rounds = Periodic("staging", pause_s, self._round)

    def start(
        self, put: Callable[[BlockKey, Buffer], None], delete: Callable[[BlockKey], None]
    ) -> None:
        """Upload what is there, and from now on all that comes, by `put`.

        `delete` takes an object away whose block was dropped while it was on its way.
        """
        self._put, self._delete = put, delete
        self._find(older_than_s=0.0)
        self._rounds.start()

    def close(self) -> None:
        """Uploads that have begun are finished; the others wait for the next mount."""
        self._rounds.close()
        self._workers.close(cancel=True)
        blocks, size = self.waiting()
        if blocks:
            logger.info("%d staged blocks (%d bytes) wait for the next mount", blocks, size)

    def waiting(self) -> tuple[int, int]:
        """(blocks, bytes) that are not in the object store yet."""
        return len(self._waiting), self._bytes

    def tell(self, metrics: Watchable) -> None:
        counts = self.counts
        metrics.watch("staging_blocks", lambda: len(self._waiting))
        metrics.watch("staging_block_bytes", lambda: self._bytes)
        metrics.watch("staging_writing_blocks", lambda: counts.writing)
        metrics.watch("staging_write_bytes", lambda: counts.write_bytes)
        metrics.watch("staging_block_errors", lambda: counts.errors)
        metrics.watch("staging_block_delay_seconds", lambda: counts.delay_s)

    # -- blocks come
    def stage(self, block: BlockKey, data: Buffer) -> bool:
        """Keep the block here until it is uploaded; False if it cannot be kept."""
        if 0 < self.options.threshold <= block.size:
            return False
        disk = self._choose(block)
        if disk is None or not disk.may_stage():
            return False
        with self._lock:
            if self.counts.writing >= self.options.max_writes:
                return False
            self.counts.writing += 1
        try:
            path = self._write(disk, block, data)
        except OSError as error:
            with self._lock:
                self.counts.errors += 1
            logger.warning("a block is uploaded directly, staging in %s: %s", disk.root, error)
            return False
        finally:
            with self._lock:
                self.counts.writing -= 1
        staged = Staged(block, path, disk, time.time())
        with self._lock:
            self._waiting[block.id, block.index] = staged
            self._bytes += block.size
            self.counts.write_bytes += block.size
        if self._is_due(staged):
            self._workers.run(self._upload, staged)
        return True

    def _write(self, disk: DiskCache, block: BlockKey, data: Buffer) -> str:
        path, mode = self._path(disk, block), disk.options.mode
        with disk.health.using("stage"):
            changed = {os.path.dirname(path), *disk.make_parents(path)}
            blockfile.write(path, data, mode=mode, checksums=disk.has_checksums, sync=True)
            try:
                for directory in changed:
                    blockfile.sync(directory)
                disk.adopt(block, path)
            except OSError:
                os.unlink(path)
                raise
        return path

    def _path(self, disk: DiskCache, block: BlockKey) -> str:
        return os.path.join(disk.root, "rawstaging", self._names.object_key(block))

    def load(self, block: BlockKey, off: int, size: int) -> Buffer | None:
        """Bytes of a staged block that the cache has lost; None if it is not staged here."""
        staged = self._waiting.get((block.id, block.index))
        if staged is None:
            return None
        try:
            return BlockFile(staged.path, block.size).read(off, size, "extend")
        except FileNotFoundError:
            if staged.disk.is_there():
                return None  # uploaded in this moment
            raise OSError(errno.EIO, "the disk of a staged block is gone", staged.path) from None
        except Corrupt as problem:
            raise OSError(errno.EIO, f"a staged block is damaged: {problem}", staged.path) from None

    # -- blocks go
    def drop(self, block: BlockKey) -> None:
        """The slice of the block is deleted: it need not be uploaded any more."""
        staged = self._take((block.id, block.index))
        if staged is not None:
            self._unlink(staged)

    def _take(self, key: BlockId) -> Staged | None:
        with self._lock:
            staged = self._waiting.pop(key, None)
            if staged is not None:
                self._bytes -= staged.block.size
            return staged

    def _unlink(self, staged: Staged) -> None:
        try:
            os.unlink(staged.path)
        except FileNotFoundError:
            return  # another process that shares the directory has uploaded it, too
        except OSError as error:  # it will be found, and uploaded, once more
            logger.error("staged block %s cannot be removed: %s", staged.path, error)

    def _is_due(self, staged: Staged) -> bool:
        if staged.disk.is_short_of_space():
            return True
        now_s = time.time()
        is_open = self.options.is_open(time.localtime(now_s).tm_hour)
        return is_open and now_s - staged.since_s >= self.options.delay_s

    def _round(self) -> None:
        """Upload what has become due, or failed before; find what other processes have left."""
        self._find(older_than_s=ORPHAN_AGE_S)
        with self._lock:
            staged = [each for each in self._waiting.values() if not each.is_leaving]
        for each in staged:
            if not each.disk.is_down and self._is_due(each):
                self._workers.run(self._upload, each)

    def _find(self, older_than_s: float) -> None:
        now_s = time.time()
        for disk in self._disks:
            root = os.path.join(disk.root, "rawstaging", "")
            for entry in walk(root):
                block = self._names.parse_key(entry.path[len(root) :])
                try:
                    since_s = entry.stat(follow_symlinks=False).st_mtime
                    if entry.name.endswith(".tmp") and since_s < now_s - GARBAGE_AGE_S:
                        os.unlink(entry.path)
                except FileNotFoundError:
                    continue  # uploaded, or complete, in this moment
                is_new = block is not None and (block.id, block.index) not in self._waiting
                if block is not None and is_new and now_s - since_s >= older_than_s:
                    self._found(Staged(block, entry.path, disk, since_s))

    def _found(self, staged: Staged) -> None:
        with self._lock:
            self._waiting[staged.block.id, staged.block.index] = staged
            self._bytes += staged.block.size
        if self._is_due(staged):
            self._workers.run(self._upload, staged)

    def _upload(self, staged: Staged) -> None:
        block, key = staged.block, (staged.block.id, staged.block.index)
        with self._lock:
            if self._waiting.get(key) is not staged or staged.is_leaving:
                return
            staged.is_leaving = True
        assert self._put is not None
        assert self._delete is not None
        try:
            data = BlockFile(staged.path, block.size).read(0, block.size, "full")
            self._put(block, data)
        except FileNotFoundError as error:
            if staged.disk.is_there():
                self._take(key)  # another process that shares the directory has uploaded it
            else:
                self._stays(staged, error)
            return
        except (OSError, Corrupt) as error:
            self._stays(staged, error)
            return
        if self._take(key) is None:
            self._delete(block)  # dropped meanwhile
            return
        with self._lock:
            self.counts.delay_s += time.time() - staged.since_s
        self._unlink(staged)

    def _stays(self, staged: Staged, error: Exception) -> None:
        with self._lock:
            staged.is_leaving = False
            self.counts.errors += 1
        logger.error("staged block %s stays here, its upload failed: %s", staged.path, error)
