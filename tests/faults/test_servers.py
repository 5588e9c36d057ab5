"""Servers that fail while files are written: what was acknowledged stays, and nothing is torn."""

from __future__ import annotations

import errno
import os
import random
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faulty import FaultyStore
from tests.support.logs import follow_log, write_log
from tests.support.objects import ACCESS_KEY, SECRET_KEY, S3Server
from tests.support.programs import OURS, PEER
from tests.support.racing import race
from tests.support.redis_servers import redis_server
from tests.support.volumes import Volume, check_blocks, check_objects, new_volume
from tests.support.waiting import wait_for
from tests.support.writers import acknowledged, check_acknowledged, write_until_told

OUTAGE_S = 3.0
FEW_RETRIES = ("--io-retries", "1", "--put-timeout", "5s", "--get-timeout", "5s")


def test_redis_restarts_while_files_are_written(tmp_path: Path) -> None:
    with redis_server() as server:
        volume = new_volume(server.url(), tmp_path)
        volume.format(OURS)
        journals = [tmp_path / f"journal-{number}" for number in range(3)]
        stop = tmp_path / "stop"

        def wait_for_steps(more: int) -> None:
            least = sum(map(acknowledged, journals)) + more
            wait_for(lambda: sum(map(acknowledged, journals)) >= least, f"{more} more steps")

        def restart_twice() -> None:
            for _ in range(2):
                wait_for_steps(40)
                server.stop()
                time.sleep(OUTAGE_S)  # the outage itself, not a wait for something
                server.start()
            wait_for_steps(40)
            stop.touch()

        with volume.mounted(OURS) as mount:
            directory = mount.path / "d"
            directory.mkdir()
            jobs = [
                (write_until_told, (str(directory), str(path), path.name, str(stop)))
                for path in journals
            ]
            race(jobs, timeout_s=60, meanwhile=restart_twice)
            for journal in journals:
                check_acknowledged(directory, journal)
        check_blocks(volume)
        check_objects(volume, may_leak=True)
        with volume.mounted(PEER, "--read-only") as seen:
            for journal in journals:
                check_acknowledged(seen.path / "d", journal)


@pytest.fixture
def store(s3_server: S3Server) -> Iterator[FaultyStore]:
    faulty = FaultyStore(s3_server.url)
    yield faulty
    faulty.close()


@pytest.fixture
def volume(store: FaultyStore, s3_server: S3Server, tmp_path: Path) -> Volume:
    """On SQLite, with its objects behind the store that fails."""
    bucket = s3_server.new_bucket().replace(s3_server.url, store.url)
    make = urllib.request.Request(bucket, method="PUT")  # the real client cannot make one in moto
    urllib.request.urlopen(make, timeout=30).close()
    flags = ("--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY)
    made = new_volume(
        f"sqlite3://{tmp_path}/meta.db", tmp_path, storage="s3", bucket=bucket, flags=flags
    )
    made.format(OURS)
    return made


def test_failed_upload_is_told_and_changes_nothing(volume: Volume, store: FaultyStore) -> None:
    """Through the same mount too, where the real client goes on showing bytes that were lost."""
    chance = random.Random(5)
    old = chance.randbytes(3_000_000)
    new = chance.randbytes(5_000_000)
    with volume.mounted(OURS, *FEW_RETRIES) as mount:
        kept, fresh = mount.path / "kept", mount.path / "fresh"
        kept.write_bytes(old)
        store.failing = frozenset({"PUT"})
        with pytest.raises(OSError) as error:
            _write_synced(fresh, new)
        assert error.value.errno == errno.EIO
        with kept.open("rb", buffering=0) as reader:
            with pytest.raises(OSError) as error:
                _overwrite_synced(kept, 1_000_000, new[:500_000])
            assert error.value.errno == errno.EIO
            wait_for(lambda: os.pread(reader.fileno(), len(old), 0) == old, "the old bytes")
        with pytest.raises(OSError) as error:
            _write_closed(mount.path / "closed", new[:100_000])
        assert error.value.errno == errno.EIO
        store.failing = frozenset()
        assert kept.read_bytes() == old
        for name in ("fresh", "closed"):
            assert (mount.path / name).read_bytes() == b"", f"{name} shows what was never stored"
        _overwrite_synced(kept, 1_000_000, new[:500_000])
        _write_synced(fresh, new)
    assert store.failed > 0
    check_blocks(volume)
    with volume.mounted(PEER, "--read-only") as mount:
        assert (mount.path / "kept").read_bytes() == old[:1_000_000] + new[:500_000] + old[
            1_500_000:
        ]
        assert (mount.path / "fresh").read_bytes() == new
        assert (mount.path / "closed").read_bytes() == b""


def test_reader_of_a_log_sees_whole_records_while_uploads_fail(
    volume: Volume, store: FaultyStore
) -> None:
    def fail_at_times() -> None:
        for _ in range(3):
            failed = store.failed
            store.failing = frozenset({"PUT"})
            wait_for(lambda failed=failed: store.failed > failed, "an upload to fail")  # type: ignore[misc]
            store.failing = frozenset()
            time.sleep(0.3)  # in which some succeed

    with volume.mounted(OURS, *FEW_RETRIES) as actor, volume.mounted(OURS) as looker:
        (actor.path / "log").touch()
        wait_for((looker.path / "log").exists, "the log")
        logs = [str(mount.path / "log") for mount in (actor, looker)]
        jobs = [(write_log, (logs[0], 600)), (follow_log, (logs[1], 600))]
        race(jobs, timeout_s=60, meanwhile=fail_at_times)


def test_failed_download_is_an_error_not_zeros(volume: Volume, store: FaultyStore) -> None:
    data = random.Random(6).randbytes(9_000_000)
    with volume.mounted(OURS) as mount:
        _write_synced(mount.path / "file", data)
    with volume.mounted(OURS, *FEW_RETRIES) as mount:
        store.failing = frozenset({"GET"})
        with (mount.path / "file").open("rb", buffering=0) as file:
            with pytest.raises(OSError) as error:
                file.read(100_000)
            assert error.value.errno == errno.EIO
        store.failing = frozenset()
        wait_for(lambda: (mount.path / "file").read_bytes() == data, "the data")
    assert store.failed > 0


def test_passing_errors_of_the_store_are_not_noticed(volume: Volume, store: FaultyStore) -> None:
    chance = random.Random(7)
    files = {f"file-{number}": chance.randbytes(700_000) for number in range(8)}
    store.every = 3
    with volume.mounted(OURS) as mount:
        for name, data in files.items():
            _write_synced(mount.path / name, data)
    with volume.mounted(OURS) as mount:
        for name, data in files.items():
            assert (mount.path / name).read_bytes() == data
    assert store.failed > 0
    store.every = 0
    check_blocks(volume)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        assert file.write(data) == len(data)
        os.fsync(file.fileno())


def _overwrite_synced(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b", buffering=0) as file:
        assert os.pwrite(file.fileno(), data, offset) == len(data)
        os.fsync(file.fileno())


def _write_closed(path: Path, data: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        file.write(data)
