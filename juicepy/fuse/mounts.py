"""Mounts of this machine: which there are, whether one is dead, and how to take one down."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import subprocess
from dataclasses import dataclass

from juicepy.errors import Refused, posix_error

MNT_FORCE = 1
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8

libc = ctypes.CDLL(None, use_errno=True)

_FUSERMOUNT_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo. `device` is (major, minor)."""

    path: str
    source: str
    fstype: str
    options: str
    device: tuple[int, int]

    @property
    def is_fuse(self) -> bool:
        return self.fstype == "fuse" or self.fstype.startswith("fuse.")


def list_mounts() -> list[Mount]:
    """All mounts, in the order they were made (of two on one path the later one is seen)."""
    with open("/proc/self/mountinfo", "rb") as file:
        return [_parse(line) for line in file]


def _parse(line: bytes) -> Mount:
    """`36 35 98:0 /root /path opts optional... - fstype source superopts`."""
    left, _, right = line.rstrip(b"\n").partition(b" - ")
    fields, (fstype, source, *_) = left.split(b" "), right.split(b" ")
    major, minor = fields[2].split(b":")
    return Mount(
        path=_unescape(fields[4]),
        source=_unescape(source),
        fstype=_unescape(fstype),
        options=_unescape(fields[5]),
        device=(int(major), int(minor)),
    )


def _unescape(text: bytes) -> str:
    """Undo the kernel's octal escapes of blank, tab, newline, backslash and `#`."""
    plain = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), text)
    return os.fsdecode(plain)


def find_mount(path: str | os.PathLike[str]) -> Mount | None:
    """The topmost mount on exactly `path`; works where the mount is dead or does not answer."""
    mounted = list_mounts()
    wanted = _real(path, mounted)
    found = [mount for mount in mounted if mount.path == wanted]
    return found[-1] if found else None


def is_mounted(path: str | os.PathLike[str]) -> bool:
    return find_mount(path) is not None


def is_dead(path: str | os.PathLike[str]) -> bool:
    """Is a FUSE mount on `path` whose server is gone ("Transport endpoint is not connected")?"""
    try:
        os.statvfs(path)  # asks the server; stat may be answered from the kernel's cache
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def _real(path: str | os.PathLike[str], mounted: list[Mount]) -> str:
    """The absolute path. A last component that is a mount is not asked: it may not answer."""
    parent, name = os.path.split(os.path.abspath(os.fspath(path)))
    joined = os.path.join(os.path.realpath(parent), name) if name else parent
    if any(mount.path == joined for mount in mounted):
        return joined
    return os.path.realpath(joined)


def unmount(path: str | os.PathLike[str], *, lazy: bool = False, force: bool = False) -> None:
    """Take down the topmost mount on `path`. EBUSY if in use, EINVAL if nothing is mounted.

    `lazy` hides it at once and ends it when the last user is gone; `force` aborts its requests.
    As root by umount2(2), otherwise by the set-uid program fusermount3.
    """
    target = os.fsencode(_real(path, list_mounts()))
    flags = UMOUNT_NOFOLLOW | (MNT_DETACH if lazy else 0) | (MNT_FORCE if force else 0)
    if libc.umount2(target, flags) == 0:
        return
    code = ctypes.get_errno()
    if code != errno.EPERM or os.geteuid() == 0:
        raise posix_error(code, os.fsdecode(target))
    _fusermount_unmount(os.fsdecode(target), lazy=lazy or force)


def _fusermount_unmount(path: str, *, lazy: bool) -> None:
    command = [fusermount(), "-u", *(["-z"] if lazy else []), "--", path]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=_FUSERMOUNT_TIMEOUT_S,
    )
    if done.returncode == 0:
        return
    said = done.stderr.decode(errors="replace").strip()
    if "busy" in said:
        raise posix_error(errno.EBUSY, path)
    if find_mount(path) is None:
        raise posix_error(errno.EINVAL, path)
    raise OSError(errno.EPERM, said or "fusermount3 failed", path)


def fusermount() -> str:
    """Path of the set-uid helper for mounts without privilege."""
    for name in ("fusermount3", "fusermount"):
        found = shutil.which(name)
        if found:
            return found
    raise Refused("fusermount3 not found: install the package fuse3, or mount as root")


def clear_dead(path: str | os.PathLike[str], *, attempts: int = 16) -> bool:
    """Take down dead mounts that lie on `path`, one over the other; True if there were any."""
    cleared = False
    while attempts and is_dead(path):
        unmount(path, lazy=True)
        cleared, attempts = True, attempts - 1
    return cleared
