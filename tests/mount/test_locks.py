"""File locks through the kernel: on one mount, between two of ours, between ours and JuiceFS."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.programs import OURS, PEER, Mount, Program, discard
from tests.support.remote import Remote
from tests.support.volumes import Volume, new_volume
from tests.support.waiting import wait_for

RD, WR, UN = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
EX, SH, FREE = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN
NB = fcntl.LOCK_NB
HEARTBEAT = ("--heartbeat", "1s")  # so a session expires 5 s after its last
WAITERS = 50


@dataclass(frozen=True)
class Place:
    """One file, as the holder and as the other process see it."""

    mine: Path
    theirs: Path
    is_same_mount: bool
    merges: bool  # JuiceFS keeps adjacent records of one kind apart


@pytest.fixture(scope="module")
def volume(new_meta_url: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Volume:
    made = new_volume(new_meta_url("redis"), tmp_path_factory.mktemp("locks"))
    made.format(OURS)
    return made


@pytest.fixture(scope="module")
def mounts(volume: Volume) -> Iterator[dict[str, Mount]]:
    with contextlib.ExitStack() as stack:
        yield {
            "a": stack.enter_context(volume.mounted(OURS)),
            "b": stack.enter_context(volume.mounted(OURS)),
            "peer": stack.enter_context(volume.mounted(PEER)),
        }


@pytest.fixture(
    params=[("a", "a"), ("a", "b"), ("a", "peer"), ("peer", "a")],
    ids=["one-mount", "two-mounts", "peer-asks", "peer-holds"],
)
def place(request: pytest.FixtureRequest, mounts: dict[str, Mount]) -> Place:
    mine, theirs = (mounts[name].path for name in request.param)
    name = request.node.name
    (mine / name).write_bytes(b"0123456789")
    wait_for((theirs / name).exists, f"{name} to be seen")
    return Place(mine / name, theirs / name, mine == theirs, request.param[0] != "peer")


@pytest.fixture
def pair() -> Iterator[tuple[Remote, Remote]]:
    with Remote() as one, Remote() as two:
        yield one, two


def opened(place: Place, pair: tuple[Remote, Remote]) -> tuple[int, int]:
    return pair[0].call("open", str(place.mine), os.O_RDWR), pair[1].call(
        "open", str(place.theirs), os.O_RDWR
    )


def is_refused(process: Remote, *call: object) -> bool:
    try:
        process.call(*call)  # type: ignore[arg-type]
    except (BlockingIOError, PermissionError):
        return True
    return False


def is_granted(process: Remote, *call: object) -> bool:
    return not is_refused(process, *call)


def waits(process: Remote, *call: object) -> None:
    """Begin a call that blocks, and be sure that it does."""
    process.begin(*call)  # type: ignore[arg-type]
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        assert not process.is_done(), process.result()
        time.sleep(0.02)


def test_flock_excludes_shares_and_converts(place: Place, pair: tuple[Remote, Remote]) -> None:
    one, two = pair
    mine, theirs = opened(place, pair)
    one.call("flock", mine, SH)
    two.call("flock", theirs, SH | NB)
    assert is_refused(one, "flock", mine, EX | NB)
    two.call("flock", theirs, FREE)
    one.call("flock", mine, EX | NB)
    assert is_refused(two, "flock", theirs, SH | NB)
    one.call("flock", mine, SH)
    assert is_granted(two, "flock", theirs, SH | NB)


def test_record_locks_exclude_where_they_overlap(place: Place, pair: tuple[Remote, Remote]) -> None:
    one, two = pair
    mine, theirs = opened(place, pair)
    one.call("lockf", mine, EX, 4, 2)
    assert is_granted(two, "lockf", theirs, EX | NB, 2, 0)
    assert is_granted(two, "lockf", theirs, EX | NB, 0, 6)  # to the end, wherever it will be
    for start in range(2, 6):
        assert is_refused(two, "lockf", theirs, SH | NB, 1, start)
    kind, start, length, pid = two.call("getlk", theirs, RD, 0, 0)
    assert (kind, start, length) == (WR, 2, 4)
    assert pid == (one.process.pid if place.is_same_mount else 0)
    assert is_refused(one, "lockf", mine, EX | NB, 1, 1000)


def test_record_locks_split_and_merge(place: Place, pair: tuple[Remote, Remote]) -> None:
    one, two = pair
    mine, theirs = opened(place, pair)
    one.call("lockf", mine, EX, 100, 0)
    one.call("lockf", mine, SH, 20, 40)  # downgrade in the middle
    assert is_granted(two, "lockf", theirs, SH | NB, 20, 40)
    assert is_refused(two, "lockf", theirs, SH | NB, 1, 39)
    two.call("lockf", theirs, FREE, 20, 40)
    one.call("lockf", mine, FREE, 10, 45)  # a hole
    assert is_granted(two, "lockf", theirs, EX | NB, 10, 45)
    assert two.call("getlk", theirs, WR, 0, 0)[:3] == [WR, 0, 40]
    two.call("lockf", theirs, FREE, 10, 45)
    one.call("lockf", mine, EX, 20, 40)  # closes all gaps
    kind, start, length, _ = two.call("getlk", theirs, WR, 50, 1)
    assert kind == WR
    assert (start, length) == (0, 100) or not place.merges
    one.call("lockf", mine, FREE, 0, 0)
    assert is_granted(two, "lockf", theirs, EX | NB, 0, 0)


def test_waiter_gets_the_lock_when_it_is_given_up(
    place: Place, pair: tuple[Remote, Remote]
) -> None:
    one, two = pair
    mine, theirs = opened(place, pair)
    one.call("flock", mine, EX)
    waits(two, "flock", theirs, EX)
    one.call("flock", mine, FREE)
    two.result()
    assert is_refused(one, "flock", mine, SH | NB)
    one.call("lockf", mine, EX, 10, 0)
    waits(two, "lockf", theirs, EX, 10, 5)
    one.call("lockf", mine, FREE, 5, 5)
    two.result()
    assert is_refused(one, "lockf", mine, SH | NB, 10, 5)


@pytest.mark.parametrize("call", [("flock", EX), ("lockf", EX, 5, 0)], ids=lambda call: call[0])
def test_signal_ends_a_wait(
    call: tuple[object, ...], place: Place, pair: tuple[Remote, Remote]
) -> None:
    one, two = pair
    mine, theirs = opened(place, pair)
    name, *args = call
    one.call(name, mine, *args)  # type: ignore[arg-type]
    waits(two, name, theirs, *args)
    two.interrupt()
    with pytest.raises(InterruptedError):
        two.result()
    one.call("close", mine)
    mine = one.call("open", str(place.mine), os.O_RDWR)
    wait_for(lambda: one.call("lockf", mine, EX | NB, 0, 0) is None, "nothing is left of the wait")
    wait_for(lambda: is_granted(one, "flock", mine, EX | NB), "nothing is left of the wait")


def test_lock_of_an_open_file_is_not_of_its_process(mounts: dict[str, Mount]) -> None:
    """OFD locks: two in one process exclude each other, and end with their own descriptor."""
    path, elsewhere = (str(mounts[name].path / "ofd") for name in ("a", "b"))
    Path(path).write_bytes(b"0123456789")
    with Remote() as one, Remote() as two:
        first, second = one.call("open", path, os.O_RDWR), one.call("open", path, os.O_RDWR)
        third = two.call("open", elsewhere, os.O_RDWR)
        one.call("ofd", first, WR, 0, 5, False)
        one.call("ofd", second, WR, 5, 5, False)
        assert is_refused(one, "ofd", second, RD, 0, 1, False)
        assert is_refused(two, "ofd", third, RD, 0, 1, False)
        assert is_refused(two, "lockf", third, EX | NB, 1, 9)
        twin = one.call("dup", first)
        one.call("close", one.call("open", path, os.O_RDONLY))  # would drop record locks
        one.call("close", first)
        assert is_refused(one, "ofd", second, RD, 0, 1, False), "its twin is open"
        one.call("close", twin)
        one.call("ofd", second, WR, 0, 5, False)
        assert is_refused(two, "ofd", third, RD, 0, 0, False)
        waits(two, "ofd", third, WR, 2, 3, True)
        one.call("ofd", second, UN, 0, 0, False)
        two.result()


@pytest.mark.parametrize("end", ["close", "exit", "kill"])
@pytest.mark.parametrize("call", [("flock", EX), ("lockf", EX, 5, 0)], ids=lambda call: call[0])
def test_lock_ends_with_its_holder(
    call: tuple[object, ...], end: str, place: Place, pair: tuple[Remote, Remote]
) -> None:
    one, two = pair
    mine, theirs = opened(place, pair)
    name, *args = call
    one.call(name, mine, *args)  # type: ignore[arg-type]
    waits(two, name, theirs, *args)
    if end == "close":
        one.call("close", mine)
    elif end == "exit":
        one.begin("exit", 0)
    else:
        one.kill()
    two.result()


@pytest.mark.parametrize(
    "place", [("a", "a"), ("a", "b"), ("a", "peer")], indirect=True, ids=" ".join
)
def test_record_locks_end_with_any_descriptor_of_the_file(
    place: Place, pair: tuple[Remote, Remote]
) -> None:
    one, two = pair
    mine, theirs = opened(place, pair)
    one.call("lockf", mine, EX, 5, 0)
    one.call("close", one.call("open", str(place.mine), os.O_RDONLY))
    assert is_granted(two, "lockf", theirs, EX | NB, 5, 0)


def test_waiters_of_two_mounts_all_get_their_turn(mounts: dict[str, Mount]) -> None:
    """Though one more on each mount takes the lock again as soon as it has given it up."""
    roots = [mounts[name].path for name in ("a", "b")]
    for name in ("turns", "log"):
        (roots[0] / name).write_bytes(b"")
    files = [(str(root / "turns"), str(root / "log")) for root in roots]
    with contextlib.ExitStack() as stack:
        greedy = [stack.enter_context(Remote()) for _ in roots]
        waiters = [stack.enter_context(Remote()) for _ in range(WAITERS)]
        for process in waiters:
            process.call("ping")
        for process, paths in zip(greedy, files, strict=True):
            process.begin("lock_again_until", *paths, WAITERS)
        for number, process in enumerate(waiters):
            process.begin("append_locked", *files[number % 2], ".")
        for process in (*waiters, *greedy):
            process.result()
    for _, log in files:
        assert Path(log).read_text() == "." * WAITERS


@pytest.mark.parametrize(
    ("killed", "cleaner"), [(OURS, PEER), (PEER, OURS)], ids=["ours-killed", "peer-killed"]
)
def test_locks_of_a_killed_client_end_with_its_session(
    killed: Program, cleaner: Program, new_meta_url: Callable[[str], str], tmp_path: Path
) -> None:
    volume = new_volume(new_meta_url("redis"), tmp_path)
    volume.format(OURS)
    with volume.mounted(cleaner, *HEARTBEAT) as alive, contextlib.ExitStack() as stack:
        (alive.path / "file").write_bytes(b"0123456789")
        mount = volume.mount(killed, volume.place(killed), *HEARTBEAT)
        stack.callback(discard, mount)
        holders = [stack.enter_context(Remote()) for _ in range(2)]
        waiters = [stack.enter_context(Remote()) for _ in range(2)]
        calls: list[tuple[object, ...]] = [("flock", EX), ("lockf", EX, 5, 0)]
        for (name, *args), holder, waiter in zip(calls, holders, waiters, strict=True):
            fd = holder.call("open", str(mount.path / "file"), os.O_RDWR)
            holder.call(name, fd, *args)  # type: ignore[arg-type]
            fd = waiter.call("open", str(alive.path / "file"), os.O_RDWR)
            waits(waiter, name, fd, *args)
        mount.kill()
        for waiter in waiters:
            waiter.result()


@pytest.mark.parametrize("engine", ["redis", pytest.param("sqlite", marks=pytest.mark.long)])
def test_client_frozen_past_its_expiry_gives_up_what_it_held(
    engine: str, new_meta_url: Callable[[str], str], tmp_path: Path
) -> None:
    volume = new_volume(new_meta_url(engine), tmp_path)
    volume.format(OURS)
    with (
        volume.mounted(OURS, *HEARTBEAT) as alive,
        volume.mounted(OURS, *HEARTBEAT) as frozen,
        Remote() as old,
        Remote() as new,
    ):
        (alive.path / "lock").touch()
        (alive.path / "data").write_text("original")
        guard = old.call("open", str(frozen.path / "lock"), os.O_RDWR)
        data = old.call("open", str(frozen.path / "data"), os.O_RDWR)
        second = old.call("open", str(frozen.path / "data"), os.O_RDONLY)
        old.call("flock", guard, EX)
        old.call("write", data, "under the old lock")
        for pid in frozen.pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            theirs = new.call("open", str(alive.path / "lock"), os.O_RDWR)
            new.call("flock", theirs, EX)
            (alive.path / "data").write_text("new")
            old.begin("write", data, "and now?")  # waits for the daemon
        finally:
            for pid in reversed(frozen.pids):
                os.kill(pid, signal.SIGCONT)
        _fails(old.result)
        for _ in range(2):
            _fails(old.call, "write", data, "again")
            _fails(old.call, "fsync", data)
            _fails(old.call, "ftruncate", data, 0)
            _fails(old.call, "flock", guard, EX | NB)
        assert (alive.path / "data").read_text() == "new"
        assert old.call("read", second, 100, 0) == "new"
        _fails(old.call, "close", data)
        _fails(old.call, "close", guard)
        old.call("close", second)

        assert (frozen.path / "data").read_text() == "new"
        guard = old.call("open", str(frozen.path / "lock"), os.O_RDWR)
        assert is_refused(old, "flock", guard, EX | NB)
        waits(old, "flock", guard, EX)
        new.call("close", theirs)
        old.result()
        data = old.call("open", str(frozen.path / "data"), os.O_WRONLY | os.O_TRUNC)
        old.call("write", data, "joined again")
        old.call("close", data)
        assert (alive.path / "data").read_text() == "joined again"
        theirs = new.call("open", str(alive.path / "lock"), os.O_RDWR)
        assert is_refused(new, "flock", theirs, SH | NB)
        old.call("close", guard)
        new.call("flock", theirs, EX)


def _fails(call: Callable[..., object], *args: object) -> None:
    with pytest.raises(OSError) as error:
        call(*args)
    assert error.value.errno == errno.EIO
