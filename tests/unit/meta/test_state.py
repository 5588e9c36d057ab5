"""State beside the operations: ids, open files, trash hours, session records, clean-up."""

from __future__ import annotations

import errno
import json
import threading
from datetime import UTC, datetime

import pytest

from juicepy.errors import Refused
from juicepy.meta import sessions, trash
from juicepy.meta.cleanup import Deleter
from juicepy.meta.client import SUPERUSER, open_meta
from juicepy.meta.ids import Ids
from juicepy.meta.mem.engine import MemEngine
from juicepy.meta.open_files import OpenFiles
from juicepy.meta.registry import open_engine
from juicepy.types import ROOT, TRASH, Inode, Kind, Slice, SliceId
from tests.support.meta import format_engine, session


def test_ids_are_handed_out_once_by_many_threads() -> None:
    starts = iter(range(0, 10_000, 10))
    ids = Ids("test", 10, lambda count: range(start := next(starts), start + count))
    taken: list[int] = []

    def take() -> None:
        taken.extend(ids.take() for _ in range(200))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == 800


def test_nameless_file_is_released_by_its_last_close() -> None:
    files, ino = OpenFiles(), Inode(7)
    files.opened(ino)
    files.opened(ino)
    assert files.unlinked([ino]) == []
    assert not files.closed(ino)
    assert files.closed(ino)
    assert not files.is_open(ino)


def test_file_closed_before_its_unlink_is_known_is_released_then() -> None:
    files, ino = OpenFiles(), Inode(7)
    files.opened(ino)
    assert not files.closed(ino)
    assert files.unlinked([ino]) == [ino]


def test_file_made_without_a_name_is_an_ordinary_one_once_it_is_linked() -> None:
    files, ino = OpenFiles(), Inode(7)
    files.opened(ino)
    files.unlinked([ino])
    assert not files.is_linkable(ino)
    files.may_be_linked(ino)
    assert files.is_linkable(ino)
    files.linked(ino)
    assert not files.is_linkable(ino)
    assert files.nameless() == set()
    assert not files.closed(ino)


def test_one_hourly_directory_serves_the_hour() -> None:
    engine = MemEngine()
    format_engine(engine, trash_days=1)
    folder = trash.Trash(engine)
    start_ns = int(datetime(2026, 11, 30, 5, 59, tzinfo=UTC).timestamp()) * 10**9
    first = folder.directory(start_ns)
    assert first == TRASH + 1
    assert folder.directory(start_ns + 50 * 10**9) == first
    assert trash.Trash(engine).directory(start_ns) == first
    assert folder.directory(start_ns + 60 * 10**9) == TRASH + 2
    names = [entry.name for page in engine.list_dir(TRASH, with_attrs=False) for entry in page]
    assert names == [b"2026-11-30-05", b"2026-11-30-06"]


def test_expiry_stops_at_the_first_hour_that_is_young() -> None:
    engine = MemEngine()
    format_engine(engine, trash_days=1)
    day_ns = 86400 * 10**9
    now_ns = int(datetime(2026, 11, 30, tzinfo=UTC).timestamp()) * 10**9
    for age in (5, 0, 4):  # the last is old, but behind a young one
        trash.Trash(engine).directory(now_ns - age * day_ns)
    expired = trash.expired_hours(engine, 1, now_ns)
    assert [entry.ino for entry in expired] == [TRASH + 1]


def test_session_record_is_what_juicefs_reads() -> None:
    record = json.loads(sessions.session_record("/mnt/x"))
    assert record["MountPoint"] == "/mnt/x"
    assert record["Version"].startswith("1.4.")
    assert record["MountTime"].endswith("Z")
    assert set(record) <= {
        "Version", "HostName", "IPAddrs", "MountPoint", "MountTime", "ProcessID",
    }  # fmt: skip


def test_failing_store_leaves_deleted_data_on_record() -> None:
    engine = MemEngine()
    format_engine(engine)
    with session(engine) as client:

        def fail(ident: SliceId, size: int) -> None:
            raise OSError(errno.EIO, "store is down")

        client.on_delete_slice(fail)
        ino, _ = client.mknod(SUPERUSER, ROOT, b"f", Kind.FILE, 0o644, 0)
        client.write(ino, 0, Slice(0, client.new_slice(), 10, 0, 10), 1)
        client.unlink(SUPERUSER, ROOT, b"f")
    assert [file.ino for file in engine.deleted_files(1 << 40, 10)] == [ino]
    assert engine.unreferenced(10) != []
    removed: list[int] = []
    deleter = Deleter(engine, 1)
    deleter.delete_slice = lambda ident, size: removed.append(ident)
    deleter.unreferenced()
    deleter.old_files(older_s=-10)
    deleter.close()
    assert len(removed) == 1
    assert engine.deleted_files(1 << 40, 10) == []
    assert list(engine.scan_refs()) == []


def test_volume_with_a_change_log_is_mounted_read_only_or_not_at_all() -> None:
    engine = MemEngine()
    format_engine(engine, change_log=True)
    with pytest.raises(Refused, match="change log"):
        open_meta(engine)


def test_unknown_scheme_is_named() -> None:
    with pytest.raises(Refused, match="etcd"):
        open_engine("etcd://localhost/1")


def test_replaced_volume_is_noticed() -> None:
    engine = MemEngine()
    format_engine(engine)
    told: list[str] = []
    with session(engine) as client:
        client.on_gone(told.append)
        format_engine(engine, name="other")
        client.heartbeat()
    assert "other" in told[0]


def test_changed_setting_is_told() -> None:
    engine = MemEngine()
    volume = format_engine(engine)
    seen: list[int] = []
    with session(engine) as client:
        client.on_reload(lambda setting: seen.append(setting.trash_days))
        engine.init(volume.with_(trash_days=7).to_json(), client.getattr(ROOT), None)
        client.heartbeat()
        client.heartbeat()
    assert seen == [7]
