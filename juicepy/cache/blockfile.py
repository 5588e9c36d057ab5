"""The file of a cached block, as other clients of the volume write it too (spec cache.md 2).

| bytes           | content                                                                |
|-----------------|------------------------------------------------------------------------|
| L               | the plain block                                                        |
| 4 per 32 KiB    | CRC-32C of each 32 KiB (the last may be shorter), big-endian; optional |
| rest            | a footer that only staged blocks have                                  |

L is known from the name, whether there are checksums from the length of the file.
"""

from __future__ import annotations

import errno
import os
import stat

import google_crc32c

from juicepy.types import Buffer

PART = 32 << 10
LEVELS = ("none", "full", "shrink", "extend")


class Corrupt(Exception):
    """The file is not what was written."""


def trailer(data: Buffer) -> bytes:
    """The checksums that follow `data`."""
    view = memoryview(data)
    return b"".join(_checksum(view[at : at + PART]) for at in range(0, len(view), PART))


def _checksum(part: Buffer) -> bytes:
    value: int = google_crc32c.value(part if type(part) is bytes else bytes(part))
    return value.to_bytes(4, "big")


def write(path: str, data: Buffer, *, mode: int, checksums: bool, sync: bool = False) -> None:
    """Make the file; it appears under `path` when it is complete (`sync`: and on the disk).

    FileExistsError if somebody else is writing it, FileNotFoundError if the directory is absent.
    """
    partial = path + ".tmp"
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            _write_all(fd, data)
            if checksums:
                _write_all(fd, trailer(data))
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(partial, path)
    except BaseException:
        if os.path.exists(partial):
            os.unlink(partial)
        raise


def sync(directory: str) -> None:
    """Take the names in a directory to the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: Buffer) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class BlockFile:
    """An open block file of a block of `length` bytes; closed when nobody holds it any more.

    So a thread may read while another drops the file from an index. Raises Corrupt, OSError.
    """

    __slots__ = ("_fd", "_length", "_sums")

    def __init__(self, path: str, length: int) -> None:
        self._fd = -1
        self._length = length
        self._fd = _open_regular(path)
        self._sums: bytes | None = None
        if has_checksums(os.fstat(self._fd).st_size, length):
            self._sums = os.pread(self._fd, trailer_size(length), length)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def is_unlinked(self) -> bool:
        return os.fstat(self._fd).st_nlink == 0

    def read(self, off: int, size: int, level: str) -> Buffer:
        """Bytes [off, off+size) of the block, checked as `level` says."""
        if self._sums is None or level == "none":
            return self._get(off, size)
        end = off + size
        if level == "extend":
            first = off // PART * PART
            last = min((end + PART - 1) // PART * PART, self._length)
            data = self._get(first, last - first)
            self._verify(data, first, first, last)
            if first == off and last == end:
                return data
            return memoryview(data)[off - first : end - first]
        data = self._get(off, size)
        if level == "shrink":
            first = (off + PART - 1) // PART * PART
            last = end if end == self._length else end // PART * PART
            self._verify(data, off, first, last)
        elif size == self._length:
            self._verify(data, 0, 0, size)
        return data

    def _get(self, off: int, size: int) -> bytes:
        data = os.pread(self._fd, size, off)
        if len(data) != size:
            raise Corrupt(f"{len(data)} bytes at {off} instead of {size}")
        return data

    def _verify(self, data: bytes, begin: int, first: int, last: int) -> None:
        """Check the parts in [first, last) of `data`, which begins at `begin`."""
        sums = self._sums
        assert sums is not None
        for at in range(first, last, PART):
            part = data[at - begin : min(at + PART, last) - begin]
            where = at // PART * 4
            if _checksum(part) != sums[where : where + 4]:
                raise Corrupt(f"wrong checksum of the bytes at {at}")


def _open_regular(path: str) -> int:
    """Corrupt for anything that is no file, of which some would block whoever opens it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise Corrupt("no regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Corrupt("no regular file")
    return fd


def trailer_size(length: int) -> int:
    return (length + PART - 1) // PART * 4


def has_checksums(file_size: int, length: int) -> bool:
    """What the length of the file tells; Corrupt if it fits nothing."""
    extra = file_size - length
    if extra < 0 or (extra % 4 == 0 and 0 < extra < trailer_size(length)):
        raise Corrupt(f"{file_size} bytes for a block of {length}")
    return extra > 0 and extra % 4 == 0
