"""INIT: which protocol version and which abilities both sides use."""

from __future__ import annotations

import errno
import mmap
from dataclasses import dataclass

from juicepy.errors import Refused
from juicepy.fuse import wire
from juicepy.fuse.options import FuseOptions

WANTED = (
    wire.ASYNC_READ
    | wire.POSIX_LOCKS
    | wire.ATOMIC_O_TRUNC
    | wire.BIG_WRITES
    | wire.DONT_MASK  # the umask comes with the request: a default ACL takes its place
    | wire.FLOCK_LOCKS
    | wire.HAS_IOCTL_DIR
    | wire.DO_READDIRPLUS
    | wire.READDIRPLUS_AUTO
    | wire.ASYNC_DIO
    | wire.PARALLEL_DIROPS
    | wire.MAX_PAGES
    | wire.CACHE_SYMLINKS
    | wire.HANDLE_KILLPRIV_V2  # saves a GETXATTR of security.capability with every write(2)
    | wire.SETXATTR_EXT
    | wire.INIT_EXT
    | wire.CREATE_SUPP_GROUP
    | wire.DIRECT_IO_ALLOW_MMAP
)
"""Not wanted: EXPORT_SUPPORT (needs `.` and `..` lookups of forgotten inodes), EXPLICIT_INVAL_DATA
(pages beyond an old end of file would read as zeros after another client appends), SPLICE_* (the
data is in our memory), NO_OPEN_SUPPORT (opens are counted), SECURITY_CTX (no labels are stored)."""

STACK_DEPTH = 1  # of passthrough: the local file's own file system must not be a stacked one


@dataclass(frozen=True, slots=True)
class Agreed:
    """What holds for this connection. `flags` are 64 bits."""

    minor: int
    flags: int
    max_write: int

    def has(self, flag: int) -> bool:
        return bool(self.flags & flag)


def wanted(options: FuseOptions) -> int:
    """The abilities asked for with these options."""
    flags = WANTED
    if options.enable_acl:
        flags |= wire.POSIX_ACL
    if options.auto_inval_data:
        flags |= wire.AUTO_INVAL_DATA
    if options.writeback_cache:
        return flags | wire.WRITEBACK_CACHE  # excludes passthrough
    return flags | (wire.PASSTHROUGH if options.passthrough else 0)


def read_init(body: memoryview) -> tuple[int, int, int, int]:
    """(major, minor, max_readahead, flags of 64 bits) of a fuse_init_in."""
    major, minor, max_readahead, flags = wire.INIT_IN.unpack_from(body)
    if flags & wire.INIT_EXT and len(body) >= wire.INIT_IN.size + 4:
        flags |= int.from_bytes(body[wire.INIT_IN.size :][:4], "little") << 32
    return major, minor, max_readahead, flags


def answer_init(body: memoryview, options: FuseOptions) -> tuple[bytes, Agreed]:
    """The fuse_init_out for a kernel's INIT. Refuses kernels older than Linux 5.4."""
    major, minor, max_readahead, offered = read_init(body)
    if major != wire.KERNEL_VERSION or minor < wire.OLDEST_MINOR:
        raise Refused(f"the kernel speaks FUSE {major}.{minor}, 7.31 is needed", errno.EPROTO)
    flags = wanted(options) & offered
    max_write = options.max_write if flags & wire.MAX_PAGES else min(options.max_write, 1 << 17)
    minor = min(minor, wire.KERNEL_MINOR_VERSION)
    reply = wire.INIT_OUT.pack(
        wire.KERNEL_VERSION,
        minor,
        min(max_readahead, options.max_readahead),
        flags & 0xFFFFFFFF,
        options.max_background,
        options.max_background * 3 // 4,
        max_write,
        1,
        -(-max_write // mmap.PAGESIZE),
        0,
        flags >> 32,
        STACK_DEPTH if flags & wire.PASSTHROUGH else 0,
        0,
    )
    return reply, Agreed(minor, flags, max_write)
