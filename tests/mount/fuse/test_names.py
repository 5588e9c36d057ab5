"""Names, attributes, directories and extended attributes through the kernel."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.toymount import ToyMount, toy_mount

AT_FDCWD = -100
libc = ctypes.CDLL(None, use_errno=True)


def renameat2(old: Path, new: Path, flags: int) -> None:
    done = libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags)
    if done != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def test_every_kind_of_node_is_made_and_told(place: Path) -> None:
    (place / "dir").mkdir(0o750)
    (place / "file").write_bytes(b"x")
    (place / "link").symlink_to("some/where")
    os.mkfifo(place / "fifo", 0o600)
    os.mknod(place / "null", stat.S_IFCHR | 0o666, os.makedev(1, 300))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place / "sock"))

    kinds = {entry.name: stat.S_IFMT(os.lstat(entry.path).st_mode) for entry in os.scandir(place)}
    assert kinds == {
        "dir": stat.S_IFDIR,
        "file": stat.S_IFREG,
        "link": stat.S_IFLNK,
        "fifo": stat.S_IFIFO,
        "null": stat.S_IFCHR,
        "sock": stat.S_IFSOCK,
    }
    assert os.readlink(place / "link") == "some/where"
    assert os.stat(place / "null").st_rdev == os.makedev(1, 300)
    assert stat.S_IMODE(os.stat(place / "dir").st_mode) == 0o750


def test_names_may_hold_any_byte(place: Path) -> None:
    names = {
        bytes(range(1, 47)) + bytes(range(48, 128)),
        bytes(range(128, 256)),
        b"\xff" * 255,
        b"new\nline",
        b" ",
        b"a",
    }
    root = os.fsencode(place)
    for name in names:
        with open(root + b"/" + name, "wb") as file:
            file.write(name)
    assert set(os.listdir(root)) == names
    for name in names:
        with open(root + b"/" + name, "rb") as file:
            assert file.read() == name
        os.rename(root + b"/" + name, root + b"/x")
        os.unlink(root + b"/x")
    assert os.listdir(root) == []


def test_name_of_256_bytes_is_too_long(place: Path) -> None:
    with pytest.raises(OSError) as caught:
        (place / ("n" * 256)).touch()
    assert caught.value.errno == errno.ENAMETOOLONG


def test_long_symlink_target_comes_back_whole(place: Path) -> None:
    target = "/".join(["part"] * 800)
    (place / "l").symlink_to(target)
    assert os.readlink(place / "l") == target


def test_missing_and_existing_names_are_told_apart(place: Path) -> None:
    with pytest.raises(FileNotFoundError):
        os.stat(place / "no")
    (place / "d").mkdir()
    with pytest.raises(FileExistsError):
        (place / "d").mkdir()
    (place / "d" / "f").touch()
    with pytest.raises(OSError, match="not empty"):
        (place / "d").rmdir()


def test_hard_link_shares_the_inode(place: Path) -> None:
    (place / "a").write_bytes(b"one")
    os.link(place / "a", place / "b")
    first, second = os.stat(place / "a"), os.stat(place / "b")
    assert (first.st_ino, second.st_nlink) == (second.st_ino, 2)
    (place / "a").unlink()
    assert (place / "b").read_bytes() == b"one"


def test_rename_flags_reach_the_file_system(place: Path) -> None:
    a, b = place / "a", place / "b"
    a.write_bytes(b"a")
    b.write_bytes(b"b")
    with pytest.raises(FileExistsError):
        renameat2(a, b, 1)
    renameat2(a, b, 2)
    assert (a.read_bytes(), b.read_bytes()) == (b"b", b"a")
    with pytest.raises(OSError) as caught:
        renameat2(a, b, 4)  # whiteout
    assert caught.value.errno == errno.EINVAL
    a.rename(b)
    assert b.read_bytes() == b"b"


def test_attributes_change_and_are_told_to_the_nanosecond(place: Path) -> None:
    path = place / "f"
    path.write_bytes(b"12345")
    os.chmod(path, 0o4711)
    os.utime(path, ns=(1_234_567_890_123_456_789, -5_000_000_001))
    told = os.stat(path)
    assert stat.S_IMODE(told.st_mode) == 0o4711
    assert (told.st_atime_ns, told.st_mtime_ns) == (1_234_567_890_123_456_789, -5_000_000_001)
    assert (told.st_size, told.st_blocks, told.st_blksize) == (5, 8, 1 << 16)
    os.utime(path)
    assert os.stat(path).st_mtime_ns > told.st_mtime_ns


def as_user(uid: int, work: Callable[[], object]) -> None:
    """Run `work` in a child of that user, without other groups."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def mode_of(path: Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_chown_drops_set_uid_and_set_gid(place: Path) -> None:
    path = place / "prog"
    path.touch()
    os.chmod(path, 0o6775)
    os.chown(path, 1234, 1234)
    assert mode_of(path) == 0o775
    os.chmod(path, 0o2745)  # nobody of the group may execute: the bit means locking
    os.chown(path, 1236, 1236)
    assert mode_of(path) == 0o2745
    (place / "d").mkdir()
    os.chmod(place / "d", 0o2775)
    os.chown(place / "d", 1234, 1234)
    assert mode_of(place / "d") == 0o2775


def _direct_write(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
    with mmap.mmap(-1, 4096) as block:
        os.pwrite(fd, block, 0)


CHANGES: dict[str, Callable[[Path], object]] = {
    "write": lambda path: os.write(os.open(path, os.O_WRONLY), b"x"),
    "direct": _direct_write,
    "truncate": lambda path: os.truncate(path, 1),
    "open": lambda path: os.open(path, os.O_WRONLY | os.O_TRUNC),
    "fallocate": lambda path: os.posix_fallocate(os.open(path, os.O_WRONLY), 0, 9000),
    "copy": lambda path: os.copy_file_range(
        os.open(path, os.O_RDONLY), os.open(path, os.O_WRONLY), 10, 0, 5000
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_change_by_an_ordinary_user_drops_set_uid_and_set_gid(place: Path, change: str) -> None:
    path = place / "prog"
    path.write_bytes(b"0123456789" * 1000)
    os.chmod(place, 0o777)
    os.chmod(path, 0o6777)
    assert mode_of(path) == 0o6777
    as_user(4321, lambda: CHANGES[change](path))
    assert mode_of(path) == 0o777


def test_write_by_root_keeps_set_uid(place: Path) -> None:
    path = place / "prog"
    path.touch()
    os.chmod(path, 0o4755)
    path.write_bytes(b"x")
    assert mode_of(path) == 0o4755


def test_statx_tells_what_stat_tells(place: Path) -> None:
    path = place / "f"
    path.write_bytes(b"123")
    reply = ctypes.create_string_buffer(256)
    basic_and_birth, force_sync = 0xFFF, 0x2000
    done = libc.statx(AT_FDCWD, os.fsencode(path), force_sync, basic_and_birth, reply)
    assert done == 0
    mask, size = struct.unpack_from("=I36xQ", reply.raw)
    assert size == 3
    assert mask & 0x7FF == 0x7FF


def test_ten_thousand_entries_are_listed_once_each(toy: ToyMount, place: Path) -> None:
    toy.run(
        f"""
from juicepy.types import Cred, Kind
parent = next(i for i, n in fs.nodes.items() if i == {os.stat(place).st_ino})
for number in range(10000):
    fs._make(Cred(), parent, b"entry-%d" % number, Kind.FILE, 0o644)
"""
    )
    before = toy.calls("lookup")
    with os.scandir(place) as entries:
        sizes = {entry.name: entry.stat().st_size for entry in entries}
    assert sizes == {f"entry-{number}": 0 for number in range(10000)}
    assert toy.calls("lookup") - before < 5000, "readdirplus brought no attributes"


def test_listing_has_dot_and_dotdot_and_goes_on_where_it_was(place: Path) -> None:
    for number in range(300):
        (place / f"f{number}").touch()
    with os.scandir(place) as entries:
        first = [next(entries).name for _ in range(100)]
        assert len({*first, *(entry.name for entry in entries)}) == 300
    assert os.stat(place / "..").st_ino == os.stat(place.parent).st_ino


def test_extended_attributes(place: Path) -> None:
    path = place / "f"
    path.touch()
    os.setxattr(path, "user.a", b"\0binary\xff")
    os.setxattr(path, "user.empty", b"")
    assert os.getxattr(path, "user.a") == b"\0binary\xff"
    assert os.getxattr(path, "user.empty") == b""
    assert set(os.listxattr(path)) == {"user.a", "user.empty"}
    with pytest.raises(FileExistsError):
        os.setxattr(path, "user.a", b"", os.XATTR_CREATE)
    with pytest.raises(OSError) as caught:
        os.setxattr(path, "user.b", b"", os.XATTR_REPLACE)
    assert caught.value.errno == errno.ENODATA
    os.removexattr(path, "user.a")
    with pytest.raises(OSError) as caught:
        os.getxattr(path, "user.a")
    assert caught.value.errno == errno.ENODATA


def test_large_extended_attribute(place: Path) -> None:
    path = place / "f"
    path.touch()
    value = os.urandom(65536)
    os.setxattr(path, "user.big", value)
    assert os.getxattr(path, "user.big") == value
    short = ctypes.create_string_buffer(10)
    assert libc.getxattr(os.fsencode(path), b"user.big", short, 10) == -1
    assert ctypes.get_errno() == errno.ERANGE


def test_umask_comes_with_the_request(place: Path) -> None:
    old = os.umask(0o027)
    try:
        (place / "f").touch(0o666)
        (place / "d").mkdir(0o777)
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(place / "f").st_mode) == 0o640
    assert stat.S_IMODE(os.stat(place / "d").st_mode) == 0o750


def test_statfs_counts_in_4_kib(toy: ToyMount) -> None:
    st = os.statvfs(toy.path)
    assert (st.f_bsize, st.f_frsize, st.f_namemax) == (4096, 4096, 255)
    assert st.f_blocks == (1 << 40) // 4096
    assert st.f_bfree == st.f_bavail == (3 << 38) // 4096
    assert st.f_files - st.f_ffree == toy.ask("len(fs.nodes)")


def test_supplementary_groups_of_the_caller_are_told(toy: ToyMount, place: Path) -> None:
    os.chmod(place, 0o777)
    pid = os.fork()
    if pid == 0:
        os.setgroups([70001, 70002])
        os.setgid(70000)
        os.setuid(70003)
        os.mkdir(place / "mine")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    uid, gid, groups = toy.ask("(lambda c: (c.uid, c.gid, c.groups))(fs.creds['mkdir'])")
    assert (uid, gid) == (70003, 70000)
    assert set(groups) == {70001, 70002}


def test_negative_entries_are_believed_for_their_time() -> None:
    with toy_mount(setup="fs.negative_s = 600.0") as toy:
        for _ in range(5):
            assert not (toy.path / "none").exists()
        assert toy.calls("lookup") == 1
        (toy.path / "none").touch()
        assert (toy.path / "none").exists()
