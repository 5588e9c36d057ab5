"""Fixtures: databases of the three kinds, with an administrator's cursor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from juicepy.meta.engine import MetaEngine
from juicepy.meta.registry import open_engine
from juicepy.meta.sql.dialects import dialect_of
from juicepy.meta.sql.url import parse
from juicepy.types import ROOT, Attr, Kind
from tests.support.engines import Places

KINDS = ["sqlite", "mariadb", "postgres"]
ROOT_ATTR = Attr(Kind.DIR, 0o777, nlink=2, length=4096, parent=ROOT)


class Cursor:
    """A connection of the driver beside the engine, in autocommit mode."""

    def __init__(self, url: str) -> None:
        place = parse(url)
        self.dialect = dialect_of(place.dialect)
        self.connection = self.dialect.connect(place, place.passwords[0])
        self._cursor = self.connection.cursor()

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """`?` marks parameters."""
        marked = sql if self.dialect.is_local else sql.replace("?", "%s")
        self._cursor.execute(marked, values)
        return list(self._cursor.fetchall()) if self._cursor.description else []

    def plain(self, text: str) -> None:
        """Execute the text as it is."""
        self._cursor.execute(text)

    def one(self, sql: str, *values: Any) -> Any:
        """The only column of the only row."""
        ((value,),) = self.run(sql, *values)
        return value


@contextlib.contextmanager
def cursor(url: str) -> Iterator[Cursor]:
    made = Cursor(url)
    try:
        yield made
    finally:
        made.connection.close()


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, places: Places, tmp_path: Path) -> Iterator[str]:
    """An empty database that has, on a server, the tables of a volume."""
    with places.place(request.param, tmp_path) as place:
        yield place.url


@pytest.fixture(params=["mariadb", "postgres"])
def server_url(request: pytest.FixtureRequest, places: Places, tmp_path: Path) -> Iterator[str]:
    with places.place(request.param, tmp_path) as place:
        yield place.url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite3://{tmp_path}/meta.db"


@pytest.fixture
def opened() -> Iterator[Callable[[str], MetaEngine]]:
    """Opens engines that are closed at the end."""
    with contextlib.ExitStack() as stack:

        def open_(url: str, *, init: bool = True) -> MetaEngine:
            engine = open_engine(url)
            stack.callback(engine.close)
            if init:
                engine.init(b"{}", ROOT_ATTR, None)
            return engine

        yield open_


@pytest.fixture
def sql(url: str) -> Iterator[Cursor]:
    with cursor(url) as made:
        yield made
