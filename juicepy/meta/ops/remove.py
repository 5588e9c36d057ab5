"""Transactions that take a name away: unlink, rmdir, and the end of an inode without names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from errno import EISDIR, ENOENT, ENOTDIR, ENOTEMPTY

from juicepy.errors import posix_error
from juicepy.meta import rules
from juicepy.meta.effects import Effects
from juicepy.meta.ops.common import allow, need_dir, touch_parent
from juicepy.meta.tx import Tx
from juicepy.types import SKIP_TRASH, Attr, Cred, Entry, Inode, Kind, SessionId


@dataclass(frozen=True, slots=True)
class Removal:
    """How a name goes: into the hourly directory `trash` (None: for good), in session `sid`.

    `is_open` tells whether this session has the inode open: then its data outlives the name.
    """

    trash: Inode | None
    sid: SessionId
    is_open: Callable[[Inode], bool]
    now_ns: int
    skip_ns: int

    @property
    def now_s(self) -> int:
        return self.now_ns // 10**9


def unlink(
    tx: Tx, parent_ino: Inode, name: bytes, cred: Cred, removal: Removal
) -> tuple[Inode, Effects]:
    """Remove a name that is not a directory's. ENOENT, EISDIR, EACCES, EPERM."""
    parent, entry = _named(tx, parent_ino, name, cred)
    if entry.kind is Kind.DIR:
        raise posix_error(EISDIR, name)
    effects = Effects()
    attr = tx.attr(entry.ino)
    if attr is not None:
        rules.check_remove(parent_ino, parent, attr, cred)
        take_file(tx, parent_ino, name, entry, attr, removal, effects)
    tx.drop_entry(parent_ino, name)
    touch_parent(tx, parent_ino, parent, removal.now_ns, removal.skip_ns)
    return entry.ino, effects


def rmdir(
    tx: Tx, parent_ino: Inode, name: bytes, cred: Cred, removal: Removal
) -> tuple[Inode, Effects]:
    """Remove an empty directory. ENOENT, ENOTDIR, ENOTEMPTY, EACCES, EPERM."""
    parent, entry = _named(tx, parent_ino, name, cred)
    if entry.kind is not Kind.DIR:
        raise posix_error(ENOTDIR, name)
    tx.fetch(("attr", entry.ino), ("empty", entry.ino))
    effects = Effects()
    attr = tx.attr(entry.ino)
    if attr is not None:
        rules.check_remove(parent_ino, parent, attr, cred)
        if not tx.is_empty(entry.ino):
            raise posix_error(ENOTEMPTY, name)
        take_dir(tx, parent_ino, name, entry, attr, removal, effects)
    tx.drop_entry(parent_ino, name)
    touch_parent(tx, parent_ino, parent, removal.now_ns, removal.skip_ns, nlink=-1)
    return entry.ino, effects


def _named(tx: Tx, parent_ino: Inode, name: bytes, cred: Cred) -> tuple[Attr, Entry]:
    """A directory that `cred` may take names from, and the entry of the name. ENOENT, EACCES."""
    tx.fetch(("dir", parent_ino), ("entry", parent_ino, name))
    parent = need_dir(tx, parent_ino)
    allow(tx, parent, cred, rules.WRITE | rules.EXEC)
    entry = tx.entry(parent_ino, name)
    if entry is None:
        raise posix_error(ENOENT, name)
    return parent, entry


def take_file(
    tx: Tx,
    parent: Inode,
    name: bytes,
    entry: Entry,
    attr: Attr,
    removal: Removal,
    effects: Effects,
) -> None:
    """Account for a file that loses the name `parent`/`name`: to the trash, or one link less."""
    ino = entry.ino
    effects.child(parent, attr, -1)
    if not rules.is_trash(parent):
        effects.quota(parent, -attr.space, -1)
    if _goes_to_trash(parent, attr, removal):
        trash = removal.trash
        assert trash is not None
        trash_name = rules.trash_name(parent, ino, name)
        if attr.nlink == 1 or tx.entry(trash, trash_name) is None:
            _to_trash(tx, parent, trash, trash_name, entry, attr, removal, effects)
            return
    nlink = attr.nlink - 1
    if nlink > 0:
        tx.set_attr(ino, attr.with_(nlink=nlink, ctime_ns=removal.now_ns))
        if attr.parent == 0:
            tx.count_parent(ino, parent, -1)
    elif attr.kind is Kind.FILE and removal.is_open(ino):
        tx.set_attr(ino, attr.with_(nlink=0, ctime_ns=removal.now_ns))
        tx.sustain(removal.sid, ino, on=True)
        tx.writes.parents_dropped.add(ino)
        effects.sustained.append(ino)
    else:
        end_inode(tx, ino, attr, removal.now_s, effects)


def _goes_to_trash(parent: Inode, attr: Attr, removal: Removal) -> bool:
    return removal.trash is not None and not rules.is_trash(parent) and not attr.flags & SKIP_TRASH


def _to_trash(
    tx: Tx,
    parent: Inode,
    trash: Inode,
    trash_name: bytes,
    entry: Entry,
    attr: Attr,
    removal: Removal,
    effects: Effects,
) -> None:
    moved = attr.with_(ctime_ns=removal.now_ns)
    if attr.parent:
        moved.parent = trash
    else:
        tx.count_parent(entry.ino, trash, 1)
        tx.count_parent(entry.ino, parent, -1)
    tx.set_attr(entry.ino, moved)
    tx.set_entry(trash, trash_name, entry)
    effects.child(trash, attr, 1)


def end_inode(tx: Tx, ino: Inode, attr: Attr, now_s: int, effects: Effects) -> None:
    """The last name and the last handle are gone: drop the records, leave the data to clean-up."""
    tx.drop_inode(ino)
    tx.use(space=-attr.space, inodes=-1)
    effects.owner(attr, -attr.space, -1)
    if attr.kind is Kind.FILE:
        tx.delete_file(ino, attr.length, now_s)
        effects.deleted.append((ino, attr.length))
    elif attr.kind is Kind.SYMLINK:
        tx.drop_link(ino)


def take_dir(
    tx: Tx,
    parent: Inode,
    name: bytes,
    entry: Entry,
    attr: Attr,
    removal: Removal,
    effects: Effects,
) -> None:
    """Account for an empty directory that loses its name."""
    effects.child(parent, attr, -1)
    if not rules.is_trash(parent):
        effects.quota(parent, -attr.space, -1)
    tx.drop_directory_records(entry.ino)
    if _goes_to_trash(parent, attr, removal):
        trash = removal.trash
        assert trash is not None
        tx.set_attr(entry.ino, attr.with_(parent=trash, ctime_ns=removal.now_ns))
        tx.set_entry(trash, rules.trash_name(parent, entry.ino, name), entry)
        effects.child(trash, attr, 1)
        return
    tx.drop_inode(entry.ino)
    tx.use(space=-attr.space, inodes=-1)
    effects.owner(attr, -attr.space, -1)


def release_sustained(tx: Tx, sid: SessionId, ino: Inode, now_s: int) -> Effects:
    """The last handle of an unlinked file is closed, or its session is dead."""
    effects = Effects()
    attr = tx.attr(ino)
    tx.sustain(sid, ino, on=False)
    if attr is not None and attr.nlink == 0:
        end_inode(tx, ino, attr, now_s, effects)
    return effects
