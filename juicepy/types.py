"""Records shared by the packages: ids, attributes, entries, slices, credentials.

Records hold no client, lock or I/O. Numbers that are stored in a volume are marked
`# stored: never renumber`; where each lies in a stored record is told in `meta/codec.py`.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NewType

Inode = NewType("Inode", int)
SliceId = NewType("SliceId", int)
SessionId = NewType("SessionId", int)
Fh = NewType("Fh", int)

Buffer = bytes | bytearray | memoryview

ROOT = Inode(1)
TRASH = Inode(0x7FFFFFFF10000000)  # stored: hourly trash directories are TRASH + n
INTERNAL = Inode(0x7FFFFFFF00000000)  # +1 .accesslog, +2 .control, +3 .stats, +4 .config

CHUNK_BITS = 26
CHUNK_SIZE = 1 << CHUNK_BITS  # 64 MiB
MAX_FILE_SIZE = 1 << 57
MAX_NAME = 255
MAX_SYMLINK = 4096
MAX_XATTR = 65536


class Kind(IntEnum):
    """Type of an inode."""  # stored: never renumber

    FILE = 1
    DIR = 2
    SYMLINK = 3
    FIFO = 4
    BLOCK = 5
    CHAR = 6
    SOCKET = 7


S_IFMT = {
    Kind.FILE: stat.S_IFREG,
    Kind.DIR: stat.S_IFDIR,
    Kind.SYMLINK: stat.S_IFLNK,
    Kind.FIFO: stat.S_IFIFO,
    Kind.BLOCK: stat.S_IFBLK,
    Kind.CHAR: stat.S_IFCHR,
    Kind.SOCKET: stat.S_IFSOCK,
}
KIND_OF = {bits: kind for kind, bits in S_IFMT.items()}

# Attr.flags, stored: never renumber
IMMUTABLE = 1
APPEND = 2
SKIP_TRASH = 32


@dataclass(slots=True)  # not frozen: built on every request, where freezing costs 7x
class Attr:
    """What stat(2) tells of an inode, times in nanoseconds since the epoch.

    `length` is bytes (4096 for a directory, the target's length for a symlink). `parent` is 0
    once the file was ever hard-linked. `access_acl`, `default_acl` are ids of ACL rules, 0 = none.
    Nobody changes an Attr that has left its transaction: use `with_`.
    """

    kind: Kind
    mode: int
    uid: int = 0
    gid: int = 0
    atime_ns: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    nlink: int = 1
    length: int = 0
    rdev: int = 0
    parent: Inode = Inode(0)
    flags: int = 0
    access_acl: int = 0
    default_acl: int = 0
    tier: int = 0

    @property
    def is_dir(self) -> bool:
        return self.kind is Kind.DIR

    @property
    def st_mode(self) -> int:
        return S_IFMT[self.kind] | self.mode

    @property
    def space(self) -> int:
        """Bytes the volume counts for it: the length in whole 4 KiB for files, else 4096."""
        return aligned(self.length) if self.kind is Kind.FILE else 4096

    def with_(self, **changes: object) -> Attr:
        return replace(self, **changes)  # type: ignore[arg-type]  # names are checked at run time


@dataclass(frozen=True, slots=True)
class Entry:
    """What a name in a directory leads to."""

    ino: Inode
    kind: Kind


@dataclass(slots=True)
class DirEntry:
    """A name of a directory listing; `attr` only where it was asked for and exists."""

    name: bytes
    ino: Inode
    kind: Kind
    attr: Attr | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """`length` bytes of slice `id`, from `off` on, shown at `pos` in the chunk. Id 0 is a hole.

    `size` is the size of the whole slice (0 for holes): id and size name its objects.
    """

    pos: int
    id: SliceId
    size: int
    off: int
    length: int


@dataclass(frozen=True, slots=True)
class BlockKey:
    """Block `index` of slice `id`; `size` is its plain length in bytes."""

    id: SliceId
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class Cred:
    """Who asks. `groups` are the supplementary groups; `pid` the calling process (0: unknown)."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    pid: int = 0

    @property
    def is_root(self) -> bool:
        return self.uid == 0

    def in_group(self, gid: int) -> bool:
        return gid == self.gid or gid in self.groups


KERNEL = Cred(pid=-1)  # the kernel itself asks, for no process: never squashed


@dataclass(frozen=True, slots=True)
class SetAttr:
    """What setattr is to change; None leaves a field. Times are ns; `now` flags mean "the present".

    `length` is not here: a change of size is `truncate`.
    """

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None
    atime_now: bool = False
    mtime_now: bool = False
    ctime_ns: int | None = None
    flags: int | None = None  # IMMUTABLE | APPEND | SKIP_TRASH, by ioctl


@dataclass(frozen=True, slots=True)
class StatFs:
    """Bytes and inodes of the volume (or of the quota that covers the mounted directory)."""

    total_bytes: int
    avail_bytes: int
    used_inodes: int
    avail_inodes: int


class LockKind(IntEnum):
    """A lock as struct flock and fuse_file_lock number it."""  # stored in plock records

    READ = 0
    WRITE = 1
    UNLOCK = 2


@dataclass(frozen=True, slots=True)
class PosixLock:
    """One record lock; `end` is inclusive, 0x7FFFFFFFFFFFFFFF means to the end of the file."""

    kind: LockKind
    start: int
    end: int
    pid: int


@dataclass(frozen=True, slots=True)
class AclRule:
    """A POSIX ACL; 0xFFFF in a permission field means undefined. Ids of names are uid / gid."""

    owner: int = 0xFFFF
    group: int = 0xFFFF
    mask: int = 0xFFFF
    other: int = 0xFFFF
    users: tuple[tuple[int, int], ...] = ()
    groups: tuple[tuple[int, int], ...] = ()


def aligned(length: int) -> int:
    """Bytes accounted for `length`: at least 4096, a multiple of 4096."""
    return 4096 if length <= 0 else (length + 4095) & ~4095
