"""Rows of the node table <-> Attr, and numbers as the columns hold them."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import Any

from juicepy.meta.codec import decode_acl_names
from juicepy.types import AclRule, Attr, Inode, Kind

NODE_COLUMNS = 19
_KINDS: dict[int, Kind] = {int(kind): kind for kind in Kind}


def attr_of(row: Sequence[Any], at: int) -> Attr:
    """The Attr of a node that begins at column `at` of a row; NULL is read as 0.

    It takes NODE_COLUMNS columns, or is packed in one (`Dialect.packed`).
    """
    first = row[at]
    fields: Iterable[Any] = (
        map(int, first.split(",")) if isinstance(first, str) else row[at : at + NODE_COLUMNS]
    )
    (
        ino, kind, flags, mode, uid, gid, atime, mtime, ctime, atime_ns, mtime_ns, ctime_ns,
        nlink, length, rdev, parent, access_acl, default_acl, tier,
    ) = fields  # fmt: skip
    try:
        known = _KINDS[kind]
    except KeyError:
        raise OSError(errno.EIO, f"inode {ino} has the unknown type {kind}") from None
    return Attr(
        known,
        mode,
        uid,
        gid,
        atime * 1000 + atime_ns,
        mtime * 1000 + mtime_ns,
        ctime * 1000 + ctime_ns,
        nlink,
        length,
        rdev or 0,
        parent or Inode(0),
        flags,
        access_acl or 0,
        default_acl or 0,
        tier or 0,
    )


def node_values(ino: Inode, attr: Attr) -> dict[str, Any]:
    """Parameters by column name."""
    atime, atime_ns = divmod(attr.atime_ns, 1000)
    mtime, mtime_ns = divmod(attr.mtime_ns, 1000)
    ctime, ctime_ns = divmod(attr.ctime_ns, 1000)
    return {
        "inode": ino,
        "w_inode": ino,
        "type": int(attr.kind),
        "flags": attr.flags,
        "mode": attr.mode,
        "uid": attr.uid,
        "gid": attr.gid,
        "atime": atime,
        "mtime": mtime,
        "ctime": ctime,
        "atimensec": atime_ns,
        "mtimensec": mtime_ns,
        "ctimensec": ctime_ns,
        "nlink": attr.nlink,
        "length": attr.length,
        "rdev": attr.rdev,
        "parent": attr.parent,
        "access_acl_id": attr.access_acl,
        "default_acl_id": attr.default_acl,
        "tier_id": attr.tier,
    }


def kind_of(number: int) -> Kind:
    try:
        return _KINDS[number]
    except KeyError:
        raise OSError(errno.EIO, f"a directory entry has the unknown type {number}") from None


def acl_of(row: Sequence[Any]) -> AclRule:
    """owner, group, mask, other, named_users, named_groups."""
    owner, group, mask, other, users, groups = row
    return AclRule(
        owner or 0,
        group or 0,
        mask or 0,
        other or 0,
        decode_acl_names(users or b""),
        decode_acl_names(groups or b""),
    )


def signed(number: int) -> int:
    """A 64-bit lock owner as a signed column holds it."""
    return number - (1 << 64) if number >= 1 << 63 else number


def unsigned(number: int) -> int:
    return number + (1 << 64) if number < 0 else number


def as_bytes(value: str | bytes) -> bytes:
    """Of a text column, which drivers give either way."""
    return value.encode() if isinstance(value, str) else bytes(value)
