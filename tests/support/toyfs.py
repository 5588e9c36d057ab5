"""A file system in memory that implements `vfs.api.Operations`: the peer of tests of front ends.

It stores and checks as little as it may: permissions are left to the kernel. `hooks` maps a method
to a function called before it, to make it slow or fail; `calls` counts the calls of each.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from juicepy.errors import posix_error
from juicepy.types import (
    KIND_OF,
    MAX_NAME,
    ROOT,
    Attr,
    Buffer,
    Cred,
    DirEntry,
    Fh,
    Inode,
    Kind,
    LockKind,
    PosixLock,
    SetAttr,
    StatFs,
)
from juicepy.vfs.api import Found, Notifier, Opened

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE = 1, 2, 16
XATTR_CREATE, XATTR_REPLACE = 1, 2
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR = 0x80086601, 0x40086602, 0x801C581F
FS_IMMUTABLE_FL, FS_APPEND_FL = 0x10, 0x20


@dataclass
class Node:
    attr: Attr
    data: bytearray = field(default_factory=bytearray)
    target: bytes = b""
    entries: dict[bytes, Inode] = field(default_factory=dict)
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    parent: Inode = ROOT


class ToyFs:
    """All nodes under one lock; the timeouts are attributes a test may set."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.nodes: dict[Inode, Node] = {ROOT: Node(Attr(Kind.DIR, 0o755, nlink=2, length=4096))}
        self.attr_timeout_s = self.entry_timeout_s = 1.0
        self.negative_s = 0.0
        self.keep_cache = self.direct_io = self.passthrough = False
        self.announce_length = True
        self.hooks: dict[str, Callable[..., None]] = {}
        self.calls: Counter[str] = Counter()
        self.creds: dict[str, Cred] = {}
        self.notifier: Notifier | None = None
        self.destroyed = 0
        self.posix_locks: dict[Inode, list[tuple[int, PosixLock]]] = {}
        self.flocks: dict[Inode, dict[int, LockKind]] = {}
        self.backing: dict[Inode, int] = {}
        self.open_files: Counter[Fh] = Counter()
        self._next_ino, self._next_fh = 2, 1
        self._touch(self.nodes[ROOT].attr)

    def _enter(self, method: str, cred: Cred, *args: Any) -> None:
        self.calls[method] += 1
        self.creds[method] = cred
        hook = self.hooks.get(method)
        if hook is not None:
            hook(*args)

    def _touch(self, attr: Attr) -> None:
        attr.atime_ns = attr.mtime_ns = attr.ctime_ns = time.time_ns()

    def _node(self, ino: Inode) -> Node:
        try:
            return self.nodes[ino]
        except KeyError:
            raise posix_error(errno.ENOENT) from None

    def _found(self, ino: Inode) -> Found:
        attr = self._node(ino).attr.with_()
        return Found(ino, attr, self.attr_timeout_s, self.entry_timeout_s)

    def _child(self, parent: Inode, name: bytes) -> Inode:
        try:
            return self._node(parent).entries[name]
        except KeyError:
            raise posix_error(errno.ENOENT, name) from None

    def _make(self, cred: Cred, parent: Inode, name: bytes, kind: Kind, mode: int) -> Inode:
        directory = self._node(parent)
        if len(name) > MAX_NAME:
            raise posix_error(errno.ENAMETOOLONG, name)
        if name in directory.entries:
            raise posix_error(errno.EEXIST, name)
        ino = Inode(self._next_ino)
        self._next_ino += 1
        attr = Attr(kind, mode, cred.uid, cred.gid, parent=parent)
        if kind is Kind.DIR:
            attr.nlink, attr.length = 2, 4096
            directory.attr.nlink += 1
        self._touch(attr)
        self._touch(directory.attr)
        self.nodes[ino] = Node(attr, parent=parent)
        directory.entries[name] = ino
        return ino

    def _opened(self, ino: Inode) -> Opened:
        fh = Fh(self._next_fh)
        self._next_fh += 1
        self.open_files[fh] += 1
        node = self._node(ino)
        return Opened(
            fh,
            keep_cache=self.keep_cache,
            direct_io=self.direct_io,
            length=len(node.data) if self.announce_length else None,
            backing_fd=self.backing.get(ino) if self.passthrough else None,
        )

    def init(self, notifier: Notifier) -> None:
        self.notifier = notifier

    def destroy(self) -> None:
        self.destroyed += 1

    def lookup(self, cred: Cred, parent: Inode, name: bytes) -> Found:
        self._enter("lookup", cred, parent, name)
        with self.lock:
            return self._found(self._child(parent, name))

    def negative_timeout_s(self) -> float:
        return self.negative_s

    def getattr(self, cred: Cred, ino: Inode, fh: Fh | None) -> tuple[Attr, float]:
        self._enter("getattr", cred, ino)
        with self.lock:
            return self._node(ino).attr.with_(), self.attr_timeout_s

    def setattr(
        self, cred: Cred, ino: Inode, change: SetAttr, size: int | None, fh: Fh | None
    ) -> tuple[Attr, float]:
        self._enter("setattr", cred, ino)
        with self.lock:
            node = self._node(ino)
            if size is not None:
                self._resize(node, size)
            for name in ("mode", "uid", "gid", "atime_ns", "mtime_ns", "ctime_ns"):
                value = getattr(change, name)
                if value is not None:
                    setattr(node.attr, name, value)
            if change.atime_now:
                node.attr.atime_ns = time.time_ns()
            if change.mtime_now:
                node.attr.mtime_ns = time.time_ns()
            node.attr.ctime_ns = time.time_ns()
            return node.attr.with_(), self.attr_timeout_s

    def _resize(self, node: Node, size: int) -> None:
        if size < len(node.data):
            del node.data[size:]
        else:
            node.data.extend(bytes(size - len(node.data)))
        node.attr.length = size
        node.attr.mtime_ns = node.attr.ctime_ns = time.time_ns()

    def readlink(self, cred: Cred, ino: Inode) -> bytes:
        self._enter("readlink", cred, ino)
        return self._node(ino).target

    def mknod(
        self, cred: Cred, parent: Inode, name: bytes, st_mode: int, umask: int, rdev: int
    ) -> Found:
        self._enter("mknod", cred, parent, name)
        with self.lock:
            kind = KIND_OF[stat.S_IFMT(st_mode)]
            ino = self._make(cred, parent, name, kind, stat.S_IMODE(st_mode) & ~umask)
            self.nodes[ino].attr.rdev = rdev
            return self._found(ino)

    def mkdir(self, cred: Cred, parent: Inode, name: bytes, mode: int, umask: int) -> Found:
        self._enter("mkdir", cred, parent, name)
        with self.lock:
            return self._found(self._make(cred, parent, name, Kind.DIR, mode & ~umask))

    def symlink(self, cred: Cred, parent: Inode, name: bytes, target: bytes) -> Found:
        self._enter("symlink", cred, parent, name)
        with self.lock:
            ino = self._make(cred, parent, name, Kind.SYMLINK, 0o777)
            self.nodes[ino].target = target
            self.nodes[ino].attr.length = len(target)
            return self._found(ino)

    def unlink(self, cred: Cred, parent: Inode, name: bytes) -> None:
        self._enter("unlink", cred, parent, name)
        with self.lock:
            ino = self._child(parent, name)
            if self._node(ino).attr.is_dir:
                raise posix_error(errno.EISDIR, name)
            del self.nodes[parent].entries[name]
            self.nodes[ino].attr.nlink -= 1
            self._touch(self.nodes[parent].attr)

    def rmdir(self, cred: Cred, parent: Inode, name: bytes) -> None:
        self._enter("rmdir", cred, parent, name)
        with self.lock:
            ino = self._child(parent, name)
            node = self._node(ino)
            if not node.attr.is_dir:
                raise posix_error(errno.ENOTDIR, name)
            if node.entries:
                raise posix_error(errno.ENOTEMPTY, name)
            del self.nodes[parent].entries[name]
            self.nodes[parent].attr.nlink -= 1
            self._touch(self.nodes[parent].attr)

    def rename(
        self, cred: Cred, parent: Inode, name: bytes, parent2: Inode, name2: bytes, flags: int
    ) -> None:
        self._enter("rename", cred, parent, name, parent2, name2, flags)
        with self.lock:
            source, target = self._node(parent).entries, self._node(parent2).entries
            ino, replaced = self._child(parent, name), target.get(name2)
            if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE):
                raise posix_error(errno.EINVAL)
            if flags & RENAME_EXCHANGE:
                source[name], target[name2] = self._child(parent2, name2), ino
                return
            if replaced is not None and flags & RENAME_NOREPLACE:
                raise posix_error(errno.EEXIST, name2)
            if replaced is not None and self.nodes[replaced].entries:
                raise posix_error(errno.ENOTEMPTY, name2)
            del source[name]
            target[name2] = ino
            self.nodes[ino].parent = parent2

    def link(self, cred: Cred, ino: Inode, parent: Inode, name: bytes) -> Found:
        self._enter("link", cred, ino, parent, name)
        with self.lock:
            entries = self._node(parent).entries
            if name in entries:
                raise posix_error(errno.EEXIST, name)
            entries[name] = ino
            self._node(ino).attr.nlink += 1
            return self._found(ino)

    def create(
        self, cred: Cred, parent: Inode, name: bytes, mode: int, umask: int, flags: int
    ) -> tuple[Found, Opened]:
        self._enter("create", cred, parent, name)
        with self.lock:
            ino = self._node(parent).entries.get(name)
            if ino is None:
                ino = self._make(cred, parent, name, Kind.FILE, mode & ~umask)
            elif flags & os.O_EXCL:
                raise posix_error(errno.EEXIST, name)
            elif flags & os.O_TRUNC:
                self._resize(self.nodes[ino], 0)
            return self._found(ino), self._opened(ino)

    def tmpfile(
        self, cred: Cred, parent: Inode, mode: int, umask: int, flags: int
    ) -> tuple[Found, Opened]:
        self._enter("tmpfile", cred, parent)
        raise posix_error(errno.EOPNOTSUPP)

    def open(self, cred: Cred, ino: Inode, flags: int) -> Opened:
        self._enter("open", cred, ino, flags)
        with self.lock:
            if flags & os.O_TRUNC:
                self._resize(self._node(ino), 0)
            return self._opened(ino)

    def read(self, cred: Cred, ino: Inode, fh: Fh, offset: int, size: int) -> list[Buffer]:
        self._enter("read", cred, ino, fh, offset, size)
        with self.lock:  # a copy: a view would forbid to resize
            return [bytes(memoryview(self._node(ino).data)[offset : offset + size])]

    def write(
        self, cred: Cred, ino: Inode, fh: Fh, offset: int, data: memoryview, flags: int
    ) -> int:
        self._enter("write", cred, ino, fh, offset, len(data))
        with self.lock:
            node = self._node(ino)
            if flags & os.O_APPEND:
                offset = len(node.data)
            if offset + len(data) > len(node.data):
                self._resize(node, offset + len(data))
            node.data[offset : offset + len(data)] = data
            node.attr.mtime_ns = node.attr.ctime_ns = time.time_ns()
            return len(data)

    def flush(self, cred: Cred, ino: Inode, fh: Fh, owner: int) -> None:
        self._enter("flush", cred, ino, fh, owner)
        with self.lock:
            kept = [held for held in self.posix_locks.get(ino, []) if held[0] != owner]
            self.posix_locks[ino] = kept

    def fsync(self, cred: Cred, ino: Inode, fh: Fh, datasync: bool) -> None:
        self._enter("fsync", cred, ino, fh, datasync)

    def release(self, cred: Cred, ino: Inode, fh: Fh, owner: int) -> None:
        self._enter("release", cred, ino, fh, owner)
        with self.lock:
            del self.open_files[fh]
            self.flocks.get(ino, {}).pop(owner, None)

    def opendir(self, cred: Cred, ino: Inode, flags: int) -> Opened:
        self._enter("opendir", cred, ino)
        with self.lock:
            return self._opened(ino)

    def readdir(
        self, cred: Cred, ino: Inode, fh: Fh, offset: int, *, plus: bool
    ) -> Iterator[tuple[int, DirEntry]]:
        self._enter("readdirplus" if plus else "readdir", cred, ino, offset)
        with self.lock:
            node = self._node(ino)
            listing = [(b".", ino), (b"..", node.parent), *node.entries.items()]
            found = [
                (number, DirEntry(name, child, attr.kind, attr.with_() if plus else None))
                for number, (name, child) in enumerate(listing[offset:], offset + 1)
                if (attr := self._node(child).attr)
            ]
        return iter(found)

    def entry_timeouts(self, kind_is_dir: bool) -> tuple[float, float]:
        return self.attr_timeout_s, self.entry_timeout_s

    def releasedir(self, cred: Cred, ino: Inode, fh: Fh) -> None:
        self._enter("releasedir", cred, ino, fh)
        del self.open_files[fh]

    def fsyncdir(self, cred: Cred, ino: Inode, fh: Fh, datasync: bool) -> None:
        self._enter("fsyncdir", cred, ino, fh, datasync)

    def statfs(self, cred: Cred, ino: Inode) -> StatFs:
        self._enter("statfs", cred, ino)
        return StatFs(1 << 40, 3 << 38, len(self.nodes), 1 << 20)

    def access(self, cred: Cred, ino: Inode, mask: int) -> None:
        self._enter("access", cred, ino, mask)

    def setxattr(self, cred: Cred, ino: Inode, name: bytes, value: bytes, flags: int) -> None:
        self._enter("setxattr", cred, ino, name, value)
        with self.lock:
            xattrs = self._node(ino).xattrs
            if flags == XATTR_CREATE and name in xattrs:
                raise posix_error(errno.EEXIST, name)
            if flags == XATTR_REPLACE and name not in xattrs:
                raise posix_error(errno.ENODATA, name)
            xattrs[name] = value

    def getxattr(self, cred: Cred, ino: Inode, name: bytes) -> bytes:
        self._enter("getxattr", cred, ino, name)
        try:
            return self._node(ino).xattrs[name]
        except KeyError:
            raise posix_error(errno.ENODATA, name) from None

    def listxattr(self, cred: Cred, ino: Inode) -> list[bytes]:
        self._enter("listxattr", cred, ino)
        return list(self._node(ino).xattrs)

    def removexattr(self, cred: Cred, ino: Inode, name: bytes) -> None:
        self._enter("removexattr", cred, ino, name)
        if self._node(ino).xattrs.pop(name, None) is None:
            raise posix_error(errno.ENODATA, name)

    def getlk(
        self, cred: Cred, ino: Inode, fh: Fh, owner: int, lock: PosixLock
    ) -> PosixLock | None:
        self._enter("getlk", cred, ino)
        with self.lock:
            return self._conflict(ino, owner, lock)

    def lock_owners(self, ino: Inode, owner: int, lock: PosixLock) -> set[int]:
        return set()  # nobody is looked for

    def _conflict(self, ino: Inode, owner: int, lock: PosixLock) -> PosixLock | None:
        for other, held in self.posix_locks.get(ino, []):
            overlaps = held.start <= lock.end and lock.start <= held.end
            if other != owner and overlaps and LockKind.WRITE in (held.kind, lock.kind):
                return held
        return None

    def try_setlk(self, cred: Cred, ino: Inode, fh: Fh, owner: int, lock: PosixLock) -> None:
        """Unlocking drops all locks of the owner that overlap: enough for the tests."""
        self._enter("try_setlk", cred, ino)
        with self.lock:
            held = self.posix_locks.setdefault(ino, [])
            if lock.kind is LockKind.UNLOCK:
                held[:] = [
                    (other, have)
                    for other, have in held
                    if other != owner or have.end < lock.start or lock.end < have.start
                ]
            elif self._conflict(ino, owner, lock) is not None:
                raise posix_error(errno.EAGAIN)
            else:
                held.append((owner, lock))

    def try_flock(self, cred: Cred, ino: Inode, fh: Fh, owner: int, kind: LockKind) -> None:
        self._enter("try_flock", cred, ino)
        with self.lock:
            held = self.flocks.setdefault(ino, {})
            others = [have for other, have in held.items() if other != owner]
            if kind is LockKind.UNLOCK:
                held.pop(owner, None)
            elif LockKind.WRITE in others or (others and kind is LockKind.WRITE):
                raise posix_error(errno.EAGAIN)
            else:
                held[owner] = kind

    def fallocate(
        self, cred: Cred, ino: Inode, fh: Fh, mode: int, offset: int, length: int
    ) -> None:
        self._enter("fallocate", cred, ino, mode, offset, length)
        with self.lock:
            node = self._node(ino)
            if not mode & FALLOC_KEEP_SIZE and offset + length > len(node.data):
                self._resize(node, offset + length)
            if mode & (FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE):
                end = min(offset + length, len(node.data))
                node.data[offset:end] = bytes(max(0, end - offset))

    def lseek(self, cred: Cred, ino: Inode, fh: Fh, offset: int, whence: int) -> int:
        """Whole zero blocks of 4 KiB are holes."""
        self._enter("lseek", cred, ino, offset, whence)
        with self.lock:
            data = self._node(ino).data
            if offset >= len(data):
                raise posix_error(errno.ENXIO)
            wanted = whence == os.SEEK_DATA
            for start in range(offset & ~4095, len(data), 4096):
                if any(data[start : start + 4096]) == wanted:
                    return max(start, offset)
            if wanted:
                raise posix_error(errno.ENXIO)
            return len(data)

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
    ) -> int:
        self._enter("copy_file_range", cred, ino, ino_out)
        with self.lock:
            data = bytes(self._node(ino).data[offset : offset + length])
            return self.write(cred, ino_out, fh_out, offset_out, memoryview(data), 0)

    def ioctl(self, cred: Cred, ino: Inode, fh: Fh, cmd: int, data: bytes, out_size: int) -> bytes:
        self._enter("ioctl", cred, ino, cmd, data, out_size)
        attr = self._node(ino).attr
        if cmd == FS_IOC_GETFLAGS:
            return attr.flags.to_bytes(8, "little")
        if cmd == FS_IOC_FSGETXATTR:  # the kernel asks for it before it sets flags
            return bytes(28)
        if cmd == FS_IOC_SETFLAGS:
            attr.flags = int.from_bytes(data[:4], "little")
            return b""
        raise posix_error(errno.ENOTTY)

    def syncfs(self, cred: Cred, ino: Inode) -> None:
        self._enter("syncfs", cred, ino)
