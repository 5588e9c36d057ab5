"""Transactions on extended attributes; POSIX ACLs appear as two of them (`acls`: enabled)."""

from __future__ import annotations

from dataclasses import dataclass
from errno import EEXIST, ENODATA, ENOENT, EOPNOTSUPP, EPERM

from juicepy.errors import posix_error
from juicepy.meta import acl, rules
from juicepy.meta.ops.common import need
from juicepy.meta.tx import Tx
from juicepy.types import APPEND, IMMUTABLE, AclRule, Attr, Cred, Inode, Kind

CREATE, REPLACE = 1, 2
_ACLS = (acl.ACCESS, acl.DEFAULT)


def get(tx: Tx, ino: Inode, name: bytes, *, acls: bool) -> bytes:
    """The value. ENODATA, or what setting it would say: other clients may store any name."""
    if acls and name in _ACLS:
        rule = _acl(tx, ino, default=name == acl.DEFAULT)
        value = None if rule is None else acl.to_xattr(rule)
    else:
        value = tx.xattr(ino, name)
    if value is None:
        rules.check_xattr(name)
        raise posix_error(ENODATA, name)
    return value


def names(tx: Tx, ino: Inode, *, acls: bool) -> list[bytes]:
    found = list(tx.xattr_names(ino))
    attr = tx.attr(ino) if acls else None
    if attr is not None:
        found += [acl.ACCESS] if attr.access_acl else []
        found += [acl.DEFAULT] if attr.default_acl else []
    return found


@dataclass(frozen=True, slots=True)
class Change:
    """A new `value`, or None to remove the attribute; `flags` as setxattr(2) numbers them."""

    ino: Inode
    name: bytes
    value: bytes | None
    flags: int
    acls: bool


def apply(tx: Tx, change: Change, cred: Cred, now_ns: int) -> None:
    """EEXIST with CREATE, ENODATA with REPLACE or to remove, EPERM for immutable files."""
    if change.acls and change.name in _ACLS:
        rule = acl.from_xattr(change.value or b"")
        _set_acl(tx, change.ino, rule, cred, now_ns, default=change.name == acl.DEFAULT)
        return
    ino, name = change.ino, change.name
    tx.fetch(("attr", ino), ("xattr", ino, name))
    attr = _changeable(tx, ino)
    old = tx.xattr(ino, name)
    if change.flags & CREATE and old is not None:
        raise posix_error(EEXIST, name)
    if old is None and (change.flags & REPLACE or change.value is None):
        raise posix_error(ENODATA, name)
    if change.value is None:
        tx.drop_xattr(ino, name)
    else:
        tx.set_xattr(ino, name, change.value)
    tx.set_attr(ino, attr.with_(ctime_ns=now_ns))


def _changeable(tx: Tx, ino: Inode) -> Attr:
    attr = need(tx, ino)
    if attr.flags & (IMMUTABLE | APPEND):
        raise posix_error(EPERM)
    return attr


# ---------------------------------------------------------------- ACLs
def _acl(tx: Tx, ino: Inode, *, default: bool) -> AclRule | None:
    """The rule as getfacl(1) shows it: owner, mask and other as the mode bits are. None: none."""
    attr = tx.attr(ino)
    if attr is None:
        raise posix_error(ENOENT, f"inode {ino}")
    rule_id = attr.default_acl if default else attr.access_acl
    return tx.acl(rule_id) if rule_id else None


def _set_acl(tx: Tx, ino: Inode, rule: AclRule, cred: Cred, now_ns: int, *, default: bool) -> None:
    """Store an access or default rule (spec 11). An empty rule removes it."""
    attr = _changeable(tx, ino)
    if not cred.is_root and cred.uid != attr.uid:
        raise posix_error(EPERM)
    if default and not attr.is_dir:
        if acl.is_empty(rule):
            return
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


def _set_access(tx: Tx, attr: Attr, rule: AclRule, cred: Cred) -> None:
    if acl.is_empty(rule):
        attr.access_acl = 0
        return
    rule = acl.filled(rule, attr.mode)
    attr.mode = acl.mode_of(rule, attr.mode)
    attr.access_acl = 0 if acl.is_minimal(rule) else tx.save_acl(rule)
    if not cred.is_root and not cred.in_group(attr.gid):
        attr.mode &= ~rules.SETGID
