"""Records <-> stored bytes: the binary metadata format that JuiceFS 1.4 shares. Big-endian.

Attr, 72 bytes (80 with ACL ids; one more with a storage tier):

| at | size | field                            | at | size | field                           |
|----|------|----------------------------------|----|------|---------------------------------|
| 0  | 1    | flags                            | 43 | 4    | ctime nanoseconds               |
| 1  | 2    | (kind << 12) or (mode and 0xFFF) | 47 | 4    | nlink                           |
| 3  | 4    | uid                              | 51 | 8    | length                          |
| 7  | 4    | gid                              | 59 | 4    | rdev, as the kernel encodes it  |
| 11 | 8    | atime seconds, signed            | 63 | 8    | parent inode                    |
| 19 | 4    | atime nanoseconds                | 71 | 4+4  | access, default ACL id, if any  |
| 23 | 12   | mtime, likewise                  | +0 | 1    | storage tier                    |
| 35 | 8    | ctime seconds                    | +1 | 1    | zero, only after a tier above 0 |

Entry, 9 bytes: kind u8, inode u64. Slice, 24 bytes: pos u32, id u64, size u32, off u32, length u32.
POSIX lock, 24 bytes: kind u32, pid u32, start u64, end u64. Delayed slice, 12 bytes: id u64,
size u32. Quota limits, 16 bytes: space i64, inodes i64, all ones = none. ACL rule: owner, group,
mask, other u16 each, then users and groups: count u32, and id u32, permissions u16 for each.

A stored value that is no such record raises OSError(EIO). Attr records are not canonical: readers
accept 71 bytes and up, so they are compared by value, never as bytes of another program.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable

from juicepy.types import (
    AclRule,
    Attr,
    Buffer,
    Entry,
    Kind,
    LockKind,
    PosixLock,
    Slice,
    SliceId,
)

MTIME_AT = 23  # 24 bytes from here on: mtime and ctime
NLINK_AT = 47

_ATTR = struct.Struct(">BHIIqIqIqIIQIQ")
_ATTR_PLAIN = struct.Struct(">BHIIqIqIqIIQIQx")
_ACL_IDS = struct.Struct(">II")
_TIMES = struct.Struct(">qIqI")
_ENTRY = struct.Struct(">BQ")
_SLICE = struct.Struct(">IQIII")
_PLOCK = struct.Struct(">IIQQ")
_REF = struct.Struct(">QI")
_LIMITS = struct.Struct(">qq")
_ACL_HEAD = struct.Struct(">HHHHI")
_ACL_NAME = struct.Struct(">IH")
_COUNT = struct.Struct(">I")

SLICE_BYTES = _SLICE.size
ENTRY_BYTES = _ENTRY.size

_KINDS: dict[int, Kind] = {int(kind): kind for kind in Kind}
_LOCK_KINDS: dict[int, LockKind] = {int(kind): kind for kind in LockKind}
_SECOND = 1_000_000_000


# -- inodes
def encode_attr(attr: Attr) -> bytes:
    atime, atime_ns = divmod(attr.atime_ns, _SECOND)
    mtime, mtime_ns = divmod(attr.mtime_ns, _SECOND)
    ctime, ctime_ns = divmod(attr.ctime_ns, _SECOND)
    plain = not (attr.access_acl or attr.default_acl or attr.tier)
    head = (_ATTR_PLAIN if plain else _ATTR).pack(
        attr.flags,
        attr.kind << 12 | attr.mode & 0xFFF,
        attr.uid,
        attr.gid,
        atime,
        atime_ns,
        mtime,
        mtime_ns,
        ctime,
        ctime_ns,
        attr.nlink,
        attr.length,
        attr.rdev,
        attr.parent,
    )
    if plain:
        return head
    if attr.access_acl or attr.default_acl:
        head += _ACL_IDS.pack(attr.access_acl, attr.default_acl)
    return head + (bytes((attr.tier, 0)) if attr.tier else b"\0")


def decode_attr(data: bytes) -> Attr:
    try:
        (
            flags,
            kind_mode,
            uid,
            gid,
            atime,
            atime_ns,
            mtime,
            mtime_ns,
            ctime,
            ctime_ns,
            nlink,
            length,
            rdev,
            parent,
        ) = _ATTR.unpack_from(data)
        kind = _KINDS[kind_mode >> 12]
    except (struct.error, KeyError) as error:
        raise _malformed("attribute", data) from error
    attr = Attr(
        kind,
        kind_mode & 0xFFF,
        uid,
        gid,
        atime * _SECOND + atime_ns,
        mtime * _SECOND + mtime_ns,
        ctime * _SECOND + ctime_ns,
        nlink,
        length,
        rdev,
        parent,
        flags,
    )
    at = 71
    if len(data) >= 79:
        attr.access_acl, attr.default_acl = _ACL_IDS.unpack_from(data, at)
        at = 79
    if len(data) > at:
        attr.tier = data[at]
    return attr


def encode_times(time_ns: int) -> bytes:
    """The 24 bytes at MTIME_AT for an inode changed at `time_ns`."""
    seconds, rest = divmod(time_ns, _SECOND)
    return _TIMES.pack(seconds, rest, seconds, rest)


def make_rdev(major: int, minor: int) -> int:
    """The kernel's 32-bit encoding of a device number, which Attr.rdev holds."""
    return minor & 0xFF | major << 8 | (minor & ~0xFF) << 12


def split_rdev(rdev: int) -> tuple[int, int]:
    """(major, minor)."""
    return rdev >> 8 & 0xFFF, rdev & 0xFF | rdev >> 12 & 0xFFF00


# -- directories
def encode_entry(entry: Entry) -> bytes:
    return _ENTRY.pack(entry.kind, entry.ino)


def decode_entry(data: bytes) -> Entry:
    try:
        kind, ino = _ENTRY.unpack(data)
        return Entry(ino, _KINDS[kind])
    except (struct.error, KeyError) as error:
        raise _malformed("directory entry", data) from error


# -- chunks
def encode_slice(piece: Slice) -> bytes:
    return _SLICE.pack(piece.pos, piece.id, piece.size, piece.off, piece.length)


def encode_slices(pieces: Iterable[Slice]) -> bytes:
    return b"".join(map(encode_slice, pieces))


def decode_slices(data: Buffer) -> tuple[Slice, ...]:
    try:
        return tuple(Slice(*fields) for fields in _SLICE.iter_unpack(data))
    except struct.error as error:
        raise _malformed("slice list", data) from error


def encode_refs(refs: Iterable[tuple[SliceId, int]]) -> bytes:
    """(id, size) of delayed slices."""
    return b"".join(_REF.pack(slice_id, size) for slice_id, size in refs)


def decode_refs(data: Buffer) -> tuple[tuple[SliceId, int], ...]:
    try:
        return tuple((SliceId(slice_id), size) for slice_id, size in _REF.iter_unpack(data))
    except struct.error as error:
        raise _malformed("list of delayed slices", data) from error


# -- locks
def encode_plocks(locks: Iterable[PosixLock]) -> bytes:
    return b"".join(_PLOCK.pack(lock.kind, lock.pid, lock.start, lock.end) for lock in locks)


def decode_plocks(data: Buffer) -> tuple[PosixLock, ...]:
    try:
        return tuple(
            PosixLock(_LOCK_KINDS[kind], start, end, pid)
            for kind, pid, start, end in _PLOCK.iter_unpack(data)
        )
    except (struct.error, KeyError) as error:
        raise _malformed("list of POSIX locks", data) from error


# -- quotas and ACLs
def encode_limits(space: int, inodes: int) -> bytes:
    return _LIMITS.pack(space, inodes)


def decode_limits(data: bytes) -> tuple[int, int]:
    """(space, inodes); 0 or less: no limit."""
    try:
        space, inodes = _LIMITS.unpack(data)
    except struct.error as error:
        raise _malformed("quota", data) from error
    return space, inodes


def encode_acl(rule: AclRule) -> bytes:
    return b"".join(
        (
            _ACL_HEAD.pack(rule.owner, rule.group, rule.mask, rule.other, len(rule.users)),
            encode_acl_names(rule.users),
            _COUNT.pack(len(rule.groups)),
            encode_acl_names(rule.groups),
        )
    )


def decode_acl(data: bytes) -> AclRule:
    try:
        owner, group, mask, other, users = _ACL_HEAD.unpack_from(data)
        at = _ACL_HEAD.size + users * _ACL_NAME.size
        (groups,) = _COUNT.unpack_from(data, at)
    except struct.error as error:
        raise _malformed("ACL rule", data) from error
    if len(data) != at + _COUNT.size + groups * _ACL_NAME.size:
        raise _malformed("ACL rule", data)
    return AclRule(
        owner,
        group,
        mask,
        other,
        decode_acl_names(data[_ACL_HEAD.size : at]),
        decode_acl_names(data[at + _COUNT.size :]),
    )


def encode_acl_names(names: Iterable[tuple[int, int]]) -> bytes:
    """(id, permissions) pairs without a count, as SQL columns hold them."""
    return b"".join(_ACL_NAME.pack(name, permissions) for name, permissions in names)


def decode_acl_names(data: Buffer) -> tuple[tuple[int, int], ...]:
    try:
        return tuple((name, permissions) for name, permissions in _ACL_NAME.iter_unpack(data))
    except struct.error as error:
        raise _malformed("ACL names", data) from error


def _malformed(what: str, data: Buffer) -> OSError:
    return OSError(errno.EIO, f"malformed {what} record: {bytes(data[:96]).hex() or 'empty'}")
