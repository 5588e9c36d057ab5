from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from juicepy.types import ROOT, Attr, DirEntry, Inode, Kind
from juicepy.vfs.handles import DirHandle, HandleTable, handle_numbers
from tests.unit.vfs.volumes import ME, close, create, names, opened


class Directory:
    """A directory of `count` names that comes in pages of ten."""

    def __init__(self, count: int) -> None:
        self.names = [b"%03d" % n for n in range(count)]
        self.listings = 0

    def pages(self, plus: bool) -> Iterator[list[DirEntry]]:
        self.listings += 1
        for start in range(0, len(self.names), 10):
            yield [
                DirEntry(name, Inode(2), Kind.FILE, Attr(Kind.FILE, 0o644) if plus else None)
                for name in self.names[start : start + 10]
            ]

    def handle(self) -> DirHandle:
        return DirHandle(ROOT, self.pages)


def taken(handle: DirHandle, offset: int, count: int) -> list[tuple[int, bytes]]:
    stream = handle.stream(offset, plus=True)
    return [(cookie, entry.name) for (cookie, entry), _ in zip(stream, range(count), strict=False)]


def test_listing_goes_on_at_any_cookie_it_gave() -> None:
    directory = Directory(35)
    handle = directory.handle()
    all_entries = taken(handle, 0, 100)
    assert [name for _, name in all_entries] == directory.names
    for cookie, name in all_entries[:-1]:
        assert taken(handle, cookie, 1)[0][1] == b"%03d" % (int(name) + 1)
    assert taken(handle, all_entries[-1][0], 1) == []
    assert directory.listings == 1


def test_offset_0_lists_anew() -> None:
    directory = Directory(5)
    handle = directory.handle()
    assert len(taken(handle, 0, 100)) == 5
    directory.names = [b"new"]
    assert taken(handle, 3, 1) == [(4, b"003")]
    assert taken(handle, 0, 100) == [(1, b"new")]


def test_pages_are_fetched_when_they_are_needed() -> None:
    directory = Directory(35)
    handle = directory.handle()
    assert len(taken(handle, 0, 3)) == 3
    directory.names = directory.names[:10]
    assert len(taken(handle, 3, 100)) == 7


def test_attributes_are_there_for_entries_in_order() -> None:
    handle = Directory(95).handle()
    assert all(entry.attr is not None for _, entry in handle.stream(0, plus=True))


def test_large_directory_that_is_open_takes_little_memory() -> None:
    """As long as it is open: rm -r of many entries reads them all first."""
    handle = DirHandle(ROOT, numbered_pages)
    tracemalloc.start()
    try:
        assert sum(1 for _ in handle.stream(0, plus=True)) == 100_000
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 5 << 20
    assert taken(handle, 54_321, 1) == [(54_322, b"s54321")]
    assert len({name for _, name in taken(handle, 1, 100_000)}) == 99_999


def numbered_pages(plus: bool) -> Iterator[list[DirEntry]]:
    for begin in range(0, 100_000, 2000):
        yield [
            DirEntry(b"s%d" % n, Inode(n + 2), Kind.FILE, Attr(Kind.FILE, 0o644) if plus else None)
            for n in range(begin, begin + 2000)
        ]


def test_threads_on_one_handle_see_the_same_entries() -> None:
    directory = Directory(500)
    handle = directory.handle()
    taken(handle, 0, 1)
    with ThreadPoolExecutor(4) as pool:
        lists = list(pool.map(lambda _: taken(handle, 1, 1000), range(4)))
    assert all(found == lists[0] for found in lists)
    assert len(lists[0]) == 499
    assert directory.listings == 1


def test_handle_numbers_are_never_used_again() -> None:
    numbers = handle_numbers()
    table: HandleTable[str] = HandleTable(numbers)
    first = table.add("first")
    assert table.remove(first) == "first"
    assert table.add("second") != first
    for work in (table.get, table.remove):
        with pytest.raises(OSError, match="Bad file descriptor"):
            work(first)


def test_names_removed_while_listing_do_no_harm() -> None:
    with opened() as vfs:
        for number in range(20):
            close(vfs, *create(vfs, b"f%d" % number))
        directory = vfs.opendir(ME, ROOT, 0)
        seen = []
        for _, entry in vfs.readdir(ME, ROOT, directory.fh, 0, plus=True):
            seen.append(entry.name)
            if entry.name.startswith(b"f"):
                vfs.unlink(ME, ROOT, entry.name)
        assert len([name for name in seen if name.startswith(b"f")]) == 20
        assert [name for name in names(vfs) if name.startswith(b"f")] == []


def test_removed_open_directory_can_be_looked_at() -> None:
    with opened() as vfs:
        found = vfs.mkdir(ME, ROOT, b"d", 0o751, 0)
        handle = vfs.opendir(ME, found.ino, 0)
        vfs.rmdir(ME, ROOT, b"d")
        attr, timeout_s = vfs.getattr(ME, found.ino, None)
        assert (attr.mode, attr.nlink, timeout_s) == (0o751, 0, 0)
        vfs.releasedir(ME, found.ino, handle.fh)
        with pytest.raises(FileNotFoundError):
            vfs.getattr(ME, found.ino, None)


def test_open_directory_replaced_by_a_rename_can_be_looked_at() -> None:
    with opened() as vfs:
        vfs.mkdir(ME, ROOT, b"new", 0o700, 0)
        old = vfs.mkdir(ME, ROOT, b"old", 0o751, 0)
        handle = vfs.opendir(ME, old.ino, 0)
        vfs.rename(ME, ROOT, b"new", ROOT, b"old", 0)
        assert vfs.getattr(ME, old.ino, None)[0].nlink == 0
        vfs.releasedir(ME, old.ino, handle.fh)


def test_listing_is_sorted_on_request() -> None:
    with opened(sort_dir=True, hide_internal=True) as vfs:
        for name in (b"c", b"a", b"b"):
            close(vfs, *create(vfs, name))
        assert names(vfs) == [b".", b"..", b"a", b"b", b"c"]
