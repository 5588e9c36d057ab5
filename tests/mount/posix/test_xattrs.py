"""Extended attributes: values, flags, lists, and who may use which namespace."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

import pytest

from tests.support.users import ALICE, BOB, refused

_libc = ctypes.CDLL(None, use_errno=True)


def getxattr(path: Path, name: bytes, size: int) -> int:
    buffer = ctypes.create_string_buffer(size) if size else None
    return _checked(_libc.getxattr(os.fsencode(path), name, buffer, ctypes.c_size_t(size)))


def listxattr(path: Path, size: int) -> int:
    buffer = ctypes.create_string_buffer(size) if size else None
    return _checked(_libc.listxattr(os.fsencode(path), buffer, ctypes.c_size_t(size)))


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


@pytest.fixture
def path(place: Path) -> Path:
    (place / "f").touch()
    return place / "f"


@pytest.mark.parametrize("value", [b"", b"v", b"\0\xff\n", b"x" * 2000])
def test_values_are_bytes(path: Path, value: bytes) -> None:
    os.setxattr(path, b"user.name", value)
    assert os.getxattr(path, b"user.name") == value
    assert os.listxattr(path) == ["user.name"]
    os.setxattr(path, b"user.name", b"other")
    assert os.getxattr(path, b"user.name") == b"other"
    os.removexattr(path, b"user.name")
    assert os.listxattr(path) == []


def test_create_and_replace(path: Path) -> None:
    with refused(errno.ENODATA):
        os.setxattr(path, "user.a", b"1", os.XATTR_REPLACE)
    os.setxattr(path, "user.a", b"1", os.XATTR_CREATE)
    with refused(errno.EEXIST):
        os.setxattr(path, "user.a", b"2", os.XATTR_CREATE)
    os.setxattr(path, "user.a", b"3", os.XATTR_REPLACE)
    assert os.getxattr(path, "user.a") == b"3"
    for call in (os.getxattr, os.removexattr):
        with refused(errno.ENODATA):
            call(path, "user.none")


def test_sizes_are_probed(path: Path) -> None:
    os.setxattr(path, "user.a", b"12345")
    assert getxattr(path, b"user.a", 0) == 5
    assert getxattr(path, b"user.a", 5) == 5
    assert getxattr(path, b"user.a", 100) == 5
    with refused(errno.ERANGE):
        getxattr(path, b"user.a", 4)
    assert listxattr(path, 0) == len(b"user.a\0")
    with refused(errno.ERANGE):
        listxattr(path, 3)


def test_what_is_too_large(path: Path) -> None:
    with refused(errno.E2BIG, errno.ENOSPC):
        os.setxattr(path, "user.a", b"x" * 65537)
    with refused(errno.ERANGE):
        os.setxattr(path, "user." + "n" * 251, b"x")
    os.setxattr(path, "user." + "n" * 250, b"x")
    with refused(errno.EINVAL, errno.EOPNOTSUPP):
        os.setxattr(path, "user.", b"x")
    with refused(errno.EOPNOTSUPP):
        os.setxattr(path, "unknown.name", b"x")
    with refused(errno.ERANGE, errno.EINVAL, errno.EOPNOTSUPP):
        os.setxattr(path, "", b"x")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("user", errno.EOPNOTSUPP),
        ("unknown.name", errno.EOPNOTSUPP),
        ("user.", errno.EINVAL),
        ("user." + "n" * 251, errno.ERANGE),
        ("user." + "n" * 250, errno.ENODATA),
    ],
)
def test_names_that_cannot_be(path: Path, name: str, code: int) -> None:
    with refused(code):
        os.getxattr(path, name)
    with refused(code):
        os.removexattr(path, name)


def test_many_attributes_are_listed(path: Path) -> None:
    names = {f"user.{'n' * number}{number}" for number in range(40)}
    for name in names:
        os.setxattr(path, name, name.encode())
    assert set(os.listxattr(path)) == names
    assert all(os.getxattr(path, name) == name.encode() for name in names)


def test_attributes_belong_to_the_inode(place: Path, path: Path) -> None:
    os.setxattr(path, "user.a", b"1")
    os.link(path, place / "g")
    os.rename(path, place / "h")
    assert os.getxattr(place / "g", "user.a") == b"1"
    fd = os.open(place / "g", os.O_RDONLY)
    try:
        os.unlink(place / "g")
        os.unlink(place / "h")
        assert os.getxattr(fd, "user.a") == b"1"
        os.setxattr(fd, "user.b", b"2")
        assert sorted(os.listxattr(fd)) == ["user.a", "user.b"]
    finally:
        os.close(fd)


def test_directories_have_attributes_and_links_only_trusted_ones(place: Path) -> None:
    os.setxattr(place, "user.a", b"dir")
    assert os.getxattr(place, "user.a") == b"dir"
    os.symlink("x", place / "l")
    with refused(errno.EPERM):
        os.setxattr(place / "l", "user.a", b"1", follow_symlinks=False)
    os.setxattr(place / "l", "trusted.a", b"1", follow_symlinks=False)
    assert os.getxattr(place / "l", "trusted.a", follow_symlinks=False) == b"1"
    os.mkfifo(place / "p")
    with refused(errno.EPERM):
        os.setxattr(place / "p", "user.a", b"1")


def test_permission_decides_on_user_attributes(path: Path) -> None:
    os.chown(path, ALICE.uid, ALICE.gid)
    os.chmod(path, 0o644)
    ALICE.run(os.setxattr, path, "user.a", b"1")
    assert BOB.run(os.getxattr, path, "user.a") == b"1"
    with refused(errno.EACCES):
        BOB.run(os.setxattr, path, "user.a", b"2")
    with refused(errno.EACCES):
        BOB.run(os.removexattr, path, "user.a")
    os.chmod(path, 0o600)
    with refused(errno.EACCES):
        BOB.run(os.getxattr, path, "user.a")


def test_trusted_attributes_are_roots(path: Path) -> None:
    os.chown(path, ALICE.uid, ALICE.gid)
    os.setxattr(path, "trusted.a", b"1")
    assert os.listxattr(path) == ["trusted.a"]
    with refused(errno.ENODATA):
        ALICE.run(os.getxattr, path, "trusted.a")
    with refused(errno.EPERM):
        ALICE.run(os.setxattr, path, "trusted.a", b"2")
    assert "security.x" not in os.listxattr(path)
    os.setxattr(path, "security.x", b"label")
    assert os.getxattr(path, "security.x") == b"label"


def test_sticky_directories_give_attributes_to_their_owner_only(place: Path) -> None:
    folder = place / "d"
    folder.mkdir()
    os.chmod(folder, 0o1777)
    with refused(errno.EPERM):
        ALICE.run(os.setxattr, folder, "user.a", b"1")
    os.chmod(folder, 0o777)
    ALICE.run(os.setxattr, folder, "user.a", b"1")


def test_capabilities_are_kept_until_the_file_is_written(path: Path) -> None:
    capability = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)  # net_bind_service, effective
    os.setxattr(path, "security.capability", capability)
    assert os.getxattr(path, "security.capability") == capability
    assert "security.capability" in os.listxattr(path)
    path.write_bytes(b"changed")
    with refused(errno.ENODATA):
        os.getxattr(path, "security.capability")
    os.setxattr(path, "security.capability", capability)
    os.chown(path, ALICE.uid, ALICE.gid)
    with refused(errno.ENODATA):
        os.getxattr(path, "security.capability")


def test_values_of_64_kib(path: Path) -> None:
    """ext4 keeps at most one block beside the inode unless it was made with ea_inode."""
    try:
        os.setxattr(path, "user.a", b"x" * 65536)
    except OSError as error:
        assert error.errno == errno.ENOSPC  # noqa: PT017  # both outcomes are fine
    else:
        assert os.getxattr(path, "user.a") == b"x" * 65536
        assert getxattr(path, b"user.a", 0) == 65536
