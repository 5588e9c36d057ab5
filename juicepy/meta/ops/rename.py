"""The transaction that moves a name: rename, with NOREPLACE, EXCHANGE and WHITEOUT."""

from __future__ import annotations

from dataclasses import dataclass
from errno import EEXIST, EINVAL, ENOENT, EPERM

from juicepy.errors import posix_error
from juicepy.meta import rules
from juicepy.meta.effects import Effects
from juicepy.meta.ops.common import allow, need, need_dir, touch_parent
from juicepy.meta.ops.create import insert
from juicepy.meta.ops.remove import Removal, take_dir, take_file
from juicepy.meta.tx import Tx
from juicepy.types import APPEND, IMMUTABLE, ROOT, Attr, Cred, Entry, Inode, Kind


@dataclass(frozen=True, slots=True)
class Move:
    """From `parent`/`name` to `parent2`/`name2`; flags as renameat2(2) numbers them.

    `whiteout`: the inode, allocated before, of the device 0:0 that WHITEOUT leaves at the old name.
    """

    parent: Inode
    name: bytes
    parent2: Inode
    name2: bytes
    flags: int = 0
    whiteout: Inode | None = None

    @property
    def crosses(self) -> bool:
        return self.parent != self.parent2


@dataclass(frozen=True, slots=True)
class Moved:
    ino: Inode
    replaced: Inode | None
    effects: Effects


def rename(tx: Tx, move: Move, cred: Cred, removal: Removal) -> Moved:
    """Move a name, replacing what may be replaced. ENOENT, EEXIST, EINVAL, EPERM, EACCES, ..."""
    rules.check_rename_flags(move.flags)
    tx.fetch(
        ("dir", move.parent),
        ("dir", move.parent2),
        ("entry", move.parent, move.name),
        ("entry", move.parent2, move.name2),
    )
    parent, parent2 = need_dir(tx, move.parent), need_dir(tx, move.parent2)
    allow(tx, parent, cred, rules.WRITE | rules.EXEC)
    allow(tx, parent2, cred, rules.WRITE | rules.EXEC)
    source, target = tx.entry(move.parent, move.name), tx.entry(move.parent2, move.name2)
    if source is None:
        raise posix_error(ENOENT, move.name)
    rules.check_insert(move.parent2, parent2)
    if target is not None and move.flags & rules.NOREPLACE:
        raise posix_error(EEXIST, move.name2)
    if target is None and move.flags & rules.EXCHANGE:
        raise posix_error(ENOENT, move.name2)
    if target is not None and target.ino == source.ino:
        return Moved(source.ino, None, Effects())
    tx.fetch(("attr", source.ino), *([("attr", target.ino)] if target else []))
    attr = need(tx, source.ino)
    rules.check_remove(move.parent, parent, attr, cred)
    _check_cycle(tx, move, move.parent2, source)
    if move.crosses and attr.is_dir:
        allow(tx, attr, cred, rules.WRITE)  # its `..` changes
    if target is not None and move.flags & rules.EXCHANGE:
        return _exchange(tx, move, cred, removal, source, attr, target)
    return _move(tx, move, cred, removal, source, attr, target)


def _check_cycle(tx: Tx, move: Move, below: Inode, source: Entry) -> None:
    """EINVAL if a directory would come to lie below itself."""
    if source.kind is not Kind.DIR or not move.crosses:
        return
    ino = below
    while ino != ROOT and not rules.is_trash(ino):
        if ino == source.ino:
            raise posix_error(EINVAL)
        attr = tx.directory(ino)
        if attr is None or attr.parent == 0:
            return
        ino = attr.parent


def _move(
    tx: Tx,
    move: Move,
    cred: Cred,
    removal: Removal,
    source: Entry,
    attr: Attr,
    target: Entry | None,
) -> Moved:
    parent, parent2 = need_dir(tx, move.parent), need_dir(tx, move.parent2)
    effects = Effects()
    replaced_dir = 0
    if target is not None:
        replaced_dir = _replace(tx, move, cred, removal, parent2, source, target, effects)
    if move.whiteout is None:
        tx.drop_entry(move.parent, move.name)
    else:
        blank, _ = rules.new_attr(
            move.parent, parent, Kind.CHAR, 0, cred, removal.now_ns, umask=0, default=None
        )
        insert(tx, move.parent, move.name, move.whiteout, blank, effects)
    tx.set_entry(move.parent2, move.name2, source)
    _rehome(tx, source, attr, move.parent, move.parent2, removal.now_ns, effects)
    moved_dir = 1 if attr.is_dir and move.crosses else 0
    times = (removal.now_ns, removal.skip_ns)
    touch_parent(tx, move.parent, parent, *times, nlink=-moved_dir)
    touch_parent(tx, move.parent2, parent2, *times, nlink=moved_dir - replaced_dir)
    return Moved(source.ino, target.ino if target else None, effects)


def _replace(
    tx: Tx,
    move: Move,
    cred: Cred,
    removal: Removal,
    parent2: Attr,
    source: Entry,
    target: Entry,
    effects: Effects,
) -> int:
    """Take the target's name away; 1 if it was a directory."""
    is_dir = target.kind is Kind.DIR
    is_empty = tx.is_empty(target.ino) if is_dir and source.kind is Kind.DIR else True
    rules.check_replace(source.kind, target.kind, is_empty=is_empty)
    attr = tx.attr(target.ino)
    if attr is None:
        return int(is_dir)
    rules.check_remove(move.parent2, parent2, attr, cred)
    take = take_dir if is_dir else take_file
    take(tx, move.parent2, move.name2, target, attr, removal, effects)
    return int(is_dir)


def _rehome(
    tx: Tx, entry: Entry, attr: Attr, old: Inode, new: Inode, now_ns: int, effects: Effects
) -> None:
    """The inode's own record and the accounting of a name that went from `old` to `new`."""
    moved = attr.with_(ctime_ns=now_ns)
    if old != new:
        if attr.parent:
            moved.parent = new
        else:
            tx.count_parent(entry.ino, old, -1)
            tx.count_parent(entry.ino, new, 1)
        effects.child(old, attr, -1)
        effects.child(new, attr, 1)
        if attr.is_dir:
            effects.moved.append((entry.ino, old, new))
        else:
            if not rules.is_trash(old):
                effects.quota(old, -attr.space, -1)
            effects.quota(new, attr.space, 1)
    tx.set_attr(entry.ino, moved)


def _exchange(
    tx: Tx,
    move: Move,
    cred: Cred,
    removal: Removal,
    source: Entry,
    attr: Attr,
    target: Entry,
) -> Moved:
    parent, parent2 = need_dir(tx, move.parent), need_dir(tx, move.parent2)
    attr2 = need(tx, target.ino)
    rules.check_remove(move.parent2, parent2, attr2, cred)
    _check_cycle(tx, move, move.parent, target)
    if rules.is_trash(move.parent):
        raise posix_error(EPERM)
    if (parent.flags | parent2.flags) & (IMMUTABLE | APPEND):
        raise posix_error(EPERM)
    if move.crosses and attr2.is_dir:
        allow(tx, attr2, cred, rules.WRITE)
    effects = Effects()
    tx.set_entry(move.parent, move.name, target)
    tx.set_entry(move.parent2, move.name2, source)
    _rehome(tx, source, attr, move.parent, move.parent2, removal.now_ns, effects)
    _rehome(tx, target, attr2, move.parent2, move.parent, removal.now_ns, effects)
    dirs = (int(attr2.is_dir) - int(attr.is_dir)) if move.crosses else 0
    times = (removal.now_ns, removal.skip_ns)
    touch_parent(tx, move.parent, parent, *times, nlink=dirs)
    touch_parent(tx, move.parent2, parent2, *times, nlink=-dirs)
    return Moved(source.ino, None, effects)
