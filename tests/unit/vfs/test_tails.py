"""Memory of blocks: used again, but never while anybody may read it."""

from __future__ import annotations

import random

from juicepy.vfs.tails import ROOMS, SMALL, BlockRoom, Tail

SIZE = 4 * SMALL


def test_tail_holds_what_was_written() -> None:
    chance, pool = random.Random(1), BlockRoom(SIZE)
    for _ in range(20):
        tail, expected = Tail(pool), bytearray()
        while len(expected) < SIZE and chance.random() < 0.9:
            at = chance.choice((len(expected), chance.randint(0, len(expected))))
            data = chance.randbytes(min(chance.choice((1, 5000, SMALL, SIZE)), SIZE - at))
            expected[at : at + len(data)] = data
            tail.put(at, memoryview(data))
            assert len(tail) == len(expected)
        assert bytes(tail.data()) == expected
        tail.release()


def filled(pool: BlockRoom, byte: bytes) -> Tail:
    tail = Tail(pool)
    tail.put(0, memoryview(byte * SIZE))
    return tail


def test_room_is_used_again() -> None:
    pool = BlockRoom(SIZE)
    room = pool.take()
    assert room is not None
    number, holder = id(room), [room]
    del room
    pool.give(holder)
    assert id(pool.take()) == number


def test_room_that_somebody_reads_is_not_used_again() -> None:
    """A cache that keeps the block, or an upload that was given up and goes on."""
    pool = BlockRoom(SIZE)
    for _ in range(3 * ROOMS):
        tail = filled(pool, b"a")
        kept = memoryview(tail.data())[5:10]
        tail.release()
        others = [filled(pool, b"b") for _ in range(ROOMS + 1)]
        assert bytes(kept) == b"aaaaa"
        for other in others:
            other.release()


def test_there_are_so_many_rooms_and_no_more() -> None:
    pool = BlockRoom(SIZE)
    for _ in range(3):
        tails = [filled(pool, b"a") for _ in range(3 * ROOMS)]
        assert all(bytes(tail.data()) == b"a" * SIZE for tail in tails)
        for tail in tails:
            tail.release()
        assert len(pool._free) == ROOMS
    pool.clear()
    taken = [pool.take() for _ in range(ROOMS + 1)]
    assert taken[-1] is None
    assert None not in taken[:-1]


def test_small_blocks_take_no_room() -> None:
    pool = BlockRoom(SIZE)
    tail = Tail(pool)
    tail.put(0, memoryview(b"x" * SMALL))
    tail.release()
    assert pool._free == []
    assert len(tail) == 0
