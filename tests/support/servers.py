"""Fixtures: the servers that volumes of the outer tests live on, started when first asked for.

`tests/{interop,faults,mount}/conftest.py` import them; all share one set of servers, which ends
with the test session.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.support.sql_servers import SqlServer, free_port, mariadb_server, postgres_server
from tests.support.waiting import wait_for


class RedisProcess:
    """A Redis of its own, with an append-only file, that can be stopped and started again."""

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Returns when it answers, after it has read its append-only file."""
        words = ["redis-server", "--port", str(self.port), "--dir", str(self._home)]
        words += ["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]
        words += ["--appendfsync", "no", "--databases", "512"]
        with (self._home / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )
        wait_for(self._answers, f"Redis on port {self.port}, see {self._home}/redis.log")

    def stop(self) -> None:
        """SIGTERM: it writes the append-only file out and closes every connection."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)
        self._process = None

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "redis-server ended"
        try:
            with contextlib.closing(redis.Redis(port=self.port, socket_timeout=5)) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


class MetaServers:
    """Gives URLs of new, empty databases."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._numbers = itertools.count()
        self._home = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="jfsmeta")))
        self._redis: RedisProcess | None = None
        self._sql: dict[str, SqlServer] = {}

    def new_url(self, engine: str) -> str:
        """`engine` is redis, sqlite, mariadb or postgres."""
        if engine == "sqlite":
            return f"sqlite3://{self._home}/meta{next(self._numbers)}.db"
        if engine == "redis":
            if self._redis is None:
                self._redis = RedisProcess(self._home)
                self._stack.callback(self._redis.stop)
                self._redis.start()
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


@pytest.fixture
def redis_process(tmp_path: Path) -> Iterator[RedisProcess]:
    """A running Redis for one test, which may stop and start it."""
    home = tmp_path / "redis"
    home.mkdir()
    server = RedisProcess(home)
    server.start()
    yield server
    server.stop()
