"""Transactions on an inode's own record: setattr, atime."""

from __future__ import annotations

from errno import EPERM

from juicepy.errors import posix_error
from juicepy.meta import acl, rules
from juicepy.meta.effects import Effects
from juicepy.meta.ops.common import allow, need
from juicepy.meta.tx import Tx
from juicepy.types import (
    Attr,
    Cred,
    Inode,
    Kind,
    SetAttr,
)


def setattr(
    tx: Tx, ino: Inode, change: SetAttr, cred: Cred, now_ns: int, *, is_open: bool
) -> tuple[Attr, Effects]:
    """Change mode, owner, times or flags. EPERM, EACCES. Trashed files only through a handle."""
    attr = need(tx, ino)
    if rules.is_trash(attr.parent) and not attr.is_dir and not is_open:
        raise posix_error(EPERM)
    if rules.needs_write_for_times(attr, change, cred):
        allow(tx, attr, cred, rules.WRITE)
    new = rules.changed_attr(attr, change, cred, now_ns)
    effects = Effects()
    if new is attr:
        return attr, effects
    if attr.access_acl and new.mode != attr.mode:
        rule = tx.acl(attr.access_acl)
        if rule is not None:
            new.access_acl = tx.save_acl(acl.chmodded(rule, new.mode))
    tx.set_attr(ino, new)
    if (new.uid, new.gid) != (attr.uid, attr.gid) and attr.kind in (Kind.FILE, Kind.DIR):
        effects.owner(attr, -attr.space, -1)
        effects.owner(new, attr.space, 1)
    return new, effects


def touch_atime(tx: Tx, ino: Inode, mode: str, now_ns: int) -> Attr:
    attr = need(tx, ino)
    if not rules.wants_atime(attr, mode, now_ns):
        return attr
    new = attr.with_(atime_ns=now_ns)
    tx.set_attr(ino, new)
    return new
