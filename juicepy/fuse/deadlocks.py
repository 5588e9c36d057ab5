"""Deadlocks of processes that wait for record locks of each other: EDEADLK, as on a local disk.

Only among the waiters of one mount: nobody else is told who waits. As in the kernel, locks of open
file descriptions do not count, since no process owns them, nor do those of flock(2).
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from juicepy.types import Inode, PosixLock


@dataclass(frozen=True, slots=True)
class Wanted:
    """A record lock that the thread `tid` waits for on behalf of `owner`."""

    ino: Inode
    owner: int
    lock: PosixLock
    tid: int


Holders = Callable[[Inode, int, PosixLock], set[int]]  # owners whose locks are in the way


def closes_circle(wanted: Wanted, waiting: Iterable[Wanted], holders: Holders) -> bool:
    """Does who holds what is wanted wait, in the end, for the owner that wants it?

    True for one at most of those in a circle if the one found is taken out of `waiting` before
    the next is looked at.
    """
    of_owner: dict[int, list[Wanted]] = {}
    for other in waiting:
        of_owner.setdefault(other.owner, []).append(other)
    seen: set[int] = set()
    to_see = [wanted]
    while to_see:
        this = to_see.pop()
        if not waits_as_process(this.tid):
            continue
        for owner in holders(this.ino, this.owner, this.lock):
            if owner == wanted.owner:
                return True
            if owner not in seen:
                seen.add(owner)
                to_see += of_owner.get(owner, ())
    return False


def waits_as_process(tid: int, proc: Path = Path("/proc")) -> bool:
    """Is it F_SETLKW that the thread is in, and not F_OFD_SETLKW? A request tells them alike.

    False where that cannot be seen: then a deadlock is not found, as POSIX allows.
    """
    try:
        call = (proc / str(tid) / "syscall").read_text().split()
    except OSError:
        return False
    return len(call) > 2 and call[2] == hex(fcntl.F_SETLKW)
