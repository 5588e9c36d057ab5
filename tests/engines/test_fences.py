"""A client that was frozen until its locks are others' changes nothing, on every engine."""

from __future__ import annotations

import errno
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from juicepy.meta import rules
from juicepy.meta.client import SUPERUSER, MetaClient
from juicepy.meta.engine import MetaEngine
from juicepy.meta.ops import common
from juicepy.meta.registry import open_engine
from juicepy.meta.tx import HeldLock, LockLost, Tx
from juicepy.types import ROOT, Inode, Kind, LockKind, PosixLock, Slice
from tests.engines.conftest import PAUSE_S
from tests.support.meta import format_engine, scan, session

OWNER = 1
WHOLE = PosixLock(LockKind.WRITE, 0, 2**63 - 1, 7)


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


def fallocate(mode: int) -> Callable[[MetaClient, Inode], object]:
    return lambda client, ino: client.fallocate(SUPERUSER, ino, mode, 2, 20)


def open_truncating(client: MetaClient, ino: Inode) -> None:
    client.open(SUPERUSER, ino, os.O_WRONLY | os.O_TRUNC)
    client.close(ino)


def copy_to(client: MetaClient, ino: Inode) -> None:
    source = client.lookup(SUPERUSER, ROOT, b"source")[0]
    client.copy_file_range(SUPERUSER, source, 0, ino, 4, 10)


CHANGES = {  # of the data of a file of 10 bytes, beside one called `source` of 10 bytes
    "write": write,
    "shorten": lambda client, ino: client.truncate(SUPERUSER, ino, 3, by_handle=True),
    "lengthen": lambda client, ino: client.truncate(SUPERUSER, ino, 30, by_handle=False),
    "open": open_truncating,
    "allocate": fallocate(0),
    "allocate-behind": fallocate(rules.FALLOC_KEEP_SIZE),
    "punch": fallocate(rules.FALLOC_PUNCH_HOLE | rules.FALLOC_KEEP_SIZE),
    "zero": fallocate(rules.FALLOC_ZERO_RANGE),
    "copy": copy_to,
}
every_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


def make_files(client: MetaClient) -> Inode:
    """The file to be changed."""
    write(client, make_file(client, b"source"))
    ino = make_file(client, b"changed")
    write(client, ino)
    return ino


def failure(work: Callable[[], object]) -> int | None:
    """The errno that it raises."""
    try:
        work()
    except OSError as error:
        return error.errno
    return None


def take_flock(client: MetaClient, ino: Inode) -> None:
    client.flock(ino, OWNER, LockKind.WRITE)


def take_range(client: MetaClient, ino: Inode) -> None:
    client.setlk(ino, OWNER, WHOLE)


@every_change
@pytest.mark.parametrize("take", [take_flock, take_range])
def test_change_after_others_took_over_is_refused(
    clients: tuple[MetaClient, MetaClient],
    before_commit: Callable[[Callable[[], Any]], list[bool]],
    take: Callable[[MetaClient, Inode], None],
    change: Callable[[MetaClient, Inode], object],
) -> None:
    """The expiry has passed only when the body had already looked at it."""
    one, two = clients
    guarded, guard = make_files(one), make_file(one, b"lock")
    attr, slices = two.getattr(guarded), two.engine.slices(guarded, 0)
    take(one, guard)
    old = one.sid

    def take_over() -> None:
        one.engine.refresh_session(old, int(time.time()) - 100, b"{}")
        assert two._service.sessions.clean_stale() == 1
        take(two, guard)

    in_time = before_commit(take_over)
    outcome = failure(lambda: change(one, guarded))
    if in_time == [True] or outcome is not None:  # on a busy machine others may be late, not last
        assert outcome == errno.EIO
        assert two.getattr(guarded) == attr
        assert two.engine.slices(guarded, 0) == slices
    else:  # it came first
        assert failure(lambda: change(one, guarded)) == errno.EIO
    assert one.sid != old
    change(one, guarded)
    change(two, guarded)


@every_change
def test_change_of_an_earlier_epoch_is_refused_if_locks_were_held(
    clients: tuple[MetaClient, MetaClient], change: Callable[[MetaClient, Inode], object]
) -> None:
    """Who holds none has lost nothing by a change that he only asks for in the new session."""
    one, two = clients
    ino = make_files(one)
    for takes in (True, False):
        attr, old = two.getattr(ino), one.sid
        if takes:
            take_flock(one, ino)
        one._service.sessions._lease_until = 0.0
        two._service.sessions.end(old)
        outcome = failure(lambda: change(one, ino))
        assert outcome == (errno.EIO if takes else None)
        assert (two.getattr(ino) == attr) == takes
        assert one.sid != old


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


def test_lock_that_is_never_believed_ends_in_eio(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that misses a lock at each commit, and has it whenever it is asked."""
    engine = open_engine(f"mem://{uuid.uuid4()}")
    format_engine(engine)
    with session(engine, no_bgjob=True) as client:
        ino, real, runs = make_file(client), engine.transact, 0
        take_flock(client, ino)

        def transact(body: Callable[[Tx], Any]) -> Any:
            nonlocal runs
            runs += 1
            raise LockLost

        monkeypatch.setattr(engine, "transact", transact)
        assert failure(lambda: write(client, ino)) == errno.EIO
        assert 1 < runs < 100
        monkeypatch.setattr(engine, "transact", real)
        write(client, ino)
