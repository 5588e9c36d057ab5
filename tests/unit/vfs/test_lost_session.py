"""A client whose session others have ended: what it held is gone, and it says so."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

import pytest

from juicepy.types import ROOT, Fh, Inode, LockKind, PosixLock, SetAttr
from juicepy.vfs.vfs import VFS
from tests.unit.vfs.volumes import ME, close, create, faulty, read, two_clients, write

OWNER, OTHER = 0xABCD, 0xEF01


@pytest.fixture
def clients() -> Iterator[tuple[VFS, VFS]]:
    with two_clients() as pair:
        yield pair


def end_session(client: VFS, by: VFS) -> None:
    """`client` was frozen past its expiry, and `by` has cleaned up after it."""
    lapse(client)
    by.meta._service.sessions.end(client.meta.sid)


def lapse(client: VFS) -> None:
    client.meta._service.sessions._lease_until = 0.0


def refused(call: Callable[..., object], *args: object) -> None:
    with pytest.raises(OSError) as error:
        call(*args)
    assert error.value.errno == errno.EIO


def lock(client: VFS, ino: Inode, fh: Fh, owner: int = OWNER) -> None:
    client.try_flock(ME, ino, fh, owner, LockKind.WRITE)


def stored(client: VFS, name: bytes) -> bytes:
    ino = client.lookup(ME, ROOT, name).ino
    fh = client.open(ME, ino, os.O_RDONLY).fh
    try:
        return read(client, ino, fh)
    finally:
        close(client, ino, fh)


def test_data_written_under_a_lost_lock_is_not_stored(clients: tuple[VFS, VFS]) -> None:
    frozen, other = clients
    ino, fh = create(frozen, b"f")
    lock(frozen, ino, fh)
    write(frozen, ino, fh, 0, b"of the old holder")
    end_session(frozen, by=other)
    theirs = other.open(ME, ino, os.O_RDWR).fh
    lock(other, ino, theirs, OTHER)
    write(other, ino, theirs, 0, b"new")
    close(other, ino, theirs)

    for _ in range(2):
        refused(write, frozen, ino, fh, 0, b"again")
        refused(frozen.fsync, ME, ino, fh, False)
        refused(frozen.flush, ME, ino, fh, 1)
        refused(lock, frozen, ino, fh)
        refused(frozen.fallocate, ME, ino, fh, 0, 0, 100)
        refused(frozen.setattr, ME, ino, SetAttr(), 1, fh)
        refused(frozen.copy_file_range, ME, ino, fh, 0, ino, fh, 50, 9)
    frozen.try_flock(ME, ino, fh, OWNER, LockKind.UNLOCK)
    frozen.release(ME, ino, fh, OWNER)
    assert stored(frozen, b"f") == stored(other, b"f") == b"new"


def test_it_joins_again_under_another_number(clients: tuple[VFS, VFS]) -> None:
    frozen, other = clients
    old = frozen.meta.sid
    ino, fh = create(frozen, b"f", b"lost")
    end_session(frozen, by=other)
    refused(frozen.flush, ME, ino, fh, 1)
    frozen.release(ME, ino, fh, 0)
    assert frozen.meta.sid != old
    assert {s.sid for s in other.meta.engine.sessions()} == {frozen.meta.sid, other.meta.sid}
    fh = frozen.open(ME, ino, os.O_RDWR).fh
    lock(frozen, ino, fh)
    with pytest.raises(BlockingIOError):
        lock(other, ino, other.open(ME, ino, os.O_RDWR).fh, OTHER)
    write(frozen, ino, fh, 0, b"new")
    close(frozen, ino, fh)
    assert stored(other, b"f") == b"new"


def test_heartbeat_finds_out_without_being_asked(clients: tuple[VFS, VFS]) -> None:
    frozen, other = clients
    ino, fh = create(frozen, b"f", b"lost")
    end_session(frozen, by=other)
    frozen.meta.heartbeat()
    assert not frozen.getattr(ME, ino, fh)[0].length
    refused(write, frozen, ino, fh, 0, b"x")


def test_commit_in_the_background_is_refused(clients: tuple[VFS, VFS]) -> None:
    frozen, other = clients
    ino, fh = create(frozen, b"f", b"lost")
    end_session(frozen, by=other)
    writer = frozen._file_handles.get(fh).file.writer
    assert writer is not None
    writer.advance(force=True)
    assert other.meta.getattr(ino).length == 0
    refused(frozen.fsync, ME, ino, fh, False)


def test_upload_under_way_is_not_committed(clients: tuple[VFS, VFS]) -> None:
    frozen, other = clients
    storage = faulty(frozen)
    ino, fh = create(frozen, b"f")
    storage.gate.clear()
    write(frozen, ino, fh, 0, b"x" * 65536)  # a full block, whose upload begins at once
    assert storage.waiting.wait(30)
    end_session(frozen, by=other)
    refused(write, frozen, ino, fh, 65536, b"y")
    storage.gate.set()
    refused(frozen.fsync, ME, ino, fh, False)
    assert other.meta.getattr(ino).length == 0


@pytest.mark.parametrize("name", ["truncate", "fallocate", "copy_file_range"])
def test_change_through_a_handle_of_an_earlier_epoch_is_refused(
    clients: tuple[VFS, VFS], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The session ends when the handle has been looked at already."""
    frozen, other = clients
    ino, fh = create(frozen, b"f", b"data")
    frozen.fsync(ME, ino, fh, False)
    lock(frozen, ino, fh)
    real = getattr(frozen.meta, name)

    def late(*args: object, **kwargs: object) -> object:
        end_session(frozen, by=other)
        frozen.meta.heartbeat()
        return real(*args, **kwargs)

    monkeypatch.setattr(frozen.meta, name, late)
    if name == "truncate":
        refused(frozen.setattr, ME, ino, SetAttr(), 1, fh)
    elif name == "fallocate":
        refused(frozen.fallocate, ME, ino, fh, 0, 0, 100)
    else:
        refused(frozen.copy_file_range, ME, ino, fh, 0, ino, fh, 50, 4)
    assert stored(other, b"f") == b"data"


def test_all_that_a_holder_may_write_is_closed_to_it(clients: tuple[VFS, VFS]) -> None:
    """The lock is one file, what it guards is another."""
    frozen, other = clients
    guard, guard_fh = create(frozen, b"lock")
    data, data_fh = create(frozen, b"data", b"old")
    frozen.fsync(ME, data, data_fh, False)
    reader = frozen.open(ME, data, os.O_RDONLY).fh
    frozen.try_setlk(ME, guard, guard_fh, OWNER, PosixLock(LockKind.WRITE, 0, 9, 77))
    end_session(frozen, by=other)
    refused(write, frozen, data, data_fh, 0, b"new")
    assert read(frozen, data, reader) == b"old"
    frozen.flush(ME, data, reader, 1)


def test_clean_files_go_on_where_no_lock_was_held(clients: tuple[VFS, VFS]) -> None:
    frozen, other = clients
    clean, clean_fh = create(frozen, b"clean", b"1")
    frozen.fsync(ME, clean, clean_fh, False)
    dirty, dirty_fh = create(frozen, b"dirty", b"2")
    end_session(frozen, by=other)
    refused(frozen.fsync, ME, dirty, dirty_fh, False)
    write(frozen, clean, clean_fh, 1, b"2")
    close(frozen, clean, clean_fh)
    assert (stored(other, b"clean"), stored(other, b"dirty")) == (b"12", b"")


def test_nothing_is_lost_where_nobody_cleaned_up(clients: tuple[VFS, VFS]) -> None:
    """The metadata was out of reach for so long that all sessions have expired."""
    frozen, other = clients
    sid = frozen.meta.sid
    ino, fh = create(frozen, b"f")
    lock(frozen, ino, fh)
    frozen.try_setlk(ME, ino, fh, OWNER, PosixLock(LockKind.WRITE, 0, 9, 77))
    frozen.try_setlk(ME, ino, fh, OWNER, PosixLock(LockKind.UNLOCK, 0, 9, 77))
    write(frozen, ino, fh, 0, b"kept")
    lapse(frozen)
    frozen.fsync(ME, ino, fh, False)
    assert frozen.meta.sid == sid
    assert stored(other, b"f") == b"kept"
    theirs = other.open(ME, ino, os.O_RDWR).fh
    with pytest.raises(BlockingIOError):
        lock(other, ino, theirs, OTHER)
    close(frozen, ino, fh)
    lock(other, ino, theirs, OTHER)


def test_lock_cleaned_before_the_record_is_missed(clients: tuple[VFS, VFS]) -> None:
    frozen, other = clients
    ino, fh = create(frozen, b"f")
    lock(frozen, ino, fh)
    lapse(frozen)
    other.meta.engine.release_locks(frozen.meta.sid)
    refused(write, frozen, ino, fh, 0, b"x")


def test_removed_record_of_an_idle_client_is_made_again(clients: tuple[VFS, VFS]) -> None:
    client, other = clients
    sid = client.meta.sid
    ino, fh = create(client, b"f", b"kept")
    other.meta._service.sessions.end(sid)
    client.meta.heartbeat()
    close(client, ino, fh)
    assert client.meta.sid == sid
    assert stored(other, b"f") == b"kept"


def test_open_file_without_name_is_stale(clients: tuple[VFS, VFS]) -> None:
    frozen, other = clients
    ino, fh = create(frozen, b"f", b"data")
    frozen.fsync(ME, ino, fh, False)
    frozen.unlink(ME, ROOT, b"f")
    assert read(frozen, ino, fh) == b"data"
    end_session(frozen, by=other)
    frozen.meta.heartbeat()
    with pytest.raises(OSError) as error:
        read(frozen, ino, fh)
    assert error.value.errno == errno.ESTALE
    refused(write, frozen, ino, fh, 0, b"x")
    frozen.release(ME, ino, fh, 0)
    assert frozen.meta.engine.attr(ino) is None
