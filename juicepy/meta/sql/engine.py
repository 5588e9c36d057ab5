"""The SQL engine: the MetaEngine over SQLite, MySQL (MariaDB) and PostgreSQL.

Transactions are the database's own. Usage of the volume is gathered and stored by `flush`.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from sqlalchemy import select

from juicepy.meta.codec import decode_slices
from juicepy.meta.engine import (
    Changed,
    DelayedSlices,
    DeletedFile,
    DirStats,
    Quota,
    StoredLock,
    StoredSession,
)
from juicepy.meta.sql import schema
from juicepy.meta.sql.commit import Commit
from juicepy.meta.sql.counters import INODES, SPACE, Counters
from juicepy.meta.sql.database import Database, DriverError, Link
from juicepy.meta.sql.dialects import Dialect, Fault, dialect_of
from juicepy.meta.sql.records import CleanUp, Sessions, Usage
from juicepy.meta.sql.rows import as_bytes, attr_of, kind_of, node_values
from juicepy.meta.sql.statements import Statement, Statements, matches
from juicepy.meta.sql.tables import Tables
from juicepy.meta.sql.transaction import SqlSource
from juicepy.meta.sql.url import SqlUrl, parse
from juicepy.meta.tx import Committed, Ref, Tx
from juicepy.types import ROOT, TRASH, Attr, DirEntry, Entry, Inode, SessionId, Slice

T = TypeVar("T")

FIRST_PAGE, PAGE = 500, 2000
_COUNTERS = {
    "nextInode": 2,
    "nextChunk": 1,
    "nextSession": 0,
    SPACE: 0,
    INODES: 0,
    "nextCleanupSlices": 0,
}


@functools.lru_cache(maxsize=8)
def _shared(dialect: str, prefix: str) -> tuple[Dialect, Tables, Statements]:
    """What does not depend on the place of the database, compiled once per process."""
    kind, tables = dialect_of(dialect), Tables(prefix)
    return kind, tables, Statements(tables, kind)


def open_sql(url: str) -> SqlEngine:
    """The engine for a `sqlite3://`, `mysql://` or `postgres://` URL; connects when it is used.

    Raises OSError(EINVAL) that names the malformed part of the URL.
    """
    return SqlEngine(parse(url))


class SqlEngine:
    """See `MetaEngine`."""

    def __init__(self, url: SqlUrl) -> None:
        self.scheme = url.scheme
        self._url = url
        self._dialect, self._tables, self._s = _shared(url.dialect, url.table_prefix)
        self._database = Database(url, self._dialect, self._mend)
        self._counters = Counters(self._database, self._s)
        self._usage = Usage(self._database, self._tables, self._s)
        self._sessions = Sessions(self._database, self._tables, self._s)
        self._clean_up = CleanUp(self._database, self._tables, self._s)
        setting = self._tables.setting
        self._setting = Statement(
            select(setting.c.value).where(matches(setting, "name")), self._dialect
        )
        self._any_node = Statement(select(self._tables.node.c.inode).limit(1), self._dialect)

    # -- life
    def load_format(self) -> bytes | None:
        rows = self._rows_if_there(self._setting, {"w_name": "format"})
        return as_bytes(rows[0][0]) if rows else None

    def init(self, setting: bytes, root: Attr, trash: Attr | None) -> None:
        schema.ensure(self._database, self._tables)
        put_setting = Statement(
            self._dialect.upsert(self._tables.setting, ["name"], value="new"),
            self._dialect,
            ("name", "value"),
        )

        def store(link: Link) -> None:
            link.begin()
            for name, value in _COUNTERS.items():
                if not link.rows(self._s.counter_locked, {"w_name": name}):
                    link.change(self._s.insert_counter, {"name": name, "value": value})
            for ino, attr in ((ROOT, root), (TRASH, trash)):
                if attr is not None and not link.rows_in(self._s.nodes, [ino]):
                    link.change(self._s.insert_node, node_values(ino, attr))
            link.change(put_setting, {"name": "format", "value": setting.decode()})

        self._database.write(store, repeatable=True)

    def reset_dir_stats(self) -> None:
        self._usage.reset_stats()

    def is_empty_database(self) -> bool:
        return not self._rows_if_there(self._setting, {"w_name": "format"}) and not (
            self._rows_if_there(self._any_node, {})
        )

    def track(self, tell: Callable[[Changed], None]) -> None:
        """Nobody tells of changes here."""

    def close(self) -> None:
        """Store what is gathered and end the connections."""
        try:
            self.flush()
        finally:
            self._database.close()

    def _rows_if_there(self, statement: Statement, values: dict[str, Any]) -> list[Any]:
        """Rows; none where the table is not, or the file of SQLite."""
        if self._dialect.is_local and not os.path.exists(self._url.database):
            return []

        def read(link: Link) -> list[Any]:
            try:
                return link.rows(statement, values)
            except DriverError as error:
                if error.fault is Fault.SCHEMA:
                    return []
                raise

        return self._database.read(read)

    def _mend(self) -> None:
        """A table or column is missing: complete the schema of a volume by an older client."""
        if self.load_format() is None:
            raise OSError(errno.EIO, f"{self._url.where}: no volume in this database")
        schema.ensure(self._database, self._tables)

    # -- transactions
    def transact(self, body: Callable[[Tx], T]) -> tuple[T, Committed]:
        def work(link: Link) -> tuple[T, Committed, int, int]:
            source = SqlSource(link, self._s, self._dialect, locking=True)
            tx = Tx(source)
            result = body(tx)
            writes = tx.writes
            told = Committed()
            if writes:
                told = Commit(link, self._s, self._dialect, source, writes).run()
            return result, told, writes.space, writes.inodes

        result, told, space, inodes = self._database.write(work)
        self._counters.gather(space, inodes)
        return result, told

    def read(self, body: Callable[[Tx], T]) -> T:
        def work(link: Link) -> T:
            tx = Tx(SqlSource(link, self._s, self._dialect, locking=False))
            result = body(tx)
            assert not tx.writes, "a body that only reads has written"
            return result

        return self._database.read(work)

    # -- reads of one exchange
    def lookup(self, parent: Inode, name: bytes) -> tuple[Entry, Attr | None] | None:
        values = {"w_parent": parent, "w_name": name}
        rows = self._database.rows(self._s.lookup, values)
        if not rows:
            return None
        row = rows[0]
        attr = None if row[2] is None else attr_of(row, 2)
        return Entry(row[0], kind_of(row[1])), attr

    def attr(self, ino: Inode) -> Attr | None:
        rows = self._database.read(lambda link: link.rows_in(self._s.nodes, (ino,)))
        return attr_of(rows[0], 1) if rows else None

    def attrs(self, inodes: Iterable[Inode]) -> dict[Inode, Attr]:
        wanted = sorted(set(inodes))
        rows = self._database.read(lambda link: link.rows_in(self._s.nodes, wanted))
        return {row[0]: attr_of(row, 1) for row in rows}

    def slices(self, ino: Inode, index: int) -> tuple[Slice, ...]:
        rows = self._database.read(
            lambda link: link.rows_in(self._s.chunks, (index,), {"w_inode": ino})
        )
        return decode_slices(rows[0][1]) if rows else ()

    def list_dir(self, ino: Inode, *, with_attrs: bool) -> Iterator[list[DirEntry]]:
        """By name: a page begins behind the last name of the one before."""
        statement = self._s.list_attrs if with_attrs else self._s.list_names
        after, size = b"", FIRST_PAGE
        while True:
            values = {"w_parent": ino, "after": after, "limit": size}
            rows = self._database.rows(statement, values)
            if rows:
                yield [_dir_entry(row) for row in rows]
            if len(rows) < size:
                return
            after, size = bytes(rows[-1][0]), PAGE

    # -- ids and counters
    def allocate_inodes(self, count: int) -> range:
        return self._counters.allocate("nextInode", count)

    def allocate_slices(self, count: int) -> range:
        return self._counters.allocate("nextChunk", count)

    def next_trash(self) -> int:
        return self._counters.add("nextTrash", 1)

    def counter(self, name: str) -> int:
        return self._counters.value(name)

    def set_if_small(self, name: str, value: int, diff: int) -> bool:
        return self._counters.set_if_small(name, value, diff)

    def flush(self) -> None:
        self._counters.flush()

    # -- directory statistics and quotas
    def dir_stats(self, ino: Inode) -> DirStats | None:
        return self._usage.stats(ino)

    def add_dir_stats(self, deltas: dict[Inode, DirStats]) -> list[Inode]:
        return self._usage.add_stats(deltas)

    def set_dir_stats(self, ino: Inode, stats: DirStats) -> None:
        self._usage.set_stats(ino, stats)

    def dir_quotas(self) -> dict[Inode, Quota]:
        return self._usage.quotas()

    def set_dir_quota(self, ino: Inode, quota: Quota | None) -> None:
        self._usage.set_quota(ino, quota)

    def add_dir_quotas(self, deltas: dict[Inode, tuple[int, int]]) -> None:
        self._usage.add_quotas(deltas)

    def user_group_quotas(self) -> tuple[dict[int, Quota], dict[int, Quota]]:
        return self._usage.owners()

    def add_user_group_usage(
        self, users: dict[int, tuple[int, int]], groups: dict[int, tuple[int, int]]
    ) -> None:
        self._usage.add_owners(users, groups)

    # -- sessions and locks
    def new_session(self, expire_s: int, record: Callable[[SessionId], bytes]) -> SessionId:
        sid = SessionId(self._counters.add("nextSession", 1))
        self._sessions.put(sid, expire_s, record(sid))
        return sid

    def refresh_session(self, sid: SessionId, expire_s: int, record: bytes) -> bool:
        return self._sessions.refresh(sid, expire_s, record)

    def sessions(self) -> list[StoredSession]:
        return self._sessions.all()

    def sustained(self, sid: SessionId) -> list[Inode]:
        return self._sessions.sustained(sid)

    def session_locks(self, sid: SessionId) -> list[tuple[Inode, bool, StoredLock]]:
        return self._sessions.locks(sid)

    def release_locks(self, sid: SessionId) -> None:
        self._sessions.release_locks(sid)

    def drop_session(self, sid: SessionId) -> None:
        self._sessions.drop(sid)

    # -- clean-up
    def deleted_files(self, before_s: int, limit: int) -> list[DeletedFile]:
        return self._clean_up.deleted_files(before_s, limit)

    def chunk_indexes(self, ino: Inode, length: int) -> list[int]:
        return self._clean_up.chunk_indexes(ino)

    def unreferenced(self, limit: int) -> list[Ref]:
        return self._clean_up.unreferenced(limit)

    def forget_slice(self, ref: Ref) -> None:
        self._clean_up.forget_slice(ref)

    def delayed_slices(self, before_s: int, limit: int) -> list[DelayedSlices]:
        return self._clean_up.delayed_slices(before_s, limit)

    # -- everything
    def scan_attrs(self) -> Iterator[tuple[Inode, Attr]]:
        return self._clean_up.attrs()

    def scan_chunks(self) -> Iterator[tuple[Inode, int, tuple[Slice, ...]]]:
        return self._clean_up.chunks()

    def scan_refs(self) -> Iterator[tuple[Ref, int]]:
        return self._clean_up.refs()


def _dir_entry(row: Any) -> DirEntry:
    """name, inode, type and, if asked for, the columns of the node."""
    attr = attr_of(row, 3) if len(row) > 3 and row[3] is not None else None
    return DirEntry(bytes(row[0]), row[1], kind_of(row[2]), attr)
