"""Large directories: each entry exactly once, also while others come and go."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.posix.conftest import is_thrown_away

_libc = ctypes.CDLL(None, use_errno=True)
_libc.opendir.restype = _libc.readdir.restype = ctypes.c_void_p
_libc.telldir.restype = ctypes.c_long
_DIRENT_NAME = 19  # after inode, offset (8 bytes each), length (2) and type (1)


class Listing:
    """An open directory with the calls of C."""

    def __init__(self, path: Path) -> None:
        self._handle = ctypes.c_void_p(_libc.opendir(os.fsencode(path)))
        assert self._handle.value

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        _libc.closedir(self._handle)

    def next(self) -> bytes | None:
        entry = _libc.readdir(self._handle)
        return ctypes.string_at(entry + _DIRENT_NAME) if entry else None

    def rest(self) -> list[bytes]:
        return list(iter(self.next, None))

    def tell(self) -> int:
        return int(_libc.telldir(self._handle))

    def seek(self, position: int) -> None:
        _libc.seekdir(self._handle, ctypes.c_long(position))

    def rewind(self) -> None:
        _libc.rewinddir(self._handle)


def fill(folder: Path, names: Iterator[str]) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        for name in names:
            os.mknod(name, 0o100644, dir_fd=fd)
    finally:
        os.close(fd)


@pytest.fixture(scope="session")
def large(base: Path, ordinary_size: int) -> Iterator[Path]:
    """A directory with many entries `s<number>`, shared by the tests of this module."""
    path = base / "large"
    path.mkdir()
    fill(path, (f"s{number}" for number in range(ordinary_size)))
    yield path
    if not is_thrown_away(base):
        shutil.rmtree(path)
        assert not path.exists()


def test_stable_entries_are_listed_once_while_others_change(large: Path) -> None:
    check_listings(large)


def test_positions_are_returned_to(large: Path) -> None:
    check_positions(large)


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_hundred_thousand_entries_are_listed_and_removed(place: Path, great_size: int) -> None:
    fill(place, (f"s{number}" for number in range(great_size)))
    check_listings(place)
    check_positions(place)
    shutil.rmtree(place)
    assert not place.exists()


def check_listings(folder: Path) -> None:
    """Each entry `s...` is listed exactly once, whatever happens to others in between."""
    size = sum(1 for _ in os.scandir(folder))
    done = threading.Event()

    def change() -> None:
        """A name is added; ten later it is renamed, twenty later removed."""
        for number in itertools.count():
            if done.is_set():
                break
            (folder / f"x{number}").touch()
            if number >= 10:
                os.rename(folder / f"x{number - 10}", folder / f"y{number - 10}")
            if number >= 20:
                os.unlink(folder / f"y{number - 20}")

    writer = threading.Thread(target=change)
    writer.start()
    try:
        listings = []
        with Listing(folder) as listing:
            listings.append(listing.rest())
            listing.rewind()
            listings.append(listing.rest())
    finally:
        done.set()
        writer.join()
    for name in os.listdir(folder):
        if name[0] in "xy":
            os.unlink(folder / name)
    for names in listings:
        counts = Counter(names)
        assert sum(name[:1] == b"s" for name in counts) == size
        assert max(counts[name] for name in counts if name[:1] == b"s") == 1
        others = sum(count for name, count in counts.items() if name[:1] in b"xy")
        assert others <= 2 * len({name for name in counts if name[:1] in b"xy"}) + 10
        assert counts[b"."] == counts[b".."] == 1


def check_positions(folder: Path) -> None:
    """telldir, seekdir and rewinddir lead back to the same entries."""
    with Listing(folder) as listing:
        marks = []
        for number in itertools.count():
            position = listing.tell()
            name = listing.next()
            if name is None:
                break
            if number % 997 == 0:
                marks.append((position, name))
        for position, name in reversed(marks):
            listing.seek(position)
            assert listing.next() == name
        listing.seek(marks[len(marks) // 2][0])
        rest = listing.rest()
        listing.rewind()
        everything = listing.rest()
        assert everything[-len(rest) :] == rest
        assert len(everything) == len(set(everything)) == len(os.listdir(folder)) + 2


def test_rewinding_shows_what_is_new(place: Path) -> None:
    (place / "a").touch()
    with Listing(place) as listing:
        assert sorted(listing.rest()) == [b".", b"..", b"a"]
        (place / "b").touch()
        os.unlink(place / "a")
        listing.rewind()
        assert sorted(listing.rest()) == [b".", b"..", b"b"]


def test_entries_removed_while_listing_do_not_hide_others(place: Path) -> None:
    """As rm -r does: list some, remove them, go on."""
    fill(place, (f"f{number}" for number in range(1500)))
    seen = Counter[bytes]()
    with Listing(place) as listing:
        while (name := listing.next()) is not None:
            seen[name] += 1
            if name not in (b".", b".."):
                os.unlink(os.fsencode(place) + b"/" + name)
    assert len(seen) == 1502
    assert max(seen.values()) == 1
    assert os.listdir(place) == []


def test_renamed_entries_are_listed_once_or_twice_but_not_forever(place: Path) -> None:
    fill(place, (f"f{number}" for number in range(500)))
    count = 0
    with Listing(place) as listing:
        while (name := listing.next()) is not None and count < 5000:
            if name not in (b".", b".."):
                count += 1
                path = os.fsencode(place) + b"/"
                os.rename(path + name, path + b"r%d" % count)
    assert 500 <= count < 5000
    assert len(os.listdir(place)) == 500


def test_kinds_are_told_by_listings(place: Path) -> None:
    (place / "f").touch()
    (place / "d").mkdir()
    os.symlink("f", place / "l")
    os.mkfifo(place / "p")
    with os.scandir(place) as entries:
        found = {
            entry.name: (entry.is_file(follow_symlinks=False), entry.is_dir(), entry.is_symlink())
            for entry in entries
        }
    assert found == {
        "f": (True, False, False),
        "d": (False, True, False),
        "l": (False, False, True),
        "p": (False, False, False),
    }
    with os.scandir(place) as entries:
        for entry in entries:
            assert entry.inode() == os.lstat(entry.path).st_ino


def test_link_counts_of_directories(place: Path) -> None:
    assert os.stat(place).st_nlink == 2
    for number in range(5):
        (place / f"d{number}").mkdir()
        (place / f"f{number}").touch()
    assert os.stat(place).st_nlink == 7
    os.rmdir(place / "d0")
    assert os.stat(place).st_nlink == 6
