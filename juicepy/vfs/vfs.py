"""VFS: the file system as a kernel asks for it, over metadata and blocks (`vfs/api.py`).

A method first looks whether it is about a virtual file (`control.py`), then hands on to the
metadata client and, for the data of files, to `files.py`. Nothing here knows a rule of POSIX.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from threading import Event

from juicepy.chunk.store import BlockStore
from juicepy.errors import posix_error
from juicepy.meta import rules
from juicepy.meta.client import MetaClient
from juicepy.metrics import Metrics
from juicepy.types import (
    KIND_OF,
    MAX_FILE_SIZE,
    ROOT,
    TRASH,
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
from juicepy.vfs import control, files, flags, xattrs
from juicepy.vfs.accesslog import ACCESSLOG, AccessLog
from juicepy.vfs.api import Found, Notifier, Opened, PageStore
from juicepy.vfs.atimes import AccessTimes
from juicepy.vfs.believed import Believed
from juicepy.vfs.buffers import WriteBuffers
from juicepy.vfs.commands import Commands
from juicepy.vfs.config import config_text
from juicepy.vfs.directories import Directories
from juicepy.vfs.files import FileHandle, Files, OpenFile
from juicepy.vfs.guests import Guests
from juicepy.vfs.handles import HandleTable, StreamHandle, handle_numbers
from juicepy.vfs.open_cache import OpenCache
from juicepy.vfs.operation import observed_listing, operation, squash
from juicepy.vfs.options import VfsOptions
from juicepy.vfs.pages import PageFiller
from juicepy.vfs.stale import StaleNames
from juicepy.vfs.warmup import WarmUp
from juicepy.vfs.whole import WholeFileMode

logger = logging.getLogger(__name__)

WRITE_KILL_SUIDGID = 4  # FUSE_WRITE_KILL_SUIDGID
RELEASE_S = 5.0
_WHOLE_FILE = 0x7FFFFFFFFFFFFFFF
_NOTHING = SetAttr()
_SYNCHRONIZED = ("mode", "mtime_ns")  # a later commit of buffered data would undo these


class VFS:
    """See `vfs/api.py` for what the methods promise. Thread-safe."""

    def __init__(
        self,
        meta: MetaClient,
        store: BlockStore,
        buffers: WriteBuffers,
        options: VfsOptions | None = None,
        metrics: Metrics | None = None,
        cache_dirs: str = "memory",
        whole: WholeFileMode | None = None,
    ) -> None:
        self.meta, self.store = meta, store
        self._whole = whole
        self.options = options = options or VfsOptions()
        self.metrics = metrics or Metrics()
        self.log = AccessLog()
        self.squash = squash(options.root_squash, options.all_squash)
        self._notifier: Notifier | None = None
        self._filler: PageFiller | None = None
        self._files = Files(
            lambda ino: OpenFile(meta, store, buffers, ino, self._drop_pages, self._push),
            OpenCache(options.open_cache_s, options.open_cache_limit),
        )
        numbers = handle_numbers(*options.worker)
        self._file_handles: HandleTable[FileHandle] = HandleTable(numbers)
        self._streams: HandleTable[StreamHandle] = HandleTable(numbers)
        self._guests = Guests(self._release) if options.worker[1] > 1 else None
        self._xattrs = xattrs.Xattrs(meta, options)
        self._atimes = AccessTimes(meta)
        self._warm_up = WarmUp(meta, store, self._files.open_cache)
        self._virtual = control.VirtualFiles(
            self.log,
            stats=self.metrics.stats,
            config=lambda: config_text(options, meta.format, meta.sid, cache_dirs),
            commands=Commands(meta, store, self._warm_up, self._forget_entry).table(),
            has_trash=meta.root == ROOT,
            prefixed=options.prefix_internal,
            hidden=options.hide_internal,
        )
        self._dirs = Directories(meta, self._files, self._virtual, numbers, sort=options.sort_dir)
        self._stale = StaleNames()
        self._believed = Believed(meta, options)
        self._watch(buffers)
        meta.on_lost(self._lose_session)

    # ------------------------------------------------------------ life
    def init(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._believed.begin(notifier)
        fills = self.options.page_fill and not self._atimes.are_kept  # those need every read
        if fills and isinstance(notifier, PageStore):
            self._filler = PageFiller(notifier, self.store.block_size)

    def destroy(self) -> None:
        if self._filler is not None:
            self._filler.close()
        self._end_streams()
        if self._guests is not None:
            self._guests.close()
        try:
            self._files.sync()
        finally:
            self._warm_up.close()
            self._virtual.close()

    def _end_streams(self) -> None:
        for handle in self._streams.all():
            self._virtual.release(handle.stream)

    def _watch(self, buffers: WriteBuffers) -> None:
        watch = self.metrics.watch
        watch("fuse_open_handlers", self._count_handles)
        watch("used_buffer_size_bytes", buffers.used_bytes)
        watch("used_read_buffer_size_bytes", self.store.buffered_bytes)
        watch("used_space", lambda: self.meta.usage()[0])
        watch("used_inodes", lambda: self.meta.usage()[1])
        watch("total_space", lambda: self.meta.statfs(Cred()).total_bytes)
        watch("total_inodes", lambda: _all_inodes(self.meta.statfs(Cred())))
        for name in ("hits", "pushes", "drops", "lost"):
            watch(f"meta_tracking_{name}", partial(self._tracking_count, name))
        self.metrics.subdir_info.labels(self.options.subdir).set(1)

    def _tracking_count(self, name: str) -> int:
        count: int = getattr(self._believed.counts, name)
        return count

    def _count_handles(self) -> int:
        return len(self._file_handles) + len(self._dirs.handles) + len(self._streams)

    # ------------------------------------------------------------ names
    @operation
    def lookup(self, cred: Cred, parent: Inode, name: bytes) -> Found:
        virtual = self._virtual.find(parent, name)
        if virtual is not None:
            return self._virtual_found(virtual)
        self._check_squashed(cred, parent, rules.EXEC)
        ino, attr = self._believed.lookup(cred, parent, name)
        if parent >= TRASH:
            self._stale.found(ino)
        if ino == self.meta.root:
            ino = ROOT
        return self._found(ino, attr, parent, name)

    def negative_timeout_s(self) -> float:
        return self._believed.negative_s

    def entry_timeouts(self, kind_is_dir: bool) -> tuple[float, float]:
        kind = Kind.DIR if kind_is_dir else Kind.FILE
        return self._believed.plain_attr_s, self._believed.entry_s(kind)

    @operation
    def mknod(
        self, cred: Cred, parent: Inode, name: bytes, st_mode: int, umask: int, rdev: int
    ) -> Found:
        self._check_new(parent, name)
        kind = KIND_OF.get(stat.S_IFMT(st_mode), Kind.FILE)
        mode = stat.S_IMODE(st_mode)
        made = self.meta.mknod(cred, parent, name, kind, mode, self._umask(umask), rdev)
        return self._found(*made)

    @operation
    def mkdir(self, cred: Cred, parent: Inode, name: bytes, mode: int, umask: int) -> Found:
        self._check_new(parent, name)
        return self._found(*self.meta.mkdir(cred, parent, name, mode, self._umask(umask)))

    @operation
    def symlink(self, cred: Cred, parent: Inode, name: bytes, target: bytes) -> Found:
        self._check_new(parent, name)
        made = self.meta.mknod(cred, parent, name, Kind.SYMLINK, 0o777, 0, target=target)
        return self._found(*made)

    @operation
    def unlink(self, cred: Cred, parent: Inode, name: bytes) -> None:
        self._check_ordinary(parent, name)
        self.meta.unlink(cred, parent, name)

    @operation
    def rmdir(self, cred: Cred, parent: Inode, name: bytes) -> None:
        self._check_ordinary(parent, name)
        self._dirs.remember(cred, parent, name)
        self.meta.rmdir(cred, parent, name)

    @operation
    def rename(
        self, cred: Cred, parent: Inode, name: bytes, parent2: Inode, name2: bytes, flags: int
    ) -> None:
        self._check_ordinary(parent, name)
        self._check_ordinary(parent2, name2)
        self._dirs.remember(cred, parent2, name2)
        self.meta.rename(cred, parent, name, parent2, name2, flags)

    @operation
    def link(self, cred: Cred, ino: Inode, parent: Inode, name: bytes) -> Found:
        if self._virtual.is_virtual(ino):
            raise posix_error(errno.EPERM)
        self._check_new(parent, name)
        return self._found(ino, self.meta.link(cred, ino, parent, name))

    @operation
    def readlink(self, cred: Cred, ino: Inode) -> bytes:
        target = self.meta.readlink(cred, ino)
        self._atimes.accessed(ino)
        return target

    # ------------------------------------------------------------ attributes
    @operation
    def getattr(self, cred: Cred, ino: Inode, fh: Fh | None) -> tuple[Attr, float]:
        virtual = self._virtual.attr(ino)
        if virtual is not None:
            return virtual, control.ATTR_TIMEOUT_S
        file = self._files.find(ino)
        if file is not None:
            return file.fresh(), self._believed.plain_attr_s
        try:
            return self._believed.getattr(ino), self._believed.attr_s(ino)
        except FileNotFoundError:
            return self._dirs.removed(ino), 0.0

    @operation
    def setattr(
        self, cred: Cred, ino: Inode, change: SetAttr, size: int | None, fh: Fh | None
    ) -> tuple[Attr, float]:
        virtual = self._virtual.attr(ino)
        if virtual is not None:
            return virtual, control.ATTR_TIMEOUT_S
        try:
            return self._setattr(cred, ino, change, size, fh), self._believed.plain_attr_s
        except FileNotFoundError:
            raise self._not_that(ino) from None
        except PermissionError:
            if self._stale.is_hidden(ino, self.meta.getattr(ino)):
                raise self._not_that(ino) from None
            raise

    def _setattr(
        self, cred: Cred, ino: Inode, change: SetAttr, size: int | None, fh: Fh | None
    ) -> Attr:
        file = self._files.find(ino)
        attr: Attr | None = None
        if size is not None:
            epoch: int | None = None
            if fh is not None and (handle := self._file_handles.find(fh)) is not None:
                epoch = self._check_owned(handle)
            attr = self._truncate(cred, ino, size, by_handle=fh is not None, epoch=epoch)
        if change != _NOTHING or attr is None:
            if file is not None and _touches_written(change):
                file.flush_for_others()
            attr = self.meta.setattr(cred, ino, change)
        return file.merged(attr) if file is not None else attr

    @operation
    def access(self, cred: Cred, ino: Inode, mask: int) -> None:
        if not self._virtual.is_virtual(ino):
            self.meta.access(cred, ino, mask)

    @operation
    def statfs(self, cred: Cred, ino: Inode) -> StatFs:
        return self.meta.statfs(cred)

    @operation
    def setxattr(self, cred: Cred, ino: Inode, name: bytes, value: bytes, flags: int) -> None:
        self._check_no_virtual(ino, errno.EPERM)
        self._xattrs.set(cred, ino, name, value, flags)

    @operation
    def getxattr(self, cred: Cred, ino: Inode, name: bytes) -> bytes:
        self._check_no_virtual(ino, errno.ENODATA)
        return self._xattrs.get(cred, ino, name)

    @operation
    def listxattr(self, cred: Cred, ino: Inode) -> list[bytes]:
        self._check_no_virtual(ino, errno.ENODATA)
        return self._xattrs.names(cred, ino)

    @operation
    def removexattr(self, cred: Cred, ino: Inode, name: bytes) -> None:
        self._check_no_virtual(ino, errno.EPERM)
        self._xattrs.remove(cred, ino, name)

    @operation
    def ioctl(self, cred: Cred, ino: Inode, fh: Fh, cmd: int, data: bytes, out_size: int) -> bytes:
        if cmd not in flags.READS and cmd not in flags.WRITES:
            raise posix_error(errno.ENOTTY)
        if not self.options.enable_ioctl:
            raise posix_error(errno.EOPNOTSUPP)
        self._check_no_virtual(ino, errno.EPERM)
        present = self.meta.getattr(ino).flags
        if cmd in flags.READS:
            return flags.encode(cmd, present, out_size)
        self.meta.setattr(cred, ino, SetAttr(flags=flags.decode(cmd, data, present)))
        return b""

    # ------------------------------------------------------------ files
    @operation
    def create(
        self, cred: Cred, parent: Inode, name: bytes, mode: int, umask: int, flags: int
    ) -> tuple[Found, Opened]:
        self._check_new(parent, name)
        mode, umask = stat.S_IMODE(mode), self._umask(umask)
        try:
            ino, attr = self.meta.create(cred, parent, name, mode, umask, flags | os.O_EXCL)
        except FileExistsError:  # another client was faster
            if flags & os.O_EXCL:
                raise
        else:
            return self._found(ino, attr), self._opened(ino, attr, flags, is_new=True)
        ino, attr = self.meta.create(cred, parent, name, mode, umask, flags)
        if flags & os.O_TRUNC and self._files.find(ino) is not None:
            attr = self._truncate_again(cred, ino)
        return self._found(ino, attr), self._opened(ino, attr, flags)

    @operation
    def tmpfile(
        self, cred: Cred, parent: Inode, mode: int, umask: int, flags: int
    ) -> tuple[Found, Opened]:
        mode, linkable = stat.S_IMODE(mode), not flags & os.O_EXCL
        ino, attr = self.meta.tmpfile(cred, parent, mode, self._umask(umask), linkable=linkable)
        return self._found(ino, attr), self._opened(ino, attr, flags, is_new=True)

    @operation
    def open(self, cred: Cred, ino: Inode, flags: int) -> Opened:
        if self._virtual.is_virtual(ino):
            return self._open_virtual(ino, flags)
        self._check_squashed(cred, ino, _wanted(flags))
        if flags & (os.O_ACCMODE | os.O_TRUNC) == os.O_RDONLY:
            known = self._files.recent(ino)
            if known is not None:
                self.meta.reopen(ino)
                return self._opened(ino, known, flags)
        elif flags & os.O_TRUNC and (file := self._files.find(ino)) is not None:
            file.flush_for_others()
        changes = self._files.open_cache.changes
        attr = self._open(cred, ino, flags)
        self._files.open_cache.note(ino, attr, changes)
        return self._opened(ino, attr, flags)

    @operation
    def read(self, cred: Cred, ino: Inode, fh: Fh, offset: int, size: int) -> list[Buffer]:
        handle = self._file_handles.find(fh)
        if handle is None and self._guests is not None and not self._virtual.is_virtual(ino):
            handle = self._guests.get(fh, lambda: self._guest(cred, ino))
        if handle is None:
            return [self._streams.get(fh).stream.read(cred, offset, size)]
        if handle.file.is_gone:
            raise posix_error(errno.ESTALE)
        pieces = handle.file.read(offset, size, self._believed.plain_attr_s)
        self._atimes.read(handle)
        self.metrics.fuse_read_size_bytes.observe(sum(map(len, pieces)))
        return pieces

    @operation
    def write(
        self, cred: Cred, ino: Inode, fh: Fh, offset: int, data: memoryview, flags: int
    ) -> int:
        handle = self._file_handles.find(fh)
        if handle is None:
            return self._request(fh, cred, data)
        if self.options.read_only:
            raise posix_error(errno.EROFS)
        if not handle.is_writable:
            raise posix_error(errno.EBADF)
        self._check_owned(handle)
        strip = bool(flags & WRITE_KILL_SUIDGID)
        handle.file.write(offset, data, strip=strip)
        if handle.is_lost:  # at this very moment, so the bytes may have come after the clearance
            handle.file.lose(is_gone=handle.file.is_gone)
            handle.check_owned()
        size = len(data)
        self.metrics.fuse_written_size_bytes.observe(size)
        return size

    @operation
    def flush(self, cred: Cred, ino: Inode, fh: Fh, owner: int) -> None:
        handle = self._file_handles.find(fh)
        if handle is None:
            return
        try:
            self._flush(handle)
        finally:
            handle.record_owners.discard(owner)
            self._unlock_posix(handle.file, owner)

    @operation
    def fsync(self, cred: Cred, ino: Inode, fh: Fh, datasync: bool) -> None:
        handle = self._file_handles.find(fh)
        if handle is not None:
            self._flush(handle)
            self.store.sync()

    @operation
    def release(self, cred: Cred, ino: Inode, fh: Fh, owner: int) -> None:
        if self._streams.find(fh) is not None:
            self._virtual.release(self._streams.remove(fh).stream)
            return
        handle = self._file_handles.remove(fh)
        if handle.flock_owners or handle.record_owners:
            handle.file.ending[handle] = Event()
        try:
            self._release(handle)
        finally:
            released = handle.file.ending.pop(handle, None)
            if released is not None:
                released.set()

    @operation
    def fallocate(
        self, cred: Cred, ino: Inode, fh: Fh, mode: int, offset: int, length: int
    ) -> None:
        file, epoch = self._writable(fh)
        if offset + length > MAX_FILE_SIZE:
            raise posix_error(errno.EFBIG)
        file.flush_for_others()
        attr = self.meta.fallocate(cred, ino, mode, offset, length, epoch=epoch)
        file.changed(offset, length, attr)

    @operation
    def lseek(self, cred: Cred, ino: Inode, fh: Fh, offset: int, whence: int) -> int:
        file = self._file_handles.get(fh).file
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise posix_error(errno.EINVAL)
        file.flush_for_others()
        length = file.fresh().length
        return files.seek(self.meta, ino, offset, length, data=whence == os.SEEK_DATA)

    @operation
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
        source = self._file_handles.get(fh).file
        target, epoch = self._writable(fh_out)
        if offset_out + length > MAX_FILE_SIZE:
            raise posix_error(errno.EFBIG)
        source.flush_for_others()
        target.flush_for_others()
        copied = self.meta.copy_file_range(
            cred, ino, offset, ino_out, offset_out, length, epoch=epoch
        )
        target.changed(offset_out, copied, self.meta.getattr(ino_out))
        return copied

    # ------------------------------------------------------------ directories
    @operation
    def opendir(self, cred: Cred, ino: Inode, flags: int) -> Opened:
        self._check_squashed(cred, ino, rules.READ)
        return Opened(self._dirs.open(cred, ino), keep_cache=self.options.readdir_cache)

    def readdir(
        self, cred: Cred, ino: Inode, fh: Fh, offset: int, *, plus: bool
    ) -> Iterator[tuple[int, DirEntry]]:
        entries = self._dirs.handles.get(fh).stream(offset, plus=plus)
        if offset == 0:
            self._atimes.accessed(ino)
        return observed_listing(self, cred, (ino, fh, offset, plus), entries)

    @operation
    def releasedir(self, cred: Cred, ino: Inode, fh: Fh) -> None:
        self._dirs.handles.remove(fh)

    @operation
    def fsyncdir(self, cred: Cred, ino: Inode, fh: Fh, datasync: bool) -> None:
        """Names are in the database when an operation returns: there is nothing to do."""

    @operation
    def syncfs(self, cred: Cred, ino: Inode) -> None:
        self._files.sync()
        self.store.sync()

    # ------------------------------------------------------------ locks
    @operation
    def getlk(
        self, cred: Cred, ino: Inode, fh: Fh, owner: int, lock: PosixLock
    ) -> PosixLock | None:
        self._check_no_virtual(ino, errno.EPERM)
        return self.meta.getlk(ino, owner, lock)

    def lock_owners(self, ino: Inode, owner: int, lock: PosixLock) -> set[int]:
        return self.meta.lock_owners(ino, owner, lock)

    @operation
    def try_setlk(self, cred: Cred, ino: Inode, fh: Fh, owner: int, lock: PosixLock) -> None:
        self._check_no_virtual(ino, errno.EPERM)
        handle = self._file_handles.get(fh)
        file = handle.file
        if lock.kind is not LockKind.UNLOCK:
            self._check_owned(handle)
            file.posix_owners.add(owner)
        elif owner not in file.posix_owners:
            return
        self._change_lock(file, lock.kind, lambda: self.meta.setlk(ino, owner, lock))
        if lock.kind is not LockKind.UNLOCK:
            handle.record_owners.add(owner)

    @operation
    def try_flock(self, cred: Cred, ino: Inode, fh: Fh, owner: int, kind: LockKind) -> None:
        self._check_no_virtual(ino, errno.EPERM)
        handle = self._file_handles.get(fh)
        if kind is not LockKind.UNLOCK:
            self._check_owned(handle)
        elif owner not in handle.flock_owners:
            return
        self._change_lock(handle.file, kind, lambda: self.meta.flock(ino, owner, kind))
        if kind is LockKind.UNLOCK:
            handle.flock_owners.discard(owner)
        else:
            handle.flock_owners.add(owner)

    def _change_lock(self, file: OpenFile, kind: LockKind, attempt: Callable[[], None]) -> None:
        """Take or give up a lock. What was written under it is stored before it is given up, and
        what others wrote under theirs is seen by who has it now.
        """
        with suppress(OSError):  # which the next write, fsync or close reports
            file.flush_for_others()
        self._attempt(file, attempt)
        if kind is LockKind.UNLOCK:
            return
        before = file.seen
        length = file.fresh().length
        if file.seen != before and self._notifier is not None:
            last = file.read(length - 1, 1, 0.0) if file.is_appended and length else []
            self._notifier.renew_inode(file.ino, length, b"".join(last))

    def _attempt(self, file: OpenFile, attempt: Callable[[], None]) -> None:
        """Close(2) returns before its RELEASE is served: who locks right after it is early."""
        ending = list(file.ending.values())
        try:
            attempt()
        except BlockingIOError:
            ending += file.ending.values()
            if not ending:
                raise
            for released in ending:
                released.wait(RELEASE_S)
            attempt()

    # ------------------------------------------------------------ private
    def _found(
        self, ino: Inode, attr: Attr, parent: Inode | None = None, name: bytes = b""
    ) -> Found:
        """What a name leads to: one that was looked up in `parent`, or a new one."""
        file, attr_s = self._files.find(ino), self._believed.attr_s(ino)
        if file is not None:
            attr, attr_s = file.current(attr), self._believed.plain_attr_s
        return Found(ino, attr, attr_s, self._believed.entry_s(attr.kind, parent, name))

    def _virtual_found(self, ino: Inode) -> Found:
        attr = self._virtual.attr(ino)
        assert attr is not None
        return Found(ino, attr, control.ATTR_TIMEOUT_S, control.ATTR_TIMEOUT_S)

    def _check_new(self, parent: Inode, name: bytes) -> None:
        if self._virtual.find(parent, name) is not None:
            raise posix_error(errno.EEXIST, name)

    def _check_ordinary(self, parent: Inode, name: bytes) -> None:
        if self._virtual.find(parent, name) is not None:
            raise posix_error(errno.EPERM, name)

    def _check_no_virtual(self, ino: Inode, code: int) -> None:
        if self._virtual.is_virtual(ino) or ino == TRASH:
            raise posix_error(code)

    def _check_squashed(self, cred: Cred, ino: Inode, want: int) -> None:
        """The kernel checks permission for who the caller is, not for who he becomes."""
        if self.squash is not None:
            self.meta.access(cred, ino, want)

    def _umask(self, umask: int) -> int:
        return umask if self.options.umask is None else self.options.umask

    def _open(self, cred: Cred, ino: Inode, flags: int) -> Attr:
        """Open what the kernel has a name for; ESTALE, on which it looks the name up again, if
        others may have given that name to another file: this one is gone, or in the trash.
        """
        try:
            attr = self.meta.open(cred, ino, flags)
        except FileNotFoundError:
            raise self._not_that(ino) from None
        except PermissionError:
            if self._stale.is_hidden(ino, self.meta.getattr(ino)):
                raise self._not_that(ino) from None
            raise
        if self._stale.is_doubtful(cred, ino, attr):
            self.meta.close(ino)
            raise self._not_that(ino)
        return attr

    def _not_that(self, ino: Inode) -> OSError:
        self._believed.forget(ino)
        return posix_error(errno.ESTALE)

    def _opened(self, ino: Inode, attr: Attr, flags: int, *, is_new: bool = False) -> Opened:
        """The handle of a file that the metadata client has just opened."""
        file, unchanged = self._files.acquire(ino, attr)
        if flags & os.O_TRUNC:
            file.changed(0, None, attr)
        file.is_appended |= bool(flags & os.O_APPEND)
        is_read_only = flags & os.O_ACCMODE == os.O_RDONLY
        file.is_pushable &= is_read_only
        if self._filler is not None and not (is_read_only and unchanged):
            self._filler.stop(ino)
        fh = self._file_handles.add(FileHandle(file, flags))
        keep_cache = unchanged and not self._atimes.are_kept
        backing_fd = self._bring(file, attr) if is_read_only else None
        return Opened(fh, keep_cache, length=file.length, backing_fd=backing_fd, is_new=is_new)

    def _guest(self, cred: Cred, ino: Inode) -> FileHandle:
        """A file that another process of this mount has opened for reading."""
        attr = self._files.recent(ino)
        if attr is not None:
            self.meta.reopen(ino)
        else:
            changes = self._files.open_cache.changes
            attr = self.meta.open(cred, ino, os.O_RDONLY)
            self._files.open_cache.note(ino, attr, changes)
        file, _ = self._files.acquire(ino, attr)
        if self._whole is not None:
            file.bring(self._whole)
        return FileHandle(file, os.O_RDONLY)

    def _bring(self, file: OpenFile, attr: Attr) -> int | None:
        """Whole-file mode: have the file here; a descriptor if the kernel may read it by itself.

        Nobody else may open it for reading and writing then: a file at rest is a safe guess.
        """
        if self._whole is None:
            return None
        file.bring(self._whole)
        age_ns = time.time_ns() - max(attr.mtime_ns, attr.ctime_ns)
        if self._atimes.are_kept or age_ns < self.options.passthrough_age_s * 1e9:
            return None
        return file.local.offer()

    def _open_virtual(self, ino: Inode, flags: int) -> Opened:
        fh = self._streams.add(StreamHandle(ino, self._virtual.open(ino, flags)))
        return Opened(fh, direct_io=True, nonseekable=ino == ACCESSLOG)

    def _request(self, fh: Fh, cred: Cred, data: memoryview) -> int:
        """A write to a virtual file: only the control channel takes any."""
        stream = self._streams.get(fh).stream
        if not isinstance(stream, control.ControlChannel):
            raise posix_error(errno.EBADF)
        return stream.write(cred, data)

    def _release(self, handle: FileHandle) -> None:
        file = handle.file
        try:
            file.flush()
        except OSError as error:  # nobody is left to be told
            logger.error("data of inode %d is lost: %s", file.ino, error)
        try:
            for holder in handle.flock_owners:
                self.meta.flock(file.ino, holder, LockKind.UNLOCK)
            for holder in list(handle.record_owners):
                self._unlock_posix(file, holder)
        finally:
            self._files.release(file)
            self.meta.close(file.ino)

    def _writable(self, fh: Fh) -> tuple[OpenFile, int]:
        """The file of a handle, and the epoch up to which the handle may change it."""
        handle = self._file_handles.get(fh)
        if not handle.is_writable:
            raise posix_error(errno.EBADF)
        return handle.file, self._check_owned(handle)

    def _check_owned(self, handle: FileHandle) -> int:
        """EIO if the session that opened the file has ended, see `Files.lose`; else the epoch."""
        self.meta.ensure_session()
        epoch = self.meta.epoch  # first: handles are marked before it changes
        handle.check_owned()
        return epoch

    def _flush(self, handle: FileHandle) -> None:
        if handle.is_writable or handle.is_lost:
            self._check_owned(handle)
        handle.file.flush()

    def _lose_session(self, had_locks: bool, gone: set[Inode]) -> None:
        self._files.lose(self._file_handles.all(), gone, had_locks=had_locks)

    def _truncate(
        self, cred: Cred, ino: Inode, size: int, *, by_handle: bool, epoch: int | None = None
    ) -> Attr:
        if size > MAX_FILE_SIZE:
            raise posix_error(errno.EFBIG)
        file = self._files.find(ino)
        if file is not None:
            file.flush_for_others()
        attr = self.meta.truncate(cred, ino, size, by_handle=by_handle, epoch=epoch)
        file = self._files.find(ino)
        if file is not None:
            file.changed(0, None, attr)
        else:
            self._files.open_cache.forget(ino)
        if self._filler is not None:
            self._filler.stop(ino)
        return attr

    def _truncate_again(self, cred: Cred, ino: Inode) -> Attr:
        """`create` met a file that is open here: data written before must not come after."""
        try:
            return self._truncate(cred, ino, 0, by_handle=True)
        except OSError:
            self.meta.close(ino)
            raise

    def _unlock_posix(self, file: OpenFile, owner: int) -> None:
        """A process closes a descriptor: all its record locks on the file are gone."""
        if owner in file.posix_owners:
            everything = PosixLock(LockKind.UNLOCK, 0, _WHOLE_FILE, 0)
            self.meta.setlk(file.ino, owner, everything)
            file.posix_owners.discard(owner)

    def _push(self, file: OpenFile, index: int) -> None:
        if self._filler is not None:
            self._filler.want(file, index)

    def _drop_pages(self, ino: Inode) -> None:
        if self._notifier is not None:
            self._notifier.inval_inode(ino)

    def _forget_entry(self, parent: Inode, name: bytes) -> None:
        if self._notifier is not None:
            self._notifier.inval_entry(parent, name)


def _wanted(flags: int) -> int:
    """Permission that an open(2) with these flags needs."""
    mode = flags & os.O_ACCMODE
    reads = rules.READ if mode != os.O_WRONLY else 0
    return reads | (rules.WRITE if mode != os.O_RDONLY or flags & os.O_TRUNC else 0)


def _touches_written(change: SetAttr) -> bool:
    return change.mtime_now or any(getattr(change, name) is not None for name in _SYNCHRONIZED)


def _all_inodes(found: StatFs) -> int:
    return found.used_inodes + found.avail_inodes
