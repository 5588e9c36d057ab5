"""The file driver: what lies on the disk, and when."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from juicepy.errors import ObjectNotFound
from juicepy.object import file
from juicepy.object.file import FileStorage


@pytest.fixture
def storage(tmp_path: Path) -> FileStorage:
    return FileStorage(f"{tmp_path}/")


def test_object_is_the_file_of_its_key(storage: FileStorage, tmp_path: Path) -> None:
    storage.put("vol/chunks/0/0/1_0_5", b"hello")
    assert (tmp_path / "vol/chunks/0/0/1_0_5").read_bytes() == b"hello"
    assert str(storage) == f"file://{tmp_path}/"


def test_modes_follow_the_umask(storage: FileStorage, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        storage.put("dir/sub/object", b"1")
    finally:
        os.umask(before)
    assert (tmp_path / "dir/sub").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "dir/sub/object").stat().st_mode & 0o777 == 0o640


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths in the order in which they were taken to the disk."""
    fsync, paths = os.fsync, []

    def note(fd: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    return paths


def test_sync_takes_files_then_directories_to_the_disk(
    storage: FileStorage, tmp_path: Path, synced: list[str]
) -> None:
    storage.put("a/b/object", b"1")
    storage.put("a/gone", b"1")
    storage.delete("a/gone")
    assert synced == []
    storage.sync()
    top = str(tmp_path)
    assert f"{top}/a/b/object" in synced
    assert {top, f"{top}/a", f"{top}/a/b"} <= set(synced)
    assert synced.index(f"{top}/a/b/object") < max(
        at for at, path in enumerate(synced) if path == f"{top}/a/b"
    )
    synced.clear()
    storage.sync()
    assert synced == []


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Directories whose file systems were synced. No other may be: it may be waiting for us."""
    syncfs, paths = file._libc.syncfs, []

    def note(fd: int) -> int:
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        return int(syncfs(fd))

    monkeypatch.setattr(file, "_libc", SimpleNamespace(syncfs=note))
    monkeypatch.setattr(os, "sync", lambda: paths.append("everything"))
    return paths


def test_many_puts_are_synced_by_one_call(
    storage: FileStorage, tmp_path: Path, synced: list[str], whole: list[str]
) -> None:
    for number in range(1200):
        storage.put(f"a/{number}", b"")
    storage.sync()
    assert (whole, synced) == ([str(tmp_path)], [])


def test_failed_sync_is_told_and_made_good_by_the_next(
    storage: FileStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[str]
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "disk")

    storage.put("a", b"1")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(OSError, check=lambda error: error.errno == errno.EIO):
            storage.sync()
    storage.sync()
    assert whole == [str(tmp_path)]


def test_failed_sync_of_the_whole_is_told(
    storage: FileStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1200):
        storage.put(f"a/{number}", b"")

    def fail(fd: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(file, "_libc", SimpleNamespace(syncfs=fail))
    with pytest.raises(OSError, check=lambda error: error.errno == errno.EIO):
        storage.sync()


def test_failed_put_leaves_the_old_object_and_nothing_else(
    storage: FileStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put("key", b"old")

    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError) as caught:
        storage.put("key", b"new")
    assert caught.value.errno == errno.ENOSPC
    assert storage.get("key") == b"old"
    assert os.listdir(tmp_path) == ["key"]


def test_short_writes_are_continued(storage: FileStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, memoryview(data)[:7]))
    storage.put("key", bytearray(range(100)))
    assert storage.get("key") == bytes(range(100))


def test_short_reads_are_continued(storage: FileStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.put("key", bytes(range(100)))
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, off: pread(fd, min(size, 7), off))
    assert storage.get("key", 3, 50) == bytes(range(3, 53))
    assert storage.get("key") == bytes(range(100))
    assert storage.get("key", 90, 50) == bytes(range(90, 100))


def test_unfinished_puts_of_any_client_are_not_listed(storage: FileStorage, tmp_path: Path) -> None:
    storage.put("d/object", b"1")
    (tmp_path / "d/.jfs.object.tmp.123").write_bytes(b"half")
    (tmp_path / ".jfs.x.tmp.9").write_bytes(b"half")
    assert [found.key for found in storage.list_from("")] == ["d/object"]


def test_longest_names_have_a_temporary_name(storage: FileStorage) -> None:
    for name in ("n" * 255, "ü" * 127):
        storage.put(name, b"1")
        assert storage.get(name) == b"1"


def test_key_ending_in_a_slash_is_a_directory(storage: FileStorage, tmp_path: Path) -> None:
    storage.put("testing/", b"")
    assert (tmp_path / "testing").is_dir()
    storage.put("testing/x", b"1")
    storage.delete("testing/")
    assert storage.get("testing/x") == b"1"
    storage.delete("testing/x")
    storage.delete("testing/")
    storage.delete("testing/")
    assert os.listdir(tmp_path) == []


def test_file_in_the_place_of_a_directory_is_an_io_error(storage: FileStorage) -> None:
    storage.put("a", b"1")
    with pytest.raises(OSError) as caught:
        storage.put("a/b", b"2")
    assert caught.value.errno == errno.EIO
    assert not isinstance(caught.value, ObjectNotFound)
    with pytest.raises(ObjectNotFound):
        storage.get("a/b")


@pytest.mark.parametrize(
    ("told", "raised"),
    [
        (errno.EACCES, errno.EACCES),
        (errno.EPERM, errno.EACCES),
        (errno.EROFS, errno.EACCES),
        (errno.EDQUOT, errno.ENOSPC),
        (errno.EMFILE, errno.EIO),
    ],
)
def test_errors_are_those_of_the_contract(
    storage: FileStorage, monkeypatch: pytest.MonkeyPatch, told: int, raised: int
) -> None:
    def fail(*args: object) -> int:
        raise OSError(told, os.strerror(told))

    monkeypatch.setattr(os, "open", fail)
    for call in (lambda: storage.get("key"), lambda: storage.put("key", b"1")):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == raised


def test_bucket_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    storage = FileStorage(f"{tmp_path}/bucket/")
    storage.create()
    storage.put("a/1", b"1")
    shutil.rmtree(tmp_path / "bucket")
    with pytest.raises(OSError, match="gone") as caught:
        storage.put("a/2", b"2")
    assert caught.value.errno == errno.EIO
    assert not (tmp_path / "bucket").exists()


def test_shard_without_objects_gets_its_directory_with_the_first(tmp_path: Path) -> None:
    storage = FileStorage(f"{tmp_path}/sh0/")
    storage.put("a/1", b"1")
    assert storage.get("a/1") == b"1"


def test_create_makes_the_directory(tmp_path: Path) -> None:
    storage = FileStorage(f"{tmp_path}/new/objects/")
    assert list(storage.list_from("")) == []
    storage.create()
    assert (tmp_path / "new/objects").is_dir()
    storage.create()
