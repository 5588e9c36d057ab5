"""Which blocks are pushed to the kernel, and that nothing of before a change stays there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from juicepy.types import Buffer, Fh, Inode, SetAttr
from juicepy.vfs.pages import HITS, PIECE, SMALL, WINDOW, PageFiller, Scattered
from tests.support.waiting import wait_for
from tests.unit.vfs import volumes

BLOCK = 4 << 20
INO = Inode(7)


class FakeKernel:
    def __init__(self) -> None:
        self.stored: list[tuple[int, bytes]] = []
        self.dropped: list[tuple[int, int]] = []
        self.before_store: Callable[[], None] = lambda: None

    def store(self, ino: Inode, offset: int, data: Buffer) -> bool:
        assert ino == INO
        self.before_store()
        self.stored.append((offset, bytes(data)))
        return True

    def inval_inode(self, ino: Inode, offset: int = 0, length: int = 0) -> None:
        self.dropped.append((offset, length))


class FakeFile:
    ino = INO

    def __init__(self, data: bytes) -> None:
        self.data, self.length = data, len(data)
        self.content_epoch: int | None = 0

    def peek(self, offset: int, size: int) -> list[Buffer] | None:
        half = size // 2
        return [self.data[offset : offset + half], self.data[offset + half : offset + size]]


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


@pytest.fixture
def filler(kernel: FakeKernel) -> Iterator[PageFiller]:
    filler = PageFiller(kernel, BLOCK)
    yield filler
    filler.close()


def test_jumps_make_a_block_worth_pushing_once() -> None:
    scattered = Scattered(BLOCK)
    told = [scattered.note(at, 4096) for at in (0, 40960, 8192, 81920)]
    assert told == [None] * (HITS - 1) + [0, 0]
    assert scattered.done(0)
    assert not scattered.done(0)
    assert scattered.note(0, 4096) is None


def test_reads_in_sequence_and_large_ones_do_not_count() -> None:
    scattered = Scattered(BLOCK)
    assert {scattered.note(at, 4096) for at in range(0, BLOCK, 4096)} == {None}
    assert {scattered.note(at, SMALL + 1) for at in (0, BLOCK // 2, 0, BLOCK // 2)} == {None}


def test_a_file_too_large_for_its_reads_to_meet_is_left_alone() -> None:
    scattered = Scattered(BLOCK)
    for _ in range(HITS + 1):
        for index in range(WINDOW + 1):
            assert scattered.note(index * BLOCK, 4096) is None


def test_a_block_is_pushed_in_pieces_and_ends_with_the_file(
    filler: PageFiller, kernel: FakeKernel
) -> None:
    file = FakeFile(bytes(range(256)) * ((BLOCK + 3 * PIECE) // 256) + b"end")
    filler.want(file, 1)
    wait_for(lambda: sum(len(data) for _, data in kernel.stored) == 3 * PIECE + 3, "the push")
    assert b"".join(data for _, data in sorted(kernel.stored)) == file.data[BLOCK:]
    assert max(len(data) for _, data in kernel.stored) <= PIECE
    assert kernel.dropped == []


@pytest.mark.parametrize("epoch", [1, None])
def test_what_was_pushed_during_a_change_is_dropped(
    filler: PageFiller, kernel: FakeKernel, epoch: int | None
) -> None:
    file = FakeFile(bytes(BLOCK))

    def change() -> None:
        file.content_epoch = epoch

    kernel.before_store = change
    filler.want(file, 0)
    wait_for(lambda: kernel.dropped == [(0, BLOCK)], "the push")
    assert len(kernel.stored) == 1


def test_files_that_are_written_are_not_pushed(filler: PageFiller, kernel: FakeKernel) -> None:
    written, other = FakeFile(bytes(BLOCK)), FakeFile(b"x")
    written.content_epoch = None
    filler.want(written, 0)
    filler.want(other, 0)
    wait_for(lambda: bool(kernel.stored), "the push")
    filler.stop(INO)
    assert b"".join(data for _, data in kernel.stored) == b"x"


def test_stop_waits_for_the_push_under_way(filler: PageFiller, kernel: FakeKernel) -> None:
    file = FakeFile(bytes(BLOCK))
    begun, may_end, stopped = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert may_end.wait(30)

    kernel.before_store = hold
    filler.want(file, 0)
    assert begun.wait(30)
    filler.want(FakeFile(bytes(2 * BLOCK)), 1)  # still waits: it will not be pushed at all
    filler.stop(Inode(8))  # others' pushes are none of its business
    stopper = threading.Thread(target=lambda: (filler.stop(INO), stopped.set()))
    stopper.start()
    assert not stopped.wait(0.1)
    may_end.set()
    stopper.join(30)
    assert stopped.is_set()
    assert {offset // BLOCK for offset, _ in kernel.stored} == {0}


def test_a_failure_leaves_the_thread_alive(filler: PageFiller, kernel: FakeKernel) -> None:
    broken, good = FakeFile(bytes(BLOCK)), FakeFile(b"good")
    broken.peek = lambda offset, size: 1 / 0  # type: ignore[method-assign, assignment]
    filler.want(broken, 0)
    wait_for(lambda: filler._busy is None and not filler._queue, "the push")
    filler.want(good, 0)
    wait_for(lambda: bool(kernel.stored), "the push")


class SlowKernel(FakeKernel):
    """Takes pages only when `may_go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_go = threading.Event(), threading.Event()

    def store(self, ino: Inode, offset: int, data: Buffer) -> bool:
        self.begun.set()
        assert self.may_go.wait(30)
        self.stored.append((offset, bytes(data)))
        return True

    def inval_entry(self, parent: Inode, name: bytes) -> None: ...
    def renew_inode(self, ino: Inode, length: int, last: bytes = b"") -> None: ...


@pytest.mark.parametrize("change", ["open to write", "truncate"])
def test_a_change_waits_for_the_push_under_way(change: str) -> None:
    """Else the kernel would take the old bytes, or the old length, for newer ones."""
    kernel = SlowKernel()
    with volumes.opened() as vfs:
        vfs.init(kernel)
        ino, fh = volumes.create(vfs, b"f")
        volumes.write(vfs, ino, fh, 0, bytes(128 << 10))
        volumes.close(vfs, ino, fh)
        reader = vfs.open(volumes.ME, ino, os.O_RDONLY).fh
        for offset in (0, 40960, 8192, 61440, 16384):
            volumes.read(vfs, ino, reader, offset, 4096)
        assert kernel.begun.wait(30)

        def run() -> None:
            if change == "truncate":
                vfs.setattr(volumes.ME, ino, SetAttr(), 1000, None)
            else:
                opened.append(vfs.open(volumes.ME, ino, os.O_WRONLY).fh)

        opened: list[Fh] = []
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        kernel.may_go.set()
        thread.join(30)
        assert not thread.is_alive()
        stored = len(kernel.stored)
        for offset in (0, 512, 100, 700, 300):
            volumes.read(vfs, ino, reader, offset, 50)
        assert len(kernel.stored) == stored  # it is not pushed any more
        for handle in (reader, *opened):
            volumes.close(vfs, ino, handle)
