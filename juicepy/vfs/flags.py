"""Inode flags by ioctl, as chattr and lsattr use them (linux/fs.h).

| request            | data                                             |
|--------------------|--------------------------------------------------|
| FS_IOC_GETFLAGS    | out: u32 flags (the kernel's tools read 4 bytes) |
| FS_IOC_SETFLAGS    | in: u32 flags                                    |
| FS_IOC_FSGETXATTR  | out: struct fsxattr, 28 bytes, xflags first      |
| FS_IOC_FSSETXATTR  | in: struct fsxattr                               |
"""

from __future__ import annotations

import errno
import struct

from juicepy.errors import posix_error
from juicepy.types import APPEND, IMMUTABLE, SKIP_TRASH

GETFLAGS = 0x80086601
SETFLAGS = 0x40086602
GETFLAGS32 = 0x80046601
SETFLAGS32 = 0x40046602
FSGETXATTR = 0x801C581F
FSSETXATTR = 0x401C5820

READS = frozenset({GETFLAGS, GETFLAGS32, FSGETXATTR})
WRITES = frozenset({SETFLAGS, SETFLAGS32, FSSETXATTR})

_FLAGS = ((0x1, SKIP_TRASH), (0x10, IMMUTABLE), (0x20, APPEND))  # chattr s, i, a
_XFLAGS = ((0x8, IMMUTABLE), (0x10, APPEND))
_FSXATTR_SIZE = 28


def encode(cmd: int, flags: int, out_size: int) -> bytes:
    """The answer to a reading request of the inode's `flags`."""
    if cmd == FSGETXATTR:
        told = sum(bit for bit, flag in _XFLAGS if flags & flag)
        return struct.pack("<I", told).ljust(_FSXATTR_SIZE, b"\0")
    told = sum(bit for bit, flag in _FLAGS if flags & flag)
    return struct.pack("<I", told).ljust(min(out_size, 8), b"\0")


def decode(cmd: int, data: bytes, flags: int) -> int:
    """The inode's flags after a writing request; EOPNOTSUPP for bits that we do not have."""
    if len(data) < 4:
        raise posix_error(errno.EINVAL)
    (asked,) = struct.unpack_from("<I", data)
    table = _XFLAGS if cmd == FSSETXATTR else _FLAGS
    if asked & ~sum(bit for bit, _ in table):
        raise posix_error(errno.EOPNOTSUPP)
    for bit, flag in table:
        flags = flags | flag if asked & bit else flags & ~flag
    return flags
