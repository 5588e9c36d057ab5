"""Whole blocks given to the kernel: fewer requests, and never a byte from before a change."""

from __future__ import annotations

import os
import random
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.programs import OURS, Mount
from tests.support.servers import new_meta_url
from tests.support.volumes import Volume, new_volume

__all__ = ["new_meta_url"]

MIB = 1 << 20
PAGE = 4096
READS = 1500


@pytest.fixture
def volume(new_meta_url: Callable[[str], str], tmp_path: Path) -> Volume:
    volume = new_volume(new_meta_url("redis"), tmp_path)
    volume.format(OURS)
    return volume


@pytest.fixture
def mount(volume: Volume) -> Iterator[Mount]:
    with volume.mounted(OURS) as mount:
        yield mount


def content(size: int, version: int) -> bytes:
    """Each 8 bytes tell their version and their position."""
    return _words(0, size, version)[:size]


def _words(begin: int, end: int, version: int) -> bytes:
    base = version << 40
    return array("Q", range(base | begin, base | end, 8)).tobytes()


def opened(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    return fd


def check_page(page: bytes, offset: int, version: int) -> None:
    assert page == _words(offset, offset + len(page), version)


def count(mount: Mount, name: str) -> float:
    lines = (mount.path / ".stats").read_text().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.split()[0] == name)


def read_about(fd: int, size: int, version: int, times: int = READS) -> None:
    spots = random.Random(7)
    for _ in range(times):
        offset = spots.randrange(size // PAGE) * PAGE
        check_page(os.pread(fd, PAGE, offset), offset, version)


@pytest.mark.parametrize("option", ["", "--no-page-fill"])
def test_random_reads_of_a_file_need_few_requests(volume: Volume, option: str) -> None:
    size = 9 * MIB
    with volume.mounted(OURS) as mount:
        (mount.path / "f").write_bytes(content(size, 1))
        (mount.path / "f").read_bytes()
    with volume.mounted(OURS, *option.split()) as mount:  # the kernel has none of its pages
        fd = opened(mount.path / "f")
        try:
            for offset in (0, 3 * MIB, 6 * MIB, 9 * MIB - PAGE):  # brings the blocks here
                check_page(os.pread(fd, PAGE, offset), offset, 1)
            (mount.path / "f").stat()
            before = count(mount, "juicefs_fuse_ops_total_read")
            read_about(fd, size, 1, 200)
            time.sleep(1)  # the pushes end
            read_about(fd, size, 1, 2000)
            requests = count(mount, "juicefs_fuse_ops_total_read") - before
        finally:
            os.close(fd)
    # of 2304 pages some 1400 are met
    assert requests > 1000 if option else requests < 300


def test_who_opens_after_a_change_here_sees_it(mount: Mount) -> None:
    """Truncated, written anew and cut short again, while others read about in it."""
    path, size, stop = mount.path / "f", 5 * MIB, threading.Event()
    path.write_bytes(content(size, 1))
    failures: list[BaseException] = []

    def read() -> None:
        spots = random.Random(8)
        try:
            while not stop.is_set():
                fd = opened(path)
                try:
                    for _ in range(50):
                        os.pread(fd, PAGE, spots.randrange(size // PAGE) * PAGE)
                finally:
                    os.close(fd)
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for version in range(2, 14):
            path.write_bytes(content(size, version))
            fd = opened(path)
            try:
                assert os.fstat(fd).st_size == size
                read_about(fd, size, version, 60)
                shorter = size - version * PAGE - 5
                os.truncate(path, shorter)
                assert os.fstat(fd).st_size == shorter
                assert os.pread(fd, PAGE, shorter) == b""
                offset = shorter // PAGE * PAGE
                check_page(os.pread(fd, PAGE, offset)[:16], offset, version)
                assert path.stat().st_size == shorter
            finally:
                os.close(fd)
    finally:
        stop.set()
        for reader in readers:
            reader.join(60)
    assert failures == []


def test_who_opens_after_a_change_elsewhere_sees_it(volume: Volume) -> None:
    size = 5 * MIB
    with volume.mounted(OURS) as here, volume.mounted(OURS) as there:
        for version in range(1, 9):
            length = size - version % 3 * (MIB + 5)
            (there.path / "f").write_bytes(content(length, version))
            fd = opened(here.path / "f")
            try:
                assert os.fstat(fd).st_size == length
                read_about(fd, length, version, 200)
                assert (here.path / "f").read_bytes() == content(length, version)
            finally:
                os.close(fd)
