"""Data that moves without passing through the program: copies, mappings, splices."""

from __future__ import annotations

import errno
import mmap
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.posix.ranges import BLOCK, CHUNK, MIB
from tests.support.users import refused

PAGE = mmap.PAGESIZE


@pytest.fixture
def data() -> bytes:
    return random.Random(7).randbytes(3 * MIB + 123)


@pytest.fixture
def source(place: Path, data: bytes) -> Iterator[int]:
    (place / "source").write_bytes(data)
    fd = os.open(place / "source", os.O_RDWR)
    yield fd
    os.close(fd)


@pytest.fixture
def target(place: Path) -> Iterator[int]:
    fd = os.open(place / "target", os.O_CREAT | os.O_RDWR)
    yield fd
    os.close(fd)


def copy_all(source: int, target: int, count: int, offset: int, offset_out: int) -> int:
    done = 0
    while done < count:
        copied = os.copy_file_range(source, target, count - done, offset + done, offset_out + done)
        if copied == 0:
            break
        done += copied
    return done


@pytest.mark.parametrize("offset_out", [0, 5, BLOCK - 100, CHUNK - 1000])
def test_copied_ranges_equal_their_source(
    place: Path, source: int, target: int, data: bytes, offset_out: int
) -> None:
    assert copy_all(source, target, 2 * MIB, 1001, offset_out) == 2 * MIB
    assert os.fstat(target).st_size == offset_out + 2 * MIB
    assert os.pread(target, 2 * MIB, offset_out) == data[1001 : 1001 + 2 * MIB]
    os.pwrite(source, b"changed", 2000)
    assert os.pread(target, 100, offset_out + 999) == data[2000:2100]
    os.pwrite(target, b"mine", offset_out)
    assert os.pread(source, 10, 1001) == (data[1001:2000] + b"changed")[:10]
    os.unlink(place / "source")
    os.fsync(target)
    assert os.pread(target, 50, offset_out + MIB) == data[1001 + MIB : 1051 + MIB]


def test_copies_end_with_the_source(source: int, target: int, data: bytes) -> None:
    assert copy_all(source, target, 10 * MIB, 1 * MIB, 0) == len(data) - MIB
    assert os.copy_file_range(source, target, 100, len(data), 0) == 0
    assert os.fstat(target).st_size == len(data) - MIB


def test_copies_within_a_file(source: int, data: bytes) -> None:
    assert copy_all(source, source, MIB, 0, 5 * MIB) == MIB
    assert os.pread(source, MIB, 5 * MIB) == data[:MIB]
    assert os.pread(source, 10, len(data) - 5) == data[-5:] + bytes(5)
    with refused(errno.EINVAL):
        os.copy_file_range(source, source, 1000, 0, 500)


def test_copies_carry_holes_and_unwritten_data(source: int, target: int) -> None:
    os.ftruncate(source, 0)
    os.pwrite(source, b"island", 2 * MIB)
    os.pwrite(target, b"x" * 4 * MIB, 0)
    assert copy_all(source, target, 3 * MIB, 0, 10) == 2 * MIB + 6
    assert os.pread(target, 2 * MIB + 20, 0) == (b"x" * 10 + bytes(2 * MIB) + b"island" + b"x" * 4)


def test_what_copies_refuse(place: Path, source: int, target: int) -> None:
    with open(place / "target", "rb") as reader, refused(errno.EBADF):
        os.copy_file_range(source, reader.fileno(), 10, 0, 0)
    folder = os.open(place, os.O_RDONLY)
    with refused(errno.EISDIR):
        os.copy_file_range(folder, target, 10, 0, 0)
    os.close(folder)
    appending = os.open(place / "target", os.O_WRONLY | os.O_APPEND)
    with refused(errno.EBADF):
        os.copy_file_range(source, appending, 10, 0, 0)
    os.close(appending)


def test_sendfile_and_splice(place: Path, source: int, target: int, data: bytes) -> None:
    done = 0
    while done < len(data):
        done += os.sendfile(target, source, done, len(data) - done)
    assert (place / "target").read_bytes() == data
    reader, writer = os.pipe()
    try:
        os.ftruncate(target, 0)
        done = 0
        while done < 300_000:
            count = os.splice(source, writer, 65_536, offset_src=done)
            moved = 0
            while moved < count:
                moved += os.splice(reader, target, count - moved, offset_dst=done + moved)
            done += count
        assert os.pread(target, done, 0) == data[:done]
    finally:
        os.close(reader)
        os.close(writer)


def test_a_shared_mapping_and_reads_see_each_other(place: Path, source: int, data: bytes) -> None:
    with mmap.mmap(source, len(data)) as mapping:
        assert mapping[:1000] == data[:1000]
        assert mapping[-123:] == data[-123:]
        mapping[5000:5005] = b"by map"[:5]
        assert os.pread(source, 5, 5000) == b"by ma"
        os.pwrite(source, b"by write", 9000)
        assert mapping[9000:9008] == b"by write"
        mapping.flush()
    expected = bytearray(data)
    expected[5000:5005], expected[9000:9008] = b"by ma", b"by write"
    assert (place / "source").read_bytes() == expected


def test_mapped_changes_reach_other_processes_and_survive(place: Path, source: int) -> None:
    other = os.open(place / "source", os.O_RDWR)
    with mmap.mmap(source, 0) as mapping, mmap.mmap(other, 0) as second:
        mapping[MIB : MIB + 4] = b"seen"
        assert second[MIB : MIB + 4] == b"seen"
        pid = os.fork()
        if pid == 0:
            mapping[2 * MIB : 2 * MIB + 5] = b"child"
            os._exit(0)
        os.waitpid(pid, 0)
        assert second[2 * MIB : 2 * MIB + 5] == b"child"
        os.close(other)
    os.fsync(source)
    assert os.pread(source, 5, 2 * MIB) == b"child"


def test_a_private_mapping_changes_nothing(place: Path, source: int, data: bytes) -> None:
    with mmap.mmap(source, len(data), flags=mmap.MAP_PRIVATE) as mapping:
        mapping[:7] = b"private"
        assert mapping[:7] == b"private"
        assert os.pread(source, 7, 0) == data[:7]
    assert (place / "source").read_bytes() == data


def test_bytes_after_the_end_of_a_mapped_page_stay_out_of_the_file(
    place: Path, target: int
) -> None:
    os.ftruncate(target, PAGE)
    with mmap.mmap(target, PAGE) as mapping:
        os.pwrite(target, b"short and longer", 0)
        os.ftruncate(target, 5)
        assert mapping[5:100] == bytes(95)
        mapping[3:20] = b"over the end.. .."
        mapping.flush()
    assert os.fstat(target).st_size == 5
    assert (place / "target").read_bytes() == b"shoov"
    os.ftruncate(target, 30)
    assert (place / "target").read_bytes() == b"shoov" + bytes(25)


def test_access_to_a_page_beyond_the_end_is_sigbus(target: int) -> None:
    os.write(target, b"x" * 100)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.ftruncate(target, 3 * PAGE)
        mapping = mmap.mmap(target, 3 * PAGE)
        os.ftruncate(target, 100)
        mapping[2 * PAGE]
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGBUS


def test_a_mapping_outlives_descriptor_and_name(place: Path, data: bytes) -> None:
    path = place / "f"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDWR)
    mapping = mmap.mmap(fd, len(data))
    os.close(fd)
    os.unlink(path)
    try:
        mapping[10:14] = b"kept"
        assert mapping[8:16] == data[8:10] + b"kept" + data[14:16]
        assert mapping[-100:] == data[-100:]
    finally:
        mapping.close()


def test_a_file_grown_through_truncate_is_filled_by_mapping(place: Path, target: int) -> None:
    size = BLOCK + 3 * PAGE
    os.ftruncate(target, size)
    with mmap.mmap(target, size) as mapping:
        for at in (0, BLOCK - 2, size - 4):
            mapping[at : at + 4] = b"mark"
    os.fsync(target)
    content = (place / "target").read_bytes()
    assert content.count(b"mark") == 3
    assert len(content) == size
    assert content[BLOCK - 2 : BLOCK + 2] == b"mark"


def test_write_from_a_mapping_of_the_same_file(source: int, data: bytes) -> None:
    with mmap.mmap(source, len(data)) as mapping:
        os.pwrite(source, memoryview(mapping)[100_000:500_000], 1_000_000)
        assert mapping[1_000_000:1_400_000] == data[100_000:500_000]


def test_programs_are_executed_from_here(place: Path) -> None:
    import shutil
    import subprocess

    shutil.copy("/bin/true", place / "true")
    assert subprocess.run([place / "true"], check=False).returncode == 0
    with open(place / "true", "rb"):
        process = subprocess.Popen([shutil.copy("/bin/sleep", place / "sleep"), "30"])
        try:
            with refused(errno.ETXTBSY):
                open(place / "sleep", "r+b")  # noqa: SIM115  # it is not opened
        finally:
            process.kill()
            process.wait()
