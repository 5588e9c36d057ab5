"""The kernel's requests: a table Op -> Spec, from which parsing and debug print come.

A request is a header, a fixed struct, NUL-terminated names, then perhaps raw bytes; a `Spec` says
which of them. The parts become the positional arguments of the handler, after the caller's `Cred`
and the inode. What is not in the table is answered ENOSYS, which the kernel remembers for most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Any

from juicepy.fuse import wire


class Op(IntEnum):
    """Opcodes of the protocol."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    GETLK = 31
    SETLK = 32
    SETLKW = 33
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    BMAP = 37
    DESTROY = 38
    IOCTL = 39
    POLL = 40
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    SETUPMAPPING = 48
    REMOVEMAPPING = 49
    SYNCFS = 50
    TMPFILE = 51
    STATX = 52
    COPY_FILE_RANGE_64 = 53


Parse = Callable[[memoryview, int], tuple[Any, ...]]

_EMPTY = Struct("=")


@dataclass(frozen=True, slots=True)
class Spec:
    """Layout of a request body and the name of the handler that serves it.

    `names`: how many NUL-terminated names follow `request`. `rest`: the remaining bytes follow as a
    memoryview that is only valid during the call. `unique`: the request's number comes last.
    """

    request: Struct
    names: int
    handler: str
    rest: bool = False
    unique: bool = False

    def parser(self) -> Parse:
        """A function (buffer, end of the request) -> arguments of the handler."""
        unpack, start = self.request.unpack_from, wire.IN_HEADER.size
        after = start + self.request.size
        if self.rest and self.names:
            return lambda view, end: (
                *unpack(view, start),
                *_name_and_rest(view, after, end),
            )
        if self.rest:
            return lambda view, end: (*unpack(view, start), view[after:end])
        if self.names == 2:
            return lambda view, end: (
                *unpack(view, start),
                *bytes(view[after : end - 1]).split(b"\0", 1),
            )
        if self.names == 1 and not self.request.size:
            return lambda view, end: (bytes(view[start : end - 1]),)
        if self.names == 1:
            return lambda view, end: (
                *unpack(view, start),
                bytes(view[after : end - 1]),
            )
        return lambda view, end: unpack(view, start)


def _name_and_rest(view: memoryview, after: int, end: int) -> tuple[bytes, memoryview]:
    name = bytes(view[after : min(end, after + 4096)]).split(b"\0", 1)[0]
    return name, view[after + len(name) + 1 : end]


SPECS: dict[Op, Spec] = {
    Op.LOOKUP: Spec(_EMPTY, 1, "lookup"),
    Op.FORGET: Spec(wire.FORGET_IN, 0, "forget"),
    Op.GETATTR: Spec(wire.GETATTR_IN, 0, "getattr"),
    Op.SETATTR: Spec(wire.SETATTR_IN, 0, "setattr"),
    Op.READLINK: Spec(_EMPTY, 0, "readlink"),
    Op.SYMLINK: Spec(_EMPTY, 2, "symlink"),
    Op.MKNOD: Spec(wire.MKNOD_IN, 1, "mknod"),
    Op.MKDIR: Spec(wire.MKDIR_IN, 1, "mkdir"),
    Op.UNLINK: Spec(_EMPTY, 1, "unlink"),
    Op.RMDIR: Spec(_EMPTY, 1, "rmdir"),
    Op.RENAME: Spec(wire.RENAME_IN, 2, "rename"),
    Op.LINK: Spec(wire.LINK_IN, 1, "link"),
    Op.OPEN: Spec(wire.OPEN_IN, 0, "open"),
    Op.READ: Spec(wire.READ_IN, 0, "read"),
    Op.WRITE: Spec(wire.WRITE_IN, 0, "write", rest=True),
    Op.STATFS: Spec(_EMPTY, 0, "statfs"),
    Op.RELEASE: Spec(wire.RELEASE_IN, 0, "release"),
    Op.FSYNC: Spec(wire.FSYNC_IN, 0, "fsync"),
    Op.SETXATTR: Spec(wire.SETXATTR_IN, 1, "setxattr", rest=True),
    Op.GETXATTR: Spec(wire.GETXATTR_IN, 1, "getxattr"),
    Op.LISTXATTR: Spec(wire.GETXATTR_IN, 0, "listxattr"),
    Op.REMOVEXATTR: Spec(_EMPTY, 1, "removexattr"),
    Op.FLUSH: Spec(wire.FLUSH_IN, 0, "flush"),
    Op.OPENDIR: Spec(wire.OPEN_IN, 0, "opendir"),
    Op.READDIR: Spec(wire.READ_IN, 0, "readdir"),
    Op.RELEASEDIR: Spec(wire.RELEASE_IN, 0, "releasedir"),
    Op.FSYNCDIR: Spec(wire.FSYNC_IN, 0, "fsyncdir"),
    Op.GETLK: Spec(wire.LK_IN, 0, "getlk"),
    Op.SETLK: Spec(wire.LK_IN, 0, "setlk"),
    Op.SETLKW: Spec(wire.LK_IN, 0, "setlkw", unique=True),
    Op.ACCESS: Spec(wire.ACCESS_IN, 0, "access"),
    Op.CREATE: Spec(wire.CREATE_IN, 1, "create"),
    Op.INTERRUPT: Spec(wire.INTERRUPT_IN, 0, "interrupt"),
    Op.DESTROY: Spec(_EMPTY, 0, "destroy"),
    Op.IOCTL: Spec(wire.IOCTL_IN, 0, "ioctl", rest=True),
    Op.BATCH_FORGET: Spec(wire.BATCH_FORGET_IN, 0, "batch_forget", rest=True),
    Op.FALLOCATE: Spec(wire.FALLOCATE_IN, 0, "fallocate"),
    Op.READDIRPLUS: Spec(wire.READ_IN, 0, "readdirplus"),
    Op.RENAME2: Spec(wire.RENAME2_IN, 2, "rename2"),
    Op.LSEEK: Spec(wire.LSEEK_IN, 0, "lseek"),
    Op.COPY_FILE_RANGE: Spec(wire.COPY_FILE_RANGE_IN, 0, "copy_file_range"),
    Op.SYNCFS: Spec(wire.SYNCFS_IN, 0, "syncfs"),
    Op.TMPFILE: Spec(wire.CREATE_IN, 1, "tmpfile"),
    Op.COPY_FILE_RANGE_64: Spec(wire.COPY_FILE_RANGE_IN, 0, "copy_file_range_64"),
}
"""Absent on purpose (ENOSYS, for good): BMAP (no block device), POLL (files are always ready),
STATX (no birth time is stored; without STATX the kernel builds statx(2) from attributes it has, and
asks for less), SETUPMAPPING (virtio only)."""

COMPAT_SETXATTR = Spec(wire.SETXATTR_IN_COMPAT, 1, "setxattr_compat", rest=True)


def describe(opcode: int, ino: int, args: tuple[Any, ...]) -> str:
    """A request in one line, for the debug log; raw data only as its size."""
    name = Op(opcode).name if opcode in Op._value2member_map_ else f"OP{opcode}"
    shown = (f"<{len(a)} bytes>" if isinstance(a, memoryview) else repr(a) for a in args)
    return f"{name} ino={ino} {' '.join(shown)}"
