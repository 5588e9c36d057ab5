"""Values kept while the server tells of changes: hits cost no exchange, and none is ever old."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from juicepy.meta.engine import Changed, Tracked
from juicepy.meta.redis import pushes, tracked
from juicepy.meta.redis.engine import RedisEngine, open_redis
from juicepy.types import ROOT, Attr, Inode, Kind
from tests.engines.redis.bodies import grow, make, remove
from tests.engines.redis.conftest import Exchanges
from tests.support.redis_servers import RedisServer, redis_cluster
from tests.support.waiting import wait_for

FILE, OTHER = Inode(10), Inode(11)


class Told:
    """What a tracking engine was told."""

    def __init__(self) -> None:
        self.changed = Changed()

    def __call__(self, changed: Changed) -> None:
        self.changed.add(changed)

    def wait(self, condition: Callable[[Changed], bool]) -> None:
        wait_for(lambda: condition(self.changed), "word of a change", timeout_s=10)
        self.changed = Changed()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def reads(engine: RedisEngine, told: Told, monkeypatch: pytest.MonkeyPatch) -> Tracked:
    """Of an engine on a volume with one file, which nobody has changed of late."""
    engine.transact(make(FILE, b"file"))
    monkeypatch.setattr(tracked, "_QUIET_S", 0.0)
    found = engine.track(told)
    assert found is not None
    return found


@pytest.fixture
def other(reads: Tracked, connect: Callable[[], RedisEngine]) -> RedisEngine:
    return connect()


def warm(reads: Tracked) -> None:
    assert reads.lookup(ROOT, b"file") is not None
    assert reads.attr(FILE) is not None


def test_what_is_kept_costs_no_exchange(reads: Tracked, exchanges: Exchanges) -> None:
    assert exchanges.during(lambda: warm(reads)) <= 2
    assert exchanges.during(lambda: warm(reads)) == 0
    assert reads.holds_attr(FILE)
    assert reads.holds_name(ROOT, b"file")
    assert reads.counts.hits >= 2


def test_missing_name_is_asked_for_every_time(reads: Tracked, other: RedisEngine) -> None:
    assert reads.lookup(ROOT, b"new") is None
    assert not reads.holds_name(ROOT, b"new")
    other.transact(make(OTHER, b"new"))
    assert reads.lookup(ROOT, b"new") is not None


def test_change_of_another_client_is_told(reads: Tracked, other: RedisEngine, told: Told) -> None:
    warm(reads)
    other.transact(grow(FILE, 5))
    told.wait(lambda changed: FILE in changed.inodes)
    attr = reads.attr(FILE)
    assert attr is not None
    assert attr.length == 5
    warm(reads)
    other.transact(remove(b"file"))
    told.wait(lambda changed: (ROOT, b"file") in changed.names)
    assert reads.lookup(ROOT, b"file") is None


def test_each_change_is_told_twice(reads: Tracked, other: RedisEngine, told: Told) -> None:
    """A reply that overtook the first word meets the second."""
    warm(reads)
    other.transact(grow(FILE, 5))
    told.wait(lambda changed: FILE in changed.inodes)
    told.wait(lambda changed: FILE in changed.inodes)


def test_own_change_is_seen_at_once(engine: RedisEngine, reads: Tracked) -> None:
    for length in range(1, 30):
        warm(reads)
        engine.transact(grow(FILE, 1))
        attr = reads.attr(FILE)
        assert attr is not None
        assert attr.length == length


def test_answer_that_a_change_has_overtaken_is_not_kept(
    reads: Tracked, other: RedisEngine, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = pushes.Pushes.read

    def slow(self: pushes.Pushes, commands: Any) -> list[Any]:
        replies = original(self, commands)
        other.transact(grow(FILE, 7))
        told.wait(lambda changed: FILE in changed.inodes)
        return replies

    monkeypatch.setattr(pushes.Pushes, "read", slow)
    before = reads.attr(FILE)
    assert before is not None
    assert before.length == 0  # that was true when it was asked
    assert not reads.holds_attr(FILE)


def test_what_changes_all_the_time_is_not_kept(
    reads: Tracked, engine: RedisEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracked, "_QUIET_S", 60.0)
    engine.transact(grow(FILE, 3))
    assert reads.attr(FILE) is not None
    assert not reads.holds_attr(FILE)


def test_name_that_was_replaced_leads_on(
    reads: Tracked, other: RedisEngine, raw: redis.Redis
) -> None:
    """The word of it may come later than somebody finds the old inode gone."""
    warm(reads)
    reads.forget(FILE)
    assert not reads.holds_name(ROOT, b"file")
    assert not reads.holds_attr(FILE)
    warm(reads)


def test_strict_read_drops_what_is_older(
    engine: RedisEngine, reads: Tracked, monkeypatch: pytest.MonkeyPatch, raw: redis.Redis
) -> None:
    warm(reads)
    reads._attrs[FILE] = b"\0" * 80  # type: ignore[attr-defined]  # as if no push had come yet
    assert engine.attr(FILE) is not None
    assert not reads.holds_attr(FILE)


@pytest.mark.parametrize("which", ["pubsub", "normal"])
def test_lost_connection_drops_all_and_tracking_begins_anew(
    which: str, reads: Tracked, told: Told, raw: redis.Redis, exchanges: Exchanges
) -> None:
    warm(reads)
    raw.execute_command("CLIENT", "KILL", "TYPE", which, "SKIPME", "yes")
    told.wait(lambda changed: FILE in changed.inodes and (ROOT, b"file") in changed.names)
    assert reads.counts.lost == 1
    warm(reads)
    wait_for(lambda: (warm(reads), exchanges.during(lambda: warm(reads)))[1] == 0, "hits again")


def test_silent_server_is_taken_for_lost(
    reads: Tracked, told: Told, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm(reads)
    raw.execute_command("CLIENT", "PAUSE", 6000, "ALL")
    told.wait(lambda changed: FILE in changed.inodes)
    assert not reads.holds_attr(FILE)


def test_limit_drops_what_was_kept_first(
    engine: RedisEngine, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracked, "_LIMIT", 16)
    monkeypatch.setattr(tracked.TrackedReads.__init__, "__defaults__", (16,))
    for number in range(100, 140):
        engine.transact(make(number, b"%d" % number))
    monkeypatch.setattr(tracked, "_QUIET_S", 0.0)
    reads = engine.track(told)
    assert reads is not None
    for number in range(100, 140):
        assert reads.attr(Inode(number)) is not None
    held = [number for number in range(100, 140) if reads.holds_attr(Inode(number))]
    assert held[-1] == 139
    assert len(held) <= 16
    assert Inode(100) in told.changed.inodes


def test_readers_and_a_writer_never_see_time_go_back(reads: Tracked, other: RedisEngine) -> None:
    done = threading.Event()
    wrong: list[tuple[int, int]] = []

    def read() -> None:
        last = 0
        while not done.is_set():
            attr = reads.attr(FILE)
            assert attr is not None
            if attr.length < last:
                wrong.append((last, attr.length))
            last = attr.length

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        other.transact(grow(FILE, 1))
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    wait_for(lambda: (attr := reads.attr(FILE)) is not None and attr.length == 100, "the last")


def test_server_that_does_not_track_is_refused(server: RedisServer, db: int, told: Told) -> None:
    with server.client(db) as client:
        client.execute_command(
            *("ACL", "SETUSER", "plain", "on", ">pass", "~*", "&*", "+@all", "-client|tracking")
        )
    engine = open_redis(f"redis://plain:pass@127.0.0.1:{server.port}/{db}")
    try:
        with pytest.raises(OSError, match="CLIENT TRACKING"):
            engine.track(told)
        assert engine.attr(ROOT) is None
    finally:
        engine.close()


def test_cluster_tells_of_changes_and_does_so_after_a_break(told: Told) -> None:
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(redis_cluster())
        here, other = (
            stack.enter_context(contextlib.closing(open_redis(cluster.url(1)))) for _ in range(2)
        )
        here.init(b"{}", Attr(Kind.DIR, 0o777, nlink=2, length=4096, parent=ROOT), None)
        here.transact(make(FILE, b"file"))
        reads = here.track(told)
        assert reads is not None
        for _ in range(2):
            wait_for(
                lambda: reads.attr(FILE) is not None and reads.holds_attr(FILE), "a kept value"
            )
            other.transact(grow(FILE, 5))
            told.wait(lambda changed: FILE in changed.inodes)
            holder = cluster.holder(b"{1}i1")
            with contextlib.closing(holder.client()) as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")


def test_directory_keeps_its_kind(reads: Tracked, other: RedisEngine) -> None:
    other.transact(make(OTHER, b"dir", Kind.DIR))
    for _ in range(2):
        found = reads.lookup(ROOT, b"dir")
        assert found is not None
        assert found[0].kind is Kind.DIR
