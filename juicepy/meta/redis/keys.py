"""Names of Redis keys and their members; the shared layout of JuiceFS 1.4 (N is decimal).

| key                  | type   | value                                             |
|----------------------|--------|---------------------------------------------------|
| setting              | string | JSON                                              |
| i<inode>             | string | Attr record                                       |
| d<inode>             | hash   | name -> entry record; absent when empty           |
| p<inode>             | hash   | parent -> count (0 counts nothing), once linked   |
| c<inode>_<index>     | list   | slice records, oldest first                       |
| s<inode>             | string | symlink target                                    |
| x<inode>             | hash   | xattr name -> value                               |
| sliceRef             | hash   | k<id>_<size> -> references - 1; absent is 1       |
| delfiles             | zset   | <inode>:<length>, at the second of deletion       |
| delSlices            | hash   | <new slice>_<second> -> ids and sizes             |
| allSessions          | zset   | sid, at the second of expiry                      |
| sessionInfos         | hash   | sid -> JSON                                       |
| session<sid>         | set    | sustained inodes                                  |
| locked<sid>          | set    | whole names of the lock keys the session is in    |
| lockf<inode>         | hash   | <sid>_<owner, 16 hex digits> -> R or W            |
| lockp<inode>         | hash   | the same field -> POSIX lock records              |
| dirDataLength, dirUsedSpace, dirUsedInodes  | hash | directory -> number         |
| dirQuota, userQuota, groupQuota             | hash | id -> limits                |
| ...QuotaUsedSpace, ...QuotaUsedInodes       | hash | id -> number                |
| acl, aclMaxId        | hash, string | id -> rule, the last id                     |
| counters             | string | usedSpace, totalInodes, nextinode, nextchunk, ... |

In a cluster every key begins with `{<db>}`, also where a value names a key.
"""

from __future__ import annotations

from juicepy.meta.tx import LockOwner, Ref
from juicepy.types import Inode, SessionId, SliceId

_COUNTERS = {"nextInode": "nextinode", "nextChunk": "nextchunk", "nextSession": "nextsession"}


class Keys:
    """Key names of one volume."""

    __slots__ = ("prefix",)

    def __init__(self, prefix: bytes = b"") -> None:
        self.prefix = prefix

    def named(self, name: str) -> bytes:
        return self.prefix + name.encode()

    def counter(self, name: str) -> bytes:
        return self.named(_COUNTERS.get(name, name))

    def attr(self, ino: Inode) -> bytes:
        return b"%bi%d" % (self.prefix, ino)

    def directory(self, ino: Inode) -> bytes:
        return b"%bd%d" % (self.prefix, ino)

    def parents(self, ino: Inode) -> bytes:
        return b"%bp%d" % (self.prefix, ino)

    def chunk(self, ino: Inode, index: int) -> bytes:
        return b"%bc%d_%d" % (self.prefix, ino, index)

    def link(self, ino: Inode) -> bytes:
        return b"%bs%d" % (self.prefix, ino)

    def xattrs(self, ino: Inode) -> bytes:
        return b"%bx%d" % (self.prefix, ino)

    def sustained(self, sid: SessionId) -> bytes:
        return b"%bsession%d" % (self.prefix, sid)

    def locked(self, sid: SessionId) -> bytes:
        return b"%blocked%d" % (self.prefix, sid)

    def locks(self, ino: Inode, posix: bool) -> bytes:
        return b"%block%b%d" % (self.prefix, b"p" if posix else b"f", ino)

    def lock_of(self, key: bytes) -> tuple[Inode, bool] | None:
        """(inode, is POSIX) of a lock key."""
        name = key.removeprefix(self.prefix)
        if name[:5] not in (b"lockf", b"lockp") or not name[5:].isdigit():
            return None
        return Inode(int(name[5:])), name[4:5] == b"p"


def ref_field(ref: Ref) -> bytes:
    return b"k%d_%d" % ref


def delayed_field(new: SliceId, when_s: int) -> bytes:
    return b"%d_%d" % (new, when_s)


def ref_of(field: bytes) -> Ref:
    slice_id, _, size = field[1:].partition(b"_")
    return SliceId(int(slice_id)), int(size)


def owner_field(owner: LockOwner) -> bytes:
    return b"%d_%016X" % (owner[0], owner[1] & 0xFFFFFFFFFFFFFFFF)


def owner_of(field: bytes) -> LockOwner:
    sid, _, owner = field.partition(b"_")
    return SessionId(int(sid)), int(owner, 16)
