"""Sessions, what they keep alive, and the locks they hold."""

from __future__ import annotations

from collections.abc import Callable

from juicepy.meta.engine import StoredLock, StoredSession
from juicepy.meta.redis.keys import Keys, owner_of
from juicepy.meta.redis.link import Link
from juicepy.meta.redis.reads import pairs
from juicepy.meta.redis.scripts import RELEASE_LOCKS
from juicepy.types import Inode, SessionId


class Sessions:
    def __init__(self, link: Link, keys: Keys) -> None:
        self._link, self._keys = link, keys

    def new(self, expire_s: int, record: Callable[[SessionId], bytes]) -> SessionId:
        sid = SessionId(int(self._link.call("INCRBY", self._keys.counter("nextSession"), 1)))
        self._link.run(
            (
                ("ZADD", self._keys.named("allSessions"), expire_s, sid),
                ("HSET", self._keys.named("sessionInfos"), sid, record(sid)),
            )
        )
        return sid

    def refresh(self, sid: SessionId, expire_s: int, record: bytes) -> bool:
        made, _ = self._link.run(
            (
                ("HSETNX", self._keys.named("sessionInfos"), sid, record),
                ("ZADD", self._keys.named("allSessions"), expire_s, sid),
            )
        )
        return not made

    def all(self) -> list[StoredSession]:
        expiries, flat = self._link.run(
            (
                ("ZRANGE", self._keys.named("allSessions"), 0, -1, "WITHSCORES"),
                ("HGETALL", self._keys.named("sessionInfos")),
            )
        )
        records = dict(pairs(flat))
        return [
            StoredSession(SessionId(int(sid)), int(float(expire)), records.get(sid, b""))
            for sid, expire in pairs(expiries)
        ]

    def sustained(self, sid: SessionId) -> list[Inode]:
        members = self._link.call("SMEMBERS", self._keys.sustained(sid))
        return sorted(Inode(int(ino)) for ino in members)

    def locks(self, sid: SessionId) -> list[tuple[Inode, bool, StoredLock]]:
        found: list[tuple[Inode, bool, StoredLock]] = []
        for key in sorted(self._link.call("SMEMBERS", self._keys.locked(sid))):
            lock = self._keys.lock_of(key)
            if lock is None:
                continue
            for field, value in pairs(self._link.call("HGETALL", key)):
                holder, owner = owner_of(field)
                if holder == sid:
                    found.append((*lock, StoredLock(sid, owner, value)))
        return found

    def release_locks(self, sid: SessionId) -> None:
        self._link.script(RELEASE_LOCKS, self._keys.locked(sid), b"%d_" % sid)

    def drop(self, sid: SessionId) -> None:
        self._link.run(
            (
                ("HDEL", self._keys.named("sessionInfos"), sid),
                ("ZREM", self._keys.named("allSessions"), sid),
            )
        )
