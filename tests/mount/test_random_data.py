"""Random reads and writes of one file against an array of bytes: what is read is what was written.

Two mounts take turns: when one has closed the file the other opens it. Many small writes make
compaction run meanwhile. `local` is a local directory: what fails there is a fault of the test.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mount.posix.conftest import open_home
from tests.mount.posix.ranges import BLOCK, CHUNK, KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, fallocate
from tests.support.chance import run_again, seeds, timeout_s
from tests.support.programs import OURS, Mount, discard
from tests.support.volumes import Volume, new_volume

TRASH_DAYS = {"redis": "1", "sqlite": "0"}
SECONDS = {"local": 2.0, "redis": 10.0, "sqlite": 10.0}
KEPT_SEEDS = [1]  # every seed that ever failed, and one so that there is one
STEPS = 150
PAGE = mmap.PAGESIZE
WINDOW = 1_500_000  # bytes that steps are about; below them the file is a hole
BASES = (0, 0, BLOCK - 170 * PAGE, CHUNK - 170 * PAGE)  # where the window begins
MODES = (0, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE)


@dataclass
class Place:
    """Directories that show the same files, one after the other."""

    paths: list[Path]
    remount: Callable[[int], None]
    alignment: int  # of direct reads and writes


@pytest.fixture(scope="module", params=["local", *TRASH_DAYS])
def place(request: pytest.FixtureRequest, new_meta_url: Callable[[str], str]) -> Iterator[Place]:
    with open_home() as home:
        if request.param == "local":
            yield Place([home, home], lambda number: None, PAGE)
            return
        volume = new_volume(new_meta_url(request.param), home / "volume")
        volume.format(OURS, "--trash-days", TRASH_DAYS[request.param])
        with _two_mounts(volume) as place:
            yield place


@contextlib.contextmanager
def _two_mounts(volume: Volume) -> Iterator[Place]:
    mounts: list[Mount] = []

    def remount(number: int) -> None:
        OURS.umount(mounts[number])
        mounts[number] = volume.mount(OURS, mounts[number].path)

    try:
        for _ in range(2):
            mounts.append(volume.mount(OURS, volume.place(OURS)))
        yield Place([mount.path for mount in mounts], remount, 1)
        for mount in mounts:
            OURS.umount(mount)
    finally:
        for mount in mounts:
            discard(mount)


class Run:
    """The steps of one seed. `data` is what the file should hold from `base` on."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place = place
        self.chance = random.Random(seed)
        self.name = f"file{seed}"
        self.base = self.chance.choice(BASES)
        self.data = bytearray()
        self.turn = 0
        self.log: list[tuple[str, int, int]] = []  # what was done to which bytes
        self.fds: list[int] = []
        os.close(os.open(place.paths[0] / self.name, os.O_CREAT | os.O_EXCL))
        os.truncate(place.paths[0] / self.name, self.base)
        self.open()

    def go(self) -> None:
        steps = [self.write] * 4 + [self.read] * 4 + [self.burst, self.map_read, self.truncate]
        steps += [self.map_write, self.fallocate, self.copy, self.sync, self.reopen] * 2
        try:
            for _ in range(STEPS):
                self.chance.choice(steps)()
            self.reopen()
            assert self.get(0, self.base) == bytes(self.base), "the hole below the window"
        finally:
            self.close()
            os.unlink(self.place.paths[0] / self.name)

    # -- opening
    def open(self) -> None:
        """Twice: once with the page cache, once somehow."""
        path = self.place.paths[self.turn % len(self.place.paths)] / self.name
        for flags in (0, self.chance.choice((0, os.O_DIRECT, os.O_SYNC))):
            self.fds.append(os.open(path, os.O_RDWR | flags))
        self.note("open", self.base, 0)

    def close(self) -> None:
        while self.fds:
            os.close(self.fds.pop())

    def reopen(self) -> None:
        self.close()
        if self.chance.random() < 0.5:
            self.turn += 1
        self.open()
        self.check(self.base, WINDOW)

    def sync(self) -> None:
        os.fsync(self.chance.choice(self.fds))

    # -- choices
    def span(self) -> tuple[int, int]:
        """(offset, size) of which the lower sizes are as likely as the higher."""
        offset = self.base + self.chance.randrange(WINDOW)
        return offset, int(2 ** self.chance.uniform(0, 18))

    def within(self, offset: int, size: int) -> int:
        """How many of the bytes there are."""
        return max(0, min(size, self.base + len(self.data) - offset))

    def note(self, what: str, offset: int, size: int) -> None:
        self.log.append((f"{what} (mount {self.turn % 2})", offset, size))

    # -- writing
    def write(self) -> None:
        self.put(*self.span())

    def burst(self) -> None:
        """Small writes, each a slice of its own if it is not next to another."""
        fd = self.fds[0]
        for number in range(self.chance.randrange(120)):
            offset, data = self.span()[0], self.chance.randbytes(self.chance.randrange(1, 60))
            assert os.pwrite(fd, data, offset) == len(data)
            self.written("small write", offset, data)
            if number % 40 == 20:
                os.fsync(fd)

    def put(self, offset: int, size: int) -> None:
        fd = self.chance.choice(self.fds)
        if is_direct(fd):
            offset -= offset % self.place.alignment
            size += -size % self.place.alignment
        with mmap.mmap(-1, size) as buffer:  # at the border of a page, as O_DIRECT asks for
            data = self.chance.randbytes(size)
            buffer[:] = data
            assert os.pwrite(fd, buffer, offset) == size
        self.written("direct write" if is_direct(fd) else "write", offset, data)

    def written(self, what: str, offset: int, data: bytes) -> None:
        self.note(what, offset, len(data))
        begin = offset - self.base
        self.grow(begin)
        self.data[begin : begin + len(data)] = data

    def grow(self, length: int) -> None:
        self.data += bytes(max(0, length - len(self.data)))

    def map_write(self) -> None:
        offset, size = self.span()
        size = self.within(offset, size)
        if not size:
            return
        data, begin = self.chance.randbytes(size), offset % PAGE
        fd = self.fds[0]
        with mmap.mmap(fd, begin + size, offset=offset - begin) as view:
            view[begin:] = data
            if self.chance.random() < 0.5:
                view.flush()
        self.written("mapped write", offset, data)

    def truncate(self) -> None:
        length = self.chance.randrange(WINDOW)
        os.ftruncate(self.chance.choice(self.fds), self.base + length)
        self.note("truncate", self.base + length, WINDOW)
        del self.data[length:]
        self.grow(length)

    def fallocate(self) -> None:
        offset, size = self.span()
        mode = self.chance.choice(MODES)
        fallocate(self.chance.choice(self.fds), mode, offset, size)
        self.note(f"fallocate {mode}", offset, size)
        begin = offset - self.base
        if not mode & KEEP_SIZE:
            self.grow(begin + size)
        if mode & (PUNCH_HOLE | ZERO_RANGE):
            cleared = self.within(offset, size)
            self.data[begin : begin + cleared] = bytes(cleared)

    def copy(self) -> None:
        source, size = self.span()
        target = self.span()[0]
        size = min(self.within(source, size), abs(source - target))
        fd = self.fds[0]
        done = 0
        while done < size:
            copied = os.copy_file_range(fd, fd, size - done, source + done, target + done)
            assert copied > 0, self.story(target + done)
            done += copied
        if size:
            begin = source - self.base
            self.written(f"copy from {source}", target, bytes(self.data[begin : begin + size]))

    # -- reading
    def read(self) -> None:
        self.check(*self.span())

    def map_read(self) -> None:
        offset, size = self.span()
        size = self.within(offset, size)
        if size:
            begin = offset % PAGE
            with mmap.mmap(
                self.fds[0], begin + size, prot=mmap.PROT_READ, offset=offset - begin
            ) as view:
                self.compare("mapped", offset, view[begin:], size)

    def check(self, offset: int, size: int) -> None:
        fd = self.chance.choice(self.fds)
        if is_direct(fd):
            offset -= offset % self.place.alignment
            size += -size % self.place.alignment
        self.compare(
            "direct" if is_direct(fd) else "plain", offset, self.get_by(fd, offset, size), size
        )
        assert os.fstat(fd).st_size == self.base + len(self.data), self.story(offset)

    def get(self, offset: int, size: int) -> bytes:
        return self.get_by(self.fds[0], offset, size)

    def get_by(self, fd: int, offset: int, size: int) -> bytes:
        with mmap.mmap(-1, max(size, 1)) as buffer:
            return buffer[: os.preadv(fd, [buffer], offset)][:size]

    def compare(self, how: str, offset: int, found: bytes, size: int) -> None:
        begin = offset - self.base
        expected = bytes(self.data[begin : begin + size])
        if found == expected:
            return
        pairs = zip(found, expected, strict=False)
        first = next(
            (n for n, (a, b) in enumerate(pairs) if a != b), min(len(found), len(expected))
        )
        raise AssertionError(
            f"{how} read of {size} at {offset}: {len(found)} bytes, not {len(expected)};"
            f" at {offset + first}: {found[first : first + 16]!r},"
            f" not {expected[first : first + 16]!r}\n{self.story(offset + first)}"
        )

    def story(self, offset: int) -> str:
        """The last steps, and of the earlier ones those about the byte at `offset`."""
        lines = [
            f"  {number:5} {what} at {begin}, {size} bytes"
            for number, (what, begin, size) in enumerate(self.log)
            if number > len(self.log) - 12 or begin <= offset < begin + size
        ]
        return f"base {self.base}, length {self.base + len(self.data)}\n" + "\n".join(lines[-40:])


def is_direct(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


def compactions(place: Place) -> float:
    """How many there were by the mounts that are there now."""
    total = 0.0
    for path in place.paths:
        if (path / ".stats").exists():
            for line in (path / ".stats").read_text().splitlines():
                if line.startswith("juicefs_compact_size_histogram_bytes_total "):
                    total += float(line.split()[1])
    return total


@pytest.mark.parametrize("seed", KEPT_SEEDS)
def test_what_once_failed(place: Place, seed: int) -> None:
    Run(place, seed).go()


@pytest.mark.long
@pytest.mark.timeout(timeout_s(max(SECONDS.values())))
def test_random_data(place: Place, request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params["place"]
    for count, seed in enumerate(seeds(SECONDS[kind]), 1):
        try:
            Run(place, seed).go()
        except BaseException as error:
            error.add_note(run_again(request.node.nodeid, seed))
            raise
        if count % 8 == 0:
            place.remount(count // 8 % 2)
    print(f"{count} seeds of {STEPS} steps, {compactions(place):.0f} compactions")
