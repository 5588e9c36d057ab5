"""Sessions: a record with an expiry that a heartbeat moves on, and the cleaning of dead ones.

Record (spec 9): JSON on one line with Version, HostName, IPAddrs, MountPoint, MountTime, ProcessID.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime

from juicepy import __version__
from juicepy.meta.engine import MetaEngine
from juicepy.types import Inode, SessionId

logger = logging.getLogger(__name__)

_STALE_AT_ONCE = 1000
_YEAR_S = 365 * 86400


def session_record(mount_point: str) -> bytes:
    """The record of this process, mounted at `mount_point`."""
    now_ns = time.time_ns()
    moment = datetime.fromtimestamp(now_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    record: dict[str, object] = {"Version": f"{__version__}+juicepy", "HostName": _host_name()}
    addresses = _addresses()
    if addresses:
        record["IPAddrs"] = addresses
    record |= {
        "MountPoint": mount_point,
        "MountTime": f"{moment}.{now_ns % 10**9:09d}Z",
        "ProcessID": os.getpid(),
    }
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()


def _host_name() -> str:
    return socket.gethostname()


def _addresses() -> list[str]:
    """Addresses of this host but the loopback; none where it cannot be told."""
    try:
        found = socket.getaddrinfo(_host_name(), None, family=socket.AF_INET)
    except OSError as error:
        logger.debug("no address for %s: %s", _host_name(), error)
        return []
    addresses = {str(item[4][0]) for item in found}
    return sorted(address for address in addresses if not address.startswith("127."))


class Sessions:
    """This client's session and the heartbeats of all."""

    def __init__(
        self,
        engine: MetaEngine,
        heartbeat_s: float,
        release: Callable[[SessionId, Inode], None],
    ) -> None:
        """`release(sid, ino)` ends an inode that only a session kept alive."""
        self._engine, self._heartbeat_s, self._release = engine, heartbeat_s, release
        self._record = b""
        self.sid = SessionId(0)

    def start(self, mount_point: str) -> None:
        self._record = session_record(mount_point)
        self.sid = self._engine.new_session(self._expiry(), lambda sid: self._record)

    def _expiry(self) -> int:
        """Unix seconds at which others may take this session for dead."""
        after_s = 5 * self._heartbeat_s if self._heartbeat_s > 0 else _YEAR_S
        return int(time.time() + after_s)

    def refresh(self) -> None:
        self._engine.refresh_session(self.sid, self._expiry(), self._record)

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
