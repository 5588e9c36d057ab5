"""Sessions: a record with an expiry that a heartbeat moves on, and the cleaning of dead ones.

A client that was frozen or cut off for longer than its expiry cannot know whether others still take
it for alive: they may have released its locks and handed them on. Before its next change it looks,
and if its session has been cleaned it starts a new one, after telling who holds locks and unwritten
data of the old one that they are lost.

Record (spec 9): JSON on one line with Version, HostName, IPAddrs, MountPoint, MountTime, ProcessID.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from juicepy import __version__
from juicepy.meta.addresses import addresses
from juicepy.meta.engine import MetaEngine
from juicepy.meta.tx import HeldLock
from juicepy.types import Inode, SessionId

logger = logging.getLogger(__name__)

_STALE_AT_ONCE = 1000
_YEAR_S = 365 * 86400


def session_record(mount_point: str, interfaces: Sequence[str] = ()) -> bytes:
    """The record of this process, mounted at `mount_point`."""
    now_ns = time.time_ns()
    moment = datetime.fromtimestamp(now_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    record: dict[str, object] = {"Version": f"{__version__}+juicepy", "HostName": _host_name()}
    found = addresses(interfaces)
    if found:
        record["IPAddrs"] = found
    record |= {
        "MountPoint": mount_point,
        "MountTime": f"{moment}.{now_ns % 10**9:09d}Z",
        "ProcessID": os.getpid(),
    }
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()


def _host_name() -> str:
    return socket.gethostname()


Taken = tuple[HeldLock, int]  # and which taking of it


class SessionLapsed(Exception):
    """A transaction met the end of its session: run again, after `Sessions.ensure`."""


class Sessions:
    """This client's session and the heartbeats of all.

    `held` are the locks that this client believes to hold, the oldest first, with a number that
    each taking has of its own. `epoch` counts the sessions of ours that others have ended:
    what was begun in an earlier epoch is lost. `on_lost` is called with whether locks were lost,
    when the new session is there already and before the epoch changes. Until then changes wait in
    `ensure`, so it must not run any.
    """

    def __init__(
        self,
        engine: MetaEngine,
        heartbeat_s: float,
        release: Callable[[SessionId, Inode], None],
    ) -> None:
        """`release(sid, ino)` ends an inode that only a session kept alive."""
        self._engine, self._heartbeat_s, self._release = engine, heartbeat_s, release
        self._record = b""
        self._lease_until = float("inf")  # of `_clock`; until then nobody takes us for dead
        self._is_lost = False  # found out, and not yet acted on
        self._turn = threading.Lock()  # who refreshes; held over the exchange
        self.sid = SessionId(0)
        self._lock_turns = [threading.Lock() for _ in range(64)]  # held over a change of a lock
        self._takings = itertools.count()
        self.held: dict[HeldLock, int] = {}
        self.epoch = 0
        self.on_lost: Callable[[bool], None] = lambda _: None

    def start(self, mount_point: str, interfaces: Sequence[str] = ()) -> None:
        self._record = session_record(mount_point, interfaces)
        self._lease_until = self._begin()

    def _begin(self) -> float:
        """A new session; the end of its lease."""
        expiry = self._expiry()
        until = _lease(expiry)
        self.sid = self._engine.new_session(expiry, lambda sid: self._record)
        return until

    def _expiry(self) -> int:
        """Unix seconds at which others may take this session for dead."""
        after_s = 5 * self._heartbeat_s if self._heartbeat_s > 0 else _YEAR_S
        return int(time.time() + after_s)

    def in_doubt(self) -> bool:
        """Whether the expiry has passed, so that others may have ended the session."""
        return _clock() > self._lease_until

    def ensure(self) -> None:
        """Return with a session that is alive, be it a new one."""
        with self._turn:
            if self.in_doubt():
                self._refresh()

    @contextmanager
    def changing(self, lock: HeldLock, *, gives_up: bool) -> Iterator[None]:
        """Change a lock; afterwards call `took` if it is held.

        One change of it at a time: else one could be believed held that was given up meanwhile.
        """
        with self._lock_turns[hash(lock) % len(self._lock_turns)]:
            if gives_up:
                self.held.pop(lock, None)
            yield

    def took(self, lock: HeldLock) -> None:
        self.held[lock] = next(self._takings)

    def witness(self, ino: Inode) -> Taken | None:
        """A lock that is gone if others have ended the session, on `ino` if there is one.

        One is enough, as who ends a session releases all.
        """
        held = tuple(self.held.items())
        return next((taken for taken in held if taken[0][0] == ino), held[0] if held else None)

    def examine(self, taken: Taken | None) -> None:
        """A lock of ours was not stored: if nobody here gave it up, others ended the session."""
        with self._turn:
            if taken is not None and self.held.get(taken[0]) == taken[1]:
                self._lease_until = float("-inf")
                self._refresh()

    def refresh(self) -> None:
        with self._turn:
            self._refresh()

    def _refresh(self) -> None:
        lapsed, held, sid = self.in_doubt(), self.held.copy(), self.sid
        expiry = self._expiry()
        until = _lease(expiry)
        is_there = self._engine.refresh_session(sid, expiry, self._record) and not self._is_lost
        if is_there and lapsed and held:  # it may be just about to be cleaned: locks go first
            is_there = not self._missing(held)
        if is_there or not (lapsed or held or self._is_lost):
            if not is_there:
                logger.warning("another client had removed session %d; it is back", sid)
            self._lease_until = until
            return
        self._is_lost = True
        logger.error(
            "session %d has been ended by another client after %s: files with locks or unwritten "
            "data get EIO until they are closed",
            sid,
            "its expiry" if lapsed else "a disagreement of clocks",
        )
        self._rejoin()

    def _missing(self, held: dict[HeldLock, int]) -> set[HeldLock]:
        """Which of the locks are not stored any more, though nobody here has given them up."""
        stored = {
            (ino, lock.owner, posix) for ino, posix, lock in self._engine.session_locks(self.sid)
        }
        return {lock for lock in held.keys() - stored if self.held.get(lock) == held[lock]}

    def _rejoin(self) -> None:
        """Leave the lost session to its end, and begin a new one in which nothing is held."""
        old, had_locks = self.sid, bool(self.held)
        self._lease_until = float("-inf")  # also when only a disagreement of clocks ended it
        until = self._begin()
        self.held.clear()
        self.on_lost(had_locks)
        self.epoch += 1
        self._is_lost = False
        self._lease_until = until
        self.end(old)

    def clean_stale(self) -> int:
        """Clean sessions whose expiry has passed, if no other client did lately; their number."""
        now_s = int(time.time())
        if not self._engine.set_if_small(
            "lastCleanupSessions", now_s, int(self._heartbeat_s * 0.9)
        ):
            return 0
        stale = [s.sid for s in self._engine.sessions() if s.expire_s < now_s]
        for sid in stale[:_STALE_AT_ONCE]:
            logger.info("cleaning stale session %d", sid)
            self.end(sid)
        return len(stale)

    def end(self, sid: SessionId) -> None:
        """Release what a session holds, then drop its records."""
        self._engine.release_locks(sid)
        for ino in self._engine.sustained(sid):
            self._release(sid, ino)
        self._engine.drop_session(sid)


def _clock() -> float:
    """Seconds that also pass while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _lease(expiry: int) -> float:
    """When on our clock a session that expires at `expiry` may be taken for dead."""
    return _clock() + expiry - time.time()
