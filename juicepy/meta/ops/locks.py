"""Transactions on locks: flock(2) and POSIX record locks. None of them waits: EAGAIN.

A lock belongs to (session, owner), see spec/metadata.md section 10.
"""

from __future__ import annotations

from collections.abc import Iterator
from errno import EAGAIN

from juicepy.errors import posix_error
from juicepy.meta.codec import decode_plocks, encode_plocks
from juicepy.meta.ops.common import need
from juicepy.meta.tx import LockOwner, Tx
from juicepy.types import Inode, LockKind, PosixLock

_FLOCK = {LockKind.READ: b"R", LockKind.WRITE: b"W"}


def flock(tx: Tx, ino: Inode, owner: LockOwner, kind: LockKind) -> bool:
    """Take, change or give up (UNLOCK) a lock; does the owner have one now?"""
    tx.fetch(("attr", ino), ("locks", ino, False))
    held = tx.locks(ino, posix=False)
    if kind is LockKind.UNLOCK:
        if owner in held:
            tx.set_lock(ino, owner, None, posix=False)
        return False
    need(tx, ino)
    others = [value for holder, value in held.items() if holder != owner]
    if others and (kind is LockKind.WRITE or b"W" in others):
        raise posix_error(EAGAIN)
    if held.get(owner) != _FLOCK[kind]:
        tx.set_lock(ino, owner, _FLOCK[kind], posix=False)
    return True


def setlk(tx: Tx, ino: Inode, owner: LockOwner, lock: PosixLock) -> bool:
    """Set or remove (UNLOCK) a range, splitting and merging the owner's records; has it any?"""
    tx.fetch(("attr", ino), ("locks", ino, True))
    held = tx.locks(ino, posix=True)
    if lock.kind is not LockKind.UNLOCK:
        need(tx, ino)
        if any(_conflicts(held, owner, lock)):
            raise posix_error(EAGAIN)
    old = decode_plocks(held.get(owner, b""))
    new = merged(old, lock)
    if new != old:
        tx.set_lock(ino, owner, encode_plocks(new) if new else None, posix=True)
    return bool(new)


def getlk(
    tx: Tx, ino: Inode, owner: LockOwner, lock: PosixLock
) -> tuple[LockOwner, PosixLock] | None:
    """A lock that stands in the way, with its holder."""
    return next(iter(in_the_way(tx, ino, owner, lock)), None)


def in_the_way(
    tx: Tx, ino: Inode, owner: LockOwner, lock: PosixLock
) -> list[tuple[LockOwner, PosixLock]]:
    """All locks that do, with their holders."""
    return list(_conflicts(tx.locks(ino, posix=True), owner, lock))


def _conflicts(
    held: dict[LockOwner, bytes], owner: LockOwner, lock: PosixLock
) -> Iterator[tuple[LockOwner, PosixLock]]:
    for holder, value in held.items():
        if holder == owner:
            continue
        for other in decode_plocks(value):
            exclusive = LockKind.WRITE in (lock.kind, other.kind)
            if exclusive and other.start <= lock.end and lock.start <= other.end:
                yield holder, other


def merged(records: tuple[PosixLock, ...], lock: PosixLock) -> tuple[PosixLock, ...]:
    """The owner's records, sorted and disjoint, after `lock` overrode its range."""
    rest: list[PosixLock] = []
    for old in records:
        if old.end < lock.start or old.start > lock.end:
            rest.append(old)
            continue
        if old.start < lock.start:
            rest.append(PosixLock(old.kind, old.start, lock.start - 1, old.pid))
        if old.end > lock.end:
            rest.append(PosixLock(old.kind, lock.end + 1, old.end, old.pid))
    if lock.kind is not LockKind.UNLOCK:
        rest.append(lock)
    rest.sort(key=lambda record: record.start)
    joined: list[PosixLock] = []
    for record in rest:
        last = joined[-1] if joined else None
        same = last is not None and (last.kind, last.pid) == (record.kind, record.pid)
        if last is not None and same and last.end + 1 == record.start:
            joined[-1] = PosixLock(last.kind, last.start, record.end, last.pid)
        else:
            joined.append(record)
    return tuple(joined)
