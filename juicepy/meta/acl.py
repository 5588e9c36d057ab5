"""POSIX ACLs: the kernel's xattr form, and the decisions that need a rule. Pure functions.

The xattr `system.posix_acl_access` / `_default` is little-endian: version u32 = 2, then entries of
tag u16, permission u16, id u32 (acl(5), linux/posix_acl_xattr.h).
"""

from __future__ import annotations

import struct
from dataclasses import replace
from errno import EINVAL

from juicepy.errors import posix_error
from juicepy.types import AclRule, Attr, Cred

ACCESS = b"system.posix_acl_access"
DEFAULT = b"system.posix_acl_default"

UNDEFINED = 0xFFFF
_VERSION = 2
_NO_ID = 0xFFFFFFFF
_HEADER = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")
_OWNER, _USER, _GROUP, _NAMED_GROUP, _MASK, _OTHER = 1, 2, 4, 8, 0x10, 0x20


def from_xattr(value: bytes) -> AclRule:
    """The rule of an xattr value; EINVAL if it is malformed. An empty value is an empty rule."""
    if not value:
        return AclRule()
    if (
        len(value) < _HEADER.size
        or (len(value) - _HEADER.size) % _ENTRY.size
        or _HEADER.unpack_from(value)[0] != _VERSION
    ):
        raise posix_error(EINVAL, "POSIX ACL")
    single = {_OWNER: UNDEFINED, _GROUP: UNDEFINED, _MASK: UNDEFINED, _OTHER: UNDEFINED}
    named: dict[int, list[tuple[int, int]]] = {_USER: [], _NAMED_GROUP: []}
    for tag, perm, ident in _ENTRY.iter_unpack(value[_HEADER.size :]):
        if perm > 7:
            raise posix_error(EINVAL, "POSIX ACL permission")
        if tag in named:
            named[tag].append((ident, perm))
        elif tag in single and single[tag] == UNDEFINED:
            single[tag] = perm
        else:
            raise posix_error(EINVAL, "POSIX ACL tag")
    if (named[_USER] or named[_NAMED_GROUP]) and single[_MASK] == UNDEFINED:
        raise posix_error(EINVAL, "POSIX ACL without mask")
    return AclRule(
        owner=single[_OWNER],
        group=single[_GROUP],
        mask=single[_MASK],
        other=single[_OTHER],
        users=tuple(named[_USER]),
        groups=tuple(named[_NAMED_GROUP]),
    )


def to_xattr(rule: AclRule) -> bytes:
    entries = [(_OWNER, rule.owner, _NO_ID)]
    entries += [(_USER, perm, ident) for ident, perm in rule.users]
    entries.append((_GROUP, rule.group, _NO_ID))
    entries += [(_NAMED_GROUP, perm, ident) for ident, perm in rule.groups]
    if rule.mask != UNDEFINED:
        entries.append((_MASK, rule.mask, _NO_ID))
    entries.append((_OTHER, rule.other, _NO_ID))
    return _HEADER.pack(_VERSION) + b"".join(_ENTRY.pack(*entry) for entry in entries)


def is_empty(rule: AclRule) -> bool:
    return rule == AclRule()


def is_minimal(rule: AclRule) -> bool:
    """Says no more than mode bits can."""
    return rule.mask == UNDEFINED and not rule.users and not rule.groups


def filled(rule: AclRule, mode: int) -> AclRule:
    """Undefined owner, group and other taken from the mode bits."""
    return replace(
        rule,
        owner=mode >> 6 & 7 if rule.owner == UNDEFINED else rule.owner,
        group=mode >> 3 & 7 if rule.group == UNDEFINED else rule.group,
        other=mode & 7 if rule.other == UNDEFINED else rule.other,
    )


def mode_of(rule: AclRule, mode: int) -> int:
    """`mode` with the permission bits the rule shows: the mask (or group) as group bits."""
    middle = rule.group if rule.mask == UNDEFINED else rule.mask
    return mode & 0o7000 | (rule.owner & 7) << 6 | (middle & 7) << 3 | rule.other & 7


def chmodded(rule: AclRule, mode: int) -> AclRule:
    """The access rule after chmod to `mode`: group bits set the mask if there is one."""
    changed = replace(rule, owner=mode >> 6 & 7, other=mode & 7)
    middle = mode >> 3 & 7
    if rule.mask == UNDEFINED:
        return replace(changed, group=middle)
    return replace(changed, mask=middle)


def inherited(default: AclRule, mode: int) -> tuple[AclRule | None, int]:
    """Access rule (None: mode bits do) and mode of a child made with `mode` under `default`."""
    if is_minimal(default):
        return None, mode & (0o7000 | mode_of(default, 0))
    child = replace(
        default,
        owner=default.owner & mode >> 6 & 7,
        mask=default.mask & mode >> 3 & 7,
        other=default.other & mode & 7,
    )
    return child, mode_of(child, mode)


def allows(attr: Attr, rule: AclRule, cred: Cred, want: int) -> bool:
    """May `cred` do all of `want`? One matching group must grant all of it by itself (acl(5))."""
    if cred.uid == attr.uid:
        return rule.owner & want == want
    mask = 7 if rule.mask == UNDEFINED else rule.mask
    for uid, perm in rule.users:
        if uid == cred.uid:
            return perm & mask & want == want
    matching = [
        perm & mask for gid, perm in ((attr.gid, rule.group), *rule.groups) if cred.in_group(gid)
    ]
    if matching:
        return any(perm & want == want for perm in matching)
    return rule.other & want == want
