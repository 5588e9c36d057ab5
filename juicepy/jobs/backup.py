"""Automatic backups of the metadata in the object store: `meta/dump-YYYY-MM-DD-HHMMSS.json.gz`.

Of all clients of a volume one makes the backup of an interval: it is the one that moves the xattr
`lastBackup` of the root (RFC 3339, UTC) on. Kept are all of the last 2 days, one a day for 2 weeks,
one a week for 2 months, one a month for 2 years.

| state a crash leaves         | cause                 | who repairs it                      |
|------------------------------|-----------------------|-------------------------------------|
| `lastBackup` without object  | died while dumping    | the next interval makes one         |
| old dumps not removed        | died before the end   | the next backup removes them        |
"""

from __future__ import annotations

import gzip
import io
import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from juicepy.concurrency import Periodic
from juicepy.jobs.dump import dump
from juicepy.meta.engine import MetaEngine
from juicepy.meta.tx import Tx
from juicepy.metrics import Metrics
from juicepy.object.storage import ObjectStorage
from juicepy.types import ROOT
from juicepy.volume import Format

logger = logging.getLogger(__name__)

PREFIX = "meta/"
XATTR = b"lastBackup"
MOST_INODES = 1_000_000  # more are not dumped every hour
_NAME = "meta/dump-%Y-%m-%d-%H%M%S.json.gz"
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"
_HOUR_S = 3600.0


@contextmanager
def backing_up(
    engine: MetaEngine,
    storage: ObjectStorage,
    volume: Callable[[], Format],
    metrics: Metrics,
    *,
    interval_s: float,
    skip_trash: bool = False,
) -> Iterator[None]:
    """Back up every `interval_s` while the context lasts; 0: never."""
    if interval_s <= 0:
        yield
        return

    def check() -> None:
        now = datetime.now(UTC)
        if is_due(engine, interval_s, now):
            _timed(engine, storage, volume(), metrics, now, skip_trash=skip_trash)

    worker = Periodic("backup-meta", interval_s / 10, check, jitter=0.1).start()
    try:
        yield
    finally:
        worker.close()


def is_due(engine: MetaEngine, interval_s: float, now: datetime) -> bool:
    """Is a backup due, and ours to make? If so others are told that it is under way."""
    if interval_s <= _HOUR_S and engine.counter("totalInodes") > MOST_INODES:
        logger.info("too many inodes for a backup every %.0f s", interval_s)
        return False

    def claim(tx: Tx) -> bool:
        last = _moment(tx.xattr(ROOT, XATTR))
        if last is not None and (now - last).total_seconds() < interval_s:
            return False
        tx.set_xattr(ROOT, XATTR, now.strftime(_MOMENT).encode())
        return True

    return engine.transact(claim)[0]


def back_up(
    engine: MetaEngine,
    storage: ObjectStorage,
    volume: Format,
    now: datetime,
    *,
    skip_trash: bool = False,
) -> str:
    """Store a dump and remove those too old; the key of the new one."""
    key = now.strftime(_NAME)
    with tempfile.TemporaryFile() as file:
        with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6) as packed:
            with io.TextIOWrapper(io.BufferedWriter(packed, 1 << 20), encoding="utf-8") as out:
                dump(engine, volume, out, skip_trash=skip_trash)
        file.seek(0)
        storage.put(key, file.read())
    keys = [found.key for found in storage.list_from(PREFIX + "dump-")]
    for old in expired(keys, now):
        storage.delete(old)
    return key


def expired(keys: Iterable[str], now: datetime) -> list[str]:
    """Those of the dumps that need not be kept any longer."""
    kept: set[object] = set()
    gone = []
    for key in sorted(keys):
        made = _made(key)
        if made is None:
            continue
        age = now - made
        period: object
        if age <= timedelta(days=2):
            continue
        if age <= timedelta(weeks=2):
            period = made.date()
        elif age <= timedelta(days=61):
            period = made.isocalendar()[:2]
        elif age <= timedelta(days=2 * 365):
            period = (made.year, "month", made.month)
        else:
            gone.append(key)
            continue
        if period in kept:
            gone.append(key)
        kept.add(period)
    return gone


def _timed(
    engine: MetaEngine,
    storage: ObjectStorage,
    volume: Format,
    metrics: Metrics,
    now: datetime,
    *,
    skip_trash: bool,
) -> None:
    begin_s = time.monotonic()
    key = back_up(engine, storage, volume, now, skip_trash=skip_trash)
    took_s = time.monotonic() - begin_s
    metrics.set("last_successful_backup", time.time())
    metrics.set("last_backup_duration", took_s)
    logger.info("backed up the metadata to %s in %.1f s", key, took_s)


def _moment(text: bytes | None) -> datetime | None:
    """None for what is absent or no time: then a backup is due."""
    try:
        moment = datetime.fromisoformat((text or b"").decode())
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _made(key: str) -> datetime | None:
    try:
        return datetime.strptime(key, _NAME).replace(tzinfo=UTC)
    except ValueError:
        return None
