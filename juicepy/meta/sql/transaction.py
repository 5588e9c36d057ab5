"""What a transaction reads from the tables, with the locks that keep it true.

Plain reads before the first lock are statements of their own; the first lock opens the database's
transaction. Node rows are locked before what depends on them (emptiness, parents, locks), in
ascending order within one call. What is read without a lock although it counts (entries, xattrs)
is remembered, and compared when it is written or, if it is not, at the commit (`commit.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from juicepy.meta.codec import decode_slices, encode_acl_names
from juicepy.meta.sql.database import Link
from juicepy.meta.sql.dialects import Dialect
from juicepy.meta.sql.rows import acl_of, as_bytes, attr_of, kind_of, unsigned
from juicepy.meta.sql.statements import Statements
from juicepy.meta.tx import Key
from juicepy.types import AclRule, Attr, Entry, Inode

_NEEDS_NODE = ("attr", "empty", "parents", "locks")


class SqlSource:
    """Reads for one run of a body over one link. `locking` is false for bodies that only read."""

    __slots__ = ("_dialect", "_late", "_link", "_read", "_s", "attrs", "edges", "locking", "xattrs")

    def __init__(
        self, link: Link, statements: Statements, dialect: Dialect, *, locking: bool
    ) -> None:
        self._link, self._s, self._dialect = link, statements, dialect
        self.locking = locking and not dialect.is_local
        self._read = False  # a plain read fixed what plain reads show (MySQL)
        self._late = False  # a row was locked after that: plain reads may show older rows
        self.attrs: dict[Inode, Attr | None] = {}  # read strictly, locked
        self.edges: dict[tuple[Inode, bytes], tuple[int, Entry] | None] = {}  # id and entry
        self.xattrs: dict[tuple[Inode, bytes], bytes | None] = {}

    def fetch(self, keys: Sequence[Key]) -> list[Any]:
        groups: defaultdict[str, list[Key]] = defaultdict(list)
        for key in keys:
            groups[key[0]].append(key)
        found: dict[Key, Any] = {}
        dirs, entries = groups["dir"], groups["entry"]
        if len(dirs) == 1 and len(entries) == 1 and dirs[0][1] == entries[0][1]:
            found.update(self._dir_and_entry(dirs.pop(), entries.pop()))
        for kind in ("dir", "entry"):
            if groups.get(kind):
                found.update(_READERS[kind](self, groups[kind]))
        self._lock({key[1] for kind in _NEEDS_NODE for key in groups.get(kind, ())})
        for kind, wanted in groups.items():
            if kind not in ("dir", "entry") and wanted:
                found.update(_READERS[kind](self, wanted))
        return [found[key] for key in keys]

    def save_acl(self, rule: AclRule) -> int:
        self._link.begin()
        numbers = {
            "owner": rule.owner,
            "group": rule.group,
            "mask": rule.mask,
            "other": rule.other,
        }
        like = {f"w_{name}": value for name, value in numbers.items()}
        for row in self._link.rows(self._s.acls_like, like):
            if acl_of(row[1:]) == rule:
                return int(row[0])
        users, groups = encode_acl_names(rule.users), encode_acl_names(rule.groups)
        values = {**numbers, "named_users": users, "named_groups": groups}
        return self._link.insert(self._s.insert_acl, values)

    # -- how to read
    def _plain(self, statement: Any, values: dict[str, Any]) -> list[Any]:
        self._read = self._read or self._link.in_transaction
        return self._link.rows(statement, values)

    def _plain_in(self, family: Any, items: Sequence[Any], values: dict[str, Any]) -> list[Any]:
        self._read = self._read or self._link.in_transaction
        return self._link.rows_in(family, items, values)

    @property
    def _stale(self) -> bool:
        """Would a plain read show less than the locks of this transaction cover?"""
        return self.locking and self._late and self._dialect.keeps_snapshot

    def _lock(self, inodes: set[Inode]) -> None:
        wanted = sorted(inodes - self.attrs.keys())
        if not wanted:
            return
        if self.locking:
            self._link.begin()
            self._late = self._late or self._read
            rows = self._link.rows_in(self._s.nodes_locked, wanted)
        else:
            rows = self._link.rows_in(self._s.nodes, wanted)
        found = {row[0]: attr_of(row, 1) for row in rows}
        for ino in wanted:
            self.attrs[ino] = found.get(ino)

    # -- one reader for each kind of key
    def _attrs(self, keys: list[Key]) -> dict[Key, Any]:
        return {key: self.attrs[key[1]] for key in keys}

    def _dirs(self, keys: list[Key]) -> dict[Key, Any]:
        rows = self._plain_in(self._s.nodes, [key[1] for key in keys], {})
        found = {row[0]: attr_of(row, 1) for row in rows}
        return {key: found.get(key[1]) for key in keys}

    def _dir_and_entry(self, of: Key, entry: Key) -> dict[Key, Any]:
        """A directory and a name in it, in one exchange: the begin of most operations."""
        _, ino, name = entry
        rows = self._plain(self._s.dir_and_entry, {"w_inode": ino, "w_name": name})
        if not rows:
            self.edges[ino, name] = None
            return {of: None, entry: None}
        row = rows[0]
        edge_id, child, kind = row[:3]
        known = None if edge_id is None else (edge_id, Entry(child, kind_of(kind)))
        self.edges[ino, name] = known
        return {of: attr_of(row, 3), entry: known and known[1]}

    def _entries(self, keys: list[Key]) -> dict[Key, Any]:
        names: defaultdict[Inode, list[bytes]] = defaultdict(list)
        for _, parent, name in keys:
            names[parent].append(name)
            self.edges[parent, name] = None
        for parent, wanted in names.items():
            for row in self._plain_in(self._s.entries, wanted, {"w_parent": parent}):
                name, edge_id, child, kind = row
                self.edges[parent, bytes(name)] = edge_id, Entry(child, kind_of(kind))
        return {key: known and known[1] for key in keys for known in [self.edges[key[1:]]]}

    def _empty(self, keys: list[Key]) -> dict[Key, Any]:
        statement = self._s.any_entry_now if self._stale else self._s.any_entry
        return {key: not self._plain(statement, {"w_parent": key[1]}) for key in keys}

    def _parents(self, keys: list[Key]) -> dict[Key, Any]:
        statement = self._s.parents_now if self._stale else self._s.parents
        found: dict[Key, Any] = {}
        for key in keys:
            counts: defaultdict[Inode, int] = defaultdict(int)
            for (parent,) in self._plain(statement, {"w_inode": key[1]}):
                counts[parent] += 1
            found[key] = dict(counts)
        return found

    def _chunks(self, keys: list[Key]) -> dict[Key, Any]:
        """Locked: else a compaction could release slices that this transaction shares."""
        indexes: defaultdict[Inode, list[int]] = defaultdict(list)
        for _, ino, index in keys:
            indexes[ino].append(index)
        if self.locking:
            self._link.begin()
            self._late = self._late or self._read
        found: dict[Key, Any] = dict.fromkeys(keys, ())
        for ino, wanted in indexes.items():
            where = {"w_inode": ino}
            if self.locking:
                rows = self._link.rows_in(self._s.chunks_locked, sorted(wanted), where)
            else:
                rows = self._plain_in(self._s.chunks, wanted, where)
            for index, slices in rows:
                found["chunk", ino, index] = decode_slices(slices)
        return found

    def _links(self, keys: list[Key]) -> dict[Key, Any]:
        found = {}
        for key in keys:
            rows = self._plain(self._s.link, {"w_inode": key[1]})
            found[key] = bytes(rows[0][0]) if rows else None
        return found

    def _xattrs(self, keys: list[Key]) -> dict[Key, Any]:
        found = {}
        for key in keys:
            _, ino, name = key
            values = {"w_inode": ino, "w_name": self._dialect.text(name)}
            rows = self._plain(self._s.xattr, values)
            found[key] = self.xattrs[ino, name] = bytes(rows[0][0]) if rows else None
        return found

    def _xattr_names(self, keys: list[Key]) -> dict[Key, Any]:
        return {
            key: tuple(
                as_bytes(name) for (name,) in self._plain(self._s.xattr_names, {"w_inode": key[1]})
            )
            for key in keys
        }

    def _acls(self, keys: list[Key]) -> dict[Key, Any]:
        rows = self._plain_in(self._s.acls, [key[1] for key in keys], {})
        found = {row[0]: acl_of(row[1:]) for row in rows}
        return {key: found.get(key[1]) for key in keys}

    def _locks(self, keys: list[Key]) -> dict[Key, Any]:
        found: dict[Key, Any] = {}
        for key in keys:
            _, ino, posix = key
            statements = self._s.locks_now if self.locking else self._s.locks
            rows = self._link.rows(statements[posix], {"w_inode": ino})
            found[key] = {
                (sid, unsigned(owner)): bytes(value) if posix else bytes((value,))
                for sid, owner, value in rows
            }
        return found


_READERS = {
    "attr": SqlSource._attrs,
    "dir": SqlSource._dirs,
    "entry": SqlSource._entries,
    "empty": SqlSource._empty,
    "chunk": SqlSource._chunks,
    "link": SqlSource._links,
    "xattr": SqlSource._xattrs,
    "xattrs": SqlSource._xattr_names,
    "parents": SqlSource._parents,
    "acl": SqlSource._acls,
    "locks": SqlSource._locks,
}
