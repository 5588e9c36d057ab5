"""Transactions on an inode's own record: setattr, atime, xattrs, POSIX ACLs."""

from __future__ import annotations

from errno import EEXIST, ENODATA, ENOENT, EOPNOTSUPP, EPERM

from juicepy.errors import posix_error
from juicepy.meta import acl, rules
from juicepy.meta.effects import Effects
from juicepy.meta.ops.common import allow, need
from juicepy.meta.tx import Tx
from juicepy.types import (
    APPEND,
    IMMUTABLE,
    AclRule,
    Attr,
    Cred,
    Inode,
    Kind,
    SetAttr,
)

XATTR_CREATE, XATTR_REPLACE = 1, 2


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


# ---------------------------------------------------------------- xattrs
def set_xattr(tx: Tx, ino: Inode, name: bytes, value: bytes, flags: int, now_ns: int) -> None:
    """EEXIST with CREATE, ENODATA with REPLACE, EPERM for immutable files."""
    tx.fetch(("attr", ino), ("xattr", ino, name))
    attr = _changeable(tx, ino)
    old = tx.xattr(ino, name)
    if flags & XATTR_CREATE and old is not None:
        raise posix_error(EEXIST, name)
    if flags & XATTR_REPLACE and old is None:
        raise posix_error(ENODATA, name)
    tx.set_xattr(ino, name, value)
    tx.set_attr(ino, attr.with_(ctime_ns=now_ns))


def remove_xattr(tx: Tx, ino: Inode, name: bytes, now_ns: int) -> None:
    tx.fetch(("attr", ino), ("xattr", ino, name))
    attr = _changeable(tx, ino)
    if tx.xattr(ino, name) is None:
        raise posix_error(ENODATA, name)
    tx.drop_xattr(ino, name)
    tx.set_attr(ino, attr.with_(ctime_ns=now_ns))


def _changeable(tx: Tx, ino: Inode) -> Attr:
    attr = need(tx, ino)
    if attr.flags & (IMMUTABLE | APPEND):
        raise posix_error(EPERM)
    return attr


# ---------------------------------------------------------------- ACLs
def get_acl(tx: Tx, ino: Inode, *, default: bool) -> AclRule | None:
    """The rule as getfacl(1) shows it: owner, mask and other as the mode bits are. None: none."""
    attr = tx.attr(ino)
    if attr is None:
        raise posix_error(ENOENT, f"inode {ino}")
    rule_id = attr.default_acl if default else attr.access_acl
    return tx.acl(rule_id) if rule_id else None


def set_acl(tx: Tx, ino: Inode, rule: AclRule, cred: Cred, now_ns: int, *, default: bool) -> Attr:
    """Store an access or default rule (spec 11). An empty rule removes it."""
    attr = _changeable(tx, ino)
    if not cred.is_root and cred.uid != attr.uid:
        raise posix_error(EPERM)
    if default and not attr.is_dir:
        if acl.is_empty(rule):
            return attr
        raise posix_error(EPERM)
    if attr.kind is Kind.SYMLINK:
        raise posix_error(EOPNOTSUPP)
    new = attr.with_()
    if default:
        empty = acl.is_empty(rule)
        new.default_acl = 0 if empty else tx.save_acl(acl.filled(rule, attr.mode))
    else:
        _set_access(tx, new, rule, cred)
    if new != attr:
        new.ctime_ns = now_ns
        tx.set_attr(ino, new)
    return new


def _set_access(tx: Tx, attr: Attr, rule: AclRule, cred: Cred) -> None:
    if acl.is_empty(rule):
        attr.access_acl = 0
        return
    rule = acl.filled(rule, attr.mode)
    attr.mode = acl.mode_of(rule, attr.mode)
    attr.access_acl = 0 if acl.is_minimal(rule) else tx.save_acl(rule)
    if not cred.is_root and not cred.in_group(attr.gid):
        attr.mode &= ~rules.SETGID
