"""Connections that break, databases that are busy, full or read-only."""

from __future__ import annotations

import contextlib
import errno
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from juicepy.meta.engine import MetaEngine
from juicepy.meta.sql.database import Link
from juicepy.meta.sql.dialects import Sqlite
from juicepy.meta.tx import Tx
from juicepy.types import ROOT, Attr, Entry, Inode, Kind, SessionId, Slice, SliceId
from tests.engines.sql.conftest import Cursor, cursor

Opened = Callable[..., MetaEngine]
FILE = Attr(Kind.FILE, 0o644, parent=ROOT)
DIR = Attr(Kind.DIR, 0o755, nlink=2, length=4096, parent=ROOT)
PIECE = Slice(0, SliceId(1), 10, 0, 10)
A, B = Inode(11), Inode(12)
TIMEOUT_S = 60


def make_files(engine: MetaEngine) -> None:
    engine.transact(lambda tx: (tx.make_inode(A, FILE), tx.make_inode(B, FILE)))


def kill_others(sql: Cursor) -> None:
    """End all connections to the database but this one."""
    if sql.dialect.has_returning:
        sql.run(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return
    ids = sql.run(
        "SELECT id FROM information_schema.processlist "
        "WHERE db = database() AND id <> connection_id()"
    )
    for (number,) in ids:
        with contextlib.suppress(*sql.dialect.errors):
            sql.run(f"KILL {number}")


def add_name(name: bytes, ino: int) -> Callable[[Tx], None]:
    def body(tx: Tx) -> None:
        tx.fetch(("dir", ROOT), ("entry", ROOT, name))
        if tx.entry(ROOT, name) is not None:
            raise FileExistsError(errno.EEXIST, "there")
        tx.make_inode(Inode(ino), FILE)
        tx.set_entry(ROOT, name, Entry(Inode(ino), Kind.FILE))
        tx.touch(ROOT, time_ns=1)
        tx.use(space=4096, inodes=1)

    return body


def test_stale_connections_are_replaced(server_url: str, opened: Opened) -> None:
    engine = opened(server_url)
    barrier = threading.Barrier(4)
    with cursor(server_url) as sql:
        with ThreadPoolExecutor(4) as pool:  # so many connections wait in the pool
            list(pool.map(lambda _: engine.read(lambda tx: barrier.wait(TIMEOUT_S)), range(4)))
        kill_others(sql)
        assert engine.attr(ROOT) is not None
        kill_others(sql)
        engine.transact(add_name(b"n", 20))
        kill_others(sql)
        assert engine.allocate_inodes(10)
    assert engine.lookup(ROOT, b"n") == (Entry(Inode(20), Kind.FILE), FILE)


def test_connection_lost_in_a_transaction_runs_it_again(server_url: str, opened: Opened) -> None:
    engine = opened(server_url)
    make_files(engine)
    runs = 0
    with cursor(server_url) as sql:

        def body(tx: Tx) -> None:
            nonlocal runs
            runs += 1
            attr = tx.attr(A)
            assert attr
            if runs == 1:
                kill_others(sql)
            tx.set_attr(A, attr.with_(length=attr.length + 1))

        engine.transact(body)
    assert runs == 2
    attr = engine.attr(A)
    assert attr is not None
    assert attr.length == 1


def test_connection_lost_at_the_commit_is_an_error(
    server_url: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows then whether it is stored: a second run might do it twice."""
    engine = opened(server_url)
    commit = Link.commit
    with cursor(server_url) as sql:

        def lose(link: Link) -> None:
            monkeypatch.setattr(Link, "commit", commit)
            kill_others(sql)
            commit(link)

        monkeypatch.setattr(Link, "commit", lose)
        with pytest.raises(OSError, match="lost at the commit") as caught:
            engine.transact(add_name(b"n", 20))
        assert caught.value.errno == errno.EIO
        assert engine.counter("usedSpace") == 0
        engine.transact(add_name(b"m", 21))
        monkeypatch.setattr(Link, "commit", lose)
        assert len(engine.allocate_inodes(10)) == 10  # some ids more or less do not matter
    assert engine.lookup(ROOT, b"m") is not None


def test_deadlock_is_resolved(server_url: str, opened: Opened) -> None:
    """Two clients lock two inodes in opposite order, step by step."""
    engine, other = opened(server_url), opened(server_url, init=False)
    make_files(engine)
    both = threading.Barrier(2)

    def grow(run_by: MetaEngine, first: Inode, second: Inode) -> None:
        runs = 0

        def body(tx: Tx) -> None:
            nonlocal runs
            runs += 1
            one = tx.attr(first)
            if runs == 1:
                both.wait(TIMEOUT_S)
            two = tx.attr(second)
            assert one
            assert two
            tx.set_attr(first, one.with_(length=one.length + 1))
            tx.set_attr(second, two.with_(length=two.length + 1))

        run_by.transact(body)

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(grow, engine, A, B), pool.submit(grow, other, B, A)]
        for job in jobs:
            job.result(TIMEOUT_S)
    assert {ino: attr.length for ino, attr in engine.attrs([A, B]).items()} == {A: 2, B: 2}


def test_locks_show_the_present(server_url: str, opened: Opened) -> None:
    """What a lock covers is read as it is now, whenever the transaction began (MySQL)."""
    engine, other = opened(server_url), opened(server_url, init=False)
    make_files(engine)
    engine.transact(lambda tx: tx.make_inode(Inode(13), DIR))
    runs = 0

    def add(tx: Tx) -> None:
        tx.append(B, 0, PIECE)
        tx.set_attr(B, FILE.with_(length=10, parent=Inode(0)))
        tx.set_entry(Inode(13), b"n", Entry(B, Kind.FILE))
        tx.set_lock(B, (SessionId(1), 2), b"R", posix=False)

    def body(tx: Tx) -> tuple[object, ...]:
        nonlocal runs
        runs += 1
        assert tx.attr(A)
        assert tx.xattr_names(ROOT) == ()  # fixes what plain reads show from now on
        if runs == 1:
            other.transact(add)
        attr = tx.attr(B)
        assert attr
        tx.set_attr(A, FILE.with_(length=1))
        found = (attr.length, tx.slices(B, 0), tx.parents(B), tx.locks(B, posix=False))
        return (*found, tx.is_empty(Inode(13)))

    told, _ = engine.transact(body)
    assert told == (10, (PIECE,), {13: 1}, {(SessionId(1), 2): b"R"}, False)
    assert runs == 1


def test_pool_that_is_used_up_is_an_error(
    server_url: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = "&" if "?" in server_url else "?"
    monkeypatch.setattr("juicepy.meta.sql.database.POOL_TIMEOUT_S", 0.1)
    engine = opened(f"{server_url}{mark}max_open_conns=1")

    with pytest.raises(OSError) as caught:
        engine.read(lambda tx: engine.attr(ROOT))
    assert caught.value.errno == errno.EIO
    assert engine.attr(ROOT) is not None


def test_value_that_does_not_fit_is_refused_once(server_url: str, opened: Opened) -> None:
    engine, runs = opened(server_url), 0

    def body(tx: Tx) -> None:
        nonlocal runs
        runs += 1
        tx.make_inode(A, FILE.with_(gid=2**32 - 1))

    with pytest.raises(OSError) as caught:
        engine.transact(body)
    assert (caught.value.errno, runs) == (errno.EINVAL, 1)
    make_files(engine)


def test_sqlite_waits_for_another_process(sqlite_url: str, opened: Opened, tmp_path: Path) -> None:
    engine = opened(f"{sqlite_url}?_timeout=50")
    program = (
        "import sqlite3, sys\n"
        f"c = sqlite3.connect({sqlite_url.removeprefix('sqlite3://')!r}, isolation_level=None)\n"
        "c.execute('BEGIN IMMEDIATE')\n"
        "print('locked', flush=True)\n"
        "sys.stdin.readline()\n"
        "c.execute('COMMIT')\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout
        assert holder.stdout.readline() == "locked\n"
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(engine.transact, add_name(b"n", 20))
            assert engine.attr(ROOT) is not None  # readers do not wait
            holder.communicate("go\n", timeout=TIMEOUT_S)
            job.result(TIMEOUT_S)
    finally:
        holder.kill()
        holder.wait()
    assert engine.lookup(ROOT, b"n") is not None


def test_threads_of_one_process_take_turns_on_sqlite(sqlite_url: str, opened: Opened) -> None:
    """Through two engines, and without running into the busy timeout."""
    engines = [opened(f"{sqlite_url}?_timeout=1") for _ in range(2)]
    make_files(engines[0])

    def work(number: int) -> None:
        for _ in range(20):

            def body(tx: Tx) -> None:
                attr = tx.attr(A)
                assert attr
                tx.set_attr(A, attr.with_(length=attr.length + 1))

            engines[number % 2].transact(body)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    attr = engines[1].attr(A)
    assert attr is not None
    assert attr.length == 160


def test_full_disk_is_told(sqlite_url: str, opened: Opened, tmp_path: Path) -> None:
    engine = opened(sqlite_url)
    with cursor(sqlite_url) as sql:
        pages = sql.one("PRAGMA page_count")
    engine.close()

    class Full(Sqlite):
        def connect(self, url, password):  # type: ignore[no-untyped-def]
            connection = super().connect(url, password)
            connection.execute(f"PRAGMA max_page_count={pages}")
            return connection

    full = opened(sqlite_url, init=False)
    full._database.dialect = Full()  # type: ignore[attr-defined]
    with pytest.raises(OSError) as caught:
        full.transact(lambda tx: [tx.set_link(Inode(n), b"x" * 4000) for n in range(50)])
    assert caught.value.errno == errno.ENOSPC
    assert full.attr(ROOT) is not None


def test_long_truncate_of_a_sparse_file_asks_once(opened: Opened, url: str) -> None:
    """Which of thousands of chunks exist is one question."""
    engine = opened(url)
    hole = Slice(0, SliceId(0), 0, 0, 1 << 26)
    engine.transact(lambda tx: tx.append(A, 9000, hole))

    def body(tx: Tx) -> None:
        for index in range(10_000):
            tx.append(A, index, hole, only_existing=True)

    assert engine.transact(body)[1].chunks == {(A, 9000): 2}


def test_errors_of_the_driver_never_leak(opened: Opened, url: str, sql: Cursor) -> None:
    """The schema is mended once; a table that is lost again is an error."""
    engine = opened(url)
    sql.run("DROP TABLE jfs_edge")
    engine.transact(add_name(b"n", 20))
    sql.run("DROP TABLE jfs_edge")
    for work in (
        lambda: engine.transact(add_name(b"m", 21)),
        lambda: engine.lookup(ROOT, b"m"),
        lambda: list(engine.list_dir(ROOT, with_attrs=True)),
    ):
        with pytest.raises(OSError) as caught:
            work()
        assert caught.value.errno == errno.EIO
    assert engine.attr(Inode(21)) is None
    engine.init(b"{}", FILE, None)
    engine.transact(add_name(b"m", 21))
