"""POSIX decisions: may this caller do that, and what comes out of it? Pure, no clock, no store.

Each function raises OSError with the errno the caller shall see, or returns. Where the spec of the
shared format decides (trash, flags, accounting) it is spec/metadata.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from errno import (
    EACCES,
    EEXIST,
    EINVAL,
    EISDIR,
    ENAMETOOLONG,
    ENOENT,
    ENOTDIR,
    ENOTEMPTY,
    EOPNOTSUPP,
    EPERM,
    ERANGE,
)

from juicepy.errors import posix_error
from juicepy.meta import acl
from juicepy.types import (
    APPEND,
    CHUNK_BITS,
    CHUNK_SIZE,
    IMMUTABLE,
    KERNEL,
    MAX_NAME,
    MAX_XATTR,
    SKIP_TRASH,
    TRASH,
    AclRule,
    Attr,
    Cred,
    Inode,
    Kind,
    SetAttr,
    Slice,
    SliceId,
)

READ, WRITE, EXEC = 4, 2, 1

NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4  # renameat2(2)

FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_COLLAPSE = 0x1, 0x2, 0x8  # fallocate(2)
FALLOC_ZERO_RANGE, FALLOC_INSERT = 0x10, 0x20

XATTR_NAMESPACES = (b"user.", b"trusted.", b"security.", b"system.")  # xattr(7)

SETUID, SETGID, STICKY = 0o4000, 0o2000, 0o1000


# ---------------------------------------------------------------- names
def check_name(name: bytes) -> None:
    """Can this be the name of a new entry?"""
    if not name or b"/" in name or b"\0" in name:
        raise posix_error(EINVAL, name)
    if len(name) > MAX_NAME:
        raise posix_error(ENAMETOOLONG, name[:32])
    if name in (b".", b".."):
        raise posix_error(EEXIST, name)


def trash_name(parent: Inode, ino: Inode, name: bytes) -> bytes:
    """Name of an entry in its hourly trash directory (spec 8.1)."""
    return (b"%d-%d-" % (parent, ino) + name)[:MAX_NAME]


def is_trash(ino: Inode) -> bool:
    return ino >= TRASH


def check_xattr(name: bytes, value: bytes = b"") -> None:
    """Can this be set? ERANGE, EOPNOTSUPP outside the namespaces, EINVAL for one's bare name."""
    if not name or len(name) > MAX_NAME or len(value) > MAX_XATTR:
        raise posix_error(ERANGE, name[:32])
    if not name.startswith(XATTR_NAMESPACES):
        raise posix_error(EOPNOTSUPP, name)
    if name in XATTR_NAMESPACES:
        raise posix_error(EINVAL, name)


# ---------------------------------------------------------------- permission
def check_access(attr: Attr, cred: Cred, want: int, rule: AclRule | None = None) -> None:
    """EACCES unless `cred` may do all of `want` (READ|WRITE|EXEC). `rule` is the access ACL."""
    if want == 0:
        return
    if cred.is_root:
        if want & EXEC and not attr.is_dir and not attr.mode & 0o111:
            raise posix_error(EACCES)
        return
    if rule is not None and attr.mode & 0o070:
        if not acl.allows(attr, rule, cred, want):
            raise posix_error(EACCES)
        return
    if cred.uid == attr.uid:
        granted = attr.mode >> 6
    elif cred.in_group(attr.gid):
        granted = attr.mode >> 3
    else:
        granted = attr.mode
    if granted & want != want:
        raise posix_error(EACCES)


def check_insert(parent_ino: Inode, parent: Attr) -> None:
    """May names be added to this directory at all?"""
    if not parent.is_dir:
        raise posix_error(ENOTDIR)
    if is_trash(parent_ino) or is_trash(parent.parent):
        raise posix_error(ENOENT)
    if parent.flags & IMMUTABLE:
        raise posix_error(EPERM)


def check_remove(parent_ino: Inode, parent: Attr, child: Attr, cred: Cred) -> None:
    """May `cred`, who may write the directory, take this entry out of it?"""
    if is_trash(parent_ino) and not cred.is_root:
        raise posix_error(EPERM)
    if parent.flags & (IMMUTABLE | APPEND) or child.flags & (IMMUTABLE | APPEND):
        raise posix_error(EPERM)
    if parent.mode & STICKY and not cred.is_root and cred.uid not in (parent.uid, child.uid):
        raise posix_error(EACCES)


def check_replace(moved: Kind, replaced: Kind, *, is_empty: bool) -> None:
    """May an entry of kind `moved` take the place of this one?"""
    if replaced is Kind.DIR:
        if moved is not Kind.DIR:
            raise posix_error(EISDIR)
        if not is_empty:
            raise posix_error(ENOTEMPTY)
    elif moved is Kind.DIR:
        raise posix_error(ENOTDIR)


def check_rename_flags(flags: int) -> None:
    if flags & ~(NOREPLACE | EXCHANGE | WHITEOUT):
        raise posix_error(EINVAL)
    if flags & EXCHANGE and flags & (NOREPLACE | WHITEOUT):
        raise posix_error(EINVAL)


def check_write_open(attr: Attr, *, appending: bool, truncating: bool) -> None:
    """May the file be opened for writing so?"""
    if attr.flags & IMMUTABLE or is_trash(attr.parent):
        raise posix_error(EPERM)
    if attr.flags & APPEND and (not appending or truncating):
        raise posix_error(EPERM)


def check_resize(attr: Attr, *, by_handle: bool) -> None:
    """May the file's length or content be changed from outside of write?"""
    if attr.kind is Kind.DIR:
        raise posix_error(EISDIR)
    if attr.kind is not Kind.FILE:
        raise posix_error(EINVAL)
    if attr.flags & (IMMUTABLE | APPEND):
        raise posix_error(EPERM)
    if not by_handle and is_trash(attr.parent):
        raise posix_error(EPERM)


# ---------------------------------------------------------------- new inodes
def new_attr(
    parent_ino: Inode,
    parent: Attr,
    kind: Kind,
    mode: int,
    cred: Cred,
    now_ns: int,
    *,
    umask: int,
    default: AclRule | None,
    rdev: int = 0,
    target: bytes = b"",
) -> tuple[Attr, AclRule | None]:
    """Attributes of a new inode, and the access ACL it inherits (None: no rule of its own)."""
    rule: AclRule | None = None
    if default is not None and kind is not Kind.SYMLINK:
        rule, mode = acl.inherited(default, mode & 0o7777)
    else:
        mode = mode & 0o7777 & ~umask
    gid = cred.gid
    if parent.mode & SETGID:
        gid = parent.gid
        if kind is Kind.DIR:
            mode |= SETGID
        elif mode & 0o2010 == 0o2010 and not cred.is_root and not cred.in_group(gid):
            mode &= ~SETGID
    lengths = {Kind.DIR: 4096, Kind.SYMLINK: len(target)}
    attr = Attr(
        kind,
        mode,
        uid=cred.uid,
        gid=gid,
        atime_ns=now_ns,
        mtime_ns=now_ns,
        ctime_ns=now_ns,
        nlink=2 if kind is Kind.DIR else 1,
        length=lengths.get(kind, 0),
        rdev=rdev,
        parent=parent_ino,
        flags=parent.flags & SKIP_TRASH,
        default_acl=parent.default_acl if kind is Kind.DIR else 0,
        tier=parent.tier,
    )
    return attr, rule


# ---------------------------------------------------------------- changed attributes
def changed_attr(attr: Attr, change: SetAttr, cred: Cred, now_ns: int) -> Attr:
    """The attributes after setattr; the very same object if nothing changes. EPERM, EACCES."""
    # the kernel tells the times of what it has let through before
    if change.flags is None and attr.flags & _fixing(change) and cred is not KERNEL:
        raise posix_error(EPERM)
    new = attr.with_()
    owns = cred.is_root or cred.uid == attr.uid
    if change.uid is not None or change.gid is not None:
        _change_owner(new, attr, change, cred)
    if change.mode is not None:
        if not owns:
            raise posix_error(EPERM)
        mode = change.mode & 0o7777
        if mode & SETGID and not cred.is_root and not cred.in_group(new.gid):
            mode &= ~SETGID
        new.mode = mode
    _change_times(new, attr, change, cred, now_ns)
    if change.flags is not None:
        privileged = (change.flags ^ attr.flags) & (IMMUTABLE | APPEND)
        if not owns or (privileged and not cred.is_root):
            raise posix_error(EPERM)
        known = IMMUTABLE | APPEND | SKIP_TRASH
        new.flags = attr.flags & ~known | change.flags & known
    # chown to the present owner and chmod to the present mode still set ctime (POSIX)
    asked = (change.uid, change.gid, change.mode) != (None, None, None)
    if new == attr and not asked:
        return attr
    new.ctime_ns = now_ns if change.ctime_ns is None else change.ctime_ns
    return new


def _fixing(change: SetAttr) -> int:
    """The flags that forbid a change: to what is append-only both times may be set to now."""
    keeps = (change.mode, change.uid, change.gid) == (None, None, None)
    now = change.atime_now and change.mtime_now
    return IMMUTABLE if keeps and now else IMMUTABLE | APPEND


def _change_owner(new: Attr, attr: Attr, change: SetAttr, cred: Cred) -> None:
    uid = attr.uid if change.uid is None else change.uid
    gid = attr.gid if change.gid is None else change.gid
    if not cred.is_root:
        if cred.uid != attr.uid or uid != attr.uid:
            raise posix_error(EPERM)
        if gid != attr.gid and not cred.in_group(gid):
            raise posix_error(EPERM)
    new.uid, new.gid = uid, gid
    if attr.kind is Kind.FILE and (not cred.is_root or attr.mode & 0o111):
        new.mode = without_privileges(attr.mode, in_group=belongs(cred, attr))


def without_privileges(mode: int, *, in_group: bool = True) -> int:
    """Mode after a write or chown: set-user-id off, set-group-id mostly.

    That stays where the group may not execute, if the caller is `in_group`.
    """
    mode &= ~SETUID
    return mode & ~SETGID if mode & 0o010 or not in_group else mode


def belongs(cred: Cred, attr: Attr) -> bool:
    """To the group of the file, or to root."""
    return cred.is_root or cred.in_group(attr.gid)


def _change_times(new: Attr, attr: Attr, change: SetAttr, cred: Cred, now_ns: int) -> None:
    if not (
        change.atime_now
        or change.mtime_now
        or change.atime_ns is not None
        or change.mtime_ns is not None
    ):
        return
    if not cred.is_root and cred.uid != attr.uid:
        explicit = change.atime_ns is not None or change.mtime_ns is not None
        if explicit:
            raise posix_error(EPERM)
    if change.atime_now:
        new.atime_ns = now_ns
    elif change.atime_ns is not None:
        new.atime_ns = change.atime_ns
    if change.mtime_now:
        new.mtime_ns = now_ns
    elif change.mtime_ns is not None:
        new.mtime_ns = change.mtime_ns


def needs_write_for_times(attr: Attr, change: SetAttr, cred: Cred) -> bool:
    """Setting times to the present needs write permission of who is not the owner."""
    now = change.atime_now or change.mtime_now
    return now and not cred.is_root and cred.uid != attr.uid


def wants_atime(attr: Attr, mode: str, now_ns: int) -> bool:
    """Does reading now set the access time, in `noatime`, `relatime` or `strictatime`?"""
    if mode == "relatime":
        day_ns = 24 * 3600 * 10**9
        old = now_ns - attr.atime_ns > day_ns
        return old or attr.atime_ns < attr.mtime_ns or attr.atime_ns < attr.ctime_ns
    return mode == "strictatime" and now_ns - attr.atime_ns > 10**9


# ---------------------------------------------------------------- content
def hole(pos: int, length: int) -> Slice:
    return Slice(pos, SliceId(0), 0, 0, length)


MANY_CHUNKS = 10_000  # between the ends of a resize: ask which of them exist


def resize_holes(
    old: int, new: int, existing: Callable[[], Iterable[int]]
) -> list[tuple[int, Slice, bool]]:
    """Hole records (chunk index, slice, only if the chunk exists) of a change of length (7.2).

    `existing` tells the chunks that have a list; it is asked only if the range is long.
    """
    left, right = min(old, new), max(old, new)
    if left == right:
        return []
    first, last = left >> CHUNK_BITS, right >> CHUNK_BITS
    pos = left % CHUNK_SIZE
    if first == last:
        return [(first, hole(pos, right - left), False)]
    holes = [(first, hole(pos, CHUNK_SIZE - pos), False)]
    between: Iterable[int] = range(first + 1, last)
    if last - first > MANY_CHUNKS:
        between = [index for index in existing() if first < index < last]
    holes += [(index, hole(0, CHUNK_SIZE), True) for index in between]
    if right % CHUNK_SIZE:
        holes.append((last, hole(0, right % CHUNK_SIZE), False))
    return holes


def range_holes(
    offset: int, end: int, existing: Callable[[], Iterable[int]]
) -> list[tuple[int, Slice]]:
    """Hole records of a punched range [offset, end), split at chunk borders.

    They are for chunks that have a list: the others are holes. `existing` as in `resize_holes`.
    """
    if offset >= end:
        return []
    first, last = offset >> CHUNK_BITS, (end - 1) >> CHUNK_BITS
    chunks: Iterable[int] = range(first, last + 1)
    if last - first > MANY_CHUNKS:
        chunks = [index for index in existing() if first <= index <= last]
    holes = []
    for index in chunks:
        base = index << CHUNK_BITS
        begin, stop = max(offset - base, 0), min(end - base, CHUNK_SIZE)
        holes.append((index, hole(begin, stop - begin)))
    return holes


def check_fallocate(mode: int, offset: int, length: int) -> None:
    if length <= 0 or offset < 0:
        raise posix_error(EINVAL)
    if mode & ~(FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE):
        raise posix_error(EOPNOTSUPP)
    if mode & FALLOC_PUNCH_HOLE and (not mode & FALLOC_KEEP_SIZE or mode & FALLOC_ZERO_RANGE):
        raise posix_error(EOPNOTSUPP)


def punches(mode: int) -> bool:
    return bool(mode & (FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE))
