"""What `status` tells, on an engine in memory."""

import json
import struct
import uuid
from collections.abc import Iterator

import pytest

from juicepy.errors import Refused
from juicepy.jobs import report
from juicepy.jobs import volume as volumes
from juicepy.meta.client import MetaClient, open_meta
from juicepy.meta.registry import open_engine
from juicepy.meta.service import MetaOptions
from juicepy.types import ROOT, Cred, Kind, LockKind, PosixLock
from juicepy.volume import Format

VOLUME = Format(name="vol", uuid="u" * 36, secret_key="hush", trash_days=1, dir_stats=True)


@pytest.fixture
def client() -> Iterator[MetaClient]:
    engine = open_engine(f"mem://{uuid.uuid4()}")
    volumes.store(engine, VOLUME)
    opened = open_meta(engine, MetaOptions(mount_point="/mnt/x", no_bgjob=True))
    opened.start_session()
    yield opened
    opened.close_session()
    engine.close()


def test_status_has_setting_sessions_and_statistics(client: MetaClient) -> None:
    client.mkdir(Cred(), ROOT, b"d", 0o755, 0)
    status = report.status(client.engine, client.format)
    assert status["Setting"]["Name"] == "vol"
    assert "hush" not in json.dumps(status)
    (session,) = status["Sessions"]
    assert session["Sid"] == client.sid
    assert session["MountPoint"] == "/mnt/x"
    assert session["Expire"].endswith("Z")
    assert status["Stat"] == {
        "UsedSpace": 4096,
        "AvailableSpace": (1 << 50) - 4096,
        "UsedInodes": 1,
        "AvailableInodes": 10 << 20,
    }


def test_limits_are_what_is_available(client: MetaClient) -> None:
    client.mkdir(Cred(), ROOT, b"d", 0o755, 0)
    limited = VOLUME.with_(capacity=1 << 20, inodes=10)
    stat = report.status(client.engine, limited)["Stat"]
    assert stat["AvailableSpace"] == (1 << 20) - 4096
    assert stat["AvailableInodes"] == 9


def test_more_counts_the_trash(client: MetaClient) -> None:
    client.mknod(Cred(), ROOT, b"f", Kind.FILE, 0o644, 0)
    client.unlink(Cred(), ROOT, b"f")
    stat = report.status(client.engine, client.format, more=True)["Stat"]
    assert stat["TrashFileCount"] == 1
    assert "TrashFileSize" not in stat
    assert "PendingDeletedFileCount" not in stat


def test_session_shows_what_it_holds(client: MetaClient) -> None:
    ino, _ = client.create(Cred(), ROOT, b"f", 0o644, 0, 0)
    client.flock(ino, 7, LockKind.WRITE)
    client.setlk(ino, 9, PosixLock(LockKind.READ, 5, 14, 77))
    client.unlink(Cred(), ROOT, b"f", skip_trash=True)
    shown = report.session(client.engine, client.sid)
    assert shown["Sustained"] == [ino]
    assert shown["Flocks"] == [{"Inode": ino, "Owner": 7, "Ltype": "W"}]
    record = {"Type": 0, "Pid": 77, "Start": 5, "End": 14}
    assert shown["Plocks"] == [{"Inode": ino, "Owner": 9, "Records": [record]}]


def test_record_layout_is_24_bytes() -> None:
    assert report._PLOCK.size == struct.calcsize(">IIQQ") == 24


def test_unknown_session_is_refused(client: MetaClient) -> None:
    with pytest.raises(Refused, match="session not found"):
        report.session(client.engine, client.sid.__class__(99))
