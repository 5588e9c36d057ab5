"""What the flags of open(2) promise."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.users import refused

WRITERS, RECORDS = 4, 100


def _append_records(path: Path, writer: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for number in range(RECORDS):
        os.write(fd, struct.pack("<II", writer, number) * 16)
    os.close(fd)


def test_appends_of_many_processes_all_arrive_whole(place: Path) -> None:
    path = place / "log"
    children = []
    for writer in range(WRITERS):
        pid = os.fork()
        if pid == 0:
            try:
                _append_records(path, writer)
            finally:
                os._exit(0)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    data = path.read_bytes()
    assert len(data) == WRITERS * RECORDS * 128
    last = dict.fromkeys(range(WRITERS), -1)
    for at in range(0, len(data), 128):
        record = data[at : at + 128]
        assert record == record[:8] * 16
        writer, number = struct.unpack_from("<II", record)
        assert number == last[writer] + 1
        last[writer] = number


def test_append_ignores_the_position(place: Path) -> None:
    path = place / "f"
    path.write_bytes(b"12345")
    fd = os.open(path, os.O_RDWR | os.O_APPEND)
    other = os.open(path, os.O_RDWR)
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, b"ab")
        assert os.lseek(fd, 0, os.SEEK_CUR) == 7
        os.pwrite(other, b"XY", 7)
        os.write(fd, b"cd")
        os.pwrite(fd, b"ef", 0)  # Linux appends here too
        os.ftruncate(other, 3)
        os.write(fd, b"!")
        assert path.read_bytes() == b"123!"
    finally:
        os.close(other)
        os.close(fd)


def test_trunc_empties_at_open(place: Path) -> None:
    path = place / "f"
    path.write_bytes(b"x" * 10_000)
    with open(path, "rb", buffering=0) as reader:
        assert reader.read(4) == b"xxxx"
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC)
        assert os.fstat(fd).st_size == 0
        assert reader.read(4) == b""
        os.pwrite(fd, b"new", 4)
        os.close(fd)
        assert reader.read() == b"new"
    assert path.read_bytes() == b"\0\0\0\0new"


def test_excl_creates_exactly_once(place: Path) -> None:
    path, children = place / "lock", []
    for _ in range(6):
        pid = os.fork()
        if pid == 0:
            try:
                os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                os._exit(1)
            except FileExistsError:
                os._exit(0)
        children.append(pid)
    won = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert sum(won) == 1
    os.symlink("nowhere", place / "link")
    with refused(errno.EEXIST):
        os.open(place / "link", os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def test_directories_and_files_are_told_apart(place: Path) -> None:
    (place / "f").touch()
    (place / "d").mkdir()
    with refused(errno.ENOTDIR):
        os.open(place / "f", os.O_RDONLY | os.O_DIRECTORY)
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT | os.O_WRONLY):
        with refused(errno.EISDIR):
            os.open(place / "d", flags)
    fd = os.open(place / "d", os.O_RDONLY | os.O_DIRECTORY)
    with refused(errno.EISDIR):
        os.read(fd, 1)
    os.close(fd)


def test_the_access_mode_holds(place: Path) -> None:
    path = place / "f"
    path.write_bytes(b"data")
    reader, writer = os.open(path, os.O_RDONLY), os.open(path, os.O_WRONLY)
    try:
        with refused(errno.EBADF):
            os.write(reader, b"x")
        with refused(errno.EBADF):
            os.read(writer, 1)
        with refused(errno.EINVAL, errno.EBADF):
            os.ftruncate(reader, 0)
        with refused(errno.EBADF):
            os.posix_fallocate(reader, 0, 10)
    finally:
        os.close(reader)
        os.close(writer)


def test_path_descriptors_name_without_opening(place: Path) -> None:
    (place / "f").write_text("x")
    fd = os.open(place / "f", os.O_PATH)
    try:
        assert os.fstat(fd).st_size == 1
        with refused(errno.EBADF):
            os.read(fd, 1)
        assert Path(f"/proc/self/fd/{fd}").read_text() == "x"
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", [4096, 1 << 20, (4 << 20) + 8192])
def test_direct_io_carries_aligned_data(place: Path, size: int) -> None:
    path = place / "f"
    with mmap.mmap(-1, size) as memory:
        memory.write(os.urandom(size))
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT)
        try:
            done = 0
            while done < size:
                done += os.pwrite(fd, memoryview(memory)[done:], done)
            assert path.read_bytes() == memory[:]
            with mmap.mmap(-1, size) as back:
                done = 0
                while done < size:
                    done += os.preadv(fd, [memoryview(back)[done:]], done)
                assert back[:] == memory[:]
        finally:
            os.close(fd)


@contextlib.contextmanager
def done_or_invalid() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def test_direct_io_at_odd_places_works_or_is_refused(place: Path) -> None:
    """EINVAL on a local disk; a file system without blocks may do it. Never wrong data."""
    path = place / "f"
    data = bytearray(os.urandom(100_000))
    path.write_bytes(data)
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    try:
        for offset, size in ((1, 4096), (4096, 100), (511, 513), (99_990, 100)):
            with mmap.mmap(-1, 8192) as memory:
                part = memoryview(memory)[3 : 3 + size]
                with done_or_invalid():
                    count = os.preadv(fd, [part], offset)
                    assert part[:count] == data[offset : offset + count]
                    assert count == min(size, len(data) - offset)
                with done_or_invalid():
                    count = os.pwrite(fd, b"w" * size, offset)
                    data[offset : offset + count] = b"w" * count
                part.release()
        assert path.read_bytes() == data
    finally:
        os.close(fd)


def test_buffered_and_direct_handles_agree(place: Path) -> None:
    path = place / "f"
    path.write_bytes(b"a" * 16384)
    buffered = os.open(path, os.O_RDWR)
    direct = os.open(path, os.O_RDWR | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 4096) as memory:
            assert os.pread(buffered, 16384, 0) == b"a" * 16384
            memory.write(b"d" * 4096)
            assert os.pwrite(direct, memory, 4096) == 4096
            assert os.pread(buffered, 4096, 4096) == b"d" * 4096
            os.pwrite(buffered, b"b" * 4096, 8192)
            assert os.preadv(direct, [memory], 8192) == 4096
            assert memory[:] == b"b" * 4096
    finally:
        os.close(direct)
        os.close(buffered)


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC])
def test_synchronous_writes(place: Path, flag: int) -> None:
    path = place / "f"
    fd = os.open(path, os.O_CREAT | os.O_RDWR | flag)
    try:
        for number in range(5):
            os.write(fd, bytes([number]) * 3000)
            assert os.stat(path).st_size == (number + 1) * 3000
        assert os.pread(fd, 100_000, 0) == b"".join(bytes([n]) * 3000 for n in range(5))
    finally:
        os.close(fd)


def test_vectors_and_offsets(place: Path) -> None:
    fd = os.open(place / "f", os.O_CREAT | os.O_RDWR)
    try:
        assert os.writev(fd, [b"one", b"", b"three"]) == 8
        assert os.pwritev(fd, [b"X", b"Y"], 1) == 2
        parts = [bytearray(2), bytearray(10)]
        assert os.preadv(fd, parts, 0) == 8
        assert bytes(parts[0]) + bytes(parts[1][:6]) == b"oXYthree"
        assert os.lseek(fd, 0, os.SEEK_CUR) == 8
        assert os.pread(fd, 10, 8) == b""
        with refused(errno.EINVAL):
            os.pread(fd, 10, -1)
        with refused(errno.EINVAL):
            os.lseek(fd, -1, os.SEEK_SET)
    finally:
        os.close(fd)


def test_duplicates_share_their_position_and_processes_their_files(place: Path) -> None:
    fd = os.open(place / "f", os.O_CREAT | os.O_RDWR)
    copy = os.dup(fd)
    try:
        os.write(fd, b"one")
        os.write(copy, b"two")
        pid = os.fork()
        if pid == 0:
            os.write(fd, b"child")
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(copy)
        os.write(fd, b"end")
        assert os.pread(fd, 100, 0) == b"onetwochildend"
    finally:
        os.close(fd)
