"""Holes, lengths, allocation: sparse files and what reads find in them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.posix.ranges import (
    BLOCK,
    CHUNK,
    COLLAPSE,
    INSERT,
    KEEP_SIZE,
    MIB,
    PUNCH_HOLE,
    ZERO_RANGE,
    fallocate,
)
from tests.support.users import refused

TIB = 1 << 40
BORDERS = [4096, BLOCK, CHUNK]


@pytest.fixture
def fd(place: Path) -> Iterator[int]:
    """An empty open file `f`."""
    opened = os.open(place / "f", os.O_CREAT | os.O_RDWR)
    yield opened
    os.close(opened)


@pytest.mark.parametrize("border", BORDERS)
def test_a_write_past_the_end_leaves_zeros(place: Path, fd: int, border: int) -> None:
    os.pwrite(fd, b"begin", 0)
    os.pwrite(fd, b"end", border + 10)
    assert os.fstat(fd).st_size == border + 13
    assert os.pread(fd, 20, border - 5) == bytes(15) + b"end"
    os.fsync(fd)
    with open(place / "f", "rb") as again:
        assert again.read(8) == b"begin\0\0\0"
        again.seek(border)
        assert again.read() == bytes(10) + b"end"


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("synced", [True, False])
def test_cut_bytes_do_not_come_back(place: Path, fd: int, border: int, synced: bool) -> None:
    os.pwrite(fd, b"x" * 8192, border - 4096)
    if synced:
        os.fsync(fd)
    os.ftruncate(fd, border - 100)
    os.ftruncate(fd, border + 50_000)
    assert os.pread(fd, 4200, border - 200) == b"x" * 100 + bytes(4100)
    os.pwrite(fd, b"past", border + 60_000)
    assert os.pread(fd, 20, border + 59_990) == bytes(10) + b"past"
    os.ftruncate(fd, border)
    os.pwrite(fd, b"y", border + 100)
    assert os.pread(fd, 300, border - 150) == b"x" * 50 + bytes(200) + b"y"
    os.close(os.dup(fd))
    assert (place / "f").stat().st_size == border + 101


def test_truncate_up_and_down_over_chunks(place: Path, fd: int) -> None:
    for at in (0, BLOCK - 1, CHUNK - 2, CHUNK + BLOCK, 2 * CHUNK - 1, 3 * CHUNK):
        os.pwrite(fd, b"abc", at)
    os.ftruncate(fd, CHUNK - 1)
    os.ftruncate(fd, 4 * CHUNK)
    assert os.pread(fd, 5, CHUNK - 2) == b"a\0\0\0\0"
    for at in (CHUNK + BLOCK, 2 * CHUNK - 1, 3 * CHUNK):
        assert os.pread(fd, 3, at) == bytes(3)
    assert os.pread(fd, 3, BLOCK - 1) == b"abc"
    os.pwrite(fd, b"new", 2 * CHUNK - 1)
    os.fsync(fd)
    assert os.pread(fd, 5, 2 * CHUNK - 2) == b"\0new\0"
    os.truncate(place / "f", 0)
    assert os.fstat(fd).st_size == 0
    assert os.pread(fd, 3, 0) == b""


def test_random_lengths_and_writes_match_memory(place: Path, fd: int) -> None:
    import random

    seed = random.randrange(1 << 32)
    chance, model = random.Random(seed), bytearray()
    for step in range(120):
        size = chance.randrange(300_000)
        if chance.random() < 0.4:
            os.ftruncate(fd, size)
            del model[size:]
            model.extend(bytes(size - len(model)))
        else:
            data = chance.randbytes(chance.randrange(1, 20_000))
            os.pwrite(fd, data, size)
            model.extend(bytes(max(0, size + len(data) - len(model))))
            model[size : size + len(data)] = data
        if chance.random() < 0.2:
            os.fsync(fd)
        begin = chance.randrange(300_000)
        found = os.pread(fd, 50_000, begin)
        assert found == model[begin : begin + 50_000], f"seed {seed}, step {step}"
    assert (place / "f").read_bytes() == model, f"seed {seed}"


def test_sparse_files_of_15_tib(place: Path, fd: int) -> None:
    """A little below what ext4 can hold."""
    size = 15 * TIB + 12_345
    os.ftruncate(fd, size)
    assert os.fstat(fd).st_size == size
    assert os.fstat(fd).st_size == (place / "f").stat().st_size
    os.pwrite(fd, b"far away", 14 * TIB + 1)
    assert os.pread(fd, 10, 14 * TIB) == b"\0far away\0"
    assert os.pread(fd, 100, size - 3) == bytes(3)
    assert os.pread(fd, 100, size) == b""
    os.lseek(fd, -1, os.SEEK_END)
    assert os.read(fd, 10) == b"\0"
    assert os.lseek(fd, 0, os.SEEK_DATA) // MIB == 14 * TIB // MIB
    os.ftruncate(fd, 5)
    assert os.pread(fd, 10, 0) == bytes(5)


def test_lengths_that_no_file_can_have(place: Path, fd: int) -> None:
    with refused(errno.EINVAL):
        os.ftruncate(fd, -1)
    with refused(errno.EFBIG, errno.EINVAL):
        os.ftruncate(fd, (1 << 63) - 1)
    with refused(errno.EFBIG, errno.EINVAL):
        os.pwrite(fd, b"x", (1 << 63) - 2)
    assert os.fstat(fd).st_size == 0


def test_seeking_finds_data_and_holes(fd: int) -> None:
    os.pwrite(fd, b"x" * MIB, 2 * MIB)
    os.pwrite(fd, b"y" * MIB, CHUNK + 2 * MIB)
    os.ftruncate(fd, CHUNK + 8 * MIB)
    os.fsync(fd)
    assert os.lseek(fd, 0, os.SEEK_DATA) == 2 * MIB
    assert os.lseek(fd, 2 * MIB, os.SEEK_DATA) == 2 * MIB
    assert os.lseek(fd, 2 * MIB + 5, os.SEEK_DATA) == 2 * MIB + 5
    assert os.lseek(fd, 0, os.SEEK_HOLE) == 0
    assert os.lseek(fd, 2 * MIB, os.SEEK_HOLE) == 3 * MIB
    assert os.lseek(fd, 3 * MIB, os.SEEK_DATA) == CHUNK + 2 * MIB
    assert os.lseek(fd, CHUNK + 2 * MIB, os.SEEK_HOLE) == CHUNK + 3 * MIB
    with refused(errno.ENXIO):
        os.lseek(fd, CHUNK + 3 * MIB, os.SEEK_DATA)
    assert os.lseek(fd, CHUNK + 3 * MIB, os.SEEK_HOLE) == CHUNK + 3 * MIB
    for whence in (os.SEEK_DATA, os.SEEK_HOLE):
        with refused(errno.ENXIO):
            os.lseek(fd, CHUNK + 8 * MIB, whence)


@pytest.mark.parametrize("at", [100, 20_000, CHUNK - 10, CHUNK + 10, 20 * CHUNK + 700_001])
def test_what_shares_a_sector_with_data_is_no_hole(fd: int, at: int) -> None:
    os.pwrite(fd, b"xy", at)
    os.ftruncate(fd, at + MIB)
    os.fsync(fd)
    begin, end = os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, at, os.SEEK_HOLE)
    assert (begin % 512, end % 512) == (0, 0)
    assert begin <= at < at + 2 <= end
    for inside in (begin, at, end - 1):
        assert os.lseek(fd, inside, os.SEEK_DATA) == inside
        assert os.lseek(fd, inside, os.SEEK_HOLE) == end
    assert os.lseek(fd, 0, os.SEEK_HOLE) == (0 if begin else end)


def test_the_end_of_a_full_file_is_a_hole(fd: int) -> None:
    os.write(fd, b"x" * 10_000)
    assert os.lseek(fd, 0, os.SEEK_HOLE) == 10_000
    assert os.lseek(fd, 5, os.SEEK_DATA) == 5


def test_allocation_grows_the_file_with_zeros(fd: int) -> None:
    os.write(fd, b"data")
    fallocate(fd, 0, 0, 100_000)
    assert os.fstat(fd).st_size == 100_000
    assert os.pread(fd, 8, 0) == b"data\0\0\0\0"
    fallocate(fd, 0, 50, 100)
    assert os.fstat(fd).st_size == 100_000
    fallocate(fd, KEEP_SIZE, 90_000, MIB)
    assert os.fstat(fd).st_size == 100_000
    os.pwrite(fd, b"z", 200_000)
    assert os.pread(fd, 3, 199_998) == b"\0\0z"


@pytest.mark.parametrize("at", [0, BLOCK - 6000, CHUNK - 6000])
@pytest.mark.parametrize("mode", [PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE])
def test_punched_and_zeroed_ranges_read_as_zeros(fd: int, at: int, mode: int) -> None:
    os.pwrite(fd, b"x" * 20_000, at)
    fallocate(fd, mode, at + 1000, 9000)
    assert os.pread(fd, 20_000, at) == b"x" * 1000 + bytes(9000) + b"x" * 10_000
    os.pwrite(fd, b"new", at + 5000)
    os.fsync(fd)
    assert os.pread(fd, 9, at + 4997) == b"\0\0\0new\0\0\0"
    fallocate(fd, mode, at + 19_000, 50_000)
    grows = mode == ZERO_RANGE
    assert os.fstat(fd).st_size == at + (69_000 if grows else 20_000)
    assert os.pread(fd, 2000, at + 18_500)[:1500] == b"x" * 500 + bytes(1000)


def test_punched_space_is_a_hole(fd: int) -> None:
    os.write(fd, b"x" * 4 * MIB)
    os.fsync(fd)
    fallocate(fd, PUNCH_HOLE | KEEP_SIZE, MIB, MIB)
    assert os.lseek(fd, 0, os.SEEK_HOLE) == MIB
    assert os.lseek(fd, MIB, os.SEEK_DATA) == 2 * MIB


def test_what_fallocate_refuses(place: Path, fd: int) -> None:
    os.write(fd, b"x" * 10_000)
    with refused(errno.EINVAL):
        fallocate(fd, 0, 0, 0)
    with refused(errno.EINVAL):
        fallocate(fd, 0, -1, 10)
    with refused(errno.EOPNOTSUPP, errno.EINVAL):
        fallocate(fd, PUNCH_HOLE, 0, 4096)
    with refused(errno.EFBIG):
        fallocate(fd, 0, (1 << 63) - 10, 100)
    with refused(errno.EOPNOTSUPP, errno.EINVAL):
        fallocate(fd, COLLAPSE | KEEP_SIZE, 0, 4096)
    for mode in (COLLAPSE, INSERT):  # not of whole blocks: a disk that can do it refuses, too
        with refused(errno.EOPNOTSUPP, errno.EINVAL):
            fallocate(fd, mode, 100, 100)
    with open(place / "f", "rb") as reader, refused(errno.EBADF):
        fallocate(reader.fileno(), 0, 0, 10)
    assert os.fstat(fd).st_size == 10_000
    os.mkfifo(place / "p")
    pipe = os.open(place / "p", os.O_RDWR)
    with refused(errno.ESPIPE):
        fallocate(pipe, 0, 0, 10)
    os.close(pipe)


def test_an_allocation_larger_than_the_volume_is_refused(place: Path, fd: int) -> None:
    room = os.statvfs(place)
    with refused(errno.ENOSPC, errno.EFBIG):
        # never just beyond what a local disk has left: it would be filled up first
        fallocate(fd, 0, 0, max(room.f_bavail * room.f_frsize + (1 << 30), 1 << 45))
    assert os.fstat(fd).st_size == 0


def test_blocks_are_counted_in_512_bytes(place: Path, fd: int) -> None:
    os.write(fd, b"x" * MIB)
    os.fsync(fd)
    assert MIB // 512 <= os.fstat(fd).st_blocks <= MIB // 512 + 64
    assert os.fstat(fd).st_blksize >= 512
    (place / "empty").touch()
    assert os.stat(place / "empty").st_blocks == 0
