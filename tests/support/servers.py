"""Fixtures: the servers that volumes of the outer tests live on, started when first asked for.

`tests/{interop,faults,mount}/conftest.py` import them; all share one set of servers, which ends
with the test session.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.redis_servers import RedisServer, redis_server
from tests.support.sql_servers import SqlServer, mariadb_server, postgres_server


class MetaServers:
    """Gives URLs of new, empty databases."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._numbers = itertools.count()
        self._home = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="jfsmeta")))
        self._redis: RedisServer | None = None
        self._sql: dict[str, SqlServer] = {}

    def new_url(self, engine: str) -> str:
        """`engine` is redis, sqlite, mariadb or postgres."""
        if engine == "sqlite":
            return f"sqlite3://{self._home}/meta{next(self._numbers)}.db"
        if engine == "redis":
            if self._redis is None:
                self._redis = self._stack.enter_context(redis_server("--databases", "512"))
            return self._redis.url(next(self._numbers))
        if engine not in self._sql:
            start = {"mariadb": mariadb_server, "postgres": postgres_server}[engine]
            self._sql[engine] = self._stack.enter_context(start())
        return self._sql[engine].database()

    def close(self) -> None:
        self._stack.close()


_SERVERS = pytest.StashKey[MetaServers]()


@pytest.fixture(scope="session")
def new_meta_url(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Call it with an engine's name for the URL of a new, empty database."""
    stash = request.config.stash
    if _SERVERS not in stash:
        stash[_SERVERS] = MetaServers()
        request.config.add_cleanup(stash[_SERVERS].close)
    return stash[_SERVERS].new_url
