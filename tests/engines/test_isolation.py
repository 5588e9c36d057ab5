"""What transactions of several clients do to each other, on every engine."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import pytest

from juicepy.meta.engine import MetaEngine
from juicepy.meta.tx import Tx
from juicepy.types import ROOT, Attr, Entry, Inode, Kind, SessionId, Slice, SliceId
from tests.support.engines import Place

DIR = Attr(Kind.DIR, 0o755, nlink=2, length=4096, parent=ROOT)
FILE = Attr(Kind.FILE, 0o644, parent=ROOT)
SUB, INO, SECOND = Inode(10), Inode(11), Inode(12)
T = TypeVar("T")

WAIT_S = 0.1  # for a client that most likely has to wait for another
TIMEOUT_S = 60


@pytest.fixture
def volume(engine: MetaEngine) -> MetaEngine:
    """A volume with an empty directory `d` and a file `f`."""
    engine.init(b"{}", DIR, None)

    def make(tx: Tx) -> None:
        tx.make_inode(SUB, DIR)
        tx.make_inode(INO, FILE)
        tx.set_entry(ROOT, b"d", Entry(SUB, Kind.DIR))
        tx.set_entry(ROOT, b"f", Entry(INO, Kind.FILE))
        tx.set_xattr(INO, b"user.x", b"1")
        tx.touch(ROOT, nlink=1)

    engine.transact(make)
    return engine


@pytest.fixture
def other(volume: MetaEngine, place: Place) -> MetaEngine:
    return place.open()


def need(value: T | None) -> T:
    """What a body expects to be there. A guess of the engine may be wrong, so it is an OSError."""
    if value is None:
        raise FileNotFoundError(errno.ENOENT, "not there")
    return value


class Meanwhile:
    """Runs `work` on a thread, once, in the middle of another client's transaction."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def happen(self) -> None:
        """Start it, and give it the time to finish if nothing holds it up."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run)
            self._thread.start()
            self._thread.join(WAIT_S)

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._failure = error

    def finish(self) -> None:
        assert self._thread is not None
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        if self._failure:
            raise self._failure


@dataclass(frozen=True)
class Strict:
    """A strict read and a change of it by somebody else."""

    read: Callable[[Tx], object]
    change: Callable[[Tx], object]
    before: object
    after: object


def _grow(tx: Tx) -> None:
    attr = need(tx.attr(INO))
    tx.set_attr(INO, attr.with_(length=attr.length + 1))


def _link(tx: Tx) -> None:
    attr = need(tx.attr(INO))
    tx.set_attr(INO, attr.with_(nlink=2, parent=Inode(0)))
    tx.count_parent(INO, ROOT, 1)
    tx.count_parent(INO, SUB, 1)
    tx.set_entry(SUB, b"link", Entry(INO, Kind.FILE))


def _length(tx: Tx) -> int | None:
    attr = tx.attr(INO)
    return attr and attr.length


def _links(tx: Tx) -> tuple[int, dict[Inode, int]]:
    attr = need(tx.attr(INO))
    return attr.nlink, tx.parents(INO) if attr.parent == 0 else {ROOT: 1}


def _drop(tx: Tx) -> None:
    need(tx.entry(ROOT, b"f"))
    need(tx.attr(INO))
    tx.drop_entry(ROOT, b"f")
    tx.drop_inode(INO)


def _create_below(tx: Tx) -> None:
    tx.fetch(("dir", SUB), ("entry", SUB, b"n"))
    need(tx.directory(SUB))
    if tx.entry(SUB, b"n"):
        raise FileExistsError(errno.EEXIST, "n")
    tx.make_inode(SECOND, FILE)
    tx.set_entry(SUB, b"n", Entry(SECOND, Kind.FILE))
    tx.touch(SUB)


OWNER = (SessionId(3), 2**63 + 1)
FOUND = Entry(INO, Kind.FILE)
STRICT = {
    "attr": Strict(_length, _grow, 0, 1),
    "attr removed": Strict(_length, _drop, 0, None),
    "entry changed": Strict(
        lambda tx: tx.entry(ROOT, b"f"),
        lambda tx: (tx.entry(ROOT, b"f"), tx.set_entry(ROOT, b"f", Entry(SECOND, Kind.FIFO))),
        FOUND,
        Entry(SECOND, Kind.FIFO),
    ),
    "entry removed": Strict(
        lambda tx: tx.entry(ROOT, b"f"),
        lambda tx: (tx.entry(ROOT, b"f"), tx.drop_entry(ROOT, b"f")),
        FOUND,
        None,
    ),
    "entry made": Strict(
        lambda tx: tx.entry(SUB, b"n"),
        lambda tx: (tx.entry(SUB, b"n"), tx.set_entry(SUB, b"n", FOUND)),
        None,
        FOUND,
    ),
    "empty": Strict(lambda tx: (tx.attr(SUB), tx.is_empty(SUB))[1], _create_below, True, False),
    "xattr": Strict(
        lambda tx: tx.xattr(INO, b"user.x"),
        lambda tx: tx.set_xattr(INO, b"user.x", b"2"),
        b"1",
        b"2",
    ),
    "parents": Strict(_links, _link, (1, {ROOT: 1}), (2, {ROOT: 1, SUB: 1})),
    "locks": Strict(
        lambda tx: (tx.attr(INO), tx.locks(INO, posix=False))[1],
        lambda tx: (tx.attr(INO), tx.set_lock(INO, OWNER, b"W", posix=False)),
        {},
        {OWNER: b"W"},
    ),
}


@pytest.mark.parametrize("case", STRICT)
def test_strict_read_is_true_at_the_commit(
    volume: MetaEngine, other: MetaEngine, case: str
) -> None:
    """A client stores what it saw; another changes that and looks who was first."""
    strict = STRICT[case]

    def change(tx: Tx) -> None:
        strict.change(tx)
        first = tx.xattr(ROOT, b"user.seen") is not None
        tx.set_xattr(ROOT, b"user.first", b"reader" if first else b"changer")

    meanwhile = Meanwhile(lambda: other.transact(change))

    def body(tx: Tx) -> object:
        seen = strict.read(tx)
        meanwhile.happen()
        tx.set_xattr(ROOT, b"user.seen", repr(seen).encode())
        return seen

    seen, _ = volume.transact(body)
    meanwhile.finish()
    first = volume.read(lambda tx: tx.xattr(ROOT, b"user.first"))
    assert seen == (strict.before if first == b"reader" else strict.after)
    assert volume.read(lambda tx: tx.xattr(ROOT, b"user.seen")) == repr(seen).encode()
    assert volume.read(strict.read) == strict.after


def test_loose_read_lets_others_change_the_directory(volume: MetaEngine, other: MetaEngine) -> None:
    runs = 0
    meanwhile = Meanwhile(lambda: other.transact(lambda tx: tx.touch(ROOT, nlink=5, time_ns=77)))

    def body(tx: Tx) -> None:
        nonlocal runs
        runs += 1
        need(tx.directory(ROOT))
        meanwhile.happen()
        tx.touch(ROOT, nlink=10)

    volume.transact(body)
    meanwhile.finish()
    assert runs == 1
    attr = volume.attr(ROOT)
    assert attr == DIR.with_(nlink=18, mtime_ns=77, ctime_ns=77)


@pytest.mark.parametrize("moves_time", [False, True])
def test_name_is_never_made_in_a_removed_directory(
    volume: MetaEngine, other: MetaEngine, moves_time: bool
) -> None:
    def remove(tx: Tx) -> None:
        tx.fetch(("dir", ROOT), ("entry", ROOT, b"d"))
        need(tx.entry(ROOT, b"d"))
        tx.fetch(("attr", SUB), ("empty", SUB))
        if not tx.is_empty(SUB):
            return
        need(tx.attr(SUB))
        tx.drop_entry(ROOT, b"d")
        tx.drop_inode(SUB)
        tx.touch(ROOT, nlink=-1)

    meanwhile = Meanwhile(lambda: other.transact(remove))

    def create(tx: Tx) -> bool:
        tx.fetch(("dir", SUB), ("entry", SUB, b"n"))
        if tx.directory(SUB) is None:
            return False
        if tx.entry(SUB, b"n"):
            raise FileExistsError(errno.EEXIST, "n")
        meanwhile.happen()
        tx.make_inode(SECOND, FILE)
        tx.set_entry(SUB, b"n", Entry(SECOND, Kind.FILE))
        tx.touch(SUB, time_ns=5 if moves_time else None)
        return True

    made, _ = volume.transact(create)
    meanwhile.finish()
    assert (volume.attr(SUB) is not None) == made
    assert (volume.lookup(SUB, b"n") is not None) == made
    assert (volume.attr(SECOND) is not None) == made


def test_no_update_is_lost(volume: MetaEngine, other: MetaEngine) -> None:
    """Strict read and write of one inode by threads of two clients."""
    rounds, threads = 12, 6

    def work(engine: MetaEngine) -> None:
        for _ in range(rounds):
            engine.transact(_grow)

    with ThreadPoolExecutor(threads) as pool:
        for job in [pool.submit(work, (volume, other)[n % 2]) for n in range(threads)]:
            job.result(TIMEOUT_S)
    attr = volume.attr(INO)
    assert attr is not None
    assert attr.length == rounds * threads


def test_appends_of_several_clients_all_stay(volume: MetaEngine, other: MetaEngine) -> None:
    rounds, threads = 10, 4
    counts: list[int] = []

    def work(engine: MetaEngine, first: int) -> None:
        for number in range(first, first + rounds):
            piece = Slice(0, SliceId(number), 1, 0, 1)

            def body(tx: Tx, piece: Slice = piece) -> None:
                _grow(tx)
                tx.append(INO, 0, piece)
                tx.made_slice((piece.id, 1))

            counts.append(engine.transact(body)[1].chunks[INO, 0])

    with ThreadPoolExecutor(threads) as pool:
        jobs = [
            pool.submit(work, (volume, other)[n % 2], 1 + n * rounds) for n in range(threads)
        ]  # fmt: skip
        for job in jobs:
            job.result(TIMEOUT_S)
    total = rounds * threads
    assert sorted(counts) == list(range(1, total + 1))
    assert sorted(piece.id for piece in volume.slices(INO, 0)) == list(range(1, total + 1))


def test_one_of_several_creators_gets_the_name(volume: MetaEngine, other: MetaEngine) -> None:
    threads, rounds = 6, 5
    start = threading.Barrier(threads)

    def work(engine: MetaEngine, number: int) -> int:
        won = 0
        for round_ in range(rounds):
            ino, name = Inode(100 + number * rounds + round_), b"name%d" % round_

            def body(tx: Tx, ino: Inode = ino, name: bytes = name) -> bool:
                tx.fetch(("dir", ROOT), ("entry", ROOT, name))
                if tx.entry(ROOT, name) is not None:
                    return False
                tx.make_inode(ino, FILE)
                tx.set_entry(ROOT, name, Entry(ino, Kind.FILE))
                tx.touch(ROOT, time_ns=1)
                return True

            start.wait(TIMEOUT_S)
            won += engine.transact(body)[0]
        return won

    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(work, (volume, other)[n % 2], n) for n in range(threads)]
        assert sum(job.result(TIMEOUT_S) for job in jobs) == rounds
    listed = [e for page in volume.list_dir(ROOT, with_attrs=True) for e in page]
    assert sorted(entry.name for entry in listed) == [b"d", b"f"] + [
        b"name%d" % n for n in range(rounds)
    ]
    assert all(entry.attr is not None for entry in listed)
    assert len(list(volume.scan_attrs())) == 3 + rounds


def test_links_of_a_directory_add_up(volume: MetaEngine, other: MetaEngine) -> None:
    """Threads of two clients make and remove sub-directories of one directory."""
    threads, rounds = 6, 8

    def work(engine: MetaEngine, number: int) -> None:
        for round_ in range(rounds):
            ino, name = Inode(1000 + number * rounds + round_), b"s%d-%d" % (number, round_)

            def make(tx: Tx, ino: Inode = ino, name: bytes = name) -> None:
                tx.fetch(("dir", SUB), ("entry", SUB, name))
                if tx.entry(SUB, name):
                    raise FileExistsError(errno.EEXIST, "name")
                tx.make_inode(ino, DIR)
                tx.set_entry(SUB, name, Entry(ino, Kind.DIR))
                tx.touch(SUB, nlink=1, time_ns=1)

            def remove(tx: Tx, ino: Inode = ino, name: bytes = name) -> None:
                tx.fetch(("dir", SUB), ("entry", SUB, name))
                need(tx.entry(SUB, name))
                tx.fetch(("attr", ino), ("empty", ino))
                if not tx.is_empty(ino):
                    raise OSError(errno.ENOTEMPTY, "name")
                tx.drop_entry(SUB, name)
                tx.drop_inode(ino)
                tx.touch(SUB, nlink=-1, time_ns=2)

            engine.transact(make)
            if round_ % 2:
                engine.transact(remove)

    with ThreadPoolExecutor(threads) as pool:
        for job in [pool.submit(work, (volume, other)[n % 2], n) for n in range(threads)]:
            job.result(TIMEOUT_S)
    attr = volume.attr(SUB)
    assert attr is not None
    assert attr.nlink == 2 + threads * rounds // 2
    left = [entry for page in volume.list_dir(SUB, with_attrs=True) for entry in page]
    assert len(left) == threads * rounds // 2


def test_ids_are_given_once_to_many_threads(volume: MetaEngine, other: MetaEngine) -> None:
    threads, rounds = 8, 5

    def work(engine: MetaEngine) -> list[int]:
        given: list[int] = []
        for _ in range(rounds):
            given += engine.allocate_inodes(10)
        return given

    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(work, (volume, other)[n % 2]) for n in range(threads)]
        given = [ino for job in jobs for ino in job.result(TIMEOUT_S)]
    assert len(set(given)) == len(given) >= threads * rounds * 10 - 2


def test_usage_of_many_threads_adds_up(volume: MetaEngine, other: MetaEngine) -> None:
    threads, rounds = 6, 10

    def work(engine: MetaEngine) -> None:
        for _ in range(rounds):
            engine.transact(lambda tx: (tx.touch(SUB, time_ns=1), tx.use(space=4096, inodes=1)))
            engine.flush()

    with ThreadPoolExecutor(threads) as pool:
        for job in [pool.submit(work, (volume, other)[n % 2]) for n in range(threads)]:
            job.result(TIMEOUT_S)
    assert volume.counter("usedSpace") == threads * rounds * 4096
    assert other.counter("totalInodes") == threads * rounds
