"""The read buffer: what is dropped for whom."""

from __future__ import annotations

import pytest

from juicepy.chunk.recent import IDLE_S, RecentBlocks
from juicepy.memory import MemoryBudget
from juicepy.types import BlockKey, SliceId

SIZE = 100


class Buffer:
    """Blocks of `SIZE` bytes in a budget of ten; the clock is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.memory = MemoryBudget(10 * SIZE)
        self.recent = RecentBlocks(self.memory, lambda: self.now_s)

    def put(self, number: int) -> bool:
        """A block comes, if there is room for it."""
        if not (self.memory.take_coming(SIZE) and self.memory.keep(SIZE)):
            return False
        self.recent.put(BlockKey(SliceId(number), 0, SIZE), memoryview(bytes(SIZE)))
        return True

    def has(self, number: int) -> bool:
        return self.recent.get((SliceId(number), 0)) is not None

    def read(self, number: int, length: int = SIZE) -> None:
        found = self.recent.read((SliceId(number), 0), 0, length)
        assert found is not None
        assert len(found) == length


@pytest.fixture
def full() -> Buffer:
    buffer = Buffer()
    assert all(buffer.put(number) for number in range(10))
    return buffer


def test_blocks_that_nobody_has_read_yet_are_not_dropped_for_another(full: Buffer) -> None:
    full.read(0, SIZE - 1)
    assert not full.put(10)
    assert full.memory.stats().kept == 10 * SIZE


def test_a_block_that_was_read_to_the_end_makes_room(full: Buffer) -> None:
    full.read(4, 60)
    full.read(4, 40)
    assert full.put(10)
    assert not full.has(4)
    assert full.memory.stats().kept == 10 * SIZE


def test_of_the_unread_only_idle_ones_make_room_the_oldest_first(full: Buffer) -> None:
    full.now_s = IDLE_S
    full.read(0, 1)
    full.now_s = IDLE_S * 1.5
    assert full.put(10)
    assert full.has(0)
    assert not full.has(1)


def test_writers_get_the_memory_of_any_block(full: Buffer) -> None:
    full.memory.take(3 * SIZE, 5)
    assert full.recent.stats() == (7, 7 * SIZE)
    assert full.memory.stats().kept == 7 * SIZE


def test_blocks_that_were_read_to_the_end_have_a_share_only(full: Buffer) -> None:
    for number in range(10):
        full.read(number)
    assert full.recent.stats() == (2, 2 * SIZE)
    assert full.has(9)
    assert full.memory.stats().kept == 2 * SIZE


def test_what_is_put_twice_or_discarded_is_counted_right(full: Buffer) -> None:
    full.read(0)
    assert full.put(1)
    full.recent.discard(BlockKey(SliceId(2), 0, SIZE))
    assert full.memory.stats().kept == full.recent.stats()[1] == 8 * SIZE
    full.recent.clear()
    assert full.memory.stats().total == 0
