"""Rows beside the transactions of files: statistics, quotas, sessions, clean-up, scans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import bindparam, delete, select, update

from juicepy.meta.codec import decode_refs, decode_slices
from juicepy.meta.engine import (
    DelayedSlices,
    DeletedFile,
    DirStats,
    Quota,
    StoredLock,
    StoredSession,
)
from juicepy.meta.sql.database import Database, Link
from juicepy.meta.sql.rows import attr_of, unsigned
from juicepy.meta.sql.statements import Family, Statement, Statements, matches, param
from juicepy.meta.sql.tables import Tables
from juicepy.meta.tx import Ref
from juicepy.types import Attr, Inode, SessionId, Slice

PAGE = 2000
_USER, _GROUP = 1, 2  # stored: never renumber


class Usage:
    """Directory statistics and quotas."""

    def __init__(self, database: Database, tables: Tables, statements: Statements) -> None:
        self._database, self._s = database, statements
        dialect = database.dialect
        self._quotas = Statement(select(tables.dir_quota), dialect)
        self._owners = Statement(select(tables.user_group_quota), dialect)
        self._forget = Statement(delete(tables.dir_stats), dialect)

    def reset_stats(self) -> None:
        self._database.write(lambda link: link.change(self._forget, {}), repeatable=True)

    def stats(self, ino: Inode) -> DirStats | None:
        rows = self._database.read(lambda link: link.rows_in(self._s.stats, [ino]))
        return DirStats(*rows[0][1:]) if rows else None

    def add_stats(self, deltas: dict[Inode, DirStats]) -> list[Inode]:
        def work(link: Link) -> list[Inode]:
            link.begin()
            known = {row[0] for row in link.rows_in(self._s.stats, sorted(deltas))}
            changes = [
                {
                    "w_inode": ino,
                    "add_data_length": deltas[ino].length,
                    "add_used_space": deltas[ino].space,
                    "add_used_inodes": deltas[ino].inodes,
                }
                for ino in sorted(known)
            ]
            link.change_all(self._s.add_stats, changes)
            rows = link.rows_in(self._s.stats, sorted(deltas))
            good = {row[0] for row in rows if min(row[1:]) >= 0}
            return [ino for ino in deltas if ino not in good]

        return self._database.write(work) if deltas else []

    def set_stats(self, ino: Inode, stats: DirStats) -> None:
        values = {
            "inode": ino,
            "data_length": stats.length,
            "used_space": stats.space,
            "used_inodes": stats.inodes,
        }
        self._database.write(lambda link: link.change(self._s.put_stats, values), repeatable=True)

    def quotas(self) -> dict[Inode, Quota]:
        rows = self._database.rows(self._quotas)
        return {row[0]: Quota(*row[1:]) for row in rows}

    def set_quota(self, ino: Inode, quota: Quota | None) -> None:
        def work(link: Link) -> None:
            if quota is None:
                link.change_in(self._s.drop_quotas, [ino])
            else:
                values = {
                    "inode": ino,
                    "max_space": quota.max_space,
                    "max_inodes": quota.max_inodes,
                    "used_space": quota.used_space,
                    "used_inodes": quota.used_inodes,
                }
                link.change(self._s.put_quota, values)

        self._database.write(work, repeatable=True)

    def add_quotas(self, deltas: dict[Inode, tuple[int, int]]) -> None:
        changes = [
            {"w_inode": ino, "add_used_space": space, "add_used_inodes": inodes}
            for ino, (space, inodes) in sorted(deltas.items())
        ]

        def work(link: Link) -> None:
            link.begin()
            link.change_all(self._s.add_quota, changes)

        if changes:
            self._database.write(work)

    def owners(self) -> tuple[dict[int, Quota], dict[int, Quota]]:
        found: dict[int, dict[int, Quota]] = {_USER: {}, _GROUP: {}}
        for kind, key, *quota in self._database.rows(self._owners):
            found.setdefault(kind, {})[key] = Quota(*quota)
        return found[_USER], found[_GROUP]

    def add_owners(
        self, users: dict[int, tuple[int, int]], groups: dict[int, tuple[int, int]]
    ) -> None:
        changes = [
            {
                "qtype": kind,
                "qkey": key,
                "max_space": -1,
                "max_inodes": -1,
                "used_space": space,
                "used_inodes": inodes,
            }
            for kind, deltas in ((_USER, users), (_GROUP, groups))
            for key, (space, inodes) in sorted(deltas.items())
        ]

        def work(link: Link) -> None:
            link.begin()
            for change in changes:
                link.change(self._s.add_usage, change)

        if changes:
            self._database.write(work)


class Sessions:
    """Session records, the inodes they keep, their locks."""

    def __init__(self, database: Database, tables: Tables, statements: Statements) -> None:
        self._database, self._s = database, statements
        dialect = database.dialect
        session, sustained = tables.session2, tables.sustained
        self._all = Statement(select(session).order_by(session.c.sid), dialect)
        self._put = Statement(
            dialect.upsert(session, ["sid"], expire="new", info="new"),
            dialect,
            ("sid", "expire", "info"),
        )
        self._prolong = Statement(
            update(session).where(matches(session, "sid")), dialect, ("expire",)
        )
        self._drop = Statement(delete(session).where(matches(session, "sid")), dialect)
        self._sustained = Statement(
            select(sustained.c.inode).where(matches(sustained, "sid")), dialect
        )
        self._locks, self._ids, self._drop_ids = {}, {}, {}
        for posix, table in ((False, tables.flock), (True, tables.plock)):
            value = table.c.records if posix else table.c.ltype
            of_session = select(table.c.inode, table.c.owner, value).where(matches(table, "sid"))
            self._locks[posix] = Statement(of_session, dialect)
            self._ids[posix] = Statement(select(table.c.id).where(matches(table, "sid")), dialect)
            self._drop_ids[posix] = _delete_ids(dialect, table)

    def put(self, sid: SessionId, expire_s: int, record: bytes) -> None:
        values = {"sid": sid, "expire": expire_s, "info": record}
        self._database.write(lambda link: link.change(self._put, values), repeatable=True)

    def refresh(self, sid: SessionId, expire_s: int, record: bytes) -> bool:
        values = {"expire": expire_s, "w_sid": sid}
        found = self._database.write(
            lambda link: link.change(self._prolong, values), repeatable=True
        )
        if not found:
            self.put(sid, expire_s, record)
        return found > 0

    def all(self) -> list[StoredSession]:
        rows = self._database.rows(self._all)
        return [StoredSession(sid, expire, bytes(info or b"")) for sid, expire, info in rows]

    def drop(self, sid: SessionId) -> None:
        self._database.write(lambda link: link.change(self._drop, {"w_sid": sid}), repeatable=True)

    def sustained(self, sid: SessionId) -> list[Inode]:
        rows = self._database.rows(self._sustained, {"w_sid": sid})
        return [row[0] for row in rows]

    def locks(self, sid: SessionId) -> list[tuple[Inode, bool, StoredLock]]:
        found = []
        for posix, statement in self._locks.items():
            rows = self._database.rows(statement, {"w_sid": sid})
            for ino, owner, value in rows:
                stored = bytes(value) if posix else bytes((value,))
                found.append((ino, posix, StoredLock(sid, unsigned(owner), stored)))
        return found

    def release_locks(self, sid: SessionId) -> None:
        """By row id: a deletion by session would lock all rows of the table (MySQL)."""

        def work(link: Link) -> None:
            for posix in (False, True):
                ids = [row[0] for row in link.rows(self._ids[posix], {"w_sid": sid})]
                if ids:
                    link.change_in(self._drop_ids[posix], ids)

        self._database.write(work, repeatable=True)


class CleanUp:
    """Deleted files, slices to delete, and everything for checks and dumps."""

    def __init__(self, database: Database, tables: Tables, statements: Statements) -> None:
        self._database, self._s = database, statements
        dialect = database.dialect
        delfile, delayed, node = tables.delfile, tables.delslices, tables.node
        chunk, ref = tables.chunk, tables.chunk_ref
        limit: Any = bindparam("limit", type_=node.c.type.type)
        before = param("expire", delfile.c.expire)
        self._deleted = Statement(
            select(delfile).where(delfile.c.expire < before).limit(limit), dialect
        )
        before = param("deleted", delayed.c.deleted)
        found = select(delayed.c.chunkid, delayed.c.deleted, dialect.blob(delayed.c.slices))
        self._delayed = Statement(found.where(delayed.c.deleted < before).limit(limit), dialect)
        slices = dialect.blob(chunk.c.slices)
        self._scans = {}
        for name, key, columns in (
            ("node", node.c.inode, [node.c.inode, *dialect.packed(node.c.inode, list(node.c))]),
            ("chunk", chunk.c.id, [chunk.c.id, chunk.c.inode, chunk.c.indx, slices]),
            ("ref", ref.c.chunkid, list(ref.c)),
        ):
            page: Any = select(*columns)
            after = bindparam("after", type_=key.type)
            page = page.where(key > after).order_by(key).limit(limit)
            self._scans[name] = Statement(page, dialect)

    def deleted_files(self, before_s: int, limit: int) -> list[DeletedFile]:
        values = {"w_expire": before_s, "limit": limit}
        rows = self._database.rows(self._deleted, values)
        return [DeletedFile(*row) for row in rows]

    def chunk_indexes(self, ino: Inode) -> list[int]:
        rows = self._database.rows(self._s.chunk_indexes, {"w_inode": ino})
        return sorted(row[0] for row in rows)

    def unreferenced(self, limit: int) -> list[Ref]:
        rows = self._database.read(
            lambda link: link.rows(self._s.unreferenced, {"limit": limit})
        )  # fmt: skip
        return [(row[0], row[1]) for row in rows]

    def forget_slice(self, ref: Ref) -> None:
        values = {"w_chunkid": ref[0], "w_size": ref[1]}
        self._database.write(lambda link: link.change(self._s.forget_ref, values), repeatable=True)

    def delayed_slices(self, before_s: int, limit: int) -> list[DelayedSlices]:
        values = {"w_deleted": before_s, "limit": limit}
        rows = self._database.rows(self._delayed, values)
        return [DelayedSlices(new, deleted, decode_refs(refs)) for new, deleted, refs in rows]

    def attrs(self) -> Iterator[tuple[Inode, Attr]]:
        return ((row[0], attr_of(row, 1)) for row in self._scan("node"))

    def chunks(self) -> Iterator[tuple[Inode, int, tuple[Slice, ...]]]:
        for _, ino, index, slices in self._scan("chunk"):
            if slices:
                yield ino, index, decode_slices(slices)

    def refs(self) -> Iterator[tuple[Ref, int]]:
        return (((row[0], row[1]), row[2]) for row in self._scan("ref"))

    def _scan(self, name: str) -> Iterator[Any]:
        """All rows in the order of their key, page by page."""
        after = -(1 << 63)
        while True:
            values = {"after": after, "limit": PAGE}
            rows = self._database.rows(self._scans[name], values)
            yield from rows
            if len(rows) < PAGE:
                return
            after = rows[-1][0]


def _delete_ids(dialect: Any, table: Any) -> Family:
    build: Callable[[Any], Any] = lambda binds: delete(table).where(table.c.id.in_(binds))  # noqa: E731
    return Family(dialect, table.c.id, build)
