"""Which operation sets which time, and setting them."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.users import refused

OLD_NS = 1_000_000_000_123_456_000
PAUSE_S = 0.02  # clocks of file systems are coarse
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
AT_FDCWD, AT_SYMLINK_NOFOLLOW = -100, 0x100

_libc = ctypes.CDLL(None, use_errno=True)


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("ns", ctypes.c_long)]


def utimensat(path: Path, atime: tuple[int, int], mtime: tuple[int, int], flags: int = 0) -> None:
    times = (Timespec * 2)(Timespec(*atime), Timespec(*mtime))
    if _libc.utimensat(AT_FDCWD, os.fsencode(path), times, flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def backdate(path: Path) -> None:
    os.utime(path, ns=(OLD_NS, OLD_NS))
    time.sleep(PAUSE_S)


def touched(path: Path, action: Callable[[], object]) -> str:
    """Which of atime, mtime, ctime the action changed: letters out of `amc`."""
    backdate(path)
    before = os.lstat(path)
    action()
    after = os.lstat(path)
    return "".join(
        letter
        for letter, name in (("a", "st_atime_ns"), ("m", "st_mtime_ns"), ("c", "st_ctime_ns"))
        if getattr(before, name) != getattr(after, name)
    )


def write_to(path: Path, data: bytes = b"more") -> None:
    with open(path, "ab") as file:
        file.write(data)


def test_what_touches_a_file(place: Path) -> None:
    path = place / "f"
    path.write_bytes(b"x" * 5000)
    assert touched(path, lambda: write_to(path)) == "mc"
    assert touched(path, lambda: os.truncate(path, 100)) == "mc"
    assert touched(path, lambda: os.truncate(path, 9000)) == "mc"
    assert touched(path, lambda: os.chmod(path, 0o600)) == "c"
    assert touched(path, lambda: os.chmod(path, 0o600)) == "c"
    assert touched(path, lambda: os.chown(path, 1, 1)) == "c"
    assert touched(path, lambda: os.chown(path, 1, 1)) == "c"
    assert touched(path, lambda: os.chown(path, -1, -1)) == "c"
    assert touched(path, lambda: os.setxattr(path, "user.a", b"1")) == "c"
    assert touched(path, lambda: os.setxattr(path, "user.a", b"2")) == "c"
    assert touched(path, lambda: os.removexattr(path, "user.a")) == "c"
    assert touched(path, lambda: os.link(path, place / "g")) == "c"
    assert touched(path, lambda: os.unlink(place / "g")) == "c"
    assert touched(path, lambda: os.stat(path)) == ""
    assert touched(path, lambda: os.close(os.open(path, os.O_RDWR))) == ""
    assert touched(path, lambda: os.getxattr(path, "user.b") if False else None) == ""


def test_what_truncation_by_open_touches(place: Path) -> None:
    path = place / "f"
    path.write_bytes(b"x")
    assert touched(path, lambda: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))) == "mc"


def test_writing_nothing_touches_nothing(place: Path) -> None:
    path = place / "f"
    path.write_bytes(b"x")
    fd = os.open(path, os.O_WRONLY)
    try:
        assert touched(path, lambda: os.write(fd, b"")) == ""
    finally:
        os.close(fd)


def test_fallocate_touches_like_a_write(place: Path) -> None:
    path = place / "f"
    path.write_bytes(b"x" * 5000)
    with open(path, "r+b") as file:
        fd = file.fileno()
        assert touched(path, lambda: os.posix_fallocate(fd, 0, 20_000)) == "mc"


def test_a_read_sets_the_access_time_if_it_is_older(place: Path) -> None:
    """True with relatime and strictatime."""
    path = place / "f"
    path.write_bytes(b"x")
    assert touched(path, path.read_bytes) == "a"
    os.symlink("f", place / "l")
    folder = place / "d"
    folder.mkdir()
    (folder / "f").touch()
    assert touched(folder, lambda: os.listdir(folder)) == "a"


def test_without_atime_the_caller_leaves_it(place: Path) -> None:
    path = place / "f"
    path.write_bytes(b"x")

    def read() -> None:
        fd = os.open(path, os.O_RDONLY | os.O_NOATIME)
        os.read(fd, 10)
        os.close(fd)

    assert touched(path, read) == ""


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (lambda d: (d / "new").touch(), "mc"),
        (lambda d: (d / "new").mkdir(), "mc"),
        (lambda d: os.symlink("x", d / "new"), "mc"),
        (lambda d: os.mkfifo(d / "new"), "mc"),
        (lambda d: os.link(d / "f", d / "new"), "mc"),
        (lambda d: os.unlink(d / "f"), "mc"),
        (lambda d: os.rmdir(d / "sub"), "mc"),
        (lambda d: os.rename(d / "f", d / "g"), "mc"),
        (lambda d: os.rename(d / "f", d.parent / "g"), "mc"),
        (lambda d: os.rename(d.parent / "outside", d / "f"), "mc"),
        (lambda d: write_to(d / "f"), ""),
        (lambda d: os.chmod(d / "f", 0o600), ""),
        (lambda d: os.stat(d / "none") if (d / "none").exists() else None, ""),
        (lambda d: os.chmod(d, 0o700), "c"),
    ],
    ids=[
        *("create", "mkdir", "symlink", "mkfifo", "link", "unlink", "rmdir", "rename", "move-out"),
        *("move-in", "write", "chmod-in", "lookup", "chmod"),
    ],
)
def test_what_touches_a_directory(
    place: Path, action: Callable[[Path], object], expected: str
) -> None:
    folder = place / "d"
    (folder / "sub").mkdir(parents=True)
    (folder / "f").touch()
    (place / "outside").touch()
    assert touched(folder, lambda: action(folder)) == expected


def test_renaming_touches_the_change_time_only(place: Path) -> None:
    path = place / "f"
    path.touch()
    backdate(path)
    before = os.stat(path)
    os.rename(path, place / "g")
    after = os.stat(place / "g")
    assert (after.st_mtime_ns, after.st_atime_ns) == (before.st_mtime_ns, before.st_atime_ns)
    assert after.st_ctime_ns > before.st_ctime_ns


def test_new_files_have_the_present_as_all_times(place: Path) -> None:
    begin = time.time_ns() - 50_000_000
    (place / "f").touch()
    (place / "d").mkdir()
    end = time.time_ns() + 50_000_000
    for path in (place / "f", place / "d"):
        status = os.stat(path)
        for value in (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns):
            assert begin <= value <= end


@pytest.mark.parametrize("kind", ["file", "directory", "symlink"])
def test_times_are_set_and_kept(place: Path, kind: str) -> None:
    path = place / "x"
    if kind == "file":
        path.touch()
    elif kind == "directory":
        path.mkdir()
    else:
        os.symlink("nowhere", path)
    follow = kind != "symlink"
    for atime, mtime in ((OLD_NS, OLD_NS + 1_000), (0, 1_000_000), (2**33 * 10**9, 2**32 * 10**9)):
        os.utime(path, ns=(atime, mtime), follow_symlinks=follow)
        status = os.lstat(path)
        assert (status.st_atime_ns, status.st_mtime_ns) == (atime, mtime)


def test_times_before_1970(place: Path) -> None:
    path = place / "f"
    path.touch()
    os.utime(path, ns=(-86_400 * 10**9, -1_500_000_000))
    status = os.stat(path)
    assert (status.st_atime_ns, status.st_mtime_ns) == (-86_400 * 10**9, -1_500_000_000)


def test_now_and_omit(place: Path) -> None:
    path = place / "f"
    path.touch()
    backdate(path)
    utimensat(path, (5, UTIME_OMIT), (7, 8000))
    status = os.stat(path)
    assert (status.st_atime_ns, status.st_mtime_ns) == (OLD_NS, 7_000_008_000)
    utimensat(path, (5, UTIME_NOW), (7, UTIME_OMIT))
    status = os.stat(path)
    assert status.st_mtime_ns == 7_000_008_000
    assert abs(status.st_atime_ns - time.time_ns()) < 60 * 10**9
    changed = status.st_ctime_ns
    time.sleep(PAUSE_S)
    utimensat(path, (0, UTIME_OMIT), (0, UTIME_OMIT))
    assert os.stat(path).st_ctime_ns == changed
    utimensat(path, (0, UTIME_NOW), (0, UTIME_NOW))
    assert os.stat(path).st_ctime_ns > changed
    with refused(errno.EINVAL):
        utimensat(path, (0, 10**9), (0, 0))
    with refused(errno.ENOENT):
        utimensat(place / "none", (0, 0), (0, 0))


def test_set_times_outlive_data_written_before(place: Path) -> None:
    """As tar and rsync do: write, set the time, close."""
    path = place / "f"
    with open(path, "wb", buffering=0) as file:
        file.write(b"x" * 100_000)
        os.utime(file.fileno(), ns=(OLD_NS, OLD_NS))
    assert os.stat(path).st_mtime_ns == OLD_NS
    with open(path, "r+b", buffering=0) as file:
        file.write(b"y")
        os.utime(path, ns=(OLD_NS, OLD_NS))
        os.fsync(file.fileno())
    assert os.stat(path).st_mtime_ns == OLD_NS


def test_mtime_of_written_data_does_not_move_at_close(place: Path) -> None:
    path = place / "f"
    with open(path, "wb", buffering=0) as file:
        file.write(b"x")
        told = os.fstat(file.fileno()).st_mtime_ns
        time.sleep(PAUSE_S)
    assert os.stat(path).st_mtime_ns == told


def test_reading_through_a_mapping_or_directly_keeps_the_modification_time(place: Path) -> None:
    path = place / "f"
    path.write_bytes(b"x" * 8192)
    backdate(path)
    path.read_bytes()
    assert os.stat(path).st_mtime_ns == OLD_NS
