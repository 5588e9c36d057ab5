"""How the writes of a transaction become rows, in the order that other clients keep, too.

Names first, then inodes and what belongs to them, then the references of slices, and the parent
directories last, relatively and by ascending inode. A row that is not as it was read is a Conflict.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from typing import Any

from juicepy.errors import posix_error
from juicepy.meta.codec import encode_refs, encode_slices
from juicepy.meta.sql.database import Conflict, DriverError, Link
from juicepy.meta.sql.dialects import Dialect, Fault
from juicepy.meta.sql.rows import kind_of, node_values, signed
from juicepy.meta.sql.statements import Statements
from juicepy.meta.sql.transaction import SqlSource
from juicepy.meta.tx import Append, Committed, LockLost, Ref, Touch, Writes
from juicepy.types import Entry, Inode, Kind, Slice

_SLICE_BYTES = 24
_UNREAD = (0, Entry(Inode(0), Kind.FILE))
_MANY = 8  # appends to existing chunks, from which on it pays to ask which ones exist


class Commit:
    """Stores `writes` over `link`; `read` is what the same transaction has read."""

    __slots__ = ("_dialect", "_link", "_read", "_s", "_writes", "told")

    def __init__(
        self, link: Link, statements: Statements, dialect: Dialect, read: SqlSource, writes: Writes
    ) -> None:
        self._link, self._s, self._dialect = link, statements, dialect
        self._read, self._writes = read, writes
        self.told = Committed()

    def run(self) -> Committed:
        writes = self._writes
        self._link.begin()
        if writes.entries:
            self._entries()
        if writes.attrs:
            self._attrs()
        if writes.links or writes.xattrs or writes.xattrs_dropped:
            self._links_and_xattrs()
        if writes.appends or writes.replaces or writes.chunks_dropped:
            self._chunks()
        if writes.slices_made or writes.refs:
            self._references()
        self._deletions()
        if writes.stats_made or writes.stats_dropped or writes.quotas_dropped:
            self._usage_rows()
        if writes.locks:
            self._locks()
        if writes.touches:
            self._touches()
        if self._read.locking:
            self._verify()  # late, as an absent row cannot be locked, and writing may have waited
        if writes.relied_on is not None:
            sid, (ino, owner, posix) = writes.relied_on
            where = {"w_inode": ino, "w_sid": sid, "w_owner": signed(owner)}
            if not self._link.rows(self._s.lock_held[posix], where):  # kept until the commit
                raise LockLost
        return self.told

    def _verify(self) -> None:
        """What was read strictly, is not locked and not written must still be so."""
        read, writes = self._read, self._writes
        for key, seen in read.edges.items():
            if key not in writes.entries:
                rows = self._link.rows_in(self._s.entries_now, [key[1]], {"w_parent": key[0]})
                now = (rows[0][1], Entry(rows[0][2], kind_of(rows[0][3]))) if rows else None
                if now != seen:
                    raise Conflict("entry")
        for xattr, value in read.xattrs.items():
            if xattr not in writes.xattrs and xattr[0] not in writes.xattrs_dropped:
                values = {"w_inode": xattr[0], "w_name": self._dialect.text(xattr[1])}
                rows = self._link.rows(self._s.xattr_now, values)
                if (bytes(rows[0][0]) if rows else None) != value:
                    raise Conflict("xattr")
        absent = [ino for ino, attr in read.attrs.items() if attr is None]
        absent = [ino for ino in absent if ino not in writes.created]
        if absent and self._link.rows_in(self._s.nodes_exist, absent):
            raise Conflict("inode")

    # -- names
    def _entries(self) -> None:
        drops, changes, inserts = [], [], []
        for (parent, name), entry in self._writes.entries.items():
            seen = self._read.edges.get((parent, name), _UNREAD)
            new = {"parent": parent, "name": name}
            if entry is not None:
                new["inode"], new["type"] = entry.ino, int(entry.kind)
            if seen is _UNREAD:
                self._blind_entry(new)
            elif seen is None:
                if entry is not None:
                    inserts.append(new)
            else:
                old: dict[str, Any] = {
                    "w_id": seen[0],
                    "w_parent": parent,
                    "w_name": name,
                    "w_inode": seen[1].ino,
                    "w_type": int(seen[1].kind),
                }
                if entry is None:
                    drops.append(old)
                else:
                    changes.append({**old, **new})
        if self._link.change_all(self._s.drop_edge, drops) != len(drops):
            raise Conflict("a name was changed")
        if self._link.change_all(self._s.change_edge, changes) != len(changes):
            raise Conflict("a name was changed")
        self._link.change_all(self._s.insert_edge, inserts)

    def _blind_entry(self, new: dict[str, Any]) -> None:
        where = {"w_parent": new["parent"], "w_name": new["name"]}
        if "inode" not in new:
            self._link.change(self._s.drop_name, where)
        elif not self._link.change(self._s.change_name, {**where, **new}):
            self._link.change(self._s.insert_edge, new)

    # -- inodes
    def _attrs(self) -> None:
        writes, seen = self._writes, self._read.attrs
        inserts: list[dict[str, Any]] = []
        updates: list[dict[str, Any]] = []
        blind: list[dict[str, Any]] = []
        drops: list[Inode] = []
        for ino in sorted(writes.attrs):
            attr = writes.attrs[ino]
            if attr is None:
                drops.append(ino)
            elif ino in writes.created or seen.get(ino, attr) is None:
                inserts.append(node_values(ino, attr))
            else:
                (updates if ino in seen else blind).append(node_values(ino, attr))
        self._link.change_all(self._s.insert_node, inserts)
        if self._link.change_all(self._s.update_node, updates) != len(updates):
            raise Conflict("an inode was removed")
        for values in blind:
            if not self._link.change(self._s.update_node, values):
                self._link.change(self._s.insert_node, values)
        if drops:
            self._link.change_in(self._s.drop_nodes, drops)

    def _links_and_xattrs(self) -> None:
        writes, link, s = self._writes, self._link, self._s
        dropped = {ino for ino, target in writes.links.items() if target is None}
        for ino in writes.parents_dropped:  # an inode that ends takes its target along
            seen = self._read.attrs.get(ino)
            if seen is None or seen.kind is Kind.SYMLINK:
                dropped.add(ino)
        for ino, target in writes.links.items():
            if target is not None:
                link.change(s.set_link, {"inode": ino, "target": target})
        if dropped:
            link.change_in(s.drop_links, sorted(dropped))
        if writes.xattrs_dropped:
            link.change_in(s.drop_xattrs, sorted(writes.xattrs_dropped))
        for (ino, name), value in writes.xattrs.items():
            try:
                self._xattr(ino, name, value)
            except DriverError as error:
                if error.fault is Fault.VALUE:  # MySQL's column ends at 65535 bytes
                    raise posix_error(errno.ENOSPC) from error
                raise

    def _xattr(self, ino: Inode, name: bytes, value: bytes | None) -> None:
        link, s = self._link, self._s
        text = self._dialect.text(name)
        where = {"w_inode": ino, "w_name": text}
        is_read = (ino, name) in self._read.xattrs and ino not in self._writes.xattrs_dropped
        seen = self._read.xattrs.get((ino, name)) if is_read else None
        if value is None:
            count = link.change(s.drop_xattr, where)
        elif seen is not None:
            count = link.change(s.change_xattr, {**where, "w_value": seen, "value": value})
        else:
            count = 0 if is_read else link.change(s.put_xattr, {**where, "value": value})
            if not count:
                link.change(s.insert_xattr, {"inode": ino, "name": text, "value": value})
        if seen is not None and not count:
            raise Conflict("xattr")

    # -- data
    def _chunks(self) -> None:
        writes, link = self._writes, self._link
        for (ino, index), seen in writes.chunks_dropped.items():
            values = {"w_inode": ino, "w_indx": index, "w_slices": encode_slices(seen)}
            if seen and not link.change(self._s.drop_chunk, values):
                raise Conflict("chunk")
        for replace in writes.replaces:
            where = {"w_inode": replace.ino, "w_indx": replace.index}
            rows = link.rows(self._s.chunk_locked, where)
            prefix = encode_slices(replace.prefix)
            if not rows or not bytes(rows[0][1]).startswith(prefix):
                raise Conflict("slices")
            rest = encode_slices(replace.slices) + bytes(rows[0][1])[len(prefix) :]
            link.change(self._s.set_chunk, {"w_id": rows[0][0], "slices": rest})
        for append in self._worthwhile(_joined(writes.appends)):
            self._append(append)

    def _worthwhile(self, appends: list[Append]) -> list[Append]:
        """Without those whose chunk must exist and does not, if there are many."""
        optional = {append.ino for append in appends if append.only_existing}
        if len(appends) < _MANY or not optional:
            return appends
        existing = {
            (ino, index)
            for ino in optional
            for (index,) in self._link.rows(self._s.chunk_indexes, {"w_inode": ino})
        }
        return [a for a in appends if not a.only_existing or (a.ino, a.index) in existing]

    def _append(self, append: Append) -> None:
        s, tail = self._s, encode_slices(append.slices)
        where = {"w_inode": append.ino, "w_indx": append.index}
        if append.only_existing:
            statement, values = s.extend_chunk, {**where, "tail": tail}
        else:
            statement = s.append_chunk
            values = {"inode": append.ino, "indx": append.index, "slices": tail}
        if self._dialect.has_returning:
            rows = self._link.rows(statement, values)
        elif self._link.change(statement, values):
            rows = self._link.rows(s.chunk_length, where)
        else:
            rows = []
        if rows:
            self.told.chunks[append.ino, append.index] = rows[0][0] // _SLICE_BYTES

    def _references(self) -> None:
        made = self._writes.slices_made
        self._link.change_all(
            self._s.insert_ref, [{"chunkid": i, "size": size, "refs": 1} for i, size in made]
        )
        by_delta: defaultdict[int, list[int]] = defaultdict(list)
        sizes: dict[int, int] = {}
        for (slice_id, size), delta in self._writes.refs.items():
            by_delta[delta].append(slice_id)
            sizes[slice_id] = size
        for delta in sorted(by_delta):
            self._link.change_in(self._s.add_refs, sorted(by_delta[delta]), {"delta": delta})
        if not sizes:
            return
        left = {row[0]: row[2] for row in self._link.rows_in(self._s.refs, sorted(sizes))}
        for ref, delta in self._writes.refs.items():
            self.told.refs[ref] = left[ref[0]] if ref[0] in left else self._first_ref(ref, delta)

    def _first_ref(self, ref: Ref, delta: int) -> int:
        """A slice that has no row has one reference."""
        values = {"chunkid": ref[0], "size": ref[1], "refs": 1 + delta}
        self._link.change(self._s.insert_ref, values)
        return 1 + delta

    def _deletions(self) -> None:
        writes, link, s = self._writes, self._link, self._s
        for ino, (length, when_s) in writes.deleted_files.items():
            link.change(s.put_delfile, {"inode": ino, "length": length, "expire": when_s})
        for ino in writes.deleted_done:
            link.change(s.drop_delfile, {"w_inode": ino})
        for (sid, ino), is_on in writes.sustained.items():
            if is_on:
                link.change(s.put_sustained, {"sid": sid, "inode": ino})
            else:
                link.change(s.drop_sustained, {"w_sid": sid, "w_inode": ino})
        for (new, when_s), refs in writes.delayed.items():
            if refs is not None:
                values = {"chunkid": new, "deleted": when_s, "slices": encode_refs(refs)}
                link.change(s.put_delayed, values)
            elif not link.change(s.drop_delayed, {"w_chunkid": new, "w_deleted": when_s}):
                raise FileNotFoundError(errno.ENOENT, f"no delayed slices of {new}")

    def _usage_rows(self) -> None:
        writes, link, s = self._writes, self._link, self._s
        if writes.stats_dropped:
            link.change_in(s.drop_stats, sorted(writes.stats_dropped))
        if writes.quotas_dropped:
            link.change_in(s.drop_quotas, sorted(writes.quotas_dropped))
        for ino in writes.stats_made:
            zeros = {"data_length": 0, "used_space": 0, "used_inodes": 0}
            link.change(s.make_stats, {"inode": ino, **zeros})

    def _locks(self) -> None:
        for (ino, posix), owners in self._writes.locks.items():
            for (sid, owner), value in owners.items():
                key = {"inode": ino, "sid": sid, "owner": signed(owner)}
                if value is None:
                    where = {f"w_{name}": number for name, number in key.items()}
                    self._link.change(self._s.drop_lock[posix], where)
                    continue
                new: dict[str, Any] = {"records": value} if posix else {"ltype": value[0]}
                self._link.change(self._s.put_lock[posix], {**key, **new})

    # -- parent directories
    def _touches(self) -> None:
        attrs, seen = self._writes.attrs, self._read.attrs
        unchanged = []
        for ino, touch in sorted(self._writes.touches.items()):
            if ino in attrs and attrs[ino] is None:
                continue
            if touch.nlink or touch.time_ns is not None:
                self._touch(ino, touch)
            elif ino not in attrs and seen.get(ino) is None:
                unchanged.append(ino)
        if unchanged:
            found = self._link.rows_in(self._s.nodes_exist, unchanged)
            if len(found) != len(unchanged):
                raise Conflict("a directory was removed")

    def _touch(self, ino: Inode, touch: Touch) -> None:
        values = {"w_inode": ino, "delta": touch.nlink}
        statement = self._s.add_nlink
        if touch.time_ns is not None:
            time_us, rest = divmod(touch.time_ns, 1000)
            values.update(new_mtime=time_us, new_ctime=time_us)
            values.update(new_mtimensec=rest, new_ctimensec=rest)
            statement = self._s.add_nlink_set_times if touch.nlink else self._s.set_times
        if not self._link.change(statement, values):
            raise Conflict("a directory was removed")


def _joined(appends: list[Append]) -> list[Append]:
    """Neighbours that go to one list as one."""
    done: list[Append] = []
    for append in appends:
        last = done[-1] if done else None
        if last and _where(last) == _where(append):
            slices: tuple[Slice, ...] = last.slices + append.slices
            done[-1] = Append(append.ino, append.index, slices, append.only_existing)
        else:
            done.append(append)
    return done


def _where(append: Append) -> tuple[Any, ...]:
    return append.ino, append.index, append.only_existing
