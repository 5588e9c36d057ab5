"""The operations of the model test: each does the same in any directory, as any user.

A step is (user, operation, arguments...), all of it literals: what failed is printed as Python.
Paths are below the side's root, files are known by the slot that they were opened in.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import stat
from pathlib import Path
from typing import Any

from tests.mount.model.comparison import facts
from tests.mount.posix.ranges import fallocate
from tests.support.users import ALICE, BOB, STAFF, User, acting_as

Step = tuple[Any, ...]

USERS = {
    "root": User(0, 0),
    "alice": User(ALICE.uid, ALICE.gid, (STAFF,), umask=0o077),
    "bob": User(BOB.uid, BOB.gid, (STAFF, ALICE.gid), umask=0o002),
}
AT_FDCWD = -100

_libc = ctypes.CDLL(None, use_errno=True)


class Side:
    """One directory, and the files that are open there. The operations are the public methods."""

    def __init__(self, root: Path) -> None:
        self.root = os.fspath(root)
        self.handles: dict[int, int] = {}

    def perform(self, step: Step) -> object:
        """What the operation returns, or the name of its errno."""
        user, operation, *args = step
        with acting_as(USERS[user]):
            try:
                return getattr(self, operation)(*args)
            except OSError as error:
                return errno.errorcode.get(error.errno or 0, str(error))

    def close_all(self) -> None:
        for slot in list(self.handles):
            self.close(slot)

    # -- names
    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self._at(path), mode)

    def mknod(self, path: str, mode: int) -> None:
        os.mknod(self._at(path), mode)

    def symlink(self, target: str, path: str) -> None:
        os.symlink(target, self._at(path))

    def link(self, source: str, path: str) -> None:
        os.link(self._at(source), self._at(path))

    def unlink(self, path: str) -> None:
        os.unlink(self._at(path))

    def rmdir(self, path: str) -> None:
        os.rmdir(self._at(path))

    def rename(self, source: str, target: str, flags: int) -> None:
        names = os.fsencode(self._at(source)), os.fsencode(self._at(target))
        if _libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], flags):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    # -- looking
    def stat(self, path: str, follow: bool) -> dict[str, object]:
        return facts(os.stat(self._at(path), follow_symlinks=follow))

    def access(self, path: str, wanted: int) -> bool:
        return os.access(self._at(path), wanted, effective_ids=True)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(self._at(path)))

    def readlink(self, path: str) -> str:
        return os.readlink(self._at(path))

    # -- attributes
    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._at(path), mode)

    def chown(self, path: str, uid: int, gid: int, follow: bool) -> None:
        os.chown(self._at(path), uid, gid, follow_symlinks=follow)

    def utime(self, path: str, times_ns: tuple[int, int] | None, follow: bool) -> None:
        if times_ns is None:
            os.utime(self._at(path), follow_symlinks=follow)
        else:
            os.utime(self._at(path), ns=times_ns, follow_symlinks=follow)

    def truncate(self, path: str, length: int) -> None:
        os.truncate(self._at(path), length)

    def setxattr(self, path: str, name: str, value: bytes, flags: int, follow: bool) -> None:
        os.setxattr(self._at(path), name, value, flags, follow_symlinks=follow)

    def getxattr(self, path: str, name: str) -> bytes:
        return os.getxattr(self._at(path), name)

    def removexattr(self, path: str, name: str) -> None:
        os.removexattr(self._at(path), name)

    # -- open files
    def open(self, slot: int, path: str, flags: int, mode: int) -> None:
        """Never waits, so a FIFO without a reader is ENXIO."""
        self.close(slot)
        self.handles[slot] = os.open(self._at(path), flags | os.O_NONBLOCK, mode)

    def close(self, slot: int) -> None:
        if slot in self.handles:
            os.close(self.handles.pop(slot))

    def read(self, slot: int, size: int) -> bytes:
        return os.read(self._fd(slot), size)

    def pread(self, slot: int, size: int, offset: int) -> bytes:
        return os.pread(self._fd(slot), size, offset)

    def write(self, slot: int, size: int, seed: int) -> int:
        return os.write(self._fd(slot), random.Random(seed).randbytes(size))

    def pwrite(self, slot: int, size: int, offset: int, seed: int) -> int:
        return os.pwrite(self._fd(slot), random.Random(seed).randbytes(size), offset)

    def seek(self, slot: int, offset: int, whence: int) -> int:
        if stat.S_ISDIR(os.fstat(self._fd(slot)).st_mode):
            return 0  # offsets in a directory are the file system's matter
        return os.lseek(self._fd(slot), offset, whence)

    def ftruncate(self, slot: int, length: int) -> None:
        os.ftruncate(self._fd(slot), length)

    def fallocate(self, slot: int, mode: int, offset: int, length: int) -> None:
        fallocate(self._fd(slot), mode, offset, length)

    def copy(self, slot: int, offset: int, slot_out: int, offset_out: int, length: int) -> int:
        """Of bytes; a call may copy fewer than it was asked for."""
        done = 0
        while done < length:
            copied = os.copy_file_range(
                self._fd(slot),
                self._fd(slot_out),
                length - done,
                offset + done,
                offset_out + done,
            )
            if copied == 0:
                break
            done += copied
        return done

    def fsync(self, slot: int) -> None:
        os.fsync(self._fd(slot))

    def fstat(self, slot: int) -> dict[str, object]:
        return facts(os.fstat(self._fd(slot)))

    def fchmod(self, slot: int, mode: int) -> None:
        os.fchmod(self._fd(slot), mode)

    def fchown(self, slot: int, uid: int, gid: int) -> None:
        os.fchown(self._fd(slot), uid, gid)

    def futime(self, slot: int, times_ns: tuple[int, int]) -> None:
        os.utime(self._fd(slot), ns=times_ns)

    def flistdir(self, slot: int) -> list[str]:
        return sorted(os.listdir(self._fd(slot)))

    # -- below an open directory, which may have no name any more
    def mkdir_at(self, slot: int, name: str, mode: int) -> None:
        os.mkdir(name, mode, dir_fd=self._fd(slot))

    def open_at(self, slot: int, directory: int, name: str, flags: int, mode: int) -> None:
        opened = os.open(name, flags | os.O_NONBLOCK, mode, dir_fd=self._fd(directory))
        self.close(slot)
        self.handles[slot] = opened

    def unlink_at(self, slot: int, name: str) -> None:
        os.unlink(name, dir_fd=self._fd(slot))

    def rename_at(self, slot: int, name: str, slot_out: int, name_out: str) -> None:
        os.rename(name, name_out, src_dir_fd=self._fd(slot), dst_dir_fd=self._fd(slot_out))

    def link_at(self, slot: int, name: str, path: str) -> None:
        os.link(name, self._at(path), src_dir_fd=self._fd(slot))

    def stat_at(self, slot: int, name: str) -> dict[str, object]:
        return facts(os.stat(name, dir_fd=self._fd(slot), follow_symlinks=False))

    # -- for the comparison
    def content(self, slot: int) -> bytes | None:
        """All bytes, if this is a regular file open for reading; leaves its position."""
        fd = self._fd(slot)
        with contextlib.suppress(OSError):  # EBADF: for writing only
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return os.pread(fd, os.fstat(fd).st_size + 1, 0)
        return None

    def _at(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _fd(self, slot: int) -> int:
        if slot not in self.handles:
            raise OSError(errno.EBADF, "empty slot")
        return self.handles[slot]
