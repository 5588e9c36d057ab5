"""Whole files on the disks of the cache, for the mode that opens no file before it is all here.

| path below a cache directory | content                                                    |
|------------------------------|------------------------------------------------------------|
| `whole/<name>`               | the file's plain bytes, sparse where it has holes          |
| `whole/<name>.<uuid>.tmp`    | one that is being made; after a minute without change, garbage |

A name stands for one content for ever (who uses this sees to that), so nothing here gets old, and
what a process finds at its start is used again. The least recently used make room. Whole files
come before blocks: the block cache of a directory lives in what they leave of `--cache-size`.
"""

from __future__ import annotations

import errno
import logging
import os
import time
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from juicepy.cache.directory import Space, make
from juicepy.cache.options import CacheOptions
from juicepy.concurrency import Lock

logger = logging.getLogger(__name__)

GARBAGE_AGE_S = 60.0
SCAN_INTERVAL_S = 60.0  # other clients of the machine may put files here
_FULL = (errno.ENOSPC, errno.EDQUOT)


class WholeDirectory:
    """The whole files of one cache directory. Thread-safe; a sick disk is a miss, and logged."""

    def __init__(self, root: str, options: CacheOptions) -> None:
        """`root` as of the block cache: `<cache dir>/<volume id>`. OSError if it cannot be made."""
        self._path = os.path.join(root, "whole", "")
        self._options = options
        self._lock = Lock("whole_files")  # guards the rest
        self._sizes: OrderedDict[str, int] = OrderedDict()  # bytes on disk; least recent first
        self._used = 0
        self._promised = 0  # bytes of files being made
        self._scanned_s = 0.0
        make(os.path.join(root, "whole"), options.mode)
        self._scan()

    def used_bytes(self) -> int:
        return self._used + self._promised

    def open(self, name: str) -> int | None:
        """A descriptor of the file for reading and writing; None if it is not here."""
        try:
            fd = os.open(self._path + name, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENOENT:
                logger.warning("whole file in %s cannot be read: %s", self._path, error)
            self._forget(name)
            return None
        with self._lock:
            if name not in self._sizes:
                self._add_locked(name, os.fstat(fd).st_blocks * 512)
            self._sizes.move_to_end(name)
        return fd

    @contextmanager
    def make(self, name: str, size: int) -> Iterator[int]:
        """A descriptor to put the `size` bytes into; the file appears when the block ends well.

        ENOSPC if there is no room for it.
        """
        self._make_room(size)
        partial = f"{self._path}{name}.{uuid.uuid4()}.tmp"
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            fd = os.open(partial, flags, self._options.mode)
            try:
                os.ftruncate(fd, size)
                yield fd
                on_disk = os.fstat(fd).st_blocks * 512
            finally:
                os.close(fd)
            os.rename(partial, self._path + name)
        except BaseException:
            if os.path.exists(partial):
                os.unlink(partial)
            raise
        finally:
            with self._lock:
                self._promised -= size
        with self._lock:
            self._add_locked(name, on_disk)

    def discard(self, name: str) -> None:
        """The file is not found any more; who has it open keeps it."""
        self._forget(name)
        try:
            os.unlink(self._path + name)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("whole file in %s cannot be removed: %s", self._path, error)

    # -- room
    def _make_room(self, size: int) -> None:
        """Promise `size` bytes, after removing the least recently used files. ENOSPC."""
        if time.monotonic() - self._scanned_s > SCAN_INTERVAL_S:
            self._scan()
        while True:
            with self._lock:
                is_within = self._used + self._promised + size <= self._options.size
                if is_within and self._has_space(self._promised + size):
                    self._promised += size
                    return
                if not self._sizes:
                    raise OSError(errno.ENOSPC, f"no room for {size} bytes", self._path)
                oldest = next(iter(self._sizes))
            self.discard(oldest)

    def _has_space(self, size: int) -> bool:
        space = Space.of(self._path)
        return space.free - space.reserve(self._options) >= size

    def _add_locked(self, name: str, size: int) -> None:
        self._used += size - self._sizes.pop(name, 0)
        self._sizes[name] = size

    def _forget(self, name: str) -> None:
        with self._lock:
            self._used -= self._sizes.pop(name, 0)

    def _scan(self) -> None:
        """Learn what is there, in the order of its last use."""
        found: list[tuple[float, str, int]] = []
        now_s = time.time()
        with os.scandir(self._path) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                    if not entry.name.endswith(".tmp"):
                        last_s = max(status.st_atime, status.st_mtime)
                        found.append((last_s, entry.name, status.st_blocks * 512))
                    elif status.st_mtime < now_s - GARBAGE_AGE_S:
                        os.unlink(entry.path)
                except FileNotFoundError:
                    continue  # removed by another client
        with self._lock:
            self._scanned_s = time.monotonic()
            for name in self._sizes.keys() - {name for _, name, _ in found}:
                self._used -= self._sizes.pop(name)
            for _, name, size in sorted(found):
                if name not in self._sizes:
                    self._add_locked(name, size)


class WholeFiles:
    """Whole files over all directories of a cache, each name belonging to one of them."""

    def __init__(self, directories: Sequence[WholeDirectory]) -> None:
        self._directories = list(directories)

    def _directory(self, name: str) -> WholeDirectory:
        return self._directories[zlib.crc32(name.encode()) % len(self._directories)]

    def open(self, name: str) -> int | None:
        return self._directory(name).open(name)

    def make(self, name: str, size: int) -> AbstractContextManager[int]:
        return self._directory(name).make(name, size)

    def discard(self, name: str) -> None:
        self._directory(name).discard(name)

    def used_bytes(self) -> int:
        return sum(each.used_bytes() for each in self._directories)
