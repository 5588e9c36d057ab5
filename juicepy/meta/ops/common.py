"""What every operation needs: the inode that must exist, permission with ACLs, parents' times."""

from __future__ import annotations

from errno import ENOENT, ENOTDIR

from juicepy.errors import posix_error
from juicepy.meta import rules
from juicepy.meta.tx import Tx
from juicepy.types import Attr, Cred, Inode


def need(tx: Tx, ino: Inode) -> Attr:
    """The inode's attributes, read strictly; ENOENT."""
    attr = tx.attr(ino)
    if attr is None:
        raise posix_error(ENOENT, f"inode {ino}")
    return attr


def need_dir(tx: Tx, ino: Inode) -> Attr:
    """A directory's attributes, read loosely (changed by `touch` only); ENOENT, ENOTDIR."""
    attr = tx.directory(ino)
    if attr is None:
        raise posix_error(ENOENT, f"inode {ino}")
    if not attr.is_dir:
        raise posix_error(ENOTDIR, f"inode {ino}")
    return attr


def allow(tx: Tx, attr: Attr, cred: Cred, want: int) -> None:
    """EACCES unless mode bits or ACL let `cred` do `want`."""
    rule = tx.acl(attr.access_acl) if attr.access_acl and not cred.is_root else None
    rules.check_access(attr, cred, want, rule)


def touch_parent(
    tx: Tx, ino: Inode, attr: Attr, now_ns: int, skip_ns: int, *, nlink: int = 0
) -> None:
    """A name was added or removed: times, unless they are fresh and nlink stays (spec 14)."""
    if rules.is_trash(ino):
        return
    is_fresh = nlink == 0 and now_ns - attr.mtime_ns < skip_ns
    tx.touch(ino, nlink=nlink, time_ns=None if is_fresh else now_ns)


def holders(tx: Tx, ino: Inode, attr: Attr) -> dict[Inode, int]:
    """Directories that hold a name of the file, with the number of names each."""
    return {attr.parent: 1} if attr.parent else tx.parents(ino)
