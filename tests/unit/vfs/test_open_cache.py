"""What opens are told without asking the metadata, and when no longer."""

from __future__ import annotations

from juicepy.types import Attr, Inode, Kind, Slice, SliceId
from juicepy.vfs.open_cache import OpenCache

ONE, TWO, THREE = Inode(1), Inode(2), Inode(3)
VIEW = {0: [Slice(0, SliceId(7), 10, 0, 10)]}


def attr(length: int, mtime_ns: int = 5) -> Attr:
    return Attr(Kind.FILE, 0o644, length=length, mtime_ns=mtime_ns)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_what_was_told_ends_in_time() -> None:
    clock = Clock()
    cache = OpenCache(10.0, clock=clock)
    cache.note(ONE, attr(10), cache.changes, VIEW)
    clock.now_s += 9.9
    assert cache.attr(ONE) == attr(10)
    assert cache.views(ONE, attr(10)) == VIEW
    clock.now_s += 0.2
    assert cache.attr(ONE) is None
    assert cache.views(ONE, attr(10)) == {}


def test_chunks_are_of_the_file_as_it_is() -> None:
    cache = OpenCache(10.0)
    cache.note(ONE, attr(10), cache.changes)
    cache.keep(ONE, 5, 10, VIEW)
    cache.keep(ONE, 6, 10, {1: []})
    assert cache.views(ONE, attr(10)) == VIEW
    assert cache.views(ONE, attr(10, mtime_ns=6)) == {}
    cache.note(ONE, attr(10), cache.changes)
    assert cache.views(ONE, attr(10)) == VIEW
    cache.note(ONE, attr(11), cache.changes)
    assert cache.views(ONE, attr(11)) == {}


def test_an_answer_older_than_a_change_is_not_kept() -> None:
    cache = OpenCache(10.0)
    changes = cache.changes
    cache.forget(ONE)
    cache.note(ONE, attr(10), changes)
    assert cache.attr(ONE) is None


def test_the_oldest_make_room() -> None:
    cache = OpenCache(10.0, limit=2)
    for ino in (ONE, TWO, THREE):
        cache.note(ino, attr(10), cache.changes)
    assert [cache.attr(ino) is not None for ino in (ONE, TWO, THREE)] == [False, True, True]


def test_nothing_is_kept_when_it_is_off() -> None:
    cache = OpenCache(0.0)
    cache.note(ONE, attr(10), cache.changes, VIEW)
    assert not cache.is_on
    assert cache.attr(ONE) is None
