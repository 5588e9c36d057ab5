"""Makes what is missing of the tables, as every read-write client does; drops nothing."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Table, create_engine, false, inspect, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateColumn

from juicepy.meta.sql.database import Database, DriverError, Link
from juicepy.meta.sql.dialects import Fault
from juicepy.meta.sql.statements import Statement
from juicepy.meta.sql.tables import Tables


def ensure(database: Database, tables: Tables) -> None:
    """Make missing tables, columns and indexes. Several clients may do so at once."""

    def make(link: Link) -> None:
        if _is_complete(link, database, tables):
            return
        try:
            _make(database, tables)
        except DBAPIError as error:
            cause = error.orig if isinstance(error.orig, Exception) else error
            fault = database.dialect.fault(cause)
            if "already exists" in str(cause) or "duplicate column" in str(cause).lower():
                fault = Fault.BUSY  # another client makes the same
            raise DriverError(fault, cause) from error

    database.read(make)


def _is_complete(link: Link, database: Database, tables: Tables) -> bool:
    """Are all tables and columns there? Much faster than an inspection."""
    try:
        for table in tables.metadata.sorted_tables:
            link.rows(Statement(select(*table.c).where(false()), database.dialect))
    except DriverError as error:
        if error.fault is Fault.SCHEMA:
            return False
        raise
    return True


def _make(database: Database, tables: Tables) -> None:
    def connect() -> Any:
        connection = database.connect()
        if database.dialect.is_local:
            connection.text_factory = str  # as the inspector expects
        return connection

    engine = create_engine(
        f"{database.dialect.compiler.name}+{database.dialect.compiler.driver}://",
        creator=connect,
        poolclass=NullPool,
    )
    with engine.connect() as connection:
        there = set(inspect(connection).get_table_names())
        for table in tables.metadata.sorted_tables:
            if table.name in there:
                _complete(connection, table)
            else:
                table.create(connection)
        connection.commit()


def _complete(connection: Connection, table: Table) -> None:
    inspector = inspect(connection)
    columns = {column["name"] for column in inspector.get_columns(table.name)}
    for column in table.c:
        if column.name not in columns:
            text = CreateColumn(column).compile(dialect=connection.dialect)
            name = connection.dialect.identifier_preparer.format_table(table)
            connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {text}")
    found = {tuple(index["column_names"]) for index in inspector.get_indexes(table.name)}
    for index in table.indexes:
        if tuple(column.name for column in index.columns) not in found:
            index.create(connection)
