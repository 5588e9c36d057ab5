"""Names are bytes, paths and links have the lengths of Linux."""

from __future__ import annotations

import errno
import os
import unicodedata
from pathlib import Path

import pytest

from tests.support.users import refused

ODD_NAMES = [
    b"\xff\xfe\x80",  # no UTF-8
    b"two\nlines",
    b"-rf",
    b" ",
    b"...",
    b"\\",
    b"\x01\x7f",
    b"a:b*c?d<e>f|g\"h'i",
    "日本語".encode(),
    b"x" * 255,
    ("é" * 127).encode() + b"x",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_bytes_are_a_name(place: Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(place), name)
    with open(path, "xb") as file:
        file.write(name)
    assert os.listdir(os.fsencode(place)) == [name]
    with open(path, "rb") as file:
        assert file.read() == name
    os.rename(path, path[:-1] + b"!")
    assert os.listdir(os.fsencode(place)) == [name[:-1] + b"!"]


def test_composed_and_decomposed_names_differ(place: Path) -> None:
    names = [unicodedata.normalize(form, "Ångström") for form in ("NFC", "NFD")]
    for name in names:
        (place / name).write_text(name)
    (place / "ångström").write_text("lower")
    assert sorted(os.listdir(place)) == sorted([*names, "ångström"])
    assert [(place / name).read_text() for name in names] == names


def test_a_name_of_256_bytes_is_refused_everywhere(place: Path) -> None:
    name, old = place / ("n" * 256), place / "old"
    old.touch()
    calls = [
        lambda: name.touch(),
        lambda: name.mkdir(),
        lambda: os.symlink("x", name),
        lambda: os.link(old, name),
        lambda: os.rename(old, name),
        lambda: os.mkfifo(name),
        lambda: os.stat(name),
        lambda: os.unlink(name),
        lambda: os.rmdir(name),
    ]
    for call in calls:
        with refused(errno.ENAMETOOLONG):
            call()
    assert os.listdir(place) == ["old"]


def test_paths_reach_4095_bytes(place: Path) -> None:
    deep = os.fsencode(place)
    while len(deep) + 201 < 4095 - 10:
        deep += b"/" + b"d" * 200
        os.mkdir(deep)
    path = deep + b"/" + b"f" * (4095 - len(deep) - 1)
    assert len(path) == 4095
    if len(path) - len(deep) - 1 > 255:
        deep += b"/e"
        os.mkdir(deep)
        path = deep + b"/" + b"f" * (4095 - len(deep) - 1)
    with open(path, "xb") as file:
        file.write(b"deep")
    assert os.stat(path).st_size == 4
    with refused(errno.ENAMETOOLONG):
        os.stat(path + b"f")


def test_directories_nest_beyond_the_longest_path(place: Path) -> None:
    fd = os.open(place, os.O_RDONLY)
    try:
        for _ in range(25):
            os.mkdir("d" * 250, dir_fd=fd)
            below = os.open("d" * 250, os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.mkdir("last", dir_fd=fd)
        assert os.listdir(fd) == ["last"]
        for _ in range(25):
            above = os.open("..", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = above
        assert os.path.samestat(os.fstat(fd), os.stat(place))
    finally:
        os.close(fd)


@pytest.mark.parametrize("length", [1, 255, 256, 1023, 4000, 4095])
def test_symlinks_hold_their_target_unread(place: Path, length: int) -> None:
    target, link = "t" * length, place / "link"
    os.symlink(target, link)
    assert os.readlink(link) == target
    stat = os.lstat(link)
    assert stat.st_size == length
    assert stat.st_mode == 0o120777


def test_a_symlink_target_of_4096_bytes_is_refused(place: Path) -> None:
    with refused(errno.ENAMETOOLONG):
        os.symlink("t" * 4096, place / "link")
    with refused(errno.ENOENT):
        os.symlink("", place / "empty")


def test_symlinks_are_followed_where_a_path_goes_on(place: Path) -> None:
    (place / "dir").mkdir()
    (place / "dir" / "file").write_text("x")
    os.symlink("dir", place / "link")
    os.symlink("link/file", place / "chain")
    os.symlink(place / "dir" / "new", place / "dangling")
    assert (place / "chain").read_text() == "x"
    assert os.stat(place / "link").st_ino == os.stat(place / "dir").st_ino
    (place / "dangling").write_text("made through the link")
    assert (place / "dir" / "new").exists()
    with refused(errno.EEXIST):
        os.open(place / "dangling", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    with refused(errno.ELOOP):
        os.open(place / "chain", os.O_RDONLY | os.O_NOFOLLOW)
    with refused(errno.ENOTDIR):
        os.rmdir(place / "link")
    os.unlink(place / "link")
    assert (place / "dir" / "file").exists()


def test_loops_of_symlinks_end_in_eloop(place: Path) -> None:
    os.symlink("b", place / "a")
    os.symlink("a", place / "b")
    os.symlink("self", place / "self")
    for name in ("a", "self", "a/below"):
        with refused(errno.ELOOP):
            os.stat(place / name)
    (place / "l0").write_text("end")
    for number in range(1, 42):
        os.symlink(f"l{number - 1}", place / f"l{number}")
    assert (place / "l40").read_text() == "end"
    with refused(errno.ELOOP):
        (place / "l41").read_text()


def test_dot_dot_follows_a_directory_that_moves(place: Path) -> None:
    (place / "a" / "sub").mkdir(parents=True)
    (place / "b").mkdir()
    fd = os.open(place / "a" / "sub", os.O_RDONLY)
    try:
        os.rename(place / "a" / "sub", place / "b" / "moved")
        assert os.path.samestat(os.stat("..", dir_fd=fd), os.stat(place / "b"))
        os.rename(place / "b", place / "c")
        assert sorted(os.listdir(place)) == ["a", "c"]
        assert os.path.samestat(os.stat("../..", dir_fd=fd), os.stat(place))
        os.mkdir("child", dir_fd=fd)
        assert (place / "c" / "moved" / "child").is_dir()
    finally:
        os.close(fd)


def test_trailing_slashes_and_dots(place: Path) -> None:
    os.mkdir(f"{place}/dir/")
    (place / "file").touch()
    assert os.stat(f"{place}/dir/.").st_ino == os.stat(f"{place}/dir/").st_ino
    with refused(errno.ENOTDIR):
        os.stat(f"{place}/file/")
    with refused(errno.ENOTDIR):
        os.stat(f"{place}/file/.")
    with refused(errno.EINVAL):
        os.rmdir(f"{place}/dir/.")
    with refused(errno.ENOTEMPTY):
        os.rmdir(f"{place}/dir/..")
    with refused(errno.EISDIR, errno.ENOENT):
        os.open(f"{place}/new/", os.O_CREAT | os.O_WRONLY)
    with refused(errno.EBUSY):
        os.rename(f"{place}/dir/.", f"{place}/other")
