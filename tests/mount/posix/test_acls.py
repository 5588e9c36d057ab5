"""POSIX ACLs as setfacl(1) and getfacl(1) set and show them, and what they decide."""

from __future__ import annotations

import errno
import os
import stat
import struct
import subprocess
from pathlib import Path

import pytest

from tests.support.users import ALICE, BOB, STAFF, User, refused

MEMBER = User(41003, 41003, groups=(STAFF,))


def setfacl(*arguments: str | Path) -> None:
    subprocess.run(["setfacl", *arguments], check=True, capture_output=True)


def getfacl(path: Path) -> list[str]:
    command = ["getfacl", "-cnpE", path]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def write(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"x")


@pytest.fixture
def path(place: Path) -> Path:
    (place / "f").write_bytes(b"content")
    os.chmod(place / "f", 0o600)
    return place / "f"


def test_entries_are_stored_and_shown(path: Path) -> None:
    setfacl("-m", f"u:{ALICE.uid}:rw,u:{BOB.uid}:r,g:{STAFF}:rwx", path)
    assert getfacl(path) == [
        "user::rw-",
        f"user:{ALICE.uid}:rw-",
        f"user:{BOB.uid}:r--",
        "group::---",
        f"group:{STAFF}:rwx",
        "mask::rwx",
        "other::---",
    ]
    assert mode_of(path) == 0o670
    setfacl("-x", f"u:{BOB.uid}", path)
    assert f"user:{BOB.uid}:r--" not in getfacl(path)
    setfacl("-b", path)
    assert getfacl(path) == ["user::rw-", "group::---", "other::---"]
    with refused(errno.ENODATA):
        os.getxattr(path, "system.posix_acl_access")


def test_named_users_and_groups_are_let_in(path: Path) -> None:
    setfacl("-m", f"u:{ALICE.uid}:r,g:{STAFF}:rw", path)
    assert ALICE.run(path.read_bytes) == b"content"
    with refused(errno.EACCES):
        ALICE.run(write, path)
    MEMBER.run(write, path)
    with refused(errno.EACCES):
        BOB.run(path.read_bytes)


def test_named_users_are_kept_out(path: Path) -> None:
    setfacl("-m", f"g::r,o::r,u:{ALICE.uid}:-,g:{STAFF}:-", path)
    BOB.run(path.read_bytes)
    for user in (ALICE, MEMBER):
        with refused(errno.EACCES):
            user.run(path.read_bytes)


def test_the_mask_limits_all_but_owner_and_others(path: Path) -> None:
    setfacl("-m", f"u:{ALICE.uid}:rw,m::r", path)
    assert mode_of(path) == 0o640
    with refused(errno.EACCES):
        ALICE.run(write, path)
    os.chmod(path, 0o660)  # chmod of the group sets the mask
    assert "mask::rw-" in getfacl(path)
    assert "group::---" in getfacl(path)
    ALICE.run(write, path)
    os.chmod(path, 0o600)
    assert f"user:{ALICE.uid}:rw-" in getfacl(path)
    with refused(errno.EACCES):
        ALICE.run(path.read_bytes)


def test_owner_entries_follow_chmod(path: Path) -> None:
    setfacl("-m", f"u:{ALICE.uid}:r", path)
    os.chmod(path, 0o754)
    shown = getfacl(path)
    assert ("user::rwx" in shown, "mask::r-x" in shown, "other::r--" in shown) == (True,) * 3


def test_defaults_are_inherited(place: Path) -> None:
    folder = place / "d"
    folder.mkdir()
    setfacl("-d", "-m", f"u::rwx,u:{ALICE.uid}:rwx,g::r-x,o::-", folder)
    maker = User(0, 0, umask=0o077)  # a default takes the place of the umask
    maker.run((folder / "f").touch)
    maker.run(os.mkdir, folder / "sub")
    assert getfacl(folder / "f") == [
        "user::rw-",
        f"user:{ALICE.uid}:rwx",
        "group::r-x",
        "mask::rw-",
        "other::---",
    ]
    assert mode_of(folder / "f") == 0o660
    shown = getfacl(folder / "sub")
    assert f"user:{ALICE.uid}:rwx" in shown
    assert f"default:user:{ALICE.uid}:rwx" in shown
    assert mode_of(folder / "sub") == 0o770
    ALICE.run(write, folder / "f")
    ALICE.run((folder / "sub" / "deeper").mkdir)
    assert f"default:user:{ALICE.uid}:rwx" in getfacl(folder / "sub" / "deeper")
    os.mkfifo(folder / "p")
    assert f"user:{ALICE.uid}:rwx" in getfacl(folder / "p")
    setfacl("-k", folder)
    maker.run((folder / "g").touch)
    assert mode_of(folder / "g") == 0o600


def test_a_minimal_default_replaces_the_umask(place: Path) -> None:
    setfacl("-d", "-m", "u::rwx,g::rwx,o::r", place)
    User(0, 0, umask=0o077).run((place / "f").touch)
    assert mode_of(place / "f") == 0o664
    assert len(getfacl(place / "f")) == 3


def test_directories_are_searched_by_acl(place: Path) -> None:
    folder = place / "d"
    folder.mkdir(mode=0o700)
    (folder / "f").write_text("x")
    setfacl("-m", f"u:{ALICE.uid}:x", folder)
    assert ALICE.run((folder / "f").read_text) == "x"
    with refused(errno.EACCES):
        ALICE.run(os.listdir, folder)
    setfacl("-m", f"u:{ALICE.uid}:rwx", folder)
    ALICE.run(os.unlink, folder / "f")


def test_only_the_owner_sets_acls(path: Path) -> None:
    setfacl("-m", f"u:{ALICE.uid}:rw", path)
    value = os.getxattr(path, "system.posix_acl_access")
    with refused(errno.EPERM):
        ALICE.run(os.setxattr, path, "system.posix_acl_access", value)
    os.chown(path, BOB.uid, BOB.gid)
    BOB.run(os.setxattr, path, "system.posix_acl_access", value)
    BOB.run(os.removexattr, path, "system.posix_acl_access")
    assert mode_of(path) == 0o660


def test_malformed_acls_are_refused(path: Path) -> None:
    for value in (b"x", struct.pack("<IHHI", 2, 1, 7, 0), struct.pack("<I", 7)):
        with refused(errno.EINVAL, errno.EOPNOTSUPP):
            os.setxattr(path, "system.posix_acl_access", value)
    setfacl("-m", f"u:{ALICE.uid}:r", path)
    value = os.getxattr(path, "system.posix_acl_access")
    with refused(errno.EACCES, errno.EPERM):
        os.setxattr(path, "system.posix_acl_default", value)
    os.symlink("f", path.parent / "l")
    with refused(errno.EOPNOTSUPP):
        os.setxattr(path.parent / "l", "system.posix_acl_access", value, follow_symlinks=False)


def test_setgid_goes_when_an_outsider_sets_an_acl(path: Path) -> None:
    os.chown(path, ALICE.uid, STAFF)
    os.chmod(path, 0o2770)
    setfacl("-m", f"u:{BOB.uid}:r", path)
    assert mode_of(path) & stat.S_ISGID
    value = os.getxattr(path, "system.posix_acl_access")
    setfacl("-b", path)
    ALICE.run(os.setxattr, path, "system.posix_acl_access", value)
    assert not mode_of(path) & stat.S_ISGID


def test_acls_are_copied_and_restored(place: Path, path: Path) -> None:
    setfacl("-m", f"u:{ALICE.uid}:rw,g:{STAFF}:r", path)
    subprocess.run(["cp", "-p", path, place / "copy"], check=True)
    assert getfacl(place / "copy") == getfacl(path)
    os.link(path, place / "link")
    os.rename(path, place / "moved")
    assert getfacl(place / "moved") == getfacl(place / "link") == getfacl(place / "copy")
