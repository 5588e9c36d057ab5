"""Every metadata engine, each with an empty database for one test.

Servers are shared by the whole test session. A database of a server is used again by the next
test, after all rows or keys are gone, as making a schema takes longer than most tests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import delete

from juicepy.meta.engine import MetaEngine
from juicepy.meta.registry import open_engine
from juicepy.meta.sql.dialects import dialect_of
from juicepy.meta.sql.tables import Tables
from juicepy.meta.sql.url import parse
from tests.support.redis_servers import RedisCluster, RedisServer, redis_cluster, redis_server

SERVED = ["sqlite", "mariadb", "postgres", "redis", "redis-cluster"]  # open to other processes
ENGINES = ["mem", *SERVED]


@dataclass
class Place:
    """An empty database. Engines opened here are closed at the end of the test."""

    kind: str
    url: str
    _opened: list[MetaEngine] = field(default_factory=list)

    def open(self) -> MetaEngine:
        engine = open_engine(self.url)
        self._opened.append(engine)
        return engine

    def close(self) -> None:
        for engine in self._opened:
            engine.close()


class Places:
    """Makes places; `new_sql_url` gives the URL of a new database of mariadb or postgres."""

    def __init__(self, new_sql_url: Callable[[str], str]) -> None:
        self._new_sql_url = new_sql_url
        self._stack = contextlib.ExitStack()
        self._urls: dict[str, str] = {}
        self._redis: RedisServer | None = None
        self._cluster: RedisCluster | None = None
        self._mems = 0

    def close(self) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def place(self, kind: str, home: Path) -> Iterator[Place]:
        place = Place(kind, self._empty(kind, home))
        try:
            yield place
        finally:
            place.close()

    def _empty(self, kind: str, home: Path) -> str:
        if kind == "mem":
            self._mems += 1
            return f"mem://place{self._mems}"
        if kind == "sqlite":
            return f"sqlite3://{home}/meta.db"
        if kind == "redis":
            if self._redis is None:
                self._redis = self._stack.enter_context(redis_server())
            with contextlib.closing(self._redis.client()) as client:
                client.flushall()
            return self._redis.url(1)
        if kind == "redis-cluster":
            if self._cluster is None:
                self._cluster = self._stack.enter_context(redis_cluster())
            for server in self._cluster.servers:
                with contextlib.closing(server.client()) as client:
                    client.flushall()
            return self._cluster.url(1)
        if kind not in self._urls:
            self._urls[kind] = self._new_sql_url(kind)
        else:
            wipe(self._urls[kind])
        return self._urls[kind]


def wipe(url: str) -> None:
    """Delete all rows of a volume's tables; numbers given by the database go on."""
    place = parse(url)
    dialect = dialect_of(place.dialect)
    with contextlib.closing(dialect.connect(place, place.passwords[0])) as connection:
        cursor = connection.cursor()
        for table in Tables(place.table_prefix).metadata.sorted_tables:
            with contextlib.suppress(*dialect.errors):  # a test that made no schema
                cursor.execute(str(delete(table).compile(dialect=dialect.compiler)))
