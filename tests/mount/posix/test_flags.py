"""Inode flags by ioctl, as chattr(1) sets them: immutable, append only."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.users import ALICE, refused

GETFLAGS, SETFLAGS = 0x80086601, 0x40086602
IMMUTABLE, APPEND = 0x10, 0x20


def flags_of(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        found: int = struct.unpack("<I", fcntl.ioctl(fd, GETFLAGS, bytes(8))[:4])[0]
        return found & (IMMUTABLE | APPEND)
    finally:
        os.close(fd)


def set_flags(path: Path, flags: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        present = struct.unpack("<I", fcntl.ioctl(fd, GETFLAGS, bytes(8))[:4])[0]
        wanted = present & ~(IMMUTABLE | APPEND) | flags
        fcntl.ioctl(fd, SETFLAGS, struct.pack("<Q", wanted))
    finally:
        os.close(fd)


@pytest.fixture
def path(place: Path) -> Iterator[Path]:
    path = place / "f"
    path.write_bytes(b"content")
    (place / "d").mkdir()
    (place / "d" / "f").touch()
    yield path
    for left in (path, place / "d"):
        set_flags(left, 0)


def test_chattr_and_lsattr(path: Path) -> None:
    subprocess.run(["chattr", "+i", path], check=True)
    assert flags_of(path) == IMMUTABLE
    shown = subprocess.run(["lsattr", path], check=True, capture_output=True, text=True).stdout
    assert "i" in shown.split()[0]
    subprocess.run(["chattr", "-i", path], check=True)
    subprocess.run(["chattr", "+a", path], check=True)
    assert flags_of(path) == APPEND


def test_an_immutable_file_does_not_change(place: Path, path: Path) -> None:
    set_flags(path, IMMUTABLE)
    for call in (
        lambda: os.open(path, os.O_WRONLY),
        lambda: os.open(path, os.O_RDONLY | os.O_TRUNC),
        lambda: os.truncate(path, 1),
        lambda: os.unlink(path),
        lambda: os.rename(path, place / "g"),
        lambda: os.rename(place / "d" / "f", path),
        lambda: os.link(path, place / "g"),
        lambda: os.chmod(path, 0o777),
        lambda: os.chown(path, 1, 1),
        lambda: os.utime(path, (1, 1)),
        lambda: os.utime(path),
        lambda: os.setxattr(path, "user.a", b"1"),
    ):
        with refused(errno.EPERM):
            call()
    assert path.read_bytes() == b"content"
    set_flags(path, 0)
    os.unlink(path)
    path.write_bytes(b"again")


def test_an_append_only_file_grows(place: Path, path: Path) -> None:
    set_flags(path, APPEND)
    for call in (
        lambda: os.open(path, os.O_WRONLY),
        lambda: os.open(path, os.O_WRONLY | os.O_APPEND | os.O_TRUNC),
        lambda: os.truncate(path, 1),
        lambda: os.unlink(path),
        lambda: os.rename(path, place / "g"),
        lambda: os.link(path, place / "g"),
        lambda: os.chmod(path, 0o777),
    ):
        with refused(errno.EPERM):
            call()
    with open(path, "ab") as file:
        file.write(b" and more")
        with refused(errno.EPERM):
            os.ftruncate(file.fileno(), 0)
    assert path.read_bytes() == b"content and more"


def test_times_of_an_append_only_file_may_only_be_set_to_now(path: Path) -> None:
    os.utime(path, (1, 1))
    set_flags(path, APPEND)
    before = time.time() - 1
    os.utime(path)
    status = os.stat(path)
    assert min(status.st_atime, status.st_mtime, status.st_ctime) > before
    for times in ([1, 1], [NOW, 1], [1, NOW], [NOW, OMIT]):  # mtime alone: see docs/semantics
        with refused(errno.EPERM):
            set_times(path, *times)
    set_times(path, NOW, NOW)
    set_times(path, OMIT, OMIT)
    assert path.read_bytes() == b"content"


NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2  # as nanoseconds, in utimensat(2)


def set_times(path: Path, atime: int, mtime: int) -> None:
    """Nanoseconds after 1970, or NOW or OMIT."""
    times = struct.pack("qqqq", 0, atime, 0, mtime)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.utimensat(-100, os.fsencode(path), times, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def test_flags_of_directories(place: Path, path: Path) -> None:
    folder = place / "d"
    set_flags(folder, IMMUTABLE)
    for call in (
        lambda: (folder / "new").touch(),
        lambda: (folder / "new").mkdir(),
        lambda: os.unlink(folder / "f"),
        lambda: os.rename(folder / "f", folder / "g"),
        lambda: os.rename(path, folder / "g"),
        lambda: os.rmdir(folder),
    ):
        with refused(errno.EPERM):
            call()
    (folder / "f").write_text("its files are not immutable")
    set_flags(folder, APPEND)
    (folder / "new").touch()
    for call in (lambda: os.unlink(folder / "new"), lambda: os.rename(folder / "f", place / "g")):
        with refused(errno.EPERM):
            call()


def test_only_root_sets_them(path: Path) -> None:
    os.chown(path, ALICE.uid, ALICE.gid)
    for flags in (IMMUTABLE, APPEND):
        with refused(errno.EPERM):
            ALICE.run(set_flags, path, flags)
    assert flags_of(path) == 0


def test_unknown_ioctls_are_refused(path: Path) -> None:
    with open(path, "rb") as file, refused(errno.ENOTTY, errno.EOPNOTSUPP):
        fcntl.ioctl(file.fileno(), 0x5401, bytes(64))  # TCGETS
