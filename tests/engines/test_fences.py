"""A client that was frozen until its locks are others' changes nothing, on every engine."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from juicepy.meta.client import SUPERUSER, MetaClient
from juicepy.meta.engine import MetaEngine
from juicepy.meta.ops import common
from juicepy.meta.tx import HeldLock, LockLost, Tx
from juicepy.types import ROOT, Inode, Kind, LockKind, PosixLock, Slice
from tests.support.meta import format_engine, scan, session

OWNER = 1
WHOLE = PosixLock(LockKind.WRITE, 0, 2**63 - 1, 7)
PAUSE_S = 0.4  # for who must wait for a transaction, where the engine has only one at a time


@pytest.fixture
def clients(engine: MetaEngine) -> Iterator[tuple[MetaClient, MetaClient]]:
    format_engine(engine)
    with session(engine, no_bgjob=True) as one, session(engine, no_bgjob=True) as two:
        yield one, two
    assert scan(engine).faults == []


def make_file(client: MetaClient, name: bytes = b"f") -> Inode:
    return client.mknod(SUPERUSER, ROOT, name, Kind.FILE, 0o644, 0)[0]


def write(client: MetaClient, ino: Inode) -> None:
    client.write(ino, 0, Slice(0, client.new_slice(), 10, 0, 10), time.time_ns())


def failure(work: Callable[[], object]) -> int | None:
    """The errno that it raises."""
    try:
        work()
    except OSError as error:
        return error.errno
    return None


@pytest.fixture
def before_commit(
    engine: MetaEngine, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[], Any]], list[bool]]:
    """Have something done by others between the next body's end and its commit.

    Gives a list that tells whether it was done by then: an engine of one writer puts it off.
    """

    def set_up(others: Callable[[], Any]) -> list[bool]:
        real, in_time = engine.transact, []

        def transact(body: Callable[[Tx], Any]) -> Any:
            monkeypatch.setattr(engine, "transact", real)
            thread = threading.Thread(target=others)

            def frozen(tx: Tx) -> Any:
                result = body(tx)
                if not in_time:
                    thread.start()
                    thread.join(PAUSE_S)
                    in_time.append(not thread.is_alive())
                return result

            try:
                return real(frozen)
            finally:
                thread.join()

        monkeypatch.setattr(engine, "transact", transact)
        return in_time

    return set_up


def take_flock(client: MetaClient, ino: Inode) -> None:
    client.flock(ino, OWNER, LockKind.WRITE)


def take_range(client: MetaClient, ino: Inode) -> None:
    client.setlk(ino, OWNER, WHOLE)


@pytest.mark.parametrize("take", [take_flock, take_range])
def test_commit_after_others_took_over_is_refused(
    clients: tuple[MetaClient, MetaClient],
    before_commit: Callable[[Callable[[], Any]], list[bool]],
    take: Callable[[MetaClient, Inode], None],
) -> None:
    """The expiry has passed only when the body had already looked at it."""
    one, two = clients
    guarded, guard = make_file(one), make_file(one, b"lock")
    take(one, guard)
    old = one.sid

    def take_over() -> None:
        one.engine.refresh_session(old, int(time.time()) - 100, b"{}")
        assert two._service.sessions.clean_stale() == 1
        take(two, guard)

    in_time = before_commit(take_over)
    outcome = failure(lambda: write(one, guarded))
    if in_time == [True]:
        assert outcome == errno.EIO
        assert two.getattr(guarded).length == 0
        assert two.engine.slices(guarded, 0) == ()
    else:  # it came first
        assert outcome is None
        assert failure(lambda: write(one, guarded)) == errno.EIO
    assert one.sid != old
    write(one, guarded)
    write(two, guarded)


def test_lock_given_up_meanwhile_refuses_no_commit(
    clients: tuple[MetaClient, MetaClient],
    before_commit: Callable[[Callable[[], Any]], list[bool]],
) -> None:
    one, _ = clients
    ino, sid = make_file(one), one.sid
    one.flock(ino, OWNER, LockKind.WRITE)
    before_commit(lambda: one.flock(ino, OWNER, LockKind.UNLOCK))
    write(one, ino)
    assert one.getattr(ino).length == 10
    assert one.sid == sid


def test_lock_taken_and_given_up_at_once_is_not_believed_held(
    clients: tuple[MetaClient, MetaClient], engine: MetaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every later commit would take the session for ended."""
    one, _ = clients
    ino, real = make_file(one), engine.transact
    thread = threading.Thread(target=lambda: one.flock(ino, OWNER, LockKind.UNLOCK))

    def transact(body: Callable[[Tx], Any]) -> Any:
        done = real(body)
        monkeypatch.setattr(engine, "transact", real)
        thread.start()
        thread.join(PAUSE_S)
        return done

    monkeypatch.setattr(engine, "transact", transact)
    one.flock(ino, OWNER, LockKind.WRITE)
    thread.join()
    held = {(ino, lock.owner, posix) for ino, posix, lock in engine.session_locks(one.sid)}
    assert one._service.sessions.held.keys() == held
    write(one, ino)


def test_what_relies_on_a_lock_is_stored_only_while_the_lock_is(engine: MetaEngine) -> None:
    format_engine(engine)
    with session(engine, no_bgjob=True) as client:
        ino = make_file(client)
        for take in (take_flock, take_range):
            take(client, ino)

        def rely(lock: HeldLock) -> None:
            def change(tx: Tx) -> None:
                tx.set_attr(ino, common.need(tx, ino).with_(mode=0o600))
                tx.rely_on(client.sid, lock)

            engine.transact(change)

        for lock in ((ino, 2, False), (ino, 2, True), (ROOT, OWNER, True)):
            with pytest.raises(LockLost, check=lambda error: error.errno == errno.EIO):
                rely(lock)
        assert client.getattr(ino).mode == 0o644
        for lock in ((ino, OWNER, False), (ino, OWNER, True)):
            rely(lock)
        assert client.getattr(ino).mode == 0o600
        engine.release_locks(client.sid)
        client._service.sessions.held.clear()
        with pytest.raises(LockLost):
            rely((ino, OWNER, False))
