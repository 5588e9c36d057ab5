"""The handlers: each turns one request of the kernel into one call of `vfs.api.Operations`.

A handler takes the caller, the inode, and the parts of the request in the order `opcodes.SPECS`
lays down. It returns the reply's body: None (empty), bytes, a list of buffers sent one after the
other, or `NO_REPLY`. An OSError becomes the negated errno.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from juicepy.errors import posix_error
from juicepy.fuse import wire
from juicepy.fuse.deadlocks import Wanted
from juicepy.fuse.kernel import KernelView
from juicepy.fuse.locks import LockWaiters
from juicepy.fuse.negotiate import Agreed
from juicepy.fuse.notify import KernelNotifier
from juicepy.fuse.opcodes import COMPAT_SETXATTR, SPECS, Op, Parse
from juicepy.fuse.passthrough import Passthrough
from juicepy.fuse.readdir import fill, fill_plus
from juicepy.fuse.setid import SetIdBits
from juicepy.types import (
    KERNEL,
    Buffer,
    Cred,
    Fh,
    Inode,
    LockKind,
    PosixLock,
    SetAttr,
)
from juicepy.vfs.api import Opened, Operations

Reply = bytes | list[Buffer] | None
Handler = Callable[..., Reply]

NO_REPLY: list[Buffer] = []  # compared by identity

_NS = 1_000_000_000
_CACHED_TIMES = wire.FATTR_MTIME | wire.FATTR_CTIME
_STAT_BLOCK = 4096
_MAX_COPY = 0x7FFFF000  # the old reply counts in 32 bits


class Dispatcher:
    """One method per request."""

    def __init__(
        self,
        ops: Operations,
        agreed: Agreed,
        view: KernelView,
        notifier: KernelNotifier,
        locks: LockWaiters,
        passthrough: Passthrough,
    ) -> None:
        self._ops, self._agreed, self._view = ops, agreed, view
        self._setid = SetIdBits(ops, agreed, view, notifier)
        self._notifier, self._locks, self._passthrough = notifier, locks, passthrough

    def table(self) -> dict[int, tuple[Parse, Handler, bool]]:
        """opcode -> (parser, handler, does it take the request's number)."""
        specs = dict(SPECS)
        if not self._agreed.has(wire.SETXATTR_EXT):
            specs[Op.SETXATTR] = COMPAT_SETXATTR
        return {
            int(op): (spec.parser(), getattr(self, spec.handler), spec.unique)
            for op, spec in specs.items()
        }

    # names

    def lookup(self, cred: Cred, parent: Inode, name: bytes) -> Reply:
        try:
            return self._view.entry(self._ops.lookup(cred, parent, name))
        except FileNotFoundError:
            timeout_s = self._ops.negative_timeout_s()
            if timeout_s <= 0:
                raise
            return _negative_entry(timeout_s)

    def forget(self, cred: Cred, ino: Inode, nlookup: int) -> Reply:
        self._view.forget(ino)
        return NO_REPLY

    def batch_forget(self, cred: Cred, ino: Inode, count: int, rest: memoryview) -> Reply:
        for forgotten, _ in wire.FORGET_ONE.iter_unpack(rest[: count * wire.FORGET_ONE.size]):
            self._view.forget(forgotten)
        return NO_REPLY

    def mknod(
        self, cred: Cred, parent: Inode, st_mode: int, rdev: int, umask: int, name: bytes
    ) -> Reply:
        return self._view.entry(self._ops.mknod(cred, parent, name, st_mode, umask, rdev))

    def mkdir(self, cred: Cred, parent: Inode, mode: int, umask: int, name: bytes) -> Reply:
        return self._view.entry(self._ops.mkdir(cred, parent, name, mode & 0o7777, umask))

    def symlink(self, cred: Cred, parent: Inode, name: bytes, target: bytes) -> Reply:
        return self._view.entry(self._ops.symlink(cred, parent, name, target))

    def link(self, cred: Cred, parent: Inode, ino: Inode, name: bytes) -> Reply:
        return self._view.entry(self._ops.link(cred, ino, parent, name))

    def unlink(self, cred: Cred, parent: Inode, name: bytes) -> Reply:
        self._ops.unlink(cred, parent, name)
        return None

    def rmdir(self, cred: Cred, parent: Inode, name: bytes) -> Reply:
        self._ops.rmdir(cred, parent, name)
        return None

    def rename(self, cred: Cred, parent: Inode, parent2: Inode, name: bytes, name2: bytes) -> Reply:
        self._ops.rename(cred, parent, name, parent2, name2, 0)
        return None

    def rename2(
        self, cred: Cred, parent: Inode, parent2: Inode, flags: int, name: bytes, name2: bytes
    ) -> Reply:
        self._ops.rename(cred, parent, name, parent2, name2, flags)
        return None

    def readlink(self, cred: Cred, ino: Inode) -> Reply:
        return self._ops.readlink(cred, ino)

    # attributes

    def getattr(self, cred: Cred, ino: Inode, flags: int, fh: Fh) -> Reply:
        attr, timeout_s = self._ops.getattr(cred, ino, fh if flags & wire.GETATTR_FH else None)
        return self._view.attr(ino, attr, timeout_s)

    def setattr(
        self, cred: Cred, ino: Inode, valid: int, fh: Fh, size: int, owner: int, *values: int
    ) -> Reply:
        change = _change(valid, *values)
        if valid & (wire.FATTR_UID | wire.FATTR_GID) and change.mode is None:
            change = self._setid.dropped_by_chown(cred, ino, change)
        if not valid & ~wire.FATTR_CTIME:
            cred, change = self._setid.of_empty_chown(cred, ino)
        if self._agreed.has(wire.WRITEBACK_CACHE):
            cred, change = _without_cached_times(cred, valid, change)
        handle = fh if valid & wire.FATTR_FH else None
        new_size = size if valid & wire.FATTR_SIZE else None
        if valid & wire.FATTR_KILL_SUIDGID and new_size is not None:
            self._setid.drop(cred, ino)
        attr, timeout_s = self._ops.setattr(cred, ino, change, new_size, handle)
        return self._view.attr(ino, attr, timeout_s)

    def access(self, cred: Cred, ino: Inode, mask: int) -> Reply:
        self._ops.access(cred, ino, mask)
        return None

    def statfs(self, cred: Cred, ino: Inode) -> Reply:
        st = self._ops.statfs(cred, ino)
        total, free = st.total_bytes // _STAT_BLOCK, st.avail_bytes // _STAT_BLOCK
        files = st.used_inodes + st.avail_inodes
        return wire.KSTATFS.pack(
            total, free, free, files, st.avail_inodes, _STAT_BLOCK, 255, _STAT_BLOCK
        )

    # extended attributes

    def setxattr(
        self,
        cred: Cred,
        ino: Inode,
        size: int,
        flags: int,
        extra: int,
        name: bytes,
        rest: memoryview,
    ) -> Reply:
        self._ops.setxattr(cred, ino, name, bytes(rest[:size]), flags)
        if extra & wire.SETXATTR_ACL_KILL_SGID:
            self._setid.drop_set_gid(ino)
        return None

    def setxattr_compat(
        self, cred: Cred, ino: Inode, size: int, flags: int, name: bytes, rest: memoryview
    ) -> Reply:
        return self.setxattr(cred, ino, size, flags, 0, name, rest)

    def getxattr(self, cred: Cred, ino: Inode, size: int, name: bytes) -> Reply:
        return _sized(self._ops.getxattr(cred, ino, name), size)

    def listxattr(self, cred: Cred, ino: Inode, size: int) -> Reply:
        names = self._ops.listxattr(cred, ino)
        return _sized(b"".join(name + b"\0" for name in names), size)

    def removexattr(self, cred: Cred, ino: Inode, name: bytes) -> Reply:
        self._ops.removexattr(cred, ino, name)
        return None

    # open files

    def open(self, cred: Cred, ino: Inode, flags: int, open_flags: int) -> Reply:
        if open_flags & wire.OPEN_KILL_SUIDGID:
            self._setid.drop(cred, ino)
        opened = self._ops.open(cred, ino, flags)
        length = opened.length
        if length is not None and not self._view.has_size(ino, length):
            # The kernel cuts reads at the size it knows. Attributes can be dropped from here:
            # unlike pages, no lock is held for them while a request is open.
            self._notifier.inval_attr_now(ino)
            self._view.set_size(ino, length)
        return self._open_out(cred, ino, flags, opened)

    def create(
        self,
        cred: Cred,
        parent: Inode,
        flags: int,
        mode: int,
        umask: int,
        open_flags: int,
        name: bytes,
    ) -> Reply:
        found, opened = self._ops.create(cred, parent, name, mode & 0o7777, umask, flags)
        if open_flags & wire.OPEN_KILL_SUIDGID and not opened.is_new:
            self._setid.drop(cred, found.ino)
        return self._view.entry(found) + self._open_out(cred, found.ino, flags, opened)

    def tmpfile(
        self,
        cred: Cred,
        parent: Inode,
        flags: int,
        mode: int,
        umask: int,
        open_flags: int,
        name: bytes,
    ) -> Reply:
        found, opened = self._ops.tmpfile(cred, parent, mode & 0o7777, umask, flags)
        return self._view.entry(found) + self._open_out(cred, found.ino, flags, opened)

    def _open_out(self, cred: Cred, ino: Inode, flags: int, opened: Opened) -> bytes:
        """FOPEN_NOFLUSH is never set: FLUSH is what drops the record locks of who closes."""
        try:
            bits, backing_id = self._passthrough.choose(
                ino, flags, opened.backing_fd, direct_io=opened.direct_io
            )
        except OSError:
            self._ops.release(cred, ino, opened.fh, 0)
            raise
        if opened.direct_io:
            bits |= wire.FOPEN_DIRECT_IO | wire.FOPEN_PARALLEL_DIRECT_WRITES
        if opened.keep_cache and not backing_id:  # refused together: there are no pages to keep
            bits |= wire.FOPEN_KEEP_CACHE
        if opened.nonseekable:
            bits |= wire.FOPEN_NONSEEKABLE | wire.FOPEN_STREAM
        return wire.OPEN_OUT.pack(opened.fh, bits, backing_id)

    def read(self, cred: Cred, ino: Inode, fh: Fh, offset: int, size: int) -> Reply:
        pieces = self._ops.read(cred, ino, fh, offset, size)
        return pieces or None

    def write(
        self,
        cred: Cred,
        ino: Inode,
        fh: Fh,
        offset: int,
        size: int,
        write_flags: int,
        owner: int,
        flags: int,
        rest: memoryview,
    ) -> Reply:
        if write_flags & wire.WRITE_KILL_SUIDGID:
            self._setid.drop(cred, ino)
        written = self._ops.write(cred, ino, fh, offset, rest[:size], write_flags)
        self._view.grown(ino, offset + written)
        return wire.WRITE_OUT.pack(written)

    def flush(self, cred: Cred, ino: Inode, fh: Fh, owner: int) -> Reply:
        self._ops.flush(cred, ino, fh, owner)
        self._locks.kick()  # closing drops the owner's record locks
        return None

    def fsync(self, cred: Cred, ino: Inode, fh: Fh, flags: int) -> Reply:
        self._ops.fsync(cred, ino, fh, bool(flags & wire.FSYNC_FDATASYNC))
        return None

    def release(self, cred: Cred, ino: Inode, fh: Fh, flags: int, owner: int) -> Reply:
        self._passthrough.released(ino)
        holds_flock = flags & wire.RELEASE_FLOCK_UNLOCK
        self._ops.release(cred, ino, fh, owner if holds_flock else 0)
        self._locks.kick()
        return None

    def fallocate(
        self, cred: Cred, ino: Inode, fh: Fh, offset: int, length: int, mode: int
    ) -> Reply:
        self._setid.drop_for(cred, ino)
        self._ops.fallocate(cred, ino, fh, mode, offset, length)
        return None

    def lseek(self, cred: Cred, ino: Inode, fh: Fh, offset: int, whence: int) -> Reply:
        return wire.LSEEK_OUT.pack(self._ops.lseek(cred, ino, fh, offset, whence))

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
    ) -> Reply:
        copied = self._copy(
            cred, ino, fh, offset, ino_out, fh_out, offset_out, min(length, _MAX_COPY)
        )
        return wire.WRITE_OUT.pack(copied)

    def copy_file_range_64(self, cred: Cred, ino: Inode, *args: Any) -> Reply:
        return wire.COPY_FILE_RANGE_OUT.pack(self._copy(cred, ino, *args))

    def _copy(self, cred: Cred, ino: Inode, *args: Any) -> int:
        _, _, ino_out, _, offset_out, _ = args
        self._setid.drop_for(cred, ino_out)
        copied = self._ops.copy_file_range(cred, ino, *args)
        self._view.grown(ino_out, offset_out + copied)
        return copied

    def ioctl(
        self,
        cred: Cred,
        ino: Inode,
        fh: Fh,
        flags: int,
        cmd: int,
        in_size: int,
        out_size: int,
        rest: memoryview,
    ) -> Reply:
        """Sizes are the kernel's: FS_IOC_GETFLAGS says 8 bytes in its number and carries 4."""
        if flags & wire.IOCTL_UNRESTRICTED:
            raise posix_error(errno.ENOSYS)
        data = self._ops.ioctl(cred, ino, fh, cmd, bytes(rest[:in_size]), out_size)
        return wire.IOCTL_OUT.pack(0, 0, 0, 0) + data[:out_size].ljust(out_size, b"\0")

    # directories

    def opendir(self, cred: Cred, ino: Inode, flags: int, open_flags: int) -> Reply:
        opened = self._ops.opendir(cred, ino, flags)
        bits = wire.FOPEN_CACHE_DIR | wire.FOPEN_KEEP_CACHE if opened.keep_cache else 0
        return wire.OPEN_OUT.pack(opened.fh, bits, 0)

    def readdir(self, cred: Cred, ino: Inode, fh: Fh, offset: int, size: int) -> Reply:
        return fill(self._ops.readdir(cred, ino, fh, offset, plus=False), size)

    def readdirplus(self, cred: Cred, ino: Inode, fh: Fh, offset: int, size: int) -> Reply:
        entries = self._ops.readdir(cred, ino, fh, offset, plus=True)
        return fill_plus(entries, size, self._view, self._ops.entry_timeouts)

    def releasedir(self, cred: Cred, ino: Inode, fh: Fh, flags: int, owner: int) -> Reply:
        self._ops.releasedir(cred, ino, fh)
        return None

    def fsyncdir(self, cred: Cred, ino: Inode, fh: Fh, flags: int) -> Reply:
        self._ops.fsyncdir(cred, ino, fh, bool(flags & wire.FSYNC_FDATASYNC))
        return None

    # locks

    def getlk(
        self,
        cred: Cred,
        ino: Inode,
        fh: Fh,
        owner: int,
        start: int,
        end: int,
        kind: int,
        *rest: int,
    ) -> Reply:
        lock = PosixLock(LockKind(kind), start, end, rest[0])
        held = self._ops.getlk(cred, ino, fh, owner, lock)
        if held is None:
            return wire.LK_OUT.pack(start, end, LockKind.UNLOCK, 0)
        return wire.LK_OUT.pack(held.start, held.end, held.kind, held.pid)

    def setlk(self, cred: Cred, ino: Inode, *args: int) -> Reply:
        self._lock_attempt(cred, ino, *args)()
        if args[4] == LockKind.UNLOCK:
            self._locks.kick()
        return None

    def setlkw(self, cred: Cred, ino: Inode, *args: int) -> Reply:
        *lock, unique = args
        attempt = self._lock_attempt(cred, ino, *lock)
        try:
            attempt()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            self._locks.wait(unique, attempt, _wanted(cred, ino, *lock))
            return NO_REPLY
        if lock[4] == LockKind.UNLOCK:
            self._locks.kick()
        return None

    def _lock_attempt(
        self, cred: Cred, ino: Inode, fh: int, owner: int, start: int, end: int, *rest: int
    ) -> Callable[[], None]:
        kind, pid, flags = rest
        if flags & wire.LK_FLOCK:
            return partial(self._ops.try_flock, cred, ino, Fh(fh), owner, LockKind(kind))
        lock = PosixLock(LockKind(kind), start, end, pid)
        return partial(self._ops.try_setlk, cred, ino, Fh(fh), owner, lock)

    # the connection

    def interrupt(self, cred: Cred, ino: Inode, unique: int) -> Reply:
        self._locks.interrupt(unique)
        return NO_REPLY

    def syncfs(self, cred: Cred, ino: Inode) -> Reply:
        self._ops.syncfs(cred, ino)
        return None

    def destroy(self, cred: Cred, ino: Inode) -> Reply:
        return None


def _wanted(
    cred: Cred, ino: Inode, fh: int, owner: int, start: int, end: int, kind: int, *rest: int
) -> Wanted | None:
    """What a refused request waits for; None for flock(2)."""
    pid, flags = rest
    if flags & wire.LK_FLOCK:
        return None
    return Wanted(ino, owner, PosixLock(LockKind(kind), start, end, pid), cred.pid)


def _negative_entry(timeout_s: float) -> bytes:
    """Inode 0: the kernel may believe for that long that the name does not exist."""
    whole = int(timeout_s)
    return wire.ENTRY_OUT.pack(0, 0, whole, 0, int((timeout_s - whole) * _NS), *[0] * 17)


def _sized(value: bytes, size: int) -> bytes:
    """The value, or its size if the caller only asks for that."""
    if size == 0:
        return wire.GETXATTR_OUT.pack(len(value))
    if len(value) > size:
        raise posix_error(errno.ERANGE)
    return value


def _without_cached_times(cred: Cred, valid: int, change: SetAttr) -> tuple[Cred, SetAttr]:
    """Who changes what, where the kernel keeps mtime and ctime while it holds written pages.

    It tells them with a truncation, which sets them anyway; as values in place of "now", which
    others than the owner may ask for; and by themselves, whoever happens to flush the pages.
    """
    if valid & wire.FATTR_SIZE:
        return cred, replace(change, mtime_ns=None, ctime_ns=None)
    if change.atime_now and None is not change.mtime_ns == change.ctime_ns:
        return cred, replace(change, mtime_now=True, mtime_ns=None, ctime_ns=None)
    is_kernels = valid & ~wire.FATTR_FH == _CACHED_TIMES
    return (KERNEL if is_kernels else cred), change


def _change(
    valid: int,
    atime: int,
    mtime: int,
    ctime: int,
    atime_ns: int,
    mtime_ns: int,
    ctime_ns: int,
    mode: int,
    uid: int,
    gid: int,
) -> SetAttr:
    """The fields of a fuse_setattr_in that `valid` names, but for the size."""
    atime_now, mtime_now = bool(valid & wire.FATTR_ATIME_NOW), bool(valid & wire.FATTR_MTIME_NOW)
    return SetAttr(
        mode=mode & 0o7777 if valid & wire.FATTR_MODE else None,
        uid=uid if valid & wire.FATTR_UID else None,
        gid=gid if valid & wire.FATTR_GID else None,
        atime_ns=atime * _NS + atime_ns if valid & wire.FATTR_ATIME and not atime_now else None,
        mtime_ns=mtime * _NS + mtime_ns if valid & wire.FATTR_MTIME and not mtime_now else None,
        atime_now=atime_now,
        mtime_now=mtime_now,
        ctime_ns=ctime * _NS + ctime_ns if valid & wire.FATTR_CTIME else None,
    )
