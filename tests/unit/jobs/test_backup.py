"""Automatic backups: who makes one, what is in it, which are kept."""

import gzip
import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from juicepy.jobs import backup
from juicepy.jobs import volume as volumes
from juicepy.meta.engine import MetaEngine
from juicepy.meta.registry import open_engine
from juicepy.metrics import Metrics
from juicepy.object.registry import create_storage
from juicepy.object.storage import ObjectStorage
from juicepy.volume import Format
from tests.support.waiting import wait_for

VOLUME = Format(name="vol", uuid="u" * 36, secret_key="hush", trash_days=1, dir_stats=True)
NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def engine() -> Iterator[MetaEngine]:
    opened = open_engine(f"mem://{uuid.uuid4()}")
    volumes.store(opened, VOLUME)
    yield opened
    opened.close()


@pytest.fixture
def storage() -> ObjectStorage:
    return create_storage("mem", str(uuid.uuid4()))


def test_backup_is_a_packed_dump_without_secrets(
    engine: MetaEngine, storage: ObjectStorage
) -> None:
    key = backup.back_up(engine, storage, VOLUME, NOW)
    assert key == "meta/dump-2026-11-30-120000.json.gz"
    text = gzip.decompress(storage.get(key)).decode()
    assert json.loads(text)["Setting"]["SecretKey"] == "removed"
    assert "hush" not in text


def test_one_client_makes_the_backup_of_an_interval(engine: MetaEngine) -> None:
    assert backup.is_due(engine, 3600, NOW)
    assert not backup.is_due(engine, 3600, NOW + timedelta(minutes=59))
    assert backup.is_due(engine, 3600, NOW + timedelta(minutes=60))


def test_time_that_cannot_be_read_makes_a_backup_due(engine: MetaEngine) -> None:
    engine.transact(lambda tx: tx.set_xattr(backup.ROOT, b"lastBackup", b"yesterday"))
    assert backup.is_due(engine, 3600, NOW)


class Large:
    """An engine of many inodes."""

    def __init__(self, inner: MetaEngine) -> None:
        self._inner = inner

    def counter(self, name: str) -> int:
        return backup.MOST_INODES + 1

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def test_large_volume_is_not_dumped_every_hour(engine: MetaEngine) -> None:
    large = Large(engine)
    assert not backup.is_due(large, 3600, NOW)  # type: ignore[arg-type]
    assert backup.is_due(large, 7200, NOW)  # type: ignore[arg-type]


def name(age: timedelta) -> str:
    return (NOW - age).strftime("meta/dump-%Y-%m-%d-%H%M%S.json.gz")


def test_dumps_thin_out_with_their_age() -> None:
    hours = [name(timedelta(hours=hour)) for hour in range(24 * 800)]
    kept = sorted(set(hours) - set(backup.expired(hours, NOW)), reverse=True)
    ages = [(NOW - made).days for key in kept if (made := backup._made(key)) is not None]
    assert sum(age < 2 for age in ages) == 48
    assert 11 <= sum(3 <= age < 14 for age in ages) <= 12
    assert 6 <= sum(15 <= age < 61 for age in ages) <= 8
    assert 21 <= sum(62 <= age < 730 for age in ages) <= 24
    assert max(ages) <= 730


def test_thinning_is_stable() -> None:
    """What is kept today is not replaced tomorrow by another dump of the same period."""
    hours = [name(timedelta(hours=hour)) for hour in range(24 * 60)]
    kept = sorted(set(hours) - set(backup.expired(hours, NOW)))
    assert backup.expired(kept, NOW) == []


def test_foreign_names_are_left_alone() -> None:
    assert backup.expired(["meta/dump-x", "meta/dump-2000-13-99-000000.json.gz"], NOW) == []


def test_old_dumps_are_removed_after_a_backup(engine: MetaEngine, storage: ObjectStorage) -> None:
    old = name(timedelta(days=3 * 365))
    storage.put(old, b"x")
    storage.put("meta/keep", b"x")
    key = backup.back_up(engine, storage, VOLUME, NOW)
    assert {found.key for found in storage.list_from("")} == {key, "meta/keep"}


def test_backups_are_made_while_the_context_lasts(
    engine: MetaEngine, storage: ObjectStorage
) -> None:
    metrics = Metrics()
    with backup.backing_up(engine, storage, lambda: VOLUME, metrics, interval_s=0.1):
        wait_for(lambda: list(storage.list_from("meta/")), "a backup", timeout_s=30)
    with backup.backing_up(engine, storage, lambda: VOLUME, metrics, interval_s=0):
        pass
    assert b"juicefs_last_successful_backup" in metrics.exposition()
