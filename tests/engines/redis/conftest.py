"""One server for the tests of this directory; each test has a database of its own."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from juicepy.meta.redis.engine import RedisEngine, open_redis
from juicepy.meta.redis.wire import Wire
from juicepy.types import ROOT, Attr, Kind
from tests.support.redis_servers import RedisServer, redis_server

_databases = itertools.count()


@dataclass
class Exchanges:
    """Counts round trips of this process while they happen."""

    count: int = 0
    sizes: list[int] = field(default_factory=list)

    def during(self, work: Callable[[], Any]) -> int:
        before = self.count
        work()
        return self.count - before


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def db(server: RedisServer) -> int:
    number = next(_databases) % 60
    with contextlib.closing(server.client(number)) as client:
        client.flushdb()
    return number


@pytest.fixture
def raw(server: RedisServer, db: int) -> Iterator[redis.Redis]:
    """Another client, for what is really stored."""
    with contextlib.closing(server.client(db)) as client:
        yield client


@pytest.fixture
def connect(server: RedisServer, db: int) -> Iterator[Callable[[], RedisEngine]]:
    """Opens engines on the test's database."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(contextlib.closing(open_redis(server.url(db))))


@pytest.fixture
def engine(connect: Callable[[], RedisEngine]) -> RedisEngine:
    """An engine on an initialised volume."""
    opened = connect()
    root = Attr(Kind.DIR, 0o777, nlink=2, length=4096, parent=ROOT)
    opened.init(b"{}", root, None)
    return opened


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> Exchanges:
    counted = Exchanges()
    original = Wire.exchange

    def exchange(wire: Wire, packed: bytes, count: int) -> list[Any]:
        counted.count += 1
        counted.sizes.append(count)
        return original(wire, packed, count)

    monkeypatch.setattr(Wire, "exchange", exchange)
    return counted
