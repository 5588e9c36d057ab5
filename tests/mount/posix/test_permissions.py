"""Who may do what: other users, sticky directories, set-id bits, the umask, groups."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.users import ALICE, BOB, STAFF, User, refused

MEMBER = User(ALICE.uid, ALICE.gid, groups=(STAFF,))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def make(path: Path, mode: int = 0o666) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))


def append(path: Path, data: bytes = b"x") -> None:
    with open(path, "ab") as file:
        file.write(data)


def owned(path: Path, user: User, mode: int, *, content: bytes | None = b"content") -> Path:
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    os.chown(path, user.uid, user.gid)
    os.chmod(path, mode)
    return path


def test_mode_bits_decide_for_owner_group_and_others(place: Path) -> None:
    path = owned(place / "f", ALICE, 0o640)
    assert ALICE.run(path.read_bytes) == b"content"
    ALICE.run(append, path)
    in_group = User(BOB.uid, BOB.gid, groups=(ALICE.gid,))
    assert in_group.run(path.read_bytes) == b"contentx"
    with refused(errno.EACCES):
        in_group.run(append, path)
    with refused(errno.EACCES):
        BOB.run(path.read_bytes)
    os.chmod(path, 0o066)  # the owner's own bits count, not what all others may
    with refused(errno.EACCES):
        ALICE.run(path.read_bytes)
    BOB.run(append, path)


def test_directories_need_search_and_write_permission(place: Path) -> None:
    folder = owned(place / "d", ALICE, 0o755, content=None)
    ALICE.run(make, folder / "f")
    for call in (
        lambda: make(folder / "g"),
        lambda: os.unlink(folder / "f"),
        lambda: os.rename(folder / "f", folder / "g"),
        lambda: os.link(folder / "f", folder / "g"),
        lambda: os.mkdir(folder / "g"),
        lambda: os.symlink("x", folder / "g"),
    ):
        with refused(errno.EACCES, errno.EPERM):
            BOB.run(call)
    os.chmod(folder, 0o744)
    assert BOB.run(os.listdir, folder) == ["f"]
    with refused(errno.EACCES):
        BOB.run(os.stat, folder / "f")
    os.chmod(folder, 0o711)
    BOB.run(os.stat, folder / "f")
    with refused(errno.EACCES):
        BOB.run(os.listdir, folder)


def test_supplementary_groups_count(place: Path) -> None:
    folder = place / "d"
    folder.mkdir()
    os.chown(folder, 0, STAFF)
    os.chmod(folder, 0o770)
    MEMBER.run(make, folder / "f")
    with refused(errno.EACCES):
        ALICE.run(os.listdir, folder)
    path = folder / "f"
    MEMBER.run(os.chown, path, -1, STAFF)
    assert os.stat(path).st_gid == STAFF
    MEMBER.run(os.chown, path, -1, ALICE.gid)
    os.chmod(folder, 0o777)
    with refused(errno.EPERM):
        ALICE.run(os.chown, path, -1, STAFF)


def test_many_supplementary_groups_count(place: Path) -> None:
    many = User(ALICE.uid, ALICE.gid, groups=range(50_000, 50_300))
    folder = place / "d"
    folder.mkdir()
    os.chown(folder, 0, 50_299)
    os.chmod(folder, 0o2770)
    many.run(make, folder / "f")
    assert os.stat(folder / "f").st_gid == 50_299


def test_only_owners_and_root_change_owner_and_mode(place: Path) -> None:
    path = owned(place / "f", ALICE, 0o666)
    for call in (
        lambda: os.chmod(path, 0o777),
        lambda: os.chown(path, BOB.uid, -1),
        lambda: os.utime(path, (1, 1)),
        lambda: os.chown(path, -1, BOB.gid),
    ):
        with refused(errno.EPERM):
            BOB.run(call)
    with refused(errno.EPERM):
        ALICE.run(os.chown, path, BOB.uid, -1)
    ALICE.run(os.chmod, path, 0o600)
    ALICE.run(os.utime, path, (1, 1))
    assert (mode_of(path), os.stat(path).st_mtime) == (0o600, 1)


def test_now_may_be_set_by_who_may_write(place: Path) -> None:
    path = owned(place / "f", ALICE, 0o666)
    os.utime(path, (1, 1))
    BOB.run(os.utime, path)
    assert os.stat(path).st_mtime > 10**9
    os.chmod(path, 0o644)
    with refused(errno.EACCES):
        BOB.run(os.utime, path)


def test_sticky_directories_protect_what_belongs_to_others(place: Path) -> None:
    folder = place / "tmp"
    folder.mkdir()
    os.chmod(folder, 0o1777)
    ALICE.run(make, folder / "hers")
    ALICE.run(os.mkdir, folder / "herdir")
    BOB.run(make, folder / "his", 0o666)
    for call in (
        lambda: os.unlink(folder / "hers"),
        lambda: os.rename(folder / "hers", folder / "taken"),
        lambda: os.rename(folder / "his", folder / "hers"),
        lambda: os.rmdir(folder / "herdir"),
    ):
        with refused(errno.EPERM, errno.EACCES):
            BOB.run(call)
    BOB.run(os.rename, folder / "his", folder / "renamed")
    ALICE.run(os.unlink, folder / "hers")
    os.chown(folder, BOB.uid, BOB.gid)
    BOB.run(os.rmdir, folder / "herdir")  # his directory now


def test_setgid_directories_hand_on_their_group(place: Path) -> None:
    folder = place / "d"
    folder.mkdir()
    os.chown(folder, ALICE.uid, STAFF)
    os.chmod(folder, 0o2777)
    MEMBER.run(make, folder / "f")
    MEMBER.run(os.mkdir, folder / "sub")
    MEMBER.run(os.symlink, "x", folder / "l")
    MEMBER.run(os.mkfifo, folder / "p")
    for name in ("f", "sub", "l", "p"):
        assert os.lstat(folder / name).st_gid == STAFF, name
    assert mode_of(folder / "sub") & stat.S_ISGID
    assert not mode_of(folder / "f") & stat.S_ISGID
    BOB.run(make, folder / "executable", 0o2775)  # of a group that is not his
    assert not mode_of(folder / "executable") & stat.S_ISGID
    (place / "plain").mkdir(mode=0o777)
    os.chmod(place / "plain", 0o777)
    MEMBER.run(make, place / "plain" / "f")
    assert os.stat(place / "plain" / "f").st_gid == ALICE.gid


def _write(path: Path) -> None:
    append(path)


def _truncate(path: Path) -> None:
    os.truncate(path, 2)


def _open_trunc(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))


def _fallocate(path: Path) -> None:
    with open(path, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 10_000)


@pytest.mark.parametrize("change", [_write, _truncate, _open_trunc, _fallocate])
def test_changes_of_data_by_users_drop_set_id_bits(
    place: Path, change: Callable[[Path], None]
) -> None:
    path = owned(place / "f", ALICE, 0o6777)
    assert mode_of(path) == 0o6777
    BOB.run(change, path)
    assert mode_of(path) == 0o777
    os.chmod(path, 0o6777)
    change(path)  # as root, who keeps them
    assert mode_of(path) == 0o6777
    assert not path.read_bytes().startswith(b"z")


def test_set_gid_without_group_execution_is_kept(place: Path) -> None:
    """It marks mandatory locking, not a privilege."""
    path = owned(place / "f", ALICE, 0o2666)
    in_group = User(BOB.uid, ALICE.gid)
    in_group.run(append, path)
    assert mode_of(path) == 0o2666


@pytest.mark.parametrize("change", [_write, _truncate, _open_trunc, _fallocate])
def test_set_gid_is_dropped_by_who_is_outside_the_group(
    place: Path, change: Callable[[Path], None]
) -> None:
    path = owned(place / "f", ALICE, 0o2666)
    BOB.run(change, path)
    assert mode_of(path) == 0o666


def _make(path: Path, flags: int) -> None:
    os.close(os.open(path, flags | os.O_CREAT, 0o6711))
    os.utime(path)  # whoever keeps attributes asks for them


def test_new_file_keeps_set_id_bits(place: Path) -> None:
    """Of its mode, though the flags of the open say that data is cut."""
    os.chmod(place, 0o777)
    for flags in (os.O_WRONLY, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_TRUNC | os.O_EXCL):
        path = place / f"f{flags}"
        ALICE.run(_make, path, flags)
        assert mode_of(path) == 0o6711


@pytest.mark.parametrize("user", [User(0, 0), ALICE], ids=["root", "owner"])
def test_change_of_no_owner_drops_set_id_bits(place: Path, user: User) -> None:
    path = owned(place / "f", ALICE, 0o6755)
    with contextlib.suppress(PermissionError):  # FUSE cannot tell it from what precedes a write
        BOB.run(os.chown, path, -1, -1)
    assert mode_of(path) == 0o6755
    user.run(os.chown, path, -1, -1)
    assert mode_of(path) == 0o755
    BOB.run(os.chown, path, -1, -1)
    folder = owned(place / "d", ALICE, 0o2755, content=None)
    user.run(os.chown, folder, -1, -1)
    assert mode_of(folder) == 0o2755


def test_change_of_owner_drops_set_gid_outside_the_group(place: Path) -> None:
    path = owned(place / "f", ALICE, 0o644)
    os.chown(path, -1, STAFF)
    os.chmod(path, 0o2644)
    MEMBER.run(os.chown, path, ALICE.uid, -1)
    assert mode_of(path) == 0o2644
    ALICE.run(os.chown, path, ALICE.uid, -1)
    assert mode_of(path) == 0o644


def test_punching_holes_drops_set_id_bits(place: Path) -> None:
    import ctypes

    path = owned(place / "f", ALICE, 0o6777, content=b"x" * 100_000)
    libc = ctypes.CDLL(None, use_errno=True)

    def punch() -> None:
        with open(path, "r+b") as file:
            begin, length = ctypes.c_longlong(4096), ctypes.c_longlong(4096)
            assert libc.fallocate(file.fileno(), 3, begin, length) == 0

    BOB.run(punch)
    assert mode_of(path) == 0o777
    assert path.read_bytes()[4096:8192] == bytes(4096)


@pytest.mark.parametrize("user", [User(0, 0), ALICE], ids=["root", "owner"])
def test_changes_of_owner_drop_set_id_bits(place: Path, user: User) -> None:
    path = owned(place / "f", ALICE, 0o6755)
    user.run(os.chown, path, -1, ALICE.gid)
    assert mode_of(path) == 0o755
    os.chmod(path, 0o6755)
    user.run(os.chown, path, ALICE.uid, ALICE.gid)
    assert mode_of(path) == 0o755
    folder = owned(place / "d", ALICE, 0o2755, content=None)
    user.run(os.chown, folder, -1, ALICE.gid)
    assert mode_of(folder) == 0o2755


def test_chmod_outside_the_group_drops_setgid(place: Path) -> None:
    path = owned(place / "f", ALICE, 0o755)
    os.chown(path, ALICE.uid, STAFF)
    ALICE.run(os.chmod, path, 0o2755)
    assert mode_of(path) == 0o755
    MEMBER.run(os.chmod, path, 0o2755)
    assert mode_of(path) == 0o2755


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_the_umask_limits_new_modes(place: Path, umask: int) -> None:
    user = User(ALICE.uid, ALICE.gid, umask=umask)
    user.run(make, place / "f", 0o666)
    user.run(os.mkdir, place / "d", 0o777)
    user.run(os.mkfifo, place / "p", 0o666)
    user.run(os.symlink, "x", place / "l")
    assert mode_of(place / "f") == 0o666 & ~umask
    assert mode_of(place / "d") == 0o777 & ~umask
    assert mode_of(place / "p") == 0o666 & ~umask
    assert mode_of(place / "l") == 0o777


def test_a_file_made_read_only_is_written_by_who_made_it(place: Path) -> None:
    def create() -> bytes:
        fd = os.open(place / "f", os.O_CREAT | os.O_RDWR, 0)
        os.write(fd, b"secret")
        os.lseek(fd, 0, os.SEEK_SET)
        return os.read(fd, 10)

    assert ALICE.run(create) == b"secret"
    with refused(errno.EACCES):
        ALICE.run((place / "f").read_bytes)
    assert (place / "f").read_bytes() == b"secret"


def test_open_files_stay_open_when_permission_goes(place: Path) -> None:
    path = owned(place / "f", ALICE, 0o600)

    def work() -> bytes:
        with open(path, "r+b", buffering=0) as file:
            os.chmod(path, 0)
            file.write(b"still")
            os.fsync(file.fileno())
            file.seek(0)
            return file.read()

    assert ALICE.run(work) == b"stillnt"


def test_access_tells_what_the_caller_may(place: Path) -> None:
    path = owned(place / "f", ALICE, 0o640)
    assert ALICE.run(os.access, path, os.R_OK | os.W_OK)
    assert not ALICE.run(os.access, path, os.X_OK)
    assert not BOB.run(os.access, path, os.R_OK)
    assert os.access(path, os.R_OK | os.W_OK)
    assert not os.access(path, os.X_OK)
    os.chmod(path, 0o010)
    assert os.access(path, os.X_OK)


def test_programs_run_only_where_they_may(place: Path) -> None:
    path = place / "script"
    path.write_text("#!/bin/sh\necho ran\n")
    os.chmod(path, 0o750)
    os.chown(path, ALICE.uid, ALICE.gid)

    def run() -> str:
        import subprocess

        return subprocess.run([path], capture_output=True, text=True, check=True).stdout

    assert ALICE.run(run) == "ran\n"
    with refused(errno.EACCES):
        BOB.run(run)


def test_links_to_files_of_others_are_made_by_root_or_owner(place: Path) -> None:
    path = owned(place / "f", ALICE, 0o600)
    ALICE.run(os.link, path, place / "mine")
    os.link(path, place / "roots")
    assert os.stat(path).st_nlink == 3
