"""Files without a name, directories without a name, and files with many."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.users import ALICE, STAFF, refused

PAUSE_S = 0.02


def test_an_unlinked_file_lives_while_it_is_open(place: Path) -> None:
    path = place / "file"
    with open(path, "w+b", buffering=0) as file:
        file.write(b"before")
        os.unlink(path)
        with refused(errno.ENOENT):
            os.stat(path)
        assert os.fstat(file.fileno()).st_nlink == 0
        file.write(b"after")
        os.fsync(file.fileno())
        os.ftruncate(file.fileno(), 8)
        os.fchmod(file.fileno(), 0o640)
        os.utime(file.fileno(), (1, 2))
        os.setxattr(file.fileno(), "user.x", b"1")
        file.seek(0)
        assert file.read() == b"beforeaf"
        status = os.fstat(file.fileno())
        assert (status.st_size, status.st_mode & 0o777, status.st_mtime) == (8, 0o640, 2)
        path.write_bytes(b"another")
        file.seek(0)
        assert file.read() == b"beforeaf"
    assert path.read_bytes() == b"another"


def test_an_unlinked_file_is_reached_through_proc(place: Path) -> None:
    fd = os.open(place / "file", os.O_CREAT | os.O_RDWR)
    try:
        os.write(fd, b"data")
        os.unlink(place / "file")
        with open(f"/proc/self/fd/{fd}", "rb") as again:
            assert again.read() == b"data"
    finally:
        os.close(fd)


def test_a_removed_directory_stays_open_and_empty(place: Path) -> None:
    path = place / "dir"
    path.mkdir()
    fd = os.open(path, os.O_RDONLY)
    try:
        os.rmdir(path)
        assert os.fstat(fd).st_nlink == 0
        assert os.listdir(fd) == []
        for name in ("new", "."):
            with refused(errno.ENOENT):
                os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=fd) if name != "." else os.stat(
                    "x", dir_fd=fd
                )
        with refused(errno.ENOENT):
            os.mkdir("below", dir_fd=fd)
        path.mkdir()
        (path / "file").touch()
        assert os.listdir(fd) == []
        assert os.fstat(fd).st_ino != os.stat(path).st_ino
    finally:
        os.close(fd)


def test_a_replaced_directory_is_known_by_its_descriptor(place: Path) -> None:
    (place / "old").mkdir(mode=0o750)
    (place / "new").mkdir()
    fd = os.open(place / "old", os.O_RDONLY)
    try:
        inode = os.fstat(fd).st_ino
        os.rename(place / "new", place / "old")
        status = os.fstat(fd)
        assert status.st_ino == inode
        assert status.st_nlink == 0
        assert stat.S_ISDIR(status.st_mode)
        assert status.st_ino != os.stat(place / "old").st_ino
    finally:
        os.close(fd)


def test_an_unlinked_name_lowers_the_count_at_once(place: Path) -> None:
    (place / "sub").mkdir()
    (place / "a").write_text("x")
    for number in range(5):
        os.link(place / "a", (place / "sub" if number % 2 else place) / f"l{number}")
    assert os.stat(place / "a").st_nlink == 6
    for left, number in zip(range(5, 0, -1), range(5), strict=True):
        os.unlink((place / "sub" if number % 2 else place) / f"l{number}")
        assert os.stat(place / "a").st_nlink == left
    with open(place / "a") as file:
        os.unlink(place / "a")
        assert os.fstat(file.fileno()).st_nlink == 0


def test_links_show_one_file(place: Path) -> None:
    (place / "d").mkdir()
    a, b = place / "a", place / "d" / "b"
    a.write_text("one")
    os.link(a, b)
    assert os.path.samestat(os.stat(a), os.stat(b))
    b.write_text("two, and longer")
    assert a.read_text() == "two, and longer"
    os.chmod(a, 0o600)
    os.setxattr(b, "user.n", b"v")
    assert os.stat(b).st_mode & 0o777 == 0o600
    assert os.getxattr(a, "user.n") == b"v"
    os.unlink(a)
    assert b.read_text() == "two, and longer"


def test_links_touch_the_change_time_of_the_file_only(place: Path) -> None:
    path = place / "a"
    path.write_text("x")
    os.utime(path, ns=(10**18, 10**18 + 5000))
    before = os.stat(path)
    time.sleep(PAUSE_S)
    os.link(path, place / "b")
    linked = os.stat(path)
    time.sleep(PAUSE_S)
    os.unlink(place / "b")
    unlinked = os.stat(path)
    assert before.st_ctime_ns < linked.st_ctime_ns < unlinked.st_ctime_ns
    assert before.st_mtime_ns == linked.st_mtime_ns == unlinked.st_mtime_ns
    assert before.st_atime_ns == unlinked.st_atime_ns


def test_what_cannot_be_linked(place: Path) -> None:
    (place / "dir").mkdir()
    (place / "file").touch()
    with refused(errno.EPERM):
        os.link(place / "dir", place / "dir2")
    with refused(errno.EEXIST):
        os.link(place / "file", place / "dir")
    with refused(errno.EEXIST):
        os.link(place / "file", place / "file")
    with refused(errno.ENOENT):
        os.link(place / "none", place / "x")
    with refused(errno.EXDEV):
        os.link(place / "file", "/dev/jfs-x")
    os.symlink("file", place / "link")
    os.link(place / "link", place / "link2", follow_symlinks=False)
    assert os.readlink(place / "link2") == "file"
    assert os.lstat(place / "link").st_nlink == 2


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK])
def test_special_files_keep_kind_mode_and_number(place: Path, kind: int) -> None:
    number = os.makedev(1, 3) if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0
    path = place / "special"
    os.mknod(path, kind | 0o620, number)
    os.link(path, place / "second")
    status = os.stat(place / "second")
    assert status.st_mode == kind | 0o620 & ~0o022
    assert status.st_rdev == number
    assert status.st_nlink == 2
    assert status.st_size == 0


def test_a_fifo_carries_data(place: Path) -> None:
    os.mkfifo(place / "fifo")
    reader = os.open(place / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(place / "fifo", os.O_WRONLY)
    try:
        os.write(writer, b"through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(writer)
        os.close(reader)


def test_removing_the_wrong_kind_is_refused(place: Path) -> None:
    (place / "dir" / "sub").mkdir(parents=True)
    (place / "file").touch()
    with refused(errno.EISDIR, errno.EPERM):
        os.unlink(place / "dir")
    with refused(errno.ENOTDIR):
        os.rmdir(place / "file")
    with refused(errno.ENOTEMPTY):
        os.rmdir(place / "dir")
    with refused(errno.ENOENT):
        os.unlink(place / "none")


def test_unnamed_temporary_files(place: Path) -> None:
    with opened_unnamed(place) as fd:
        assert os.write(fd, b"x" * 5000) == 5000
        os.fsync(fd)
        os.setxattr(fd, "user.x", b"1")
        status = os.fstat(fd)
        assert (status.st_size, status.st_nlink, status.st_mode) == (5000, 0, stat.S_IFREG | 0o640)
        assert os.pread(fd, 6000, 0) == b"x" * 5000
        with open(f"/proc/self/fd/{fd}", "rb") as again:
            assert again.read() == b"x" * 5000
        assert os.listdir(place) == []


def test_unnamed_file_is_given_a_name(place: Path) -> None:
    """How a file appears with all its content, or not at all."""
    with opened_unnamed(place) as fd:
        os.write(fd, b"content")
        os.setxattr(fd, "user.x", b"1")
        name_unnamed(fd, place, "f")
        assert os.fstat(fd).st_nlink == 1
        assert (place / "f").read_bytes() == b"content"
        assert os.stat(place / "f").st_ino == os.fstat(fd).st_ino
        with refused(errno.EEXIST):
            name_unnamed(fd, place, "f")
        name_unnamed(fd, place, "g")
        os.write(fd, b", more")
        os.unlink(place / "f")
    assert os.listdir(place) == ["g"]
    assert (place / "g").read_bytes() == b"content, more"
    assert os.getxattr(place / "g", "user.x") == b"1"
    assert os.stat(place / "g").st_nlink == 1


def test_what_unnamed_files_refuse(place: Path) -> None:
    with opened_unnamed(place, os.O_EXCL) as fd, refused(errno.ENOENT):
        name_unnamed(fd, place, "f")
    with opened_unnamed(place) as fd:
        name_unnamed(fd, place, "f")
        os.unlink(place / "f")
        with refused(errno.ENOENT):
            name_unnamed(fd, place, "f")
    (place / "d").mkdir(0o755)
    with refused(errno.EACCES):
        ALICE.run(opened_unnamed(place / "d").__enter__)
    with refused(errno.EINVAL):
        os.open(place, os.O_TMPFILE | os.O_RDONLY)
    with refused(errno.ENOENT):
        os.open(place / "none", os.O_TMPFILE | os.O_RDWR)


def test_unnamed_files_take_owner_and_mode_as_others_do(place: Path) -> None:
    os.chown(place, 0, STAFF)
    os.chmod(place, 0o2777)
    with opened_unnamed(place, umask=0o027, mode=0o666) as fd:
        status = os.fstat(fd)
        assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (0, STAFF, 0o640)


@contextmanager
def opened_unnamed(
    folder: Path, flags: int = 0, *, mode: int = 0o640, umask: int = 0o022
) -> Iterator[int]:
    before = os.umask(umask)
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | flags, mode)
    finally:
        os.umask(before)
    try:
        yield fd
    finally:
        os.close(fd)


def name_unnamed(fd: int, folder: Path, name: str) -> None:
    """As open(2) tells: by way of /proc, which linkat(2) is to follow."""
    with_linkat = os.open(folder, os.O_PATH)
    try:
        os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=with_linkat)
    finally:
        os.close(with_linkat)
