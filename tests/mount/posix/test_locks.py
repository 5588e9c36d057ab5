"""Record locks of processes and of open file descriptions, and flock(2), within one machine."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tests.support.users import User, refused

OFD_GETLK, OFD_SETLK, OFD_SETLKW = 36, 37, 38
ROOT = User(0, 0)

_FLOCK = struct.Struct("hhqqi4x")


def lock(fd: int, command: int, kind: int, start: int = 0, length: int = 0) -> tuple[int, ...]:
    """(type, whence, start, length, pid) as the kernel answers."""
    request = _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
    return _FLOCK.unpack(fcntl.fcntl(fd, command, request))


@pytest.fixture
def files(place: Path) -> Iterator[tuple[int, int]]:
    """Two open file descriptions of one file."""
    opened = [os.open(place / "f", os.O_CREAT | os.O_RDWR) for _ in range(2)]
    yield opened[0], opened[1]
    for fd in opened:
        os.close(fd)


def test_locks_of_descriptions_exclude_each_other(files: tuple[int, int]) -> None:
    first, second = files
    lock(first, OFD_SETLK, fcntl.F_WRLCK, 10, 20)
    with refused(errno.EAGAIN, errno.EACCES):
        lock(second, OFD_SETLK, fcntl.F_WRLCK, 25, 1)
    lock(second, OFD_SETLK, fcntl.F_WRLCK, 30, 5)
    lock(first, OFD_SETLK, fcntl.F_UNLCK)
    lock(second, OFD_SETLK, fcntl.F_WRLCK, 10, 20)


def test_queries_find_locks_of_descriptions(files: tuple[int, int]) -> None:
    first, second = files
    lock(first, OFD_SETLK, fcntl.F_WRLCK, 100, 50)
    kind, _, start, length, pid = lock(second, OFD_GETLK, fcntl.F_RDLCK, 120, 1)
    assert (kind, start, length, pid) == (fcntl.F_WRLCK, 100, 50, -1)
    assert lock(second, OFD_GETLK, fcntl.F_WRLCK, 0, 50)[0] == fcntl.F_UNLCK
    assert lock(first, OFD_GETLK, fcntl.F_WRLCK, 120, 1)[0] == fcntl.F_UNLCK  # its own


def test_locks_of_a_description_end_with_its_last_descriptor(place: Path) -> None:
    first = os.open(place / "f", os.O_CREAT | os.O_RDWR)
    copy = os.dup(first)
    second = os.open(place / "f", os.O_RDWR)
    try:
        lock(first, OFD_SETLK, fcntl.F_WRLCK)
        os.close(first)
        with refused(errno.EAGAIN, errno.EACCES):
            lock(second, OFD_SETLK, fcntl.F_WRLCK)
        os.close(copy)
        lock(second, OFD_SETLKW, fcntl.F_WRLCK)
    finally:
        os.close(second)


def test_locks_of_processes_exclude_other_processes_only(files: tuple[int, int]) -> None:
    first, second = files
    lock(first, fcntl.F_SETLK, fcntl.F_WRLCK, 0, 100)
    lock(second, fcntl.F_SETLK, fcntl.F_WRLCK, 50, 100)  # the same process
    with refused(errno.EAGAIN, errno.EACCES):
        ROOT.run(lock, second, fcntl.F_SETLK, fcntl.F_RDLCK, 120, 1)
    kind, _, start, length, pid = ROOT.run(lock, second, fcntl.F_GETLK, fcntl.F_RDLCK, 0, 10)
    assert (kind, start, length, pid) == (fcntl.F_WRLCK, 0, 150, os.getpid())
    lock(first, fcntl.F_SETLK, fcntl.F_UNLCK, 20, 10)  # splits
    assert ROOT.run(lock, second, fcntl.F_GETLK, fcntl.F_WRLCK, 20, 10)[0] == fcntl.F_UNLCK
    assert ROOT.run(lock, second, fcntl.F_GETLK, fcntl.F_WRLCK, 25, 10)[2:4] == (30, 120)


def test_closing_any_descriptor_drops_the_locks_of_the_process(place: Path) -> None:
    fd = os.open(place / "f", os.O_CREAT | os.O_RDWR)
    try:
        lock(fd, fcntl.F_SETLK, fcntl.F_WRLCK)
        os.close(os.open(place / "f", os.O_RDONLY))
        assert ROOT.run(lock, fd, fcntl.F_GETLK, fcntl.F_WRLCK)[0] == fcntl.F_UNLCK
    finally:
        os.close(fd)


def test_locks_need_the_access_they_are_for(place: Path) -> None:
    (place / "f").touch()
    for flags, kind in ((os.O_RDONLY, fcntl.F_WRLCK), (os.O_WRONLY, fcntl.F_RDLCK)):
        fd = os.open(place / "f", flags)
        with refused(errno.EBADF):
            lock(fd, fcntl.F_SETLK, kind)
        os.close(fd)


def test_flock_belongs_to_the_description(files: tuple[int, int]) -> None:
    first, second = files
    fcntl.flock(first, fcntl.LOCK_EX)
    copy = os.dup(first)
    fcntl.flock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(copy)
    with refused(errno.EAGAIN):
        fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.flock(first, fcntl.LOCK_SH)
    fcntl.flock(second, fcntl.LOCK_SH | fcntl.LOCK_NB)
    with refused(errno.EAGAIN):
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock(first, fcntl.F_SETLK, fcntl.F_WRLCK)  # another kind of lock


# ---------------------------------------------------------------- deadlocks
@dataclass(frozen=True)
class Greedy:
    """What a process has first, then waits for: (file, start, kind)."""

    has: tuple[str, int, int]
    wants: tuple[str, int, int]
    command: int = fcntl.F_SETLKW

    def take(self, place: Path, barrier: Barrier) -> None:
        """Exits with 0, or the errno of the second lock. Its locks end with it."""
        fds = {name: os.open(place / name, os.O_RDWR) for name, _, _ in (self.has, self.wants)}
        name, start, kind = self.has
        lock(fds[name], self.command, kind, start, 1)
        barrier.wait(60)
        name, start, kind = self.wants
        try:
            lock(fds[name], self.command, kind, start, 1)
        except OSError as error:
            os._exit(error.errno or 255)
        os._exit(0)


@contextmanager
def running(place: Path, greedy: Sequence[Greedy]) -> Iterator[list[BaseProcess]]:
    for name in {name for one in greedy for name, _, _ in (one.has, one.wants)}:
        (place / name).touch()
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(len(greedy))
    children = [context.Process(target=one.take, args=(place, barrier)) for one in greedy]
    for child in children:
        child.start()
    try:
        yield list(children)
    finally:
        for child in children:
            child.kill()
            child.join()


WR, RD = fcntl.F_WRLCK, fcntl.F_RDLCK


@pytest.mark.parametrize(
    "greedy",
    [
        (Greedy(("f", 0, WR), ("f", 1, WR)), Greedy(("f", 1, WR), ("f", 0, WR))),
        (Greedy(("f", 0, RD), ("f", 0, WR)), Greedy(("f", 0, RD), ("f", 0, WR))),
        (
            Greedy(("f", 0, WR), ("g", 0, RD)),
            Greedy(("g", 0, WR), ("h", 0, RD)),
            Greedy(("h", 0, WR), ("f", 0, RD)),
        ),
    ],
    ids=["two", "upgrade", "three files"],
)
def test_who_closes_a_circle_of_waiting_processes_is_refused(
    place: Path, greedy: Sequence[Greedy]
) -> None:
    with running(place, greedy) as children:
        for child in children:
            child.join(60)
        codes = sorted(-1 if child.exitcode is None else child.exitcode for child in children)
    assert codes == [0] * (len(greedy) - 1) + [errno.EDEADLK]


def test_locks_of_descriptions_may_wait_in_a_circle(place: Path) -> None:
    greedy = [
        Greedy(("f", 0, WR), ("f", 1, WR), OFD_SETLKW),
        Greedy(("f", 1, WR), ("f", 0, WR), OFD_SETLKW),
    ]
    with running(place, greedy) as children:
        children[0].join(1)
        assert [child.exitcode for child in children] == [None, None]
