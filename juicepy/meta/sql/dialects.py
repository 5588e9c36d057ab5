"""What SQLite, MySQL (MariaDB) and PostgreSQL do differently: connecting, SQL text, errors.

All connections are in autocommit mode: a single statement needs no more, a transaction is opened
with `begin` and ended with COMMIT or ROLLBACK as statements.

* SQLite has one writer: BEGIN IMMEDIATE takes its place before the first read.
* MySQL runs REPEATABLE READ as the real client does: a plain read shows the moment of the
  transaction's first plain read, a locking read shows the present.
* PostgreSQL runs READ COMMITTED: every statement shows the present.
"""

from __future__ import annotations

import errno
import re
import sqlite3
from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Insert, Select, Table, case, cast, func, literal_column
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Dialect as Compiler

from juicepy.errors import Refused
from juicepy.meta.sql.mysql_options import driver_options
from juicepy.meta.sql.tables import BLOB
from juicepy.meta.sql.url import SqlUrl

CONNECT_TIMEOUT_S = 10


class Fault(Enum):
    """What an exception of a driver means for who ran the statement."""

    BUSY = "somebody was faster, the transaction is void: run it again"
    LOST = "the connection is gone"
    REFUSED = "no connection: wrong password, unknown database"
    SCHEMA = "a table or column is missing"
    VALUE = "a value does not fit its column"
    FULL = "no space left"
    READ_ONLY = "the database cannot be written"
    OTHER = "anything else"


Columns = Sequence[ColumnElement[Any]]


class Dialect(Protocol):
    """One kind of database."""

    compiler: Compiler
    errors: tuple[type[Exception], ...]  # all that the driver raises
    begin: str
    is_local: bool  # a file with one writer, no row locks
    keeps_snapshot: bool  # plain reads of a transaction show its first moment
    has_returning: bool

    def connect(self, url: SqlUrl, password: str) -> Any: ...
    def cursor(self, connection: Any) -> Any: ...
    def fault(self, error: Exception) -> Fault: ...
    def packed(self, key: ColumnElement[Any], columns: Columns) -> Columns:
        """All `columns`, as few columns as is good for reading; NULL where `key` is."""

    def blob(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """The column as bytes, for reading and comparing."""

    def text(self, value: bytes) -> str | bytes:
        """A parameter for `name_of`; EINVAL for a name that a text column cannot hold."""

    def name_of(self, bind: ColumnElement[Any]) -> ColumnElement[Any]: ...
    def joined(self, left: ColumnElement[Any], right: ColumnElement[Any]) -> ColumnElement[Any]:
        """Two byte strings as one."""

    def upsert(self, table: Table, keys: Sequence[str], **changes: str) -> Insert:
        """INSERT; where the row exists, set each column: "new", "add" (new to old) or "join"."""


def share(select: Select[Any], *, key_only: bool = False) -> Select[Any]:
    """A read of the present state that keeps it so until the commit, but lets others read it.

    `key_only`: it must not be deleted, but may be changed (where the database can tell).
    """
    return select.with_for_update(read=True, key_share=key_only)


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise OSError(errno.EINVAL, f"{value!r} is not UTF-8, which the column needs") from None


class Sqlite:
    errors: tuple[type[Exception], ...] = (sqlite3.Error, OverflowError)
    begin = "BEGIN IMMEDIATE"
    is_local = True
    keeps_snapshot = False
    has_returning = True

    def __init__(self) -> None:
        self.compiler: Compiler = SQLiteDialect_pysqlite(paramstyle="qmark")

    def connect(self, url: SqlUrl, password: str) -> Any:
        """WAL, synchronous NORMAL and 5 s of patience unless the URL says otherwise."""
        options = url.options
        timeout = options.get("_timeout", options.get("_busy_timeout", "5000"))
        sync = options.get("_sync", options.get("_synchronous", "NORMAL"))
        journal = options.get("_journal", options.get("_journal_mode", "WAL"))
        for name, value in (("_timeout", timeout), ("_sync", sync), ("_journal", journal)):
            if not re.fullmatch(r"\w+", value):
                raise Refused(f"invalid {name} {value!r} in META-URL")
        connection = sqlite3.connect(
            url.database,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            timeout=int(timeout) / 1000,
        )
        connection.text_factory = bytes  # lists that others appended to are typed TEXT
        connection.execute(f"PRAGMA synchronous={sync}")
        connection.execute("PRAGMA cache_size=-16384")
        if connection.execute("PRAGMA journal_mode").fetchone()[0].lower() != journal.lower():
            connection.execute(f"PRAGMA journal_mode={journal}")
        return connection

    def cursor(self, connection: Any) -> Any:
        return connection.cursor()

    def fault(self, error: Exception) -> Fault:
        if isinstance(error, OverflowError):
            return Fault.VALUE
        code = getattr(error, "sqlite_errorcode", None) or 0
        found = {
            sqlite3.SQLITE_BUSY: Fault.BUSY,
            sqlite3.SQLITE_LOCKED: Fault.BUSY,
            sqlite3.SQLITE_FULL: Fault.FULL,
            sqlite3.SQLITE_READONLY: Fault.READ_ONLY,
            sqlite3.SQLITE_CANTOPEN: Fault.REFUSED,
            sqlite3.SQLITE_NOTADB: Fault.REFUSED,
        }.get(code & 0xFF)
        if found:
            return found
        if code in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY):
            return Fault.BUSY
        text = str(error)
        if text.startswith(("no such table", "no such column")) or "has no column" in text:
            return Fault.SCHEMA
        return Fault.OTHER

    def packed(self, key: ColumnElement[Any], columns: Columns) -> Columns:
        return columns

    def blob(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return cast(column, BLOB)

    def text(self, value: bytes) -> str | bytes:
        return value

    def name_of(self, bind: ColumnElement[Any]) -> ColumnElement[Any]:
        return cast(bind, sqlite.TEXT)

    def joined(self, left: ColumnElement[Any], right: ColumnElement[Any]) -> ColumnElement[Any]:
        return cast(left.op("||")(right), BLOB)

    def upsert(self, table: Table, keys: Sequence[str], **changes: str) -> Insert:
        return _on_conflict(sqlite.insert(table), table, keys, self, changes)


class Postgres:
    begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
    is_local = False
    keeps_snapshot = False
    has_returning = True

    def __init__(self) -> None:
        import psycopg

        self._driver = psycopg
        self.errors: tuple[type[Exception], ...] = (psycopg.Error, OSError, UnicodeError)
        compiler: Any = PGDialect_psycopg  # its constructor has no types
        self.compiler: Compiler = compiler(paramstyle="format")

    def connect(self, url: SqlUrl, password: str) -> Any:
        from psycopg.types.numeric import Int8Dumper
        from psycopg.types.string import BytesBinaryDumper

        options: dict[str, Any] = dict(url.options)
        settings = options.pop("options", "")
        schema = options.pop("search_path", "")
        if "," in schema:
            raise Refused(f"one schema only in search_path, not {schema!r}")
        if schema:
            quoted = re.sub(r"([\\ ])", r"\\\1", schema)
            settings = f"{settings} -csearch_path={quoted}".strip()
        connection = self._driver.connect(
            host=url.socket or url.host,
            port=url.port,
            user=url.user or None,
            password=password or None,
            dbname=url.database,
            autocommit=True,
            options=settings or None,
            **{"connect_timeout": CONNECT_TIMEOUT_S, **options},
        )
        # one type for all numbers: one prepared statement
        connection.adapters.register_dumper(int, Int8Dumper)
        connection.adapters.register_dumper(bytes, BytesBinaryDumper)
        return connection

    def cursor(self, connection: Any) -> Any:
        return connection.cursor(binary=True)

    def fault(self, error: Exception) -> Fault:
        state = getattr(error, "sqlstate", None)
        if state is None:
            return self._stateless_fault(error)
        if state in ("40001", "40P01", "23505", "25P02", "55P03", "53300", "42P07"):
            return Fault.BUSY
        if state in ("42P01", "42703"):
            return Fault.SCHEMA
        if state in ("22003", "22001", "22021"):
            return Fault.VALUE
        if state in ("28P01", "28000", "3D000", "42501"):
            return Fault.REFUSED
        if state in ("57P01", "57P02", "57P03") or state.startswith("08"):
            return Fault.LOST
        return {"53100": Fault.FULL, "25006": Fault.READ_ONLY}.get(state, Fault.OTHER)

    def _stateless_fault(self, error: Exception) -> Fault:
        """Errors of the connection, and of values that the driver cannot encode."""
        if isinstance(error, (self._driver.DataError, UnicodeError)):
            return Fault.VALUE
        text = str(error)
        if re.search(r"authentication|does not exist|no pg_hba|no password|not permitted", text):
            return Fault.REFUSED
        lost = (OSError, self._driver.OperationalError, self._driver.InterfaceError)
        return Fault.LOST if isinstance(error, lost) else Fault.OTHER

    def packed(self, key: ColumnElement[Any], columns: Columns) -> Columns:
        return columns

    def blob(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return column

    def text(self, value: bytes) -> str | bytes:
        return _decoded(value)

    def name_of(self, bind: ColumnElement[Any]) -> ColumnElement[Any]:
        return bind

    def joined(self, left: ColumnElement[Any], right: ColumnElement[Any]) -> ColumnElement[Any]:
        return left.op("||")(right)

    def upsert(self, table: Table, keys: Sequence[str], **changes: str) -> Insert:
        return _on_conflict(postgresql.insert(table), table, keys, self, changes)


class Mysql:
    begin = "START TRANSACTION"
    is_local = False
    keeps_snapshot = True
    has_returning = False

    def __init__(self) -> None:
        import pymysql

        self._driver = pymysql
        self.errors: tuple[type[Exception], ...] = (pymysql.Error, OSError, UnicodeError)
        self.compiler: Compiler = MySQLDialect_pymysql(paramstyle="format")

    def connect(self, url: SqlUrl, password: str) -> Any:
        from pymysql.constants import CLIENT

        own, session = driver_options(url.options)
        session = ["SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", *session]
        connection = self._driver.connect(
            host=url.host or None,
            port=url.port,
            unix_socket=url.socket or None,
            user=url.user or None,
            password=password.encode(),
            database=url.database,
            autocommit=True,
            client_flag=CLIENT.FOUND_ROWS,
            binary_prefix=True,
            **own,
        )
        with connection.cursor() as cursor:
            for setting in session:
                cursor.execute(f"SET {setting}")
            cursor.execute("SET SESSION sql_mode=CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')")
        return connection

    def cursor(self, connection: Any) -> Any:
        return connection.cursor()

    def fault(self, error: Exception) -> Fault:
        if isinstance(error, UnicodeError):
            return Fault.VALUE
        if not isinstance(error, self._driver.Error):
            return Fault.LOST
        code = error.args[0] if error.args and isinstance(error.args[0], int) else -1
        for fault, codes in _MYSQL_CODES.items():
            if code in codes:
                return fault
        return Fault.OTHER

    def packed(self, key: ColumnElement[Any], columns: Columns) -> Columns:
        """Numbers as one text: a result's columns cost more in the driver than all else."""
        numbers = (func.coalesce(one, literal_column("0")) for one in columns)
        return [case((key.is_not(None), func.concat_ws(literal_column("','"), *numbers)))]

    def blob(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return column

    def text(self, value: bytes) -> str | bytes:
        return _decoded(value)

    def name_of(self, bind: ColumnElement[Any]) -> ColumnElement[Any]:
        return bind

    def joined(self, left: ColumnElement[Any], right: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.concat(left, right, type_=BLOB)

    def upsert(self, table: Table, keys: Sequence[str], **changes: str) -> Insert:
        insert = mysql.insert(table)
        columns = {
            name: _merged(self, how, table.c[name], insert.inserted[name])
            for name, how in (changes or {keys[0]: "new"}).items()
        }
        return insert.on_duplicate_key_update(columns)


_MYSQL_CODES: dict[Fault, frozenset[int]] = {
    Fault.BUSY: frozenset({1205, 1213, 1062, 1020, 1040, 1203, 1050, 1412}),
    Fault.LOST: frozenset(
        {0, 1053, 1079, 1080, 1152, 1153, 1158, 1159, 1160, 1161, 1184, 1927, 2002, 2003, 2006}
        | {2013, 2014, 2055, 4031}
    ),
    Fault.REFUSED: frozenset({1044, 1045, 1049, 1142, 1227, 1698, 1130, 2005, 2059, 2061}),
    Fault.SCHEMA: frozenset({1146, 1054}),
    Fault.VALUE: frozenset({1264, 1366, 1406, 1300}),
    Fault.FULL: frozenset({1021, 1114}),
    Fault.READ_ONLY: frozenset({1290, 1792, 1836}),
}


def _on_conflict(
    insert: Any, table: Table, keys: Sequence[str], dialect: Dialect, changes: dict[str, str]
) -> Insert:
    columns = [table.c[key] for key in keys]
    if not changes:
        nothing: Insert = insert.on_conflict_do_nothing(index_elements=columns)
        return nothing
    values = {
        name: _merged(dialect, how, table.c[name], insert.excluded[name])
        for name, how in changes.items()
    }
    changed: Insert = insert.on_conflict_do_update(index_elements=columns, set_=values)
    return changed


def _merged(dialect: Dialect, how: str, old: ColumnElement[Any], new: ColumnElement[Any]) -> Any:
    if how == "new":
        return new
    return old + new if how == "add" else dialect.joined(old, new)


def dialect_of(name: str) -> Dialect:
    kinds: dict[str, type[Any]] = {"sqlite": Sqlite, "mysql": Mysql, "postgresql": Postgres}
    made: Dialect = kinds[name]()
    return made
