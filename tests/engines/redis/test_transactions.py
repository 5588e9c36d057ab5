"""Optimistic transactions: their cost, what they do when the world moves, lost replies."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from juicepy.meta.codec import decode_attr, encode_attr, encode_slice
from juicepy.meta.redis.engine import RedisEngine
from juicepy.meta.redis.wire import Wire
from juicepy.meta.tx import Tx
from juicepy.types import ROOT, Attr, Inode, Kind, SessionId, Slice, SliceId
from tests.engines.redis.bodies import grow, make, move, remove
from tests.engines.redis.conftest import Exchanges

Connect = Callable[[], RedisEngine]


def warm(engine: RedisEngine) -> None:
    engine.transact(make(90, b"warm"))
    engine.lookup(ROOT, b"warm")


# -- cost
def test_warm_operations_take_one_exchange(engine: RedisEngine, exchanges: Exchanges) -> None:
    warm(engine)
    for body in (
        make(100, b"file"),
        make(101, b"dir", Kind.DIR),
        grow(100, 5),
        move(b"file", b"moved"),
        remove(b"moved"),
        remove(b"dir"),
    ):
        assert exchanges.during(lambda body=body: engine.transact(body)) == 1  # type: ignore[misc]
    assert set(exchanges.sizes[-6:]) == {1}, "one command each"


def test_commit_that_relies_on_a_lock_takes_one_exchange(
    engine: RedisEngine, exchanges: Exchanges
) -> None:
    warm(engine)
    engine.transact(make(100, b"file"))
    sid, ino = SessionId(1), Inode(100)
    engine.transact(lambda tx: tx.set_lock(ino, (sid, 5), b"W", posix=False))

    def guarded(tx: Tx) -> None:
        grow(100, 5)(tx)
        tx.rely_on(sid, (ino, 5, False))

    assert exchanges.during(lambda: engine.transact(guarded)) == 1


def test_server_counts_one_script_for_a_create(engine: RedisEngine, raw: redis.Redis) -> None:
    warm(engine)
    raw.config_resetstat()
    engine.transact(make(100, b"file"))
    calls = {name: facts["calls"] for name, facts in raw.info("commandstats").items()}
    assert calls.get("cmdstat_evalsha") == 1
    assert "cmdstat_watch" not in calls


def test_lookup_is_one_exchange(engine: RedisEngine, exchanges: Exchanges) -> None:
    warm(engine)
    assert exchanges.during(lambda: engine.lookup(ROOT, b"warm")) == 1
    assert exchanges.during(lambda: engine.lookup(ROOT, b"absent")) == 1


def test_names_listed_with_attributes_are_warm(
    engine: RedisEngine, connect: Connect, exchanges: Exchanges
) -> None:
    engine.transact(make(100, b"file"))
    other = connect()
    other.attr(ROOT)
    assert [e.name for page in other.list_dir(ROOT, with_attrs=True) for e in page] == [b"file"]
    assert exchanges.during(lambda: other.transact(remove(b"file"))) == 1


def test_conflict_reruns_with_the_values_that_the_commit_returned(
    engine: RedisEngine, connect: Connect, exchanges: Exchanges
) -> None:
    engine.transact(make(100, b"file"))
    connect().transact(grow(100, 7))
    assert exchanges.during(lambda: engine.transact(grow(100, 1))) == 2
    assert engine.attr(Inode(100)) == Attr(Kind.FILE, 0o644, length=8, parent=ROOT)


# -- the world moves
def test_name_made_elsewhere_is_found_in_spite_of_a_guess(
    engine: RedisEngine, connect: Connect
) -> None:
    other = connect()
    assert other.lookup(ROOT, b"file") is None
    engine.transact(make(100, b"file"))
    with pytest.raises(FileExistsError):
        other.transact(make(101, b"file"))
    assert other.transact(remove(b"file"))[0] == 100
    with pytest.raises(FileNotFoundError):
        engine.transact(remove(b"file"))
    assert engine.counter("totalInodes") == 0


def test_directory_filled_elsewhere_is_not_removed(engine: RedisEngine, connect: Connect) -> None:
    engine.transact(make(100, b"dir", Kind.DIR))
    connect().transact(make(101, b"file", parent=Inode(100)))
    with pytest.raises(OSError) as caught:
        engine.transact(remove(b"dir"))
    assert caught.value.errno == errno.ENOTEMPTY


def test_directory_mode_changed_elsewhere_is_seen(engine: RedisEngine, connect: Connect) -> None:
    engine.transact(make(100, b"one"))

    def chmod(tx: Tx) -> None:
        attr = tx.attr(ROOT)
        assert attr is not None
        tx.set_attr(ROOT, attr.with_(mode=0o700))

    connect().transact(chmod)
    assert engine.transact(make(101, b"two"))[0] == 0o700


def test_directory_removed_elsewhere_takes_no_name(engine: RedisEngine, connect: Connect) -> None:
    engine.transact(make(100, b"dir", Kind.DIR))
    engine.transact(make(101, b"in", parent=Inode(100)))
    engine.transact(remove(b"in", parent=Inode(100)))
    connect().transact(remove(b"dir"))
    with pytest.raises(FileNotFoundError):
        engine.transact(make(102, b"late", parent=Inode(100)))
    assert engine.lookup(Inode(100), b"late") is None


def test_failure_on_fresh_reads_of_two_moments_is_verified(
    engine: RedisEngine, connect: Connect
) -> None:
    """A name that is replaced between the reads of it and of its inode never looks broken."""
    engine.transact(make(100, b"name"))
    other = connect()
    swapped = []

    def body(tx: Tx) -> Inode:
        entry = tx.entry(ROOT, b"name")
        assert entry is not None
        if not swapped:
            swapped.append(True)
            engine.transact(remove(b"name"))
            engine.transact(make(101, b"name"))
        if tx.attr(entry.ino) is None:
            raise FileNotFoundError(errno.ENOENT, "gone")
        return entry.ino

    assert other.read(body) == 101


def test_creates_in_one_directory_do_not_conflict(engine: RedisEngine, connect: Connect) -> None:
    other, runs = connect(), []
    for number in range(20):
        for at, one in enumerate((engine, other)):
            body = make(100 + number * 2 + at, b"%d-%d" % (number, at), Kind.DIR)

            def counted(tx: Tx, body: Callable[[Tx], int] = body) -> None:
                runs.append(1)
                body(tx)

            one.transact(counted)
    assert len(runs) == 40
    root = engine.attr(ROOT)
    assert root is not None
    assert root.nlink == 42


def test_racing_engines_lose_no_update(engine: RedisEngine, connect: Connect) -> None:
    engine.transact(make(100, b"file"))
    engines = [engine, connect(), connect()]

    def work(one: RedisEngine) -> None:
        for _ in range(50):
            one.transact(grow(100, 1))

    threads = [threading.Thread(target=work, args=(one,)) for one in engines for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    found = engine.attr(Inode(100))
    assert found is not None
    assert found.length == 300


def test_endless_conflict_ends_in_eio(
    engine: RedisEngine, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("juicepy.meta.redis.transaction._LONGEST_PAUSE_MS", 1)
    engine.transact(make(100, b"file"))
    other = connect()

    def body(tx: Tx) -> None:
        grow(100, 1)(tx)
        other.transact(grow(100, 1))

    with pytest.raises(OSError, match="50 conflicts") as caught:
        engine.transact(body)
    assert caught.value.errno == errno.EIO


def test_change_in_a_pause_is_no_conflict(
    engine: RedisEngine, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one who is always faster, as with a lock taken for each write, starves the others."""
    engine.transact(make(100, b"file"))
    other = connect()
    runs: list[int] = []

    def pause(_s: float) -> None:
        other.transact(grow(100, 1))

    def body(tx: Tx) -> None:
        grow(100, 1)(tx)
        runs.append(1)
        if len(runs) <= 2:
            other.transact(grow(100, 1))

    monkeypatch.setattr("juicepy.meta.redis.transaction.time", SimpleNamespace(sleep=pause))
    engine.transact(body)
    assert len(runs) == 3


def test_foreign_change_makes_us_run_again_and_ours_fails_a_watch(
    engine: RedisEngine, raw: redis.Redis
) -> None:
    engine.transact(make(100, b"file"))
    attr = decode_attr(raw.get(b"i100"))
    raw.set(b"i100", encode_attr(attr.with_(length=10))[:71])  # a foreign client's short form
    assert engine.transact(grow(100, 1))[0] == 11
    with raw.pipeline() as pipe:
        pipe.watch(b"d1")
        engine.transact(make(101, b"other"))
        pipe.multi()
        pipe.set("never", 1)
        with pytest.raises(redis.exceptions.WatchError):
            pipe.execute()


def test_compaction_replaces_only_the_prefix_it_saw(engine: RedisEngine, raw: redis.Redis) -> None:
    engine.transact(make(100, b"file"))
    old = tuple(Slice(n, SliceId(n + 1), 1, 0, 1) for n in range(4))
    ino = Inode(100)
    replies = engine.transact(lambda tx: tx.append(ino, 0, *old[:3]))[1]
    assert replies.chunks == {(ino, 0): 3}
    engine.transact(lambda tx: tx.append(ino, 0, old[3]))
    new = Slice(0, SliceId(9), 3, 0, 3)
    engine.transact(lambda tx: tx.replace_slices(ino, 0, old[:3], (old[0], new)))
    expected = [encode_slice(piece) for piece in (old[0], new, old[3])]
    assert raw.lrange(b"c100_0", 0, -1) == expected
    runs = []

    def late(tx: Tx) -> None:
        runs.append(1)
        if len(runs) > 1:
            raise FileNotFoundError(errno.ENOENT, "lost the race")
        tx.replace_slices(ino, 0, old[:3], (new,))

    with pytest.raises(FileNotFoundError):
        engine.transact(late)
    assert raw.lrange(b"c100_0", 0, -1) == expected


def test_append_to_existing_lists_only(engine: RedisEngine, raw: redis.Redis) -> None:
    hole = Slice(0, SliceId(0), 0, 0, 9)
    engine.transact(lambda tx: tx.append(Inode(5), 1, hole, only_existing=True))
    assert raw.exists(b"c5_1") == 0


# -- lost replies
@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has the replies to the next requests lost after they were carried out."""
    left = [0]
    original = Wire.exchange

    def exchange(wire: Wire, packed: bytes, count: int) -> list[Any]:
        replies = original(wire, packed, count)
        if left[0]:
            left[0] -= 1
            raise ConnectionResetError(errno.ECONNRESET, "cable pulled")
        return replies

    monkeypatch.setattr(Wire, "exchange", exchange)
    return lambda count: left.__setitem__(0, count)


def test_lost_reply_of_a_create_is_found_to_be_done(
    engine: RedisEngine, lose: Callable[[int], None]
) -> None:
    warm(engine)
    lose(1)
    engine.transact(make(100, b"file"))
    assert engine.counter("totalInodes") == 2
    assert engine.lookup(ROOT, b"file") is not None


def test_lost_reply_of_a_bare_append_is_an_error_and_not_repeated(
    engine: RedisEngine, raw: redis.Redis, lose: Callable[[int], None]
) -> None:
    warm(engine)
    lose(1)
    with pytest.raises(OSError) as caught:
        engine.transact(lambda tx: tx.append(Inode(90), 0, Slice(0, SliceId(1), 1, 0, 1)))
    assert caught.value.errno == errno.EIO
    assert raw.llen(b"c90_0") == 1


def test_lost_reply_of_counted_references_is_an_error(
    engine: RedisEngine, raw: redis.Redis, lose: Callable[[int], None]
) -> None:
    warm(engine)
    lose(1)
    with pytest.raises(OSError):
        engine.transact(lambda tx: tx.count_ref((SliceId(7), 10), -1))
    assert raw.hget(b"sliceRef", b"k7_10") == b"-1"


def test_lost_replies_of_reads_are_asked_again(
    engine: RedisEngine, lose: Callable[[int], None]
) -> None:
    warm(engine)
    lose(2)
    assert engine.lookup(ROOT, b"warm") is not None


def test_connection_closed_while_idle_costs_nothing(engine: RedisEngine, raw: redis.Redis) -> None:
    warm(engine)
    raw.client_kill_filter(_type="normal", skipme=True)
    engine.transact(lambda tx: tx.append(Inode(90), 0, Slice(0, SliceId(1), 1, 0, 1)))
    assert raw.llen(b"c90_0") == 1


def test_scripts_are_sent_again_after_the_server_forgot_them(
    engine: RedisEngine, raw: redis.Redis
) -> None:
    warm(engine)
    raw.script_flush()
    engine.transact(make(100, b"file"))
    assert engine.lookup(ROOT, b"file") is not None
