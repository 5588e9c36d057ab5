"""What a client of a mounted volume does, and how long each part takes.

A workload is a generator over a `Place`: it yields (phase, amount, unit, seconds). Amounts come
from `scale`: 1.0 takes some seconds each on a small machine.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

MIB = 1 << 20
PAUSE_S = 1.2  # past the default second for which the kernel believes attributes and names

Phase = tuple[str, float, str, float]
_numbers = itertools.count()


class Place(Protocol):
    """A mounted volume that can be mounted anew."""

    path: Path

    def remount(self, *, keep_cache: bool) -> None:
        """Unmount, drop the kernel's pages (and the block cache), mount."""


@dataclass(frozen=True)
class Workload:
    name: str
    about: str
    run: Callable[[Place, float], Iterator[Phase]]


def spread(threads: int, names: Sequence[str], work: Callable[[str], object]) -> float:
    """Seconds that `threads` need to do `work` for all names; raises the first error."""
    errors: list[BaseException] = []

    def share(part: Sequence[str]) -> None:
        try:
            for name in part:
                work(name)
        except BaseException as error:
            errors.append(error)

    pool = [threading.Thread(target=share, args=(names[n::threads],)) for n in range(threads)]
    begin_s = time.perf_counter()
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    took_s = time.perf_counter() - begin_s
    if errors:
        raise errors[0]
    return took_s


def write(path: str, data: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]


def read(path: str, size: int) -> None:
    got = 0
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(MIB):
            got += len(piece)
    if got != size:
        raise AssertionError(f"{path}: {got} bytes instead of {size}")


def make(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))


def _new_directory(place: Place) -> Path:
    folder = place.path / f"d{next(_numbers)}"
    folder.mkdir()
    return folder


def metadata(threads: int) -> Callable[[Place, float], Iterator[Phase]]:
    def run(place: Place, scale: float) -> Iterator[Phase]:
        folder, count = _new_directory(place), max(threads, int(800 * scale))
        names = [f"{folder}/{n:06}" for n in range(count)]

        def phase(name: str, work: Callable[[str], object]) -> Phase:
            return name, count, "op/s", spread(threads, names, work)

        yield phase("mkdir", os.mkdir)
        yield phase("rmdir", os.rmdir)
        yield phase("create", make)
        yield phase("write 4 KiB", lambda path: write(path, bytes(4096)))
        time.sleep(PAUSE_S)
        yield phase("stat", os.stat)
        time.sleep(PAUSE_S)
        yield phase("open, read 4 KiB", lambda path: read(path, 4096))
        yield phase("rename", lambda path: os.rename(path, path + "r"))
        names = [name + "r" for name in names]
        yield phase("unlink", os.unlink)

    return run


def listing(place: Place, scale: float) -> Iterator[Phase]:
    folder, count = _new_directory(place), max(100, int(5000 * scale))
    spread(8, [f"{folder}/{n:06}" for n in range(count)], make)
    place.remount(keep_cache=True)
    begin_s = time.perf_counter()
    found = sum(1 for _ in os.scandir(folder))
    yield "names", found, "entries/s", time.perf_counter() - begin_s
    place.remount(keep_cache=True)
    begin_s = time.perf_counter()
    found = sum(entry.stat().st_size == 0 for entry in os.scandir(folder))
    yield "names and attributes", found, "entries/s", time.perf_counter() - begin_s
    begin_s = time.perf_counter()
    shutil.rmtree(folder)
    yield "rm -r", found, "entries/s", time.perf_counter() - begin_s


def large_file(place: Place, scale: float) -> Iterator[Phase]:
    path, size = f"{place.path}/large", max(16, int(512 * scale))
    block = os.urandom(MIB)
    begin_s = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for _ in range(size):
            file.write(block)
        os.fsync(file.fileno())
    yield "write, fsync", size, "MiB/s", time.perf_counter() - begin_s
    for state in ("from the store", "from the disk cache", "from the kernel"):
        if state != "from the kernel":
            place.remount(keep_cache=state == "from the disk cache")
        begin_s = time.perf_counter()
        read(path, size * MIB)
        yield f"read {state}", size, "MiB/s", time.perf_counter() - begin_s


def random_reads(place: Place, scale: float) -> Iterator[Phase]:
    path, size = f"{place.path}/random", max(16, int(256 * scale)) * MIB
    if not os.path.exists(path):
        write(path, os.urandom(MIB) * (size // MIB))
    place.remount(keep_cache=True)
    read(path, size)
    for threads, length, count in ((1, 4 << 10, 4000), (1, 128 << 10, 1000), (8, 4 << 10, 4000)):
        place.remount(keep_cache=True)
        spots = [
            str(random.randrange(size // length) * length)
            for _ in range(max(50, int(count * scale)))
        ]
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            took_s = spread(threads, spots, partial(_read_at, fd, length))
        finally:
            os.close(fd)
        yield f"{length >> 10} KiB, {threads} threads", len(spots), "op/s", took_s


def _read_at(fd: int, length: int, offset: str) -> None:
    if len(os.pread(fd, length, int(offset))) != length:
        raise AssertionError(f"short read at {offset}")


def small_files(place: Place, scale: float) -> Iterator[Phase]:
    folder, size = _new_directory(place), 128 << 10
    names, data = [f"{folder}/{n:05}" for n in range(max(50, int(1000 * scale)))], os.urandom(size)
    yield "write", len(names), "files/s", spread(4, names, lambda path: write(path, data))
    random.shuffle(names)
    for state in ("the store", "the disk cache", "the kernel"):
        if state != "the kernel":
            place.remount(keep_cache=state == "the disk cache")
        took_s = spread(4, names, lambda path: read(path, size))
        yield f"epoch from {state}", len(names), "files/s", took_s
    shutil.rmtree(folder)


WORKLOADS = [
    Workload("metadata, 1 thread", "files and directories in one directory", metadata(1)),
    Workload("metadata, 8 threads", "the same by eight threads", metadata(8)),
    Workload("directory", "of 5000 files, listed after a new mount", listing),
    Workload("large file", "512 MiB in sequence, 1 MiB at a time", large_file),
    Workload("random reads", "in a file of 256 MiB that the disk cache holds", random_reads),
    Workload("small files", "1000 of 128 KiB by four threads", small_files),
]
