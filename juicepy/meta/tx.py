"""A metadata transaction: typed reads that are remembered, typed writes that are gathered.

Operations (`meta/ops/`) are functions over a `Tx`. An engine gives it a `Source` to read from and,
when the function returns, stores `tx.writes` at once or not at all. No rule of POSIX is in here.

Reads see the transaction's own writes. What is read **strictly** must still be so at the commit,
else the engine runs the function again; what is read **loosely** (a directory one adds names to)
may have changed meanwhile, and is changed by `touch`, relatively, so that creates in one directory
do not conflict.

| key                       | value                              | strict |
|---------------------------|------------------------------------|--------|
| ("attr", ino)             | Attr or None                       | yes    |
| ("dir", ino)              | Attr or None                       | no     |
| ("entry", parent, name)   | Entry or None                      | yes    |
| ("empty", ino)            | bool: the directory has no entry   | yes    |
| ("chunk", ino, index)     | tuple of Slice, oldest first       | no (*) |
| ("link", ino)             | symlink target, bytes or None      | no     |
| ("xattr", ino, name)      | bytes or None                      | yes    |
| ("xattrs", ino)           | tuple of names                     | no     |
| ("parents", ino)          | dict parent -> count (> 0)         | yes    |
| ("acl", id)               | AclRule or None                    | no (immutable) |
| ("locks", ino, posix)     | dict (sid, owner) -> stored bytes  | yes    |

(*) every change of data rewrites the inode's Attr, so a strict "attr" covers the chunks;
compaction has `replace_slices`, deletion `drop_chunk`, which compare what was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from errno import EIO
from typing import Any, Protocol

from juicepy.types import AclRule, Attr, Entry, Inode, SessionId, Slice, SliceId

Key = tuple[Any, ...]
Ref = tuple[SliceId, int]  # (id, size): what a slice reference counts
LockOwner = tuple[SessionId, int]  # (session, owner as unsigned 64 bit)
HeldLock = tuple[Inode, int, bool]  # inode, owner, is POSIX: of one session


class LockLost(OSError):
    """EIO: the lock that the transaction relies on was not stored any more at its commit."""

    def __init__(self) -> None:
        super().__init__(EIO, "a lock has been released by another client")


class Source(Protocol):
    """Where a transaction reads from, in the middle of it."""

    def fetch(self, keys: Sequence[Key]) -> list[Any]:
        """Values of `keys` in their order, as the table above says, in few exchanges."""

    def save_acl(self, rule: AclRule) -> int:
        """The id (1..) of an equal stored rule, stored now if there is none."""


@dataclass(slots=True)
class Touch:
    """A relative change of a directory: links added, times set to `time_ns` if given."""

    nlink: int = 0
    time_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Append:
    """Slices for the end of a chunk's list; `only_existing` leaves an absent list absent."""

    ino: Inode
    index: int
    slices: tuple[Slice, ...]
    only_existing: bool = False


@dataclass(frozen=True, slots=True)
class Replace:
    """Compaction: the list must begin with `prefix`, which `slices` replace; else conflict."""

    ino: Inode
    index: int
    prefix: tuple[Slice, ...]
    slices: tuple[Slice, ...]


@dataclass(slots=True)
class Writes:
    """All a transaction is to store. An engine maps each field in one place."""

    attrs: dict[Inode, Attr | None] = field(default_factory=dict)  # None: remove
    created: set[Inode] = field(default_factory=set)  # of `attrs`: must not exist yet
    touches: dict[Inode, Touch] = field(default_factory=dict)  # must exist, else conflict
    entries: dict[tuple[Inode, bytes], Entry | None] = field(default_factory=dict)
    links: dict[Inode, bytes | None] = field(default_factory=dict)
    xattrs: dict[tuple[Inode, bytes], bytes | None] = field(default_factory=dict)
    xattrs_dropped: set[Inode] = field(default_factory=set)
    parents: dict[tuple[Inode, Inode], int] = field(default_factory=dict)  # (child, parent) += n
    parents_dropped: set[Inode] = field(default_factory=set)
    appends: list[Append] = field(default_factory=list)
    replaces: list[Replace] = field(default_factory=list)
    chunks_dropped: dict[tuple[Inode, int], tuple[Slice, ...]] = field(default_factory=dict)
    slices_made: list[Ref] = field(default_factory=list)  # one reference each
    refs: dict[Ref, int] = field(default_factory=dict)  # relative
    deleted_files: dict[Inode, tuple[int, int]] = field(default_factory=dict)  # length, unix s
    deleted_done: dict[Inode, int] = field(default_factory=dict)  # length
    sustained: dict[tuple[SessionId, Inode], bool] = field(default_factory=dict)
    delayed: dict[tuple[SliceId, int], tuple[Ref, ...] | None] = field(default_factory=dict)
    stats_made: set[Inode] = field(default_factory=set)  # directory statistics row of zeros
    stats_dropped: set[Inode] = field(default_factory=set)
    quotas_dropped: set[Inode] = field(default_factory=set)
    locks: dict[tuple[Inode, bool], dict[LockOwner, bytes | None]] = field(default_factory=dict)
    relied_on: tuple[SessionId, HeldLock] | None = None  # a lock that must be stored
    space: int = 0
    inodes: int = 0

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Committed:
    """What the store told at the commit.

    `chunks`: (ino, index) -> number of slices after an append. `refs`: (id, size) -> references
    left after `Writes.refs`; who reads 0 or less deletes the blocks.
    """

    chunks: dict[tuple[Inode, int], int] = field(default_factory=dict)
    refs: dict[Ref, int] = field(default_factory=dict)


class Tx:
    """One run of one operation. Not thread-safe; used up when the operation returns."""

    __slots__ = ("_seen", "_source", "writes")

    def __init__(self, source: Source) -> None:
        self._source = source
        self._seen: dict[Key, Any] = {}
        self.writes = Writes()

    # -- reads
    def fetch(self, *keys: Key) -> None:
        """A hint: get these now, in one exchange, they will be asked for."""
        missing = [key for key in keys if key not in self._seen]
        if missing:
            self._seen.update(zip(missing, self._source.fetch(missing), strict=True))

    def _get(self, key: Key) -> Any:
        if key not in self._seen:
            self.fetch(key)
        return self._seen[key]

    def attr(self, ino: Inode) -> Attr | None:
        if ino in self.writes.attrs:
            return self.writes.attrs[ino]
        found: Attr | None = self._get(("attr", ino))
        return found

    def directory(self, ino: Inode) -> Attr | None:
        """The directory as it was a moment ago; change it by `touch` only."""
        if ino in self.writes.attrs:
            return self.writes.attrs[ino]
        found: Attr | None = self._seen.get(("attr", ino)) or self._get(("dir", ino))
        return found

    def entry(self, parent: Inode, name: bytes) -> Entry | None:
        if (parent, name) in self.writes.entries:
            return self.writes.entries[parent, name]
        found: Entry | None = self._get(("entry", parent, name))
        return found

    def is_empty(self, ino: Inode) -> bool:
        return bool(self._get(("empty", ino)))

    def slices(self, ino: Inode, index: int) -> tuple[Slice, ...]:
        """The list as stored: without this transaction's own appends."""
        found: tuple[Slice, ...] = self._get(("chunk", ino, index))
        return found

    def link_target(self, ino: Inode) -> bytes | None:
        found: bytes | None = self._get(("link", ino))
        return found

    def xattr(self, ino: Inode, name: bytes) -> bytes | None:
        if (ino, name) in self.writes.xattrs:
            return self.writes.xattrs[ino, name]
        found: bytes | None = self._get(("xattr", ino, name))
        return found

    def xattr_names(self, ino: Inode) -> tuple[bytes, ...]:
        found: tuple[bytes, ...] = self._get(("xattrs", ino))
        return found

    def parents(self, ino: Inode) -> dict[Inode, int]:
        """Directories that hold a name of a hard-linked file, with the number of names."""
        counts: dict[Inode, int] = dict(self._get(("parents", ino)))
        for (child, parent), delta in self.writes.parents.items():
            if child == ino:
                counts[parent] = counts.get(parent, 0) + delta
        return {parent: count for parent, count in counts.items() if count > 0}

    def acl(self, rule_id: int) -> AclRule | None:
        found: AclRule | None = self._get(("acl", rule_id))
        return found

    def locks(self, ino: Inode, *, posix: bool) -> dict[LockOwner, bytes]:
        found: dict[LockOwner, bytes] = self._get(("locks", ino, posix))
        return dict(found)

    def save_acl(self, rule: AclRule) -> int:
        return self._source.save_acl(rule)

    # -- writes
    def set_attr(self, ino: Inode, attr: Attr) -> None:
        self.writes.attrs[ino] = attr

    def make_inode(self, ino: Inode, attr: Attr) -> None:
        self.writes.attrs[ino] = attr
        self.writes.created.add(ino)

    def drop_inode(self, ino: Inode) -> None:
        """The record with its xattrs, link target and parent counts."""
        self.writes.attrs[ino] = None
        self.writes.xattrs_dropped.add(ino)
        self.writes.parents_dropped.add(ino)

    def touch(self, ino: Inode, *, nlink: int = 0, time_ns: int | None = None) -> None:
        """Change a directory relatively. Without changes it still must exist at the commit."""
        touch = self.writes.touches.setdefault(ino, Touch())
        touch.nlink += nlink
        if time_ns is not None:
            touch.time_ns = time_ns

    def set_entry(self, parent: Inode, name: bytes, entry: Entry) -> None:
        self.writes.entries[parent, name] = entry

    def drop_entry(self, parent: Inode, name: bytes) -> None:
        self.writes.entries[parent, name] = None

    def set_link(self, ino: Inode, target: bytes) -> None:
        self.writes.links[ino] = target

    def drop_link(self, ino: Inode) -> None:
        self.writes.links[ino] = None

    def set_xattr(self, ino: Inode, name: bytes, value: bytes) -> None:
        self.writes.xattrs[ino, name] = value

    def drop_xattr(self, ino: Inode, name: bytes) -> None:
        self.writes.xattrs[ino, name] = None

    def drop_xattrs(self, ino: Inode) -> None:
        self.writes.xattrs_dropped.add(ino)

    def count_parent(self, ino: Inode, parent: Inode, delta: int) -> None:
        key = (ino, parent)
        self.writes.parents[key] = self.writes.parents.get(key, 0) + delta

    def append(self, ino: Inode, index: int, *slices: Slice, only_existing: bool = False) -> None:
        self.writes.appends.append(Append(ino, index, slices, only_existing))

    def made_slice(self, ref: Ref) -> None:
        self.writes.slices_made.append(ref)

    def replace_slices(
        self, ino: Inode, index: int, prefix: tuple[Slice, ...], slices: tuple[Slice, ...]
    ) -> None:
        self.writes.replaces.append(Replace(ino, index, prefix, slices))

    def drop_chunk(self, ino: Inode, index: int) -> tuple[Slice, ...]:
        """Remove the list; conflict if it is not what `slices` told."""
        found = self.slices(ino, index)
        self.writes.chunks_dropped[ino, index] = found
        return found

    def count_ref(self, ref: Ref, delta: int) -> None:
        self.writes.refs[ref] = self.writes.refs.get(ref, 0) + delta

    def delete_file(self, ino: Inode, length: int, when_s: int) -> None:
        self.writes.deleted_files[ino] = (length, when_s)

    def delete_done(self, ino: Inode, length: int) -> None:
        self.writes.deleted_done[ino] = length

    def sustain(self, sid: SessionId, ino: Inode, *, on: bool) -> None:
        self.writes.sustained[sid, ino] = on

    def delay_slices(self, new: SliceId, when_s: int, refs: tuple[Ref, ...]) -> None:
        self.writes.delayed[new, when_s] = refs

    def drop_delayed(self, new: SliceId, when_s: int) -> None:
        """If another client was first, the commit stores nothing and raises ENOENT."""
        self.writes.delayed[new, when_s] = None

    def make_stats(self, ino: Inode) -> None:
        self.writes.stats_made.add(ino)

    def drop_directory_records(self, ino: Inode) -> None:
        self.writes.stats_dropped.add(ino)
        self.writes.quotas_dropped.add(ino)

    def set_lock(self, ino: Inode, owner: LockOwner, value: bytes | None, *, posix: bool) -> None:
        self.writes.locks.setdefault((ino, posix), {})[owner] = value

    def rely_on(self, sid: SessionId, lock: HeldLock) -> None:
        """If the lock is not stored at the commit, this stores nothing and raises LockLost."""
        self.writes.relied_on = (sid, lock)

    def use(self, *, space: int = 0, inodes: int = 0) -> None:
        self.writes.space += space
        self.writes.inodes += inodes
