"""Record locks and flock through the kernel, with and without waiting."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.toymount import ToyMount
from tests.support.waiting import wait_for

WAIT_S = 30.0


@pytest.fixture
def file(place: Path) -> Path:
    path = place / "f"
    path.write_bytes(b"0123456789")
    return path


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    """A wait that never ends kills the test's process instead of hanging the run."""
    signal.alarm(120)
    yield
    signal.alarm(0)


def child(work: object) -> int:
    """Fork; in the child run `work`, exit with its result."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = int(work())  # type: ignore[operator]
        finally:
            os._exit(code)
    return pid


def result_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def errno_of_lock(path: Path, command: int, length: int = 0, start: int = 0) -> int:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.lockf(fd, command, length, start)
    except OSError as error:
        return error.errno or 0
    return 0


def test_record_locks_exclude_other_processes(file: Path) -> None:
    with open(file, "r+b") as held:
        fcntl.lockf(held, fcntl.LOCK_EX, 5, 0)
        nonblocking = fcntl.LOCK_EX | fcntl.LOCK_NB
        assert result_of(child(lambda: errno_of_lock(file, nonblocking, 5, 3))) == errno.EAGAIN
        assert result_of(child(lambda: errno_of_lock(file, nonblocking, 5, 5))) == 0
        fcntl.lockf(held, fcntl.LOCK_UN, 5, 0)
        assert result_of(child(lambda: errno_of_lock(file, nonblocking))) == 0


def test_getlk_tells_who_is_in_the_way(file: Path) -> None:
    with open(file, "r+b") as held:
        fcntl.lockf(held, fcntl.LOCK_EX, 5, 2)

        def ask() -> int:
            fd = os.open(file, os.O_RDWR)
            request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            answer = struct.unpack("hhqqi4x", fcntl.fcntl(fd, fcntl.F_GETLK, request))
            return int(answer != (fcntl.F_WRLCK, os.SEEK_SET, 2, 5, os.getppid()))

        assert result_of(child(ask)) == 0


def test_getlk_of_a_free_range_says_unlocked(file: Path) -> None:
    with open(file, "r+b") as free:
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = struct.unpack("hhqqi4x", fcntl.fcntl(free, fcntl.F_GETLK, request))
    assert answer[0] == fcntl.F_UNLCK


@pytest.mark.parametrize("lock", [fcntl.lockf, fcntl.flock], ids=["record", "flock"])
def test_waiting_lock_is_granted_when_the_holder_lets_go(
    toy: ToyMount, file: Path, lock: object
) -> None:
    tries = "fs.calls['try_setlk'] + fs.calls['try_flock']"
    held = os.open(file, os.O_RDWR)
    lock(held, fcntl.LOCK_EX)  # type: ignore[operator]
    before = toy.ask(tries)

    def wait() -> int:
        os.close(held)
        with open(file, "r+b") as other:
            lock(other, fcntl.LOCK_EX)  # type: ignore[operator]
        return 0

    pid = child(wait)
    wait_for(lambda: toy.ask(tries) > before + 1, "a second try of the waiter")
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.close(held)
    assert result_of(pid) == 0


def test_closing_any_descriptor_drops_record_locks(file: Path) -> None:
    held = os.open(file, os.O_RDWR)
    fcntl.lockf(held, fcntl.LOCK_EX)
    os.close(os.open(file, os.O_RDONLY))
    nonblocking = fcntl.LOCK_EX | fcntl.LOCK_NB
    assert result_of(child(lambda: errno_of_lock(file, nonblocking))) == 0
    os.close(held)


def test_shared_flocks_stand_side_by_side(file: Path) -> None:
    with open(file, "rb") as one, open(file, "rb") as two, open(file, "rb") as three:
        fcntl.flock(one, fcntl.LOCK_SH)
        fcntl.flock(two, fcntl.LOCK_SH)
        with pytest.raises(BlockingIOError):
            fcntl.flock(three, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(one, fcntl.LOCK_UN)
        fcntl.flock(two, fcntl.LOCK_UN)
        fcntl.flock(three, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("lock", [fcntl.lockf, fcntl.flock], ids=["record", "flock"])
def test_signal_interrupts_a_waiting_lock(toy: ToyMount, file: Path, lock: object) -> None:
    tries = "fs.calls['try_setlk'] + fs.calls['try_flock']"

    def wait() -> int:
        class Woken(Exception):
            pass

        def raise_woken(*_: object) -> None:
            raise Woken

        signal.signal(signal.SIGUSR1, raise_woken)
        with open(file, "r+b") as other:
            try:
                lock(other, fcntl.LOCK_EX)  # type: ignore[operator]
            except Woken:
                return 42
        return 1

    with open(file, "r+b") as held:
        lock(held, fcntl.LOCK_EX)  # type: ignore[operator]
        before = toy.ask(tries)
        pid = child(wait)
        wait_for(lambda: toy.ask(tries) > before + 1, "a second try of the waiter")
        os.kill(pid, signal.SIGUSR1)
        assert result_of(pid) == 42


def test_killed_waiter_goes_away(toy: ToyMount, file: Path) -> None:
    with open(file, "r+b") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        before = toy.calls("try_setlk")
        pid = child(lambda: errno_of_lock(file, fcntl.LOCK_EX))
        wait_for(lambda: toy.calls("try_setlk") > before + 1, "a second try of the waiter")
        os.kill(pid, signal.SIGKILL)
        assert result_of(pid) == -signal.SIGKILL


def test_many_waiters_keep_no_worker_busy(toy: ToyMount, file: Path) -> None:
    with open(file, "r+b") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        before = toy.calls("try_setlk")
        waiters = [child(lambda: errno_of_lock(file, fcntl.LOCK_EX)) for _ in range(20)]
        wait_for(lambda: toy.calls("try_setlk") > before + 20, "all waiters to try")
        workers = toy.ask("sum(t.name.startswith('fuse-worker') for t in threading.enumerate())")
        assert workers < 20
        began = time.monotonic()
        os.stat(file.parent)
        assert time.monotonic() - began < WAIT_S
        fcntl.lockf(held, fcntl.LOCK_UN)
        assert [result_of(pid) for pid in waiters] == [0] * 20


def test_lock_of_an_open_file_description_is_told_without_a_process(file: Path) -> None:
    """F_OFD_SETLK and F_OFD_GETLK: Linux names no process, and forbids to ask for one."""
    set_lock, get_lock = 37, 36
    with open(file, "r+b") as one, open(file, "r+b") as two:
        wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 1, 4, 0)
        fcntl.fcntl(one, set_lock, wanted)
        with pytest.raises(BlockingIOError):
            fcntl.fcntl(two, set_lock, wanted)
        held = struct.unpack("hhqqi4x", fcntl.fcntl(two, get_lock, wanted))
        assert held == (fcntl.F_WRLCK, os.SEEK_SET, 1, 4, -1)
