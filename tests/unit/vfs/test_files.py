from __future__ import annotations

import errno
import os
import time
from threading import Thread

import pytest

from juicepy.types import CHUNK_SIZE, KERNEL, ROOT, Cred, Fh, LockKind, PosixLock, SetAttr
from tests.unit.vfs.volumes import (
    ME,
    KiB,
    close,
    create,
    faulty,
    new_volume,
    opened,
    read,
    two_clients,
    write,
)

USER = Cred(1000, 1000)


def test_time_of_unwritten_data_does_not_change_when_it_is_stored() -> None:
    with opened() as vfs:
        before = time.time_ns()
        ino, fh = create(vfs, b"f", b"data")
        told = vfs.getattr(ME, ino, fh)[0].mtime_ns
        assert told >= before
        vfs.fsync(ME, ino, fh, False)
        assert vfs.getattr(ME, ino, fh)[0].mtime_ns == told
        close(vfs, ino, fh)


def test_times_set_on_an_open_file_survive_its_close() -> None:
    with opened() as vfs:
        ino, fh = create(vfs, b"f", b"data")
        vfs.setattr(ME, ino, SetAttr(mtime_ns=5 * 10**9), None, fh)
        close(vfs, ino, fh)
        assert vfs.getattr(ME, ino, None)[0].mtime_ns == 5 * 10**9


def test_open_with_truncation_drops_unwritten_data() -> None:
    with opened() as vfs:
        ino, fh = create(vfs, b"f", b"x" * 100)
        other = vfs.open(ME, ino, os.O_WRONLY | os.O_TRUNC)
        assert other.length == 0
        write(vfs, ino, other.fh, 0, b"new")
        assert read(vfs, ino, fh) == b"new"
        close(vfs, ino, other.fh)
        close(vfs, ino, fh)


def test_unlinked_open_file_stays_readable_and_writable() -> None:
    with opened() as vfs:
        ino, fh = create(vfs, b"f", b"old")
        vfs.unlink(ME, ROOT, b"f")
        write(vfs, ino, fh, 3, b"new")
        assert read(vfs, ino, fh) == b"oldnew"
        attr, _ = vfs.getattr(ME, ino, fh)
        assert (attr.nlink, attr.length) == (0, 6)
        close(vfs, ino, fh)
        with pytest.raises(FileNotFoundError):
            vfs.getattr(ME, ino, None)


def test_write_beyond_the_largest_file_is_efbig() -> None:
    with opened() as vfs:
        ino, fh = create(vfs, b"f")
        for work in (
            lambda: write(vfs, ino, fh, 1 << 57, b"x"),
            lambda: vfs.setattr(ME, ino, SetAttr(), (1 << 57) + 1, fh),
            lambda: vfs.fallocate(ME, ino, fh, 0, 1 << 57, 1),
        ):
            with pytest.raises(OSError) as caught:
                work()
            assert caught.value.errno == errno.EFBIG
        close(vfs, ino, fh)


def test_handles_do_what_they_were_opened_for_only() -> None:
    """But for reads, which a kernel that writes back needs of any file, to fill a page."""
    with opened() as vfs:
        ino, fh = create(vfs, b"f", b"data", flags=os.O_WRONLY)
        reader = vfs.open(ME, ino, os.O_RDONLY)
        for work in (
            lambda: write(vfs, ino, reader.fh, 0, b"x"),
            lambda: vfs.fallocate(ME, ino, reader.fh, 0, 0, 1),
            lambda: read(vfs, ino, Fh(fh + 100)),
        ):
            with pytest.raises(OSError) as caught:
                work()
            assert caught.value.errno == errno.EBADF
        assert read(vfs, ino, fh) == b"data"
        close(vfs, ino, fh)
        close(vfs, ino, reader.fh)


def test_failed_upload_is_told_once_by_close() -> None:
    with opened() as vfs:
        storage = faulty(vfs)
        ino, fh = create(vfs, b"f", b"data")
        storage.error = OSError(errno.EIO, "away")
        with pytest.raises(OSError) as caught:
            vfs.flush(ME, ino, fh, 1)
        assert caught.value.errno == errno.EIO
        storage.error = None
        vfs.flush(ME, ino, fh, 1)
        write(vfs, ino, fh, 0, b"again")
        vfs.fsync(ME, ino, fh, False)
        assert read(vfs, ino, fh) == b"again"
        close(vfs, ino, fh)


def test_failed_upload_that_a_reader_met_is_still_told_to_the_writer() -> None:
    with opened() as vfs:
        storage = faulty(vfs)
        ino, fh = create(vfs, b"f", b"data")
        reader = vfs.open(ME, ino, os.O_RDONLY)
        storage.error = OSError(errno.EIO, "away")
        with pytest.raises(OSError):
            read(vfs, ino, reader.fh)
        storage.error = None
        with pytest.raises(OSError):
            vfs.fsync(ME, ino, fh, False)
        vfs.fsync(ME, ino, fh, False)
        close(vfs, ino, reader.fh)
        close(vfs, ino, fh)


def test_pages_are_kept_while_nobody_changed_the_file() -> None:
    with two_clients() as (first, second):
        ino, fh = create(first, b"f", b"data")
        close(first, ino, fh)
        handle = first.open(ME, ino, os.O_RDONLY)
        close(first, ino, handle.fh)
        handle = first.open(ME, ino, os.O_RDONLY)
        assert handle.keep_cache
        close(first, ino, handle.fh)
        other = second.open(ME, ino, os.O_WRONLY)
        write(second, ino, other.fh, 0, b"DATA")
        close(second, ino, other.fh)
        handle = first.open(ME, ino, os.O_RDONLY)
        assert not handle.keep_cache
        assert read(first, ino, handle.fh) == b"DATA"
        close(first, ino, handle.fh)


def test_open_sees_what_another_client_closed() -> None:
    with two_clients() as (first, second):
        ino, fh = create(first, b"f", b"x" * 100 * KiB)
        first.fsync(ME, ino, fh, False)
        seen = second.open(ME, ino, os.O_RDWR)
        assert read(second, ino, seen.fh) == b"x" * 100 * KiB
        write(first, ino, fh, 10, b"first")
        close(first, ino, fh)
        again = second.open(ME, ino, os.O_RDONLY)
        assert again.length == 100 * KiB
        assert read(second, ino, again.fh, 8, 9) == b"xxfirstxx"
        assert read(second, ino, seen.fh, 8, 9) == b"xxfirstxx"
        close(second, ino, seen.fh)
        close(second, ino, again.fh)


def test_growth_by_another_client_is_seen_by_an_open_reader() -> None:
    with two_clients() as (first, second):
        ino, fh = create(first, b"f", b"one")
        first.fsync(ME, ino, fh, False)
        reader = second.open(ME, ino, os.O_RDONLY)
        assert read(second, ino, reader.fh) == b"one"
        write(first, ino, fh, 3, b"two")
        first.fsync(ME, ino, fh, False)
        assert read(second, ino, reader.fh) == b"onetwo"
        close(first, ino, fh)
        close(second, ino, reader.fh)


def test_known_file_is_opened_again_without_a_look() -> None:
    url = new_volume()
    with opened(url, open_cache_s=600.0) as vfs:
        ino, fh = create(vfs, b"f", b"data")
        close(vfs, ino, fh)
        asked: list[str] = []
        vfs.meta.watch(lambda name, seconds: asked.append(name), lambda name, times: None)
        for expected in (["GetAttr"], ["GetAttr"]):  # the second open asks nothing
            handle = vfs.open(ME, ino, os.O_RDONLY)
            close(vfs, ino, handle.fh)
            assert asked == expected
        handle = vfs.open(ME, ino, os.O_WRONLY)
        write(vfs, ino, handle.fh, 0, b"longer data")
        close(vfs, ino, handle.fh)
        handle = vfs.open(ME, ino, os.O_RDONLY)
        assert handle.length == 11
        close(vfs, ino, handle.fh)


def test_write_of_a_user_clears_set_user_id() -> None:
    with opened() as vfs:
        ino, fh = create(vfs, b"f", b"data")
        vfs.fsync(ME, ino, fh, False)
        vfs.setattr(ME, ino, SetAttr(mode=0o6755), None, None)
        buffer = memoryview(b"more")
        vfs.write(USER, ino, fh, 0, buffer, 4)
        assert vfs.getattr(ME, ino, None)[0].mode == 0o755
        vfs.fsync(ME, ino, fh, False)
        assert vfs.getattr(ME, ino, None)[0].mode == 0o755
        vfs.setattr(ME, ino, SetAttr(mode=0o6755), None, None)
        write(vfs, ino, fh, 0, b"root")
        vfs.fsync(ME, ino, fh, False)
        assert vfs.getattr(ME, ino, None)[0].mode == 0o6755
        close(vfs, ino, fh)


def test_seek_finds_data_and_holes() -> None:
    with opened() as vfs:
        ino, fh = create(vfs, b"f")
        write(vfs, ino, fh, 10 * KiB, b"x" * KiB)
        write(vfs, ino, fh, CHUNK_SIZE * 2 + 5, b"y")
        vfs.setattr(ME, ino, SetAttr(), CHUNK_SIZE * 3, fh)

        def seek(offset: int, whence: int) -> int:
            return vfs.lseek(ME, ino, fh, offset, whence)

        assert seek(0, os.SEEK_HOLE) == 0
        assert seek(0, os.SEEK_DATA) == 8 * KiB
        assert seek(9 * KiB, os.SEEK_DATA) == 9 * KiB
        assert seek(10 * KiB + 3, os.SEEK_DATA) == 10 * KiB + 3
        assert seek(10 * KiB + 3, os.SEEK_HOLE) == 12 * KiB
        assert seek(12 * KiB, os.SEEK_DATA) == CHUNK_SIZE * 2
        assert seek(CHUNK_SIZE * 2 + 5, os.SEEK_HOLE) == CHUNK_SIZE * 2 + 4 * KiB
        for offset in (CHUNK_SIZE * 2 + 4 * KiB, CHUNK_SIZE * 3):
            with pytest.raises(OSError) as caught:
                seek(offset, os.SEEK_DATA)
            assert caught.value.errno == errno.ENXIO
        close(vfs, ino, fh)


def test_end_of_a_full_file_is_its_hole() -> None:
    with opened() as vfs:
        ino, fh = create(vfs, b"f", b"x" * 1000)
        assert vfs.lseek(ME, ino, fh, 0, os.SEEK_HOLE) == 1000
        assert vfs.lseek(ME, ino, fh, 0, os.SEEK_DATA) == 0
        close(vfs, ino, fh)


def test_close_gives_up_the_record_locks_of_its_owner_only() -> None:
    with opened() as vfs:
        ino, fh = create(vfs, b"f")
        other = vfs.open(ME, ino, os.O_RDWR)
        lock = PosixLock(LockKind.WRITE, 0, 9, 100)
        vfs.try_setlk(ME, ino, fh, 1, lock)
        vfs.try_setlk(ME, ino, fh, 2, PosixLock(LockKind.WRITE, 20, 29, 200))
        vfs.flush(ME, ino, other.fh, 1)
        assert vfs.getlk(ME, ino, fh, 3, PosixLock(LockKind.READ, 0, 9, 300)) is None
        held = vfs.getlk(ME, ino, fh, 3, PosixLock(LockKind.READ, 0, 50, 300))
        assert held is not None
        assert (held.start, held.end, held.pid) == (20, 29, 200)
        vfs.release(ME, ino, other.fh, 0)
        close(vfs, ino, fh)


def test_release_gives_up_the_flock() -> None:
    with opened() as vfs:
        ino, fh = create(vfs, b"f")
        other = vfs.open(ME, ino, os.O_RDWR)
        vfs.try_flock(ME, ino, fh, 1, LockKind.WRITE)
        with pytest.raises(BlockingIOError):
            vfs.try_flock(ME, ino, other.fh, 2, LockKind.READ)
        vfs.release(ME, ino, fh, 1)
        vfs.try_flock(ME, ino, other.fh, 2, LockKind.READ)
        close(vfs, ino, other.fh)


def test_lock_waits_for_a_release_that_is_under_way() -> None:
    with opened() as vfs:
        ino, fh = create(vfs, b"f")
        other = vfs.open(ME, ino, os.O_RDWR)
        vfs.try_flock(ME, ino, fh, 1, LockKind.WRITE)
        vfs.write(ME, ino, fh, 0, memoryview(b"data"), 0)
        storage = faulty(vfs)
        storage.gate.clear()  # the flush of the release takes its time
        releasing = Thread(target=vfs.release, args=(ME, ino, fh, 1))
        releasing.start()
        assert storage.waiting.wait(30)
        locking = Thread(target=vfs.try_flock, args=(ME, ino, other.fh, 2, LockKind.WRITE))
        locking.start()
        storage.gate.set()
        for thread in (releasing, locking):
            thread.join(30)
        with pytest.raises(BlockingIOError):
            vfs.try_flock(ME, ino, other.fh, 3, LockKind.WRITE)
        close(vfs, ino, other.fh)


def test_squashing_leaves_the_kernel_its_rights() -> None:
    owner = Cred(1001, 1001)
    with opened(root_squash=(65534, 65534)) as vfs:
        found, handle = vfs.create(owner, ROOT, b"f", 0o4755, 0, os.O_RDWR)
        vfs.release(owner, found.ino, handle.fh, 0)
        with pytest.raises(PermissionError):
            vfs.setattr(Cred(), found.ino, SetAttr(mode=0o755), None, None)
        attr, _ = vfs.setattr(KERNEL, found.ino, SetAttr(mode=0o755), None, None)
    assert attr.mode == 0o755


def test_read_only_file_system_refuses_writing() -> None:
    with opened(read_only=True) as vfs, pytest.raises(OSError) as caught:
        create(vfs, b"f")
    assert caught.value.errno == errno.EROFS


def test_end_of_the_file_system_stores_what_is_still_open() -> None:
    with opened() as vfs:
        ino, _ = create(vfs, b"f", b"x" * 200 * KiB)
        meta = vfs.meta
    assert meta.engine.attr(ino).length == 200 * KiB  # type: ignore[union-attr]
    assert sum(piece.length for piece in meta.engine.slices(ino, 0)) == 200 * KiB
