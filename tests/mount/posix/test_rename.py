"""rename(2) and renameat2(2): what is replaced, what is refused, what readers see."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from tests.support.users import refused

NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
AT_FDCWD = -100

_libc = ctypes.CDLL(None, use_errno=True)


def renameat2(source: Path, target: Path, flags: int) -> None:
    names = os.fsencode(source), os.fsencode(target)
    if _libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), source)


def test_a_replaced_file_stays_readable_for_who_has_it_open(place: Path) -> None:
    old, new = place / "old", place / "new"
    old.write_bytes(b"old" * 1000)
    new.write_bytes(b"new")
    with open(old, "rb", buffering=0) as reader, open(old, "r+b", buffering=0) as writer:
        os.rename(new, old)
        assert reader.read() == b"old" * 1000
        assert os.fstat(reader.fileno()).st_nlink == 0
        writer.write(b"more")
        os.fsync(writer.fileno())
        reader.seek(0)
        assert reader.read(6) == b"moreld"
    assert old.read_bytes() == b"new"
    assert os.listdir(place) == ["old"]


def test_a_file_stays_open_while_it_is_renamed(place: Path) -> None:
    (place / "d").mkdir()
    with open(place / "a", "w+b", buffering=0) as file:
        file.write(b"one")
        os.rename(place / "a", place / "d" / "b")
        file.write(b"two")
    assert (place / "d" / "b").read_bytes() == b"onetwo"
    assert not (place / "a").exists()


def test_rename_between_links_of_one_file_does_nothing(place: Path) -> None:
    (place / "a").write_text("x")
    os.link(place / "a", place / "b")
    os.rename(place / "a", place / "b")
    assert sorted(os.listdir(place)) == ["a", "b"]
    assert os.stat(place / "a").st_nlink == 2
    os.rename(place / "a", place / "a")
    assert (place / "a").read_text() == "x"


def test_rename_over_a_hard_link_takes_one_link_away(place: Path) -> None:
    (place / "a").write_text("a")
    os.link(place / "a", place / "a2")
    (place / "b").write_text("b")
    os.rename(place / "b", place / "a")
    assert (place / "a").read_text() == "b"
    assert (place / "a2").read_text() == "a"
    assert os.stat(place / "a2").st_nlink == 1


def test_directories_replace_only_empty_directories(place: Path) -> None:
    for name in ("from", "empty", "full"):
        (place / name).mkdir()
    (place / "from" / "file").write_text("x")
    (place / "full" / "file").touch()
    (place / "plain").touch()
    with refused(errno.ENOTEMPTY, errno.EEXIST):
        os.rename(place / "from", place / "full")
    with refused(errno.ENOTDIR):
        os.rename(place / "from", place / "plain")
    with refused(errno.EISDIR):
        os.rename(place / "plain", place / "empty")
    before = os.stat(place).st_nlink
    os.rename(place / "from", place / "empty")
    assert (place / "empty" / "file").read_text() == "x"
    assert os.stat(place).st_nlink == before - 1


def test_a_directory_does_not_move_into_itself(place: Path) -> None:
    (place / "a" / "b" / "c").mkdir(parents=True)
    for target in ("a/x", "a/b/x", "a/b/c/x", "a/b/c"):
        with refused(errno.EINVAL):
            os.rename(place / "a", place / target)
    for target in ("a", "a/b"):
        with refused(errno.ENOTEMPTY):
            os.rename(place / "a" / "b" / "c", place / target)


def test_link_counts_follow_directories(place: Path) -> None:
    (place / "a" / "sub").mkdir(parents=True)
    (place / "b").mkdir()
    os.rename(place / "a" / "sub", place / "b" / "sub")
    assert os.stat(place / "a").st_nlink == 2
    assert os.stat(place / "b").st_nlink == 3
    (place / "a" / "file").touch()
    renameat2(place / "a" / "file", place / "b" / "sub", EXCHANGE)
    assert os.stat(place / "a").st_nlink == 3
    assert os.stat(place / "b").st_nlink == 2


def test_noreplace_refuses_an_existing_target(place: Path) -> None:
    (place / "a").write_text("a")
    (place / "b").write_text("b")
    with refused(errno.EEXIST):
        renameat2(place / "a", place / "b", NOREPLACE)
    os.symlink("nowhere", place / "link")
    with refused(errno.EEXIST):
        renameat2(place / "a", place / "link", NOREPLACE)
    renameat2(place / "a", place / "c", NOREPLACE)
    assert (place / "c").read_text() == "a"
    with refused(errno.EINVAL):
        renameat2(place / "b", place / "c", NOREPLACE | EXCHANGE)
    with refused(errno.EINVAL):
        renameat2(place / "b", place / "c", 64)


def test_exchange_swaps_any_two(place: Path) -> None:
    (place / "dir" / "sub").mkdir(parents=True)
    (place / "file").write_text("f")
    os.symlink("file", place / "link")
    renameat2(place / "dir", place / "file", EXCHANGE)
    assert (place / "file" / "sub").is_dir()
    assert (place / "dir").read_text() == "f"
    renameat2(place / "link", place / "dir", EXCHANGE)
    assert os.readlink(place / "dir") == "file"
    assert (place / "link").read_text() == "f"
    with refused(errno.ENOENT):
        renameat2(place / "link", place / "nothing", EXCHANGE)
    with refused(errno.EINVAL):
        renameat2(place / "file", place / "file" / "sub", EXCHANGE)


def test_whiteout_leaves_a_device_of_number_zero(place: Path) -> None:
    (place / "d").mkdir()
    (place / "a").write_text("x")
    renameat2(place / "a", place / "d" / "b", WHITEOUT)
    left = os.lstat(place / "a")
    assert stat.S_ISCHR(left.st_mode)
    assert left.st_rdev == 0
    assert (place / "d" / "b").read_text() == "x"
    (place / "c").write_text("c")
    with refused(errno.EEXIST):
        renameat2(place / "c", place / "d" / "b", WHITEOUT | NOREPLACE)
    renameat2(place / "c", place / "d" / "b", WHITEOUT)
    assert (place / "d" / "b").read_text() == "c"
    assert stat.S_ISCHR(os.lstat(place / "c").st_mode)
    with refused(errno.EINVAL):
        renameat2(place / "a", place / "c", WHITEOUT | EXCHANGE)


def test_save_by_rename_shows_old_or_new_and_nothing_else(place: Path) -> None:
    """As editors and writers of checkpoints do, while readers hold and reopen the file."""
    path, size = place / "state", 100_000
    path.write_bytes(b"\0" * size)
    with open(path, "rb", buffering=0) as first:
        done = threading.Event()
        problems: list[str] = []

        def read() -> None:
            while not done.is_set():
                content = path.read_bytes()
                if len(content) != size or len(set(content)) != 1:
                    problems.append(f"{len(content)} bytes, {set(content)}")
                    return

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        try:
            for number in range(1, 31):
                fresh = place / f".state.{number}"
                with open(fresh, "xb") as file:
                    file.write(bytes([number]) * size)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(fresh, path)
        finally:
            done.set()
            for reader in readers:
                reader.join()
        assert not problems
        assert first.read() == b"\0" * size
    assert path.read_bytes() == bytes([30]) * size


@pytest.mark.parametrize("kind", ["fifo", "symlink", "socket"])
def test_other_kinds_replace_files_and_are_replaced(place: Path, kind: str) -> None:
    special, plain = place / "special", place / "plain"
    if kind == "symlink":
        os.symlink("nowhere", special)
    else:
        os.mknod(special, (stat.S_IFIFO if kind == "fifo" else stat.S_IFSOCK) | 0o600)
    mode = os.lstat(special).st_mode
    plain.write_text("x")
    os.rename(special, plain)
    assert os.lstat(plain).st_mode == mode
    (place / "next").write_text("y")
    os.rename(place / "next", plain)
    assert plain.read_text() == "y"


def test_missing_things_are_told(place: Path) -> None:
    (place / "file").touch()
    for source, target, code in (
        ("none", "x", errno.ENOENT),
        ("file", "none/x", errno.ENOENT),
        ("file", "file/x", errno.ENOTDIR),
        ("file/x", "y", errno.ENOTDIR),
    ):
        with refused(code):
            os.rename(place / source, place / target)
