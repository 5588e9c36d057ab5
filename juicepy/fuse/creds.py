"""Who asks: a `Cred` from a request's uid, gid, pid; supplementary groups from /proc."""

from __future__ import annotations

import time
from collections.abc import Callable

from juicepy.types import Cred

_TRUST_S = 1.0
_MOST = 1024


class Creds:
    """Builds `Cred`s, keeping recent ones. Root's groups are not looked up: nothing asks them.

    Groups are believed for a second; a process beyond our pid namespace (pid 0) has none, except
    the one that the kernel sends along when it creates something (`extra`).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._roots: dict[tuple[int, int], Cred] = {}
        self._known: dict[tuple[int, int, int], tuple[float, Cred]] = {}

    def get(self, uid: int, gid: int, pid: int) -> Cred:
        if uid == 0:
            return self._roots.get((gid, pid)) or self._root(gid, pid)
        until, cred = self._known.get((uid, gid, pid), (0.0, None))
        if cred is not None and self._clock() < until:
            return cred
        cred = Cred(uid, gid, read_groups(pid), pid)
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[uid, gid, pid] = self._clock() + _TRUST_S, cred
        return cred

    def _root(self, gid: int, pid: int) -> Cred:
        if len(self._roots) >= _MOST:
            self._roots.clear()
        cred = self._roots[gid, pid] = Cred(0, gid, (), pid)
        return cred


def read_groups(pid: int) -> tuple[int, ...]:
    """Supplementary groups of thread `pid`; none if it is gone or not ours to see."""
    if pid == 0:
        return ()
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            text = file.read()
    except OSError:
        return ()
    _, _, tail = text.partition(b"\nGroups:")
    return tuple(int(word) for word in tail.partition(b"\n")[0].split())


def with_groups(cred: Cred, extra: tuple[int, ...]) -> Cred:
    """`cred` with the groups of a request's extension."""
    missing = tuple(gid for gid in extra if gid not in cred.groups)
    return Cred(cred.uid, cred.gid, cred.groups + missing, cred.pid) if missing else cred
