"""The requests of `llfuse`, each turned into one call of `Operations`; see `llfuse_front`."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import llfuse

from juicepy.fuse.creds import Creds
from juicepy.fuse.kernel import BLOCK_SIZE, GENERATION
from juicepy.fuse.notify import inode_message
from juicepy.types import S_IFMT, Attr, Cred, Fh, Inode, SetAttr
from juicepy.vfs.api import Found, Opened, Operations

logger = logging.getLogger(__name__)

WORKERS = 10

_BLOCK = 4096


class _Request:
    """Around a call of the file system: without the binding's global lock, OSError translated."""

    def __enter__(self) -> None:
        llfuse.lock_released.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        llfuse.lock_released.__exit__(kind, error, trace)
        if isinstance(error, OSError):
            raise llfuse.FUSEError(error.errno or errno.EIO) from error
        if isinstance(error, Exception):
            logger.error("a request failed", exc_info=error)
            raise llfuse.FUSEError(errno.EIO) from error


_request = _Request()


class Handlers:
    """The methods that llfuse calls: one for each request."""

    def __init__(self, operations: Operations) -> None:
        self._ops = operations
        self._creds = Creds()
        self._open: dict[int, tuple[Inode, Cred]] = {}  # what a request with only a handle lacks
        self._may_wait = threading.BoundedSemaphore(WORKERS // 2)
        self.device_fd: int | None = None

    def init(self) -> None:
        """Nothing: `Operations.init` is called by `serve`."""

    def destroy(self) -> None:
        """Nothing: `Operations.destroy` is called by `serve`."""

    def stacktrace(self) -> None:
        """For a debugger; not offered."""

    def forget(self, inode_list: list[tuple[int, int]]) -> None:
        """Nothing is kept per inode."""

    def _cred(self, ctx: Any) -> Cred:
        return self._creds.get(ctx.uid, ctx.gid, ctx.pid)

    def lookup(self, parent: Inode, name: bytes, ctx: Any) -> Any:
        with _request:
            try:
                return _entry(self._ops.lookup(self._cred(ctx), parent, name))
            except FileNotFoundError:
                timeout_s = self._ops.negative_timeout_s()
                if timeout_s <= 0:
                    raise
                absent = llfuse.EntryAttributes()
                absent.st_ino, absent.entry_timeout = 0, timeout_s
                return absent

    def getattr(self, ino: Inode, ctx: Any) -> Any:
        with _request:
            return _attributes(ino, *self._ops.getattr(self._cred(ctx), ino, None))

    def setattr(self, ino: Inode, attr: Any, fields: Any, fh: Fh | None, ctx: Any) -> Any:
        change = SetAttr(
            mode=stat.S_IMODE(attr.st_mode) if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
        )
        size = attr.st_size if fields.update_size else None
        with _request:
            return _attributes(ino, *self._ops.setattr(self._cred(ctx), ino, change, size, fh))

    def readlink(self, ino: Inode, ctx: Any) -> bytes:
        with _request:
            return self._ops.readlink(self._cred(ctx), ino)

    def mknod(self, parent: Inode, name: bytes, mode: int, rdev: int, ctx: Any) -> Any:
        with _request:
            cred = self._cred(ctx)
            return _entry(self._ops.mknod(cred, parent, name, mode, ctx.umask, rdev))

    def mkdir(self, parent: Inode, name: bytes, mode: int, ctx: Any) -> Any:
        with _request:
            cred, mode = self._cred(ctx), stat.S_IMODE(mode)
            return _entry(self._ops.mkdir(cred, parent, name, mode, ctx.umask))

    def symlink(self, parent: Inode, name: bytes, target: bytes, ctx: Any) -> Any:
        with _request:
            return _entry(self._ops.symlink(self._cred(ctx), parent, name, target))

    def link(self, ino: Inode, parent: Inode, name: bytes, ctx: Any) -> Any:
        with _request:
            return _entry(self._ops.link(self._cred(ctx), ino, parent, name))

    def unlink(self, parent: Inode, name: bytes, ctx: Any) -> None:
        with _request:
            self._ops.unlink(self._cred(ctx), parent, name)

    def rmdir(self, parent: Inode, name: bytes, ctx: Any) -> None:
        with _request:
            self._ops.rmdir(self._cred(ctx), parent, name)

    def rename(self, parent: Inode, name: bytes, parent2: Inode, name2: bytes, ctx: Any) -> None:
        with _request:
            self._ops.rename(self._cred(ctx), parent, name, parent2, name2, 0)

    def access(self, ino: Inode, mask: int, ctx: Any) -> bool:
        with _request:
            self._ops.access(self._cred(ctx), ino, mask)
            return True

    def statfs(self, ctx: Any) -> Any:
        with _request:
            have = self._ops.statfs(self._cred(ctx), Inode(llfuse.ROOT_INODE))
        st = llfuse.StatvfsData()
        st.f_bsize = st.f_frsize = _BLOCK
        st.f_blocks = have.total_bytes // _BLOCK
        st.f_bfree = st.f_bavail = have.avail_bytes // _BLOCK
        st.f_files = have.used_inodes + have.avail_inodes
        st.f_ffree = st.f_favail = have.avail_inodes
        st.f_namemax = 255
        return st

    def create(self, parent: Inode, name: bytes, mode: int, flags: int, ctx: Any) -> tuple[Fh, Any]:
        with _request:
            cred = self._cred(ctx)
            found, opened = self._ops.create(
                cred, parent, name, stat.S_IMODE(mode), ctx.umask, flags
            )
            self._open[opened.fh] = found.ino, cred
            return opened.fh, _entry(found)

    def open(self, ino: Inode, flags: int, ctx: Any) -> Fh:
        with _request:
            cred = self._cred(ctx)
            opened = self._ops.open(cred, ino, flags)
            self._open[opened.fh] = ino, cred
            self._freshen(ino, opened)
            return opened.fh

    def _freshen(self, ino: Inode, opened: Opened) -> None:
        """Drop attributes, and pages that may be old, before the open is answered.

        Dropping pages waits for reads in flight, which need workers: so at most half of them wait
        at a time, and beyond that it is left to the binding, which does it a little later.
        """
        if self.device_fd is None:
            llfuse.invalidate_inode(ino, attr_only=opened.keep_cache)
        elif opened.keep_cache:
            self._tell(inode_message(ino, -1, 0))
        elif self._may_wait.acquire(blocking=False):
            try:
                self._tell(inode_message(ino, 0, 0))
            finally:
                self._may_wait.release()
        else:
            self._tell(inode_message(ino, -1, 0))
            llfuse.invalidate_inode(ino)

    def _tell(self, message: bytes) -> None:
        assert self.device_fd is not None
        try:
            os.write(self.device_fd, message)
        except OSError as error:
            if error.errno != errno.ENOENT:  # the kernel knows nothing of it: fine
                raise

    def read(self, fh: Fh, offset: int, size: int) -> bytes:
        with _request:
            ino, cred = self._open[fh]
            return b"".join(self._ops.read(cred, ino, fh, offset, size))

    def write(self, fh: Fh, offset: int, data: bytes) -> int:
        with _request:
            ino, cred = self._open[fh]
            return self._ops.write(cred, ino, fh, offset, memoryview(data), 0)

    def flush(self, fh: Fh) -> None:
        with _request:
            ino, cred = self._open[fh]
            self._ops.flush(cred, ino, fh, 0)

    def fsync(self, fh: Fh, datasync: bool) -> None:
        with _request:
            ino, cred = self._open[fh]
            self._ops.fsync(cred, ino, fh, datasync)

    def release(self, fh: Fh) -> None:
        with _request:
            ino, cred = self._open.pop(fh)
            self._ops.release(cred, ino, fh, 0)

    def opendir(self, ino: Inode, ctx: Any) -> Fh:
        with _request:
            cred = self._cred(ctx)
            opened = self._ops.opendir(cred, ino, os.O_RDONLY)
            self._open[opened.fh] = ino, cred
            return opened.fh

    def readdir(self, fh: Fh, offset: int) -> Iterator[tuple[bytes, Any, int]]:
        with _request:
            ino, cred = self._open[fh]
            entries = self._ops.readdir(cred, ino, fh, offset, plus=False)
        while True:
            with _request:
                cookie, entry = next(entries, (0, None))
            if entry is None:
                return
            attr = llfuse.EntryAttributes()
            attr.st_ino, attr.st_mode = entry.ino, S_IFMT[entry.kind]
            yield entry.name, attr, cookie

    def fsyncdir(self, fh: Fh, datasync: bool) -> None:
        with _request:
            ino, cred = self._open[fh]
            self._ops.fsyncdir(cred, ino, fh, datasync)

    def releasedir(self, fh: Fh) -> None:
        with _request:
            ino, cred = self._open.pop(fh)
            self._ops.releasedir(cred, ino, fh)

    def setxattr(self, ino: Inode, name: bytes, value: bytes, ctx: Any) -> None:
        with _request:
            self._ops.setxattr(self._cred(ctx), ino, name, value, 0)

    def getxattr(self, ino: Inode, name: bytes, ctx: Any) -> bytes:
        with _request:
            return self._ops.getxattr(self._cred(ctx), ino, name)

    def listxattr(self, ino: Inode, ctx: Any) -> list[bytes]:
        with _request:
            return self._ops.listxattr(self._cred(ctx), ino)

    def removexattr(self, ino: Inode, name: bytes, ctx: Any) -> None:
        with _request:
            self._ops.removexattr(self._cred(ctx), ino, name)


def _entry(found: Found) -> Any:
    entry = _attributes(found.ino, found.attr, found.attr_timeout_s)
    entry.entry_timeout = found.entry_timeout_s
    return entry


def _attributes(ino: Inode, attr: Attr, timeout_s: float) -> Any:
    told = llfuse.EntryAttributes()
    told.st_ino, told.generation, told.attr_timeout = ino, GENERATION, timeout_s
    told.st_mode, told.st_nlink = attr.st_mode, attr.nlink
    told.st_uid, told.st_gid, told.st_rdev = attr.uid, attr.gid, attr.rdev
    told.st_size, told.st_blksize = attr.length, BLOCK_SIZE
    told.st_blocks = (attr.length + 4095) >> 12 << 3
    told.st_atime_ns, told.st_mtime_ns = attr.atime_ns, attr.mtime_ns
    told.st_ctime_ns = attr.ctime_ns
    return told
