"""The errno of what is refused, where no other test of this directory asks for it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tests.support.users import ALICE, refused


def test_what_is_missing(place: Path) -> None:
    none = place / "none"
    (place / "f").touch()
    for call in (
        lambda: os.stat(none),
        lambda: os.open(none, os.O_RDONLY),
        lambda: os.open(none / "below", os.O_CREAT | os.O_WRONLY),
        lambda: os.chmod(none, 0o600),
        lambda: os.chown(none, 1, 1),
        lambda: os.truncate(none, 0),
        lambda: os.unlink(none),
        lambda: os.rmdir(none),
        lambda: os.readlink(none),
        lambda: os.listdir(none),
        lambda: os.mkdir(none / "below"),
        lambda: os.symlink("x", none / "below"),
        lambda: os.link(place / "f", none / "below"),
        lambda: os.mkfifo(none / "below"),
        lambda: os.statvfs(none),
        lambda: os.getxattr(none, "user.a"),
    ):
        with refused(errno.ENOENT):
            call()


def test_files_are_no_directories(place: Path) -> None:
    (place / "f").touch()
    below = place / "f" / "below"
    for call in (
        lambda: os.stat(below),
        lambda: os.open(below, os.O_CREAT | os.O_WRONLY),
        lambda: os.mkdir(below),
        lambda: os.unlink(below),
        lambda: os.symlink("x", below),
        lambda: os.listdir(place / "f"),
        lambda: os.chdir(place / "f"),
    ):
        with refused(errno.ENOTDIR):
            call()


@pytest.mark.parametrize("kind", ["file", "directory", "symlink", "dangling", "fifo"])
def test_what_exists(place: Path, kind: str) -> None:
    path = place / "x"
    (place / "f").touch()
    {
        "file": lambda: path.touch(),
        "directory": lambda: path.mkdir(),
        "symlink": lambda: os.symlink("f", path),
        "dangling": lambda: os.symlink("nowhere", path),
        "fifo": lambda: os.mkfifo(path),
    }[kind]()
    for call in (
        lambda: os.mkdir(path),
        lambda: os.symlink("y", path),
        lambda: os.link(place / "f", path),
        lambda: os.mkfifo(path),
        lambda: os.mknod(path, stat.S_IFREG | 0o600),
        lambda: os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY),
    ):
        with refused(errno.EEXIST):
            call()


def test_kinds_that_cannot_do_it(place: Path) -> None:
    (place / "f").touch()
    (place / "d").mkdir()
    os.mkfifo(place / "p")
    with refused(errno.EINVAL):
        os.readlink(place / "f")
    with refused(errno.EISDIR):
        os.truncate(place / "d", 0)
    with refused(errno.EINVAL):
        os.truncate(place / "p", 0)
    with refused(errno.ENXIO):
        os.open(place / "p", os.O_WRONLY | os.O_NONBLOCK)
    os.mknod(place / "s", stat.S_IFSOCK | 0o600)
    with refused(errno.ENXIO):
        os.open(place / "s", os.O_RDONLY)
    with refused(errno.EPERM):
        ALICE.run(os.mknod, place / "c", stat.S_IFCHR | 0o600, os.makedev(1, 3))


def test_bad_arguments(place: Path) -> None:
    (place / "f").write_bytes(b"x")
    with refused(errno.EINVAL):
        os.truncate(place / "f", -1)
    with refused(errno.EINVAL):
        os.mknod(place / "x", 0o050000)  # no such kind
    with refused(errno.ENOENT):
        os.stat("")
    fd = os.open(place / "f", os.O_RDWR)
    try:
        with refused(errno.EINVAL):
            os.lseek(fd, 0, 17)
        with refused(errno.ENXIO):
            os.lseek(fd, 100, os.SEEK_DATA)
    finally:
        os.close(fd)
    with refused(errno.EBADF):
        os.fstat(fd)


def test_a_directory_in_use_is_removed_and_then_refuses(place: Path) -> None:
    (place / "d").mkdir()
    fd = os.open(place / "d", os.O_RDONLY)
    try:
        os.rmdir(place / "d")
        for call in (
            lambda: os.mkdir("x", dir_fd=fd),
            lambda: os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=fd),
            lambda: os.symlink("y", "x", dir_fd=fd),
            lambda: os.stat("x", dir_fd=fd),
        ):
            with refused(errno.ENOENT):
                call()
    finally:
        os.close(fd)


def test_devices_work(place: Path) -> None:
    """Where the mount allows devices (`-o dev`)."""
    os.mknod(place / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    status = os.stat(place / "zero")
    assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (1, 5)
    with open(place / "zero", "rb", buffering=0) as device:
        assert device.read(10) == bytes(10)
    os.mknod(place / "big", stat.S_IFBLK | 0o600, os.makedev(300, 70_000))
    status = os.stat(place / "big")
    assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (300, 70_000)


def test_statvfs_is_plausible(place: Path) -> None:
    found = os.statvfs(place)
    assert found.f_namemax == 255
    assert found.f_bsize >= 512
    assert 0 < found.f_bavail <= found.f_bfree <= found.f_blocks
    assert 0 < found.f_ffree <= found.f_files
