"""Metadata in this process's memory: for tests and for `mem://` volumes that end with it.

One lock serialises all; a transaction runs inside it, so nothing ever conflicts. Engines opened
with the same URL share one store.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from juicepy.errors import posix_error
from juicepy.meta.engine import (
    Changed,
    DelayedSlices,
    DeletedFile,
    DirStats,
    Quota,
    StoredLock,
    StoredSession,
)
from juicepy.meta.tx import Committed, Key, LockLost, LockOwner, Ref, Tx, Writes
from juicepy.types import AclRule, Attr, DirEntry, Entry, Inode, SessionId, Slice, SliceId

T = TypeVar("T")

_PAGE = 1000


@dataclass(slots=True)
class _Store:
    """The tables."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    setting: bytes | None = None
    counters: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    attrs: dict[Inode, Attr] = field(default_factory=dict)
    dirs: dict[Inode, dict[bytes, Entry]] = field(default_factory=lambda: defaultdict(dict))
    chunks: dict[tuple[Inode, int], list[Slice]] = field(default_factory=dict)
    refs: dict[Ref, int] = field(default_factory=dict)
    links: dict[Inode, bytes] = field(default_factory=dict)
    xattrs: dict[Inode, dict[bytes, bytes]] = field(default_factory=lambda: defaultdict(dict))
    parents: dict[Inode, dict[Inode, int]] = field(default_factory=lambda: defaultdict(dict))
    deleted: dict[tuple[Inode, int], int] = field(default_factory=dict)
    delayed: dict[tuple[SliceId, int], tuple[Ref, ...]] = field(default_factory=dict)
    sessions: dict[SessionId, StoredSession] = field(default_factory=dict)
    sustained: dict[SessionId, set[Inode]] = field(default_factory=lambda: defaultdict(set))
    locks: dict[tuple[Inode, bool], dict[LockOwner, bytes]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    acls: dict[int, AclRule] = field(default_factory=dict)
    stats: dict[Inode, DirStats] = field(default_factory=dict)
    quotas: dict[Inode, Quota] = field(default_factory=dict)
    users: dict[int, Quota] = field(default_factory=dict)
    groups: dict[int, Quota] = field(default_factory=dict)


_stores: dict[str, _Store] = {}


def open_mem(url: str) -> MemEngine:
    """The engine of `mem://NAME`; an empty name gives a store of its own."""
    name = url.partition("://")[2]
    return MemEngine(_stores.setdefault(name, _Store()) if name else _Store())


class MemEngine:
    """MetaEngine over dictionaries; also its own `Source`."""

    scheme = "mem"

    def __init__(self, store: _Store | None = None) -> None:
        self._s = store or _Store()

    # -- life
    def load_format(self) -> bytes | None:
        return self._s.setting

    def init(self, setting: bytes, root: Attr, trash: Attr | None) -> None:
        with self._s.lock:
            self._s.setting = setting
            self._s.attrs.setdefault(Inode(1), root)
            if trash is not None:
                self._s.attrs.setdefault(Inode(0x7FFFFFFF10000000), trash)

    def reset_dir_stats(self) -> None:
        self._s.stats.clear()

    def is_empty_database(self) -> bool:
        return self._s.setting is None and not self._s.attrs

    def track(self, tell: Callable[[Changed], None]) -> None:
        """Nobody tells of changes here."""

    def close(self) -> None:
        """Nothing to release: the store lives as long as the process."""

    # -- transactions
    def transact(self, body: Callable[[Tx], T]) -> tuple[T, Committed]:
        with self._s.lock:
            tx = Tx(self)
            result = body(tx)
            return result, self._apply(tx.writes)

    def read(self, body: Callable[[Tx], T]) -> T:
        with self._s.lock:
            return body(Tx(self))

    def fetch(self, keys: Sequence[Key]) -> list[Any]:
        return [_READERS[key[0]](self._s, *key[1:]) for key in keys]

    def save_acl(self, rule: AclRule) -> int:
        for ident, known in self._s.acls.items():
            if known == rule:
                return ident
        ident = len(self._s.acls) + 1
        self._s.acls[ident] = rule
        return ident

    def _apply(self, w: Writes) -> Committed:
        s = self._s
        if w.relied_on is not None:
            sid, (ino, owner, posix) = w.relied_on
            if (sid, owner) not in s.locks[ino, posix]:
                raise LockLost
        for ino in w.touches:
            if ino not in s.attrs:
                raise posix_error(2, f"inode {ino}")
        for key, refs in w.delayed.items():
            if refs is None and key not in s.delayed:
                raise posix_error(2, f"delayed slices of {key[0]}")
        for ino, attr in w.attrs.items():
            if attr is None:
                s.attrs.pop(ino, None)
            else:
                s.attrs[ino] = attr
        for ino, touch in w.touches.items():
            attr = s.attrs[ino]
            changes: dict[str, object] = {"nlink": attr.nlink + touch.nlink}
            if touch.time_ns is not None:
                changes |= {"mtime_ns": touch.time_ns, "ctime_ns": touch.time_ns}
            s.attrs[ino] = attr.with_(**changes)
        for (parent, name), entry in w.entries.items():
            _put(s.dirs[parent], name, entry)
        for ino, target in w.links.items():
            _put(s.links, ino, target)
        for ino in w.xattrs_dropped:
            s.xattrs.pop(ino, None)
        for (ino, name), value in w.xattrs.items():
            _put(s.xattrs[ino], name, value)
        for (child, parent), delta in w.parents.items():
            s.parents[child][parent] = s.parents[child].get(parent, 0) + delta
        for ino in w.parents_dropped:
            s.parents.pop(ino, None)
        self._apply_records(w)
        return self._apply_slices(w)

    def _apply_records(self, w: Writes) -> None:
        s = self._s
        for ino, (length, when_s) in w.deleted_files.items():
            s.deleted[ino, length] = when_s
        for ino, length in w.deleted_done.items():
            s.deleted.pop((ino, length), None)
        for (sid, ino), on in w.sustained.items():
            (s.sustained[sid].add if on else s.sustained[sid].discard)(ino)
        for key, refs in w.delayed.items():
            _put(s.delayed, key, refs)
        for ino in w.stats_made:
            s.stats[ino] = DirStats()
        for ino in w.stats_dropped:
            s.stats.pop(ino, None)
        for ino in w.quotas_dropped:
            s.quotas.pop(ino, None)
        for where, changes in w.locks.items():
            for owner, value in changes.items():
                _put(s.locks[where], owner, value)
        s.counters["usedSpace"] += w.space
        s.counters["totalInodes"] += w.inodes

    def _apply_slices(self, w: Writes) -> Committed:
        s, done = self._s, Committed()
        for piece in w.appends:
            where = (piece.ino, piece.index)
            if where in s.chunks or not piece.only_existing:
                s.chunks.setdefault(where, []).extend(piece.slices)
                done.chunks[where] = len(s.chunks[where])
        for change in w.replaces:
            slices = s.chunks[change.ino, change.index]
            slices[: len(change.prefix)] = change.slices
        for where in w.chunks_dropped:
            s.chunks.pop(where, None)
        for ref in w.slices_made:
            s.refs[ref] = 1
        for ref, delta in w.refs.items():
            s.refs[ref] = done.refs[ref] = s.refs.get(ref, 1) + delta
        return done

    # -- reads
    def lookup(self, parent: Inode, name: bytes) -> tuple[Entry, Attr | None] | None:
        with self._s.lock:
            entry = self._s.dirs[parent].get(name)
            return (entry, self._s.attrs.get(entry.ino)) if entry else None

    def attr(self, ino: Inode) -> Attr | None:
        return self._s.attrs.get(ino)

    def attrs(self, inodes: Iterable[Inode]) -> dict[Inode, Attr]:
        return {ino: attr for ino in inodes if (attr := self._s.attrs.get(ino))}

    def slices(self, ino: Inode, index: int) -> tuple[Slice, ...]:
        with self._s.lock:
            return tuple(self._s.chunks.get((ino, index), ()))

    def list_dir(self, ino: Inode, *, with_attrs: bool) -> Iterator[list[DirEntry]]:
        with self._s.lock:
            names = list(self._s.dirs[ino].items())
        for start in range(0, len(names), _PAGE):
            yield [
                DirEntry(name, e.ino, e.kind, self._s.attrs.get(e.ino) if with_attrs else None)
                for name, e in names[start : start + _PAGE]
            ]

    # -- ids and counters
    def _add(self, counter: str, delta: int) -> int:
        with self._s.lock:
            self._s.counters[counter] += delta
            return self._s.counters[counter]

    def allocate_inodes(self, count: int) -> range:
        last = self._add("nextInode", count) + 1
        return range(last - count + 1, last + 1)

    def allocate_slices(self, count: int) -> range:
        last = self._add("nextChunk", count)
        return range(last - count + 1, last + 1)

    def next_trash(self) -> int:
        return self._add("nextTrash", 1)

    def counter(self, name: str) -> int:
        return self._s.counters.get(name, 0)

    def set_if_small(self, name: str, value: int, diff: int) -> bool:
        with self._s.lock:
            if self._s.counters[name] > value - diff:
                return False
            self._s.counters[name] = value
            return True

    def flush(self) -> None:
        """Usage is part of every transaction here."""

    # -- statistics and quotas
    def dir_stats(self, ino: Inode) -> DirStats | None:
        return self._s.stats.get(ino)

    def add_dir_stats(self, deltas: dict[Inode, DirStats]) -> list[Inode]:
        missing = []
        with self._s.lock:
            for ino, d in deltas.items():
                old = self._s.stats.get(ino)
                if old is None:
                    missing.append(ino)
                    continue
                new = DirStats(old.length + d.length, old.space + d.space, old.inodes + d.inodes)
                self._s.stats[ino] = new
                if min(new.length, new.space, new.inodes) < 0:
                    missing.append(ino)
        return missing

    def set_dir_stats(self, ino: Inode, stats: DirStats) -> None:
        self._s.stats[ino] = stats

    def dir_quotas(self) -> dict[Inode, Quota]:
        return dict(self._s.quotas)

    def set_dir_quota(self, ino: Inode, quota: Quota | None) -> None:
        _put(self._s.quotas, ino, quota)

    def add_dir_quotas(self, deltas: dict[Inode, tuple[int, int]]) -> None:
        with self._s.lock:
            for ino, delta in deltas.items():
                if ino in self._s.quotas:
                    self._s.quotas[ino] = _used(self._s.quotas[ino], delta)

    def user_group_quotas(self) -> tuple[dict[int, Quota], dict[int, Quota]]:
        return dict(self._s.users), dict(self._s.groups)

    def add_user_group_usage(
        self, users: dict[int, tuple[int, int]], groups: dict[int, tuple[int, int]]
    ) -> None:
        with self._s.lock:
            for table, deltas in ((self._s.users, users), (self._s.groups, groups)):
                for ident, delta in deltas.items():
                    table[ident] = _used(table.get(ident, Quota(-1, -1)), delta)

    # -- sessions and locks
    def new_session(self, expire_s: int, record: Callable[[SessionId], bytes]) -> SessionId:
        sid = SessionId(self._add("nextSession", 1))
        self.refresh_session(sid, expire_s, record(sid))
        return sid

    def refresh_session(self, sid: SessionId, expire_s: int, record: bytes) -> bool:
        with self._s.lock:
            is_there = sid in self._s.sessions
            self._s.sessions[sid] = StoredSession(sid, expire_s, record)
        return is_there

    def sessions(self) -> list[StoredSession]:
        return list(self._s.sessions.values())

    def sustained(self, sid: SessionId) -> list[Inode]:
        return list(self._s.sustained.get(sid, ()))

    def session_locks(self, sid: SessionId) -> list[tuple[Inode, bool, StoredLock]]:
        with self._s.lock:
            return [
                (ino, posix, StoredLock(sid, owner, value))
                for (ino, posix), held in self._s.locks.items()
                for (holder, owner), value in held.items()
                if holder == sid
            ]

    def release_locks(self, sid: SessionId) -> None:
        with self._s.lock:
            for held in self._s.locks.values():
                for owner in [owner for owner in held if owner[0] == sid]:
                    del held[owner]

    def drop_session(self, sid: SessionId) -> None:
        self._s.sessions.pop(sid, None)
        self._s.sustained.pop(sid, None)

    # -- clean-up
    def deleted_files(self, before_s: int, limit: int) -> list[DeletedFile]:
        with self._s.lock:
            found = [DeletedFile(*key, when) for key, when in self._s.deleted.items()]
        return [file for file in found if file.deleted_s <= before_s][:limit]

    def chunk_indexes(self, ino: Inode, length: int) -> list[int]:
        with self._s.lock:
            return sorted(index for owner, index in self._s.chunks if owner == ino)

    def unreferenced(self, limit: int) -> list[Ref]:
        with self._s.lock:
            return [ref for ref, count in self._s.refs.items() if count <= 0][:limit]

    def forget_slice(self, ref: Ref) -> None:
        with self._s.lock:
            if self._s.refs.get(ref, 1) <= 0:
                del self._s.refs[ref]

    def delayed_slices(self, before_s: int, limit: int) -> list[DelayedSlices]:
        with self._s.lock:
            found = [DelayedSlices(*key, refs) for key, refs in self._s.delayed.items()]
        return [item for item in found if item.deleted_s <= before_s][:limit]

    # -- everything
    def scan_attrs(self) -> Iterator[tuple[Inode, Attr]]:
        yield from list(self._s.attrs.items())

    def scan_chunks(self) -> Iterator[tuple[Inode, int, tuple[Slice, ...]]]:
        for (ino, index), slices in list(self._s.chunks.items()):
            yield ino, index, tuple(slices)

    def scan_refs(self) -> Iterator[tuple[Ref, int]]:
        yield from list(self._s.refs.items())


def _put(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _used(quota: Quota, delta: tuple[int, int]) -> Quota:
    space, inodes = quota.used_space + delta[0], quota.used_inodes + delta[1]
    return replace(quota, used_space=space, used_inodes=inodes)


_READERS: dict[str, Callable[..., Any]] = {
    "attr": lambda s, ino: s.attrs.get(ino),
    "dir": lambda s, ino: s.attrs.get(ino),
    "entry": lambda s, parent, name: s.dirs[parent].get(name),
    "empty": lambda s, ino: not s.dirs.get(ino),
    "chunk": lambda s, ino, index: tuple(s.chunks.get((ino, index), ())),
    "link": lambda s, ino: s.links.get(ino),
    "xattr": lambda s, ino, name: s.xattrs[ino].get(name),
    "xattrs": lambda s, ino: tuple(s.xattrs.get(ino, ())),
    "parents": lambda s, ino: {p: n for p, n in s.parents.get(ino, {}).items() if n > 0},
    "acl": lambda s, ident: s.acls.get(ident),
    "locks": lambda s, ino, posix: dict(s.locks.get((ino, posix), {})),
}
