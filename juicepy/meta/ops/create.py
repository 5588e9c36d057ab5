"""Transactions that make an inode or add a name: mknod, mkdir, symlink, create, tmpfile, link."""

from __future__ import annotations

from dataclasses import dataclass
from errno import EEXIST, ENOENT, EPERM

from juicepy.errors import posix_error
from juicepy.meta import rules
from juicepy.meta.effects import Effects
from juicepy.meta.ops.common import allow, need, need_dir, touch_parent
from juicepy.meta.tx import Tx
from juicepy.types import APPEND, IMMUTABLE, Attr, Cred, Entry, Inode, Kind, SessionId


@dataclass(frozen=True, slots=True)
class NewNode:
    """A new name and the inode it shall lead to (`ino`, allocated before)."""

    parent: Inode
    name: bytes
    ino: Inode
    kind: Kind
    mode: int
    umask: int = 0
    rdev: int = 0
    target: bytes = b""


def make(tx: Tx, new: NewNode, cred: Cred, now_ns: int, skip_ns: int) -> tuple[Attr, Effects]:
    """Make the inode and its name. ENOENT, ENOTDIR, EACCES, EPERM, EEXIST."""
    tx.fetch(("dir", new.parent), ("entry", new.parent, new.name))
    parent = need_dir(tx, new.parent)
    rules.check_insert(new.parent, parent)
    if tx.entry(new.parent, new.name) is not None:
        raise posix_error(EEXIST, new.name)
    allow(tx, parent, cred, rules.WRITE | rules.EXEC)
    attr = _new_attr(tx, new, parent, cred, now_ns)
    effects = Effects()
    insert(tx, new.parent, new.name, new.ino, attr, effects)
    if new.kind is Kind.SYMLINK:
        tx.set_link(new.ino, new.target)
    if new.kind is Kind.DIR:
        tx.make_stats(new.ino)
    nlink = 1 if new.kind is Kind.DIR else 0
    touch_parent(tx, new.parent, parent, now_ns, skip_ns, nlink=nlink)
    return attr, effects


def make_nameless(
    tx: Tx, new: NewNode, sid: SessionId, cred: Cred, now_ns: int
) -> tuple[Attr, Effects]:
    """Make a file without a name, as if made in `new.parent` and removed while session `sid` has
    it open. ENOENT, ENOTDIR, EACCES, EPERM.
    """
    parent = need_dir(tx, new.parent)
    rules.check_insert(new.parent, parent)
    allow(tx, parent, cred, rules.WRITE | rules.EXEC)
    attr = _new_attr(tx, new, parent, cred, now_ns)
    attr.nlink = 0
    tx.make_inode(new.ino, attr)
    tx.sustain(sid, new.ino, on=True)
    tx.use(space=attr.space, inodes=1)
    effects = Effects()
    effects.owner(attr, attr.space, 1)
    effects.sustained.append(new.ino)
    return attr, effects


def _new_attr(tx: Tx, new: NewNode, parent: Attr, cred: Cred, now_ns: int) -> Attr:
    default = tx.acl(parent.default_acl) if parent.default_acl else None
    attr, rule = rules.new_attr(
        new.parent,
        parent,
        new.kind,
        new.mode,
        cred,
        now_ns,
        umask=new.umask,
        default=default,
        rdev=new.rdev,
        target=new.target,
    )
    if rule is not None:
        attr.access_acl = tx.save_acl(rule)
    return attr


def insert(tx: Tx, parent: Inode, name: bytes, ino: Inode, attr: Attr, effects: Effects) -> None:
    """Store a new inode under its first name, with the accounting."""
    _insert(tx, parent, name, ino, attr)
    effects.child(parent, attr, 1)
    effects.quota(parent, attr.space, 1)
    effects.owner(attr, attr.space, 1)


def _insert(tx: Tx, parent: Inode, name: bytes, ino: Inode, attr: Attr) -> None:
    tx.make_inode(ino, attr)
    tx.set_entry(parent, name, Entry(ino, attr.kind))
    tx.use(space=attr.space, inodes=1)


def make_trash_hour(tx: Tx, trash: Inode, name: bytes, ino: Inode, now_ns: int) -> Inode:
    """The hourly trash directory `name` under the trash root: made now, or found (spec 8.1)."""
    found = tx.entry(trash, name)
    if found is not None:
        return found.ino
    attr = Attr(
        Kind.DIR,
        0o555,
        atime_ns=now_ns,
        mtime_ns=now_ns,
        ctime_ns=now_ns,
        nlink=2,
        length=4096,
        parent=trash,
    )
    _insert(tx, trash, name, ino, attr)
    tx.make_stats(ino)
    return ino


def link(
    tx: Tx,
    ino: Inode,
    parent_ino: Inode,
    name: bytes,
    cred: Cred,
    now_ns: int,
    skip_ns: int,
    *,
    keeper: SessionId | None = None,
) -> tuple[Attr, Effects]:
    """Another name for a file. EPERM for directories and trashed files.

    A file without a name gets its first if it was made so, in session `keeper`; ENOENT otherwise.
    """
    tx.fetch(("attr", ino), ("dir", parent_ino), ("entry", parent_ino, name))
    parent = need_dir(tx, parent_ino)
    rules.check_insert(parent_ino, parent)
    allow(tx, parent, cred, rules.WRITE | rules.EXEC)
    attr = need(tx, ino)
    if attr.is_dir or attr.flags & (IMMUTABLE | APPEND):
        raise posix_error(EPERM)
    if attr.nlink == 0 and keeper is None:
        raise posix_error(ENOENT)
    if rules.is_trash(attr.parent):
        raise posix_error(EPERM)
    if tx.entry(parent_ino, name) is not None:
        raise posix_error(EEXIST, name)
    if attr.nlink == 0:
        assert keeper is not None
        tx.sustain(keeper, ino, on=False)
        new = attr.with_(nlink=1, parent=parent_ino, ctime_ns=now_ns)
    else:
        if attr.parent:
            tx.count_parent(ino, attr.parent, 1)
        tx.count_parent(ino, parent_ino, 1)
        new = attr.with_(nlink=attr.nlink + 1, parent=Inode(0), ctime_ns=now_ns)
    tx.set_attr(ino, new)
    tx.set_entry(parent_ino, name, Entry(ino, attr.kind))
    touch_parent(tx, parent_ino, parent, now_ns, skip_ns)
    effects = Effects()
    effects.child(parent_ino, attr, 1)
    effects.quota(parent_ino, attr.space, 1)
    return new, effects
