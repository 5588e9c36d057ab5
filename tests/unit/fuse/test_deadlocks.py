from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from juicepy.fuse import deadlocks
from juicepy.fuse.deadlocks import Wanted, closes_circle, waits_as_process
from juicepy.types import Inode, LockKind, PosixLock

WHOLE = PosixLock(LockKind.WRITE, 0, 100, 0)
HELD = {1: {10}, 2: {20}, 3: {30}}  # inode -> who has its lock
DESCRIPTION = 99  # a thread that waits with F_OFD_SETLKW


def wanted(owner: int, ino: int, tid: int = 1) -> Wanted:
    return Wanted(Inode(ino), owner, WHOLE, tid)


def holders(ino: Inode, owner: int, lock: PosixLock) -> set[int]:
    return HELD[ino] - {owner}


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlocks, "waits_as_process", lambda tid: tid != DESCRIPTION)


def test_circles_of_two_and_three_are_found() -> None:
    assert closes_circle(wanted(10, 2), [wanted(10, 2), wanted(20, 1)], holders)
    ring = [wanted(10, 2), wanted(20, 3), wanted(30, 1)]
    assert all(closes_circle(member, ring, holders) for member in ring)


def test_a_chain_is_no_circle() -> None:
    chain = [wanted(10, 2), wanted(20, 3)]
    assert not any(closes_circle(member, chain, holders) for member in chain)


def test_who_waits_for_a_circle_is_not_in_it() -> None:
    ring = [wanted(10, 2), wanted(20, 1)]
    outside = wanted(40, 1)
    assert not closes_circle(outside, [*ring, outside], holders)


def test_locks_of_descriptions_do_not_count() -> None:
    ring = [wanted(10, 2), wanted(20, 1, DESCRIPTION)]
    assert not any(closes_circle(member, ring, holders) for member in ring)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (f"72 0x3 {fcntl.F_SETLKW:#x} 0x7ffd0 0x0 0x0 0x0 0x7ffd 0x7f", True),
        ("72 0x3 0x26 0x7ffd0 0x0 0x0 0x0 0x7ffd 0x7f", False),
        ("running", False),
    ],
)
def test_the_call_a_thread_is_in_tells_what_it_waits_for(
    tmp_path: Path, call: str, expected: bool
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "syscall").write_text(call + "\n")
    assert waits_as_process(7, tmp_path) == expected
    assert not waits_as_process(8, tmp_path)


def test_this_thread_waits_for_nothing() -> None:
    assert not waits_as_process(os.getpid())
