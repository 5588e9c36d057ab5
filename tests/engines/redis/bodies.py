"""Small transaction bodies for the tests of the Redis engine."""

from __future__ import annotations

import errno
from collections.abc import Callable

from juicepy.errors import posix_error
from juicepy.meta.tx import Tx
from juicepy.types import ROOT, Attr, Entry, Inode, Kind

NOW_NS = 1_700_000_000_000_000_005


def make(
    ino: int, name: bytes, kind: Kind = Kind.FILE, parent: Inode = ROOT
) -> Callable[[Tx], int]:
    """Adds a name; tells the mode of the directory as it was seen."""

    def body(tx: Tx) -> int:
        tx.fetch(("dir", parent), ("entry", parent, name))
        directory = tx.directory(parent)
        if directory is None:
            raise posix_error(errno.ENOENT)
        if tx.entry(parent, name) is not None:
            raise posix_error(errno.EEXIST, name)
        is_dir = kind is Kind.DIR
        new = Attr(kind, 0o644, nlink=2 if is_dir else 1, length=4096 if is_dir else 0)
        tx.make_inode(Inode(ino), new.with_(parent=parent))
        tx.set_entry(parent, name, Entry(Inode(ino), kind))
        tx.touch(parent, nlink=int(is_dir), time_ns=NOW_NS)
        tx.use(space=4096, inodes=1)
        if is_dir:
            tx.make_stats(Inode(ino))
        return directory.mode

    return body


def remove(name: bytes, parent: Inode = ROOT) -> Callable[[Tx], Inode]:
    """Removes a name and its inode; an empty directory too."""

    def body(tx: Tx) -> Inode:
        tx.fetch(("dir", parent), ("entry", parent, name))
        entry = tx.entry(parent, name)
        if entry is None:
            raise posix_error(errno.ENOENT, name)
        attr = tx.attr(entry.ino)
        if attr is None:
            raise posix_error(errno.EIO)
        if attr.is_dir and not tx.is_empty(entry.ino):
            raise posix_error(errno.ENOTEMPTY)
        tx.drop_entry(parent, name)
        tx.drop_inode(entry.ino)
        tx.touch(parent, nlink=-int(attr.is_dir))
        tx.use(space=-4096, inodes=-1)
        return entry.ino

    return body


def move(old: bytes, new: bytes, parent: Inode = ROOT) -> Callable[[Tx], None]:
    """Renames within a directory, to a free name."""

    def body(tx: Tx) -> None:
        tx.fetch(("dir", parent), ("entry", parent, old), ("entry", parent, new))
        entry = tx.entry(parent, old)
        if entry is None:
            raise posix_error(errno.ENOENT, old)
        if tx.entry(parent, new) is not None:
            raise posix_error(errno.EEXIST, new)
        attr = tx.attr(entry.ino)
        assert attr is not None
        tx.drop_entry(parent, old)
        tx.set_entry(parent, new, entry)
        tx.set_attr(entry.ino, attr.with_(ctime_ns=NOW_NS))
        tx.touch(parent, time_ns=NOW_NS)

    return body


def grow(ino: int, by: int) -> Callable[[Tx], int]:
    """Adds to an inode's length."""

    def body(tx: Tx) -> int:
        attr = tx.attr(Inode(ino))
        if attr is None:
            raise posix_error(errno.ENOENT)
        tx.set_attr(Inode(ino), attr.with_(length=attr.length + by))
        return attr.length + by

    return body
