"""What a front end (fuse/, llfuse) may ask of the file system: the protocol `Operations`.

One method per request of the kernel, in the kernel's terms: inodes, file handles, bytes. Every
method may be called by many threads and raises OSError with the errno the caller shall see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from juicepy.types import (
    Attr,
    Buffer,
    Cred,
    DirEntry,
    Fh,
    Inode,
    LockKind,
    PosixLock,
    SetAttr,
    StatFs,
)


@dataclass(frozen=True, slots=True)
class Found:
    """A looked-up or new inode with how long (seconds) the kernel may believe it."""

    ino: Inode
    attr: Attr
    attr_timeout_s: float
    entry_timeout_s: float


@dataclass(frozen=True, slots=True)
class Opened:
    """An open file. `keep_cache`: pages the kernel has are still true. `direct_io`: no page cache.

    `nonseekable` for streams (access log). `no_flush`: FLUSH has nothing to do (read-only open).
    `length`: the file's length now; a front end whose kernel attributes tell another length must
    drop them before it answers (close-to-open between clients). `backing_fd`: passthrough.
    `is_new`: the file was made by this open.
    """

    fh: Fh
    keep_cache: bool = False
    direct_io: bool = False
    nonseekable: bool = False
    no_flush: bool = False
    length: int | None = None
    backing_fd: int | None = None
    is_new: bool = False


class Notifier(Protocol):
    """What the file system tells the kernel. What is invalidated waits for no request in flight:
    those calls queue.
    """

    def inval_inode(self, ino: Inode, offset: int = 0, length: int = 0) -> None:
        """Drop cached attributes and pages (length 0: to the end; offset -1: attributes only)."""

    def inval_entry(self, parent: Inode, name: bytes) -> None: ...

    def renew_inode(self, ino: Inode, length: int, last: bytes = b"") -> None:
        """Others have changed the file: drop all that is cached of it, append at `length`.

        `last`: the bytes before `length`, at least one if anybody appends. Returns when that is
        done, or after some seconds; not to be called while serving a read or write.
        """


@runtime_checkable
class PageStore(Protocol):
    """A `Notifier` that can also fill the kernel's page cache."""

    def store(self, ino: Inode, offset: int, data: Buffer) -> bool:
        """Put bytes into the page cache; the file is taken to be as long as they reach, at least.

        Waits for requests in flight on these pages. False once the mount is gone.
        """

    def inval_inode(self, ino: Inode, offset: int = 0, length: int = 0) -> None: ...


class Operations(Protocol):
    """The file system as a kernel sees it. Inode 1 is the mounted root (also with --subdir)."""

    def init(self, notifier: Notifier) -> None:
        """The mount answers: called once before the first request."""

    def destroy(self) -> None:
        """Flush all; called once after the last request."""

    def lookup(self, cred: Cred, parent: Inode, name: bytes) -> Found:
        """ENOENT if absent. A name `..` or `.` may come from NFS export."""

    def negative_timeout_s(self) -> float:
        """How long the kernel may believe that a name does not exist; 0: not at all."""

    def getattr(self, cred: Cred, ino: Inode, fh: Fh | None) -> tuple[Attr, float]:
        """Attributes and their timeout in seconds."""

    def setattr(
        self, cred: Cred, ino: Inode, change: SetAttr, size: int | None, fh: Fh | None
    ) -> tuple[Attr, float]: ...

    def readlink(self, cred: Cred, ino: Inode) -> bytes: ...
    def mknod(
        self, cred: Cred, parent: Inode, name: bytes, st_mode: int, umask: int, rdev: int
    ) -> Found: ...
    def mkdir(self, cred: Cred, parent: Inode, name: bytes, mode: int, umask: int) -> Found: ...
    def symlink(self, cred: Cred, parent: Inode, name: bytes, target: bytes) -> Found: ...
    def unlink(self, cred: Cred, parent: Inode, name: bytes) -> None: ...
    def rmdir(self, cred: Cred, parent: Inode, name: bytes) -> None: ...
    def rename(
        self, cred: Cred, parent: Inode, name: bytes, parent2: Inode, name2: bytes, flags: int
    ) -> None: ...
    def link(self, cred: Cred, ino: Inode, parent: Inode, name: bytes) -> Found: ...
    def create(
        self, cred: Cred, parent: Inode, name: bytes, mode: int, umask: int, flags: int
    ) -> tuple[Found, Opened]: ...
    def tmpfile(
        self, cred: Cred, parent: Inode, mode: int, umask: int, flags: int
    ) -> tuple[Found, Opened]:
        """A file without a name. Unless `flags` have O_EXCL, `link` may give it one."""

    def open(self, cred: Cred, ino: Inode, flags: int) -> Opened: ...
    def read(self, cred: Cred, ino: Inode, fh: Fh, offset: int, size: int) -> list[Buffer]:
        """The bytes in pieces, in order; shorter than `size` only at the end of the file."""

    def write(
        self, cred: Cred, ino: Inode, fh: Fh, offset: int, data: memoryview, flags: int
    ) -> int:
        """`data` is only valid during the call. `flags`: FUSE_WRITE_*, as the kernel sends them."""

    def flush(self, cred: Cred, ino: Inode, fh: Fh, owner: int) -> None: ...
    def fsync(self, cred: Cred, ino: Inode, fh: Fh, datasync: bool) -> None: ...
    def release(self, cred: Cred, ino: Inode, fh: Fh, owner: int) -> None:
        """The last descriptor is gone; `owner` holds a flock to release (0: none)."""

    def opendir(self, cred: Cred, ino: Inode, flags: int) -> Opened: ...
    def readdir(
        self, cred: Cred, ino: Inode, fh: Fh, offset: int, *, plus: bool
    ) -> Iterator[tuple[int, DirEntry]]:
        """Entries after cookie `offset` (0: from the start), each with the cookie after it.

        `.` and `..` come first. The caller stops when its buffer is full. With `plus` an entry
        has `attr`; timeouts are those of `entry_timeouts`.
        """

    def entry_timeouts(self, kind_is_dir: bool) -> tuple[float, float]:
        """(attr, entry) timeouts in seconds for entries of `readdir`."""

    def releasedir(self, cred: Cred, ino: Inode, fh: Fh) -> None: ...
    def fsyncdir(self, cred: Cred, ino: Inode, fh: Fh, datasync: bool) -> None: ...
    def statfs(self, cred: Cred, ino: Inode) -> StatFs: ...
    def access(self, cred: Cred, ino: Inode, mask: int) -> None: ...
    def setxattr(self, cred: Cred, ino: Inode, name: bytes, value: bytes, flags: int) -> None: ...
    def getxattr(self, cred: Cred, ino: Inode, name: bytes) -> bytes: ...
    def listxattr(self, cred: Cred, ino: Inode) -> list[bytes]: ...
    def removexattr(self, cred: Cred, ino: Inode, name: bytes) -> None: ...
    def getlk(
        self, cred: Cred, ino: Inode, fh: Fh, owner: int, lock: PosixLock
    ) -> PosixLock | None:
        """The lock in the way, or None."""

    def lock_owners(self, ino: Inode, owner: int, lock: PosixLock) -> set[int]:
        """Owners on this mount whose record locks are in the way of `owner`'s."""

    def try_setlk(self, cred: Cred, ino: Inode, fh: Fh, owner: int, lock: PosixLock) -> None:
        """EAGAIN on a conflict. Waiting (SETLKW) is the front end's: it repeats this call."""

    def try_flock(self, cred: Cred, ino: Inode, fh: Fh, owner: int, kind: LockKind) -> None: ...
    def fallocate(
        self, cred: Cred, ino: Inode, fh: Fh, mode: int, offset: int, length: int
    ) -> None: ...
    def lseek(self, cred: Cred, ino: Inode, fh: Fh, offset: int, whence: int) -> int:
        """SEEK_DATA and SEEK_HOLE; ENXIO beyond the end."""

    def copy_file_range(
        self,
        cred: Cred,
        ino: Inode,
        fh: Fh,
        offset: int,
        ino_out: Inode,
        fh_out: Fh,
        offset_out: int,
        length: int,
    ) -> int: ...
    def ioctl(self, cred: Cred, ino: Inode, fh: Fh, cmd: int, data: bytes, out_size: int) -> bytes:
        """FS_IOC_GETFLAGS, SETFLAGS, FSGETXATTR, FSSETXATTR if enabled; ENOTTY for others."""

    def syncfs(self, cred: Cred, ino: Inode) -> None: ...
