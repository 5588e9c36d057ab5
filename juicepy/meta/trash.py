"""The trash: hourly directories under the trash root, named by UTC hour (spec 8.1)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from juicepy.concurrency import Lock
from juicepy.meta.engine import MetaEngine
from juicepy.meta.ops import create
from juicepy.types import TRASH, DirEntry, Inode, Kind

logger = logging.getLogger(__name__)

_HOUR = "%Y-%m-%d-%H"


class Trash:
    """Finds or makes the directory of the present hour. Thread-safe."""

    def __init__(self, engine: MetaEngine) -> None:
        self._engine = engine
        self._lock = Lock("trash")  # guards _hour and _ino; held while the directory is made
        self._hour = b""
        self._ino = Inode(0)

    def directory(self, now_ns: int) -> Inode:
        hour = datetime.fromtimestamp(now_ns // 10**9, UTC).strftime(_HOUR).encode()
        with self._lock:
            if hour != self._hour:
                self._ino = self._find_or_make(hour, now_ns)
                self._hour = hour
            return self._ino

    def _find_or_make(self, hour: bytes, now_ns: int) -> Inode:
        found = self._engine.lookup(TRASH, hour)
        if found is not None:
            return found[0].ino
        new = Inode(TRASH + self._engine.next_trash())
        made, _ = self._engine.transact(
            lambda tx: create.make_trash_hour(tx, TRASH, hour, new, now_ns)
        )
        return made


def expired_hours(
    engine: MetaEngine, days: int, now_ns: int, *, grace_hours: int = 2
) -> list[DirEntry]:
    """Hourly directories older than the trash keeps, in inode order up to the first younger."""
    edge = datetime.fromtimestamp(now_ns // 10**9, UTC) - timedelta(hours=24 * days + grace_hours)
    hours = [
        entry
        for page in engine.list_dir(TRASH, with_attrs=False)
        for entry in page
        if entry.kind is Kind.DIR
    ]
    expired = []
    for entry in sorted(hours, key=lambda entry: entry.ino):
        hour = parse_hour(entry.name)
        if hour is None:
            continue
        if hour >= edge:
            break
        expired.append(entry)
    return expired


def parse_hour(name: bytes) -> datetime | None:
    try:
        return datetime.strptime(name.decode(), _HOUR).replace(tzinfo=UTC)
    except ValueError:
        return None


RemoveTree = Callable[[Inode, bytes], int]


def clean(engine: MetaEngine, days: int, now_ns: int, remove_tree: RemoveTree) -> int:
    """Remove expired hourly directories for good; the number of entries removed."""
    removed = 0
    for entry in expired_hours(engine, days, now_ns):
        logger.info("removing expired trash %s", entry.name.decode())
        removed += remove_tree(TRASH, entry.name)
    return removed
