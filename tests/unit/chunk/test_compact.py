"""Which slices are merged, and that the copy shows what they showed."""

from __future__ import annotations

import errno

import pytest

from juicepy.cache.memory import NoCache
from juicepy.chunk.compact import Plan, copy, plan
from juicepy.chunk.layout import Layout
from juicepy.chunk.overlay import hole
from juicepy.chunk.store import BlockStore, StoreOptions
from juicepy.types import Slice, SliceId
from tests.unit.chunk.fakes import FaultyStorage, failing

MiB = 1 << 20
BLOCK = 65536


def whole(pos: int, number: int, length: int) -> Slice:
    return Slice(pos, SliceId(number), length, 0, length)


def test_short_lists_are_left() -> None:
    assert plan([]) is None
    assert plan([whole(0, 1, 10)]) is None


def test_small_slices_are_merged() -> None:
    slices = [whole(0, 1, 10), whole(10, 2, 10)]
    assert plan(slices) == Plan(0, 2, tuple(slices))


def test_big_slice_at_the_front_stays() -> None:
    slices = [whole(0, 1, 8 * MiB), whole(8 * MiB, 2, 10), whole(8 * MiB + 10, 3, 10)]
    found = plan(slices)
    assert found is not None
    assert (found.skipped, found.taken, found.pos, found.size) == (1, 3, 8 * MiB, 20)


@pytest.mark.parametrize(
    "slices",
    [
        [whole(0, 1, 8 * MiB), whole(5, 2, 10), whole(100, 3, 10)],  # overwritten
        [whole(0, 1, MiB - 1), whole(MiB, 2, 10), whole(2 * MiB, 3, 10)],  # not big
        [whole(0, 1, MiB), whole(MiB, 2, 5 * MiB), whole(6 * MiB, 3, 10)],  # a small part of all
        [whole(0, 1, MiB), whole(MiB, 2, 10), whole(0, 1, MiB)],  # the same again
    ],
)
def test_other_slices_at_the_front_are_merged(slices: list[Slice]) -> None:
    found = plan(slices)
    assert found is not None
    assert found.skipped == 0


def test_big_slices_alone_are_left() -> None:
    assert plan([whole(0, 1, 4 * MiB), whole(4 * MiB, 2, 4 * MiB)]) is None


def test_holes_at_the_ends_are_cut_off() -> None:
    slices = [hole(0, 100), whole(100, 1, 10), whole(110, 2, 10), hole(115, 100)]
    found = plan(slices)
    assert found is not None
    assert (found.pos, found.size) == (100, 15)


def test_nothing_but_holes_becomes_one_byte() -> None:
    found = plan([whole(5, 1, 10), hole(0, 100)])
    assert found is not None
    assert (found.skipped, found.view) == (0, (hole(0, 1),))


def test_at_most_a_thousand_records_are_taken() -> None:
    found = plan([whole(number * 10, number + 1, 10) for number in range(1200)])
    assert found is not None
    assert found.taken == 1000


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage()


@pytest.fixture
def store(storage: FaultyStorage) -> BlockStore:
    return BlockStore(storage, NoCache(), Layout(BLOCK), "lz4", StoreOptions(max_uploads=2))


def put(store: BlockStore, number: int, content: bytes) -> None:
    for block in store.layout.blocks(SliceId(number), len(content)):
        start = block.index * BLOCK
        store.put(block, content[start : start + block.size])


def test_copy_is_what_the_view_showed(store: BlockStore) -> None:
    put(store, 1, b"a" * 200_000)
    put(store, 2, b"b" * 50_000)
    slices = (whole(10, 1, 200_000), whole(30_010, 2, 50_000), hole(60_010, 100))
    found = plan(slices)
    assert found is not None
    assert (found.skipped, found.taken, found.pos, found.size) == (0, 3, 10, 200_000)
    assert copy(store, found.view, SliceId(9)) == 200_000
    content = b"".join(store.read(SliceId(9), 200_000, 0, 200_000))
    expected = bytearray(b"a" * 200_000)
    expected[30_000:80_000] = b"b" * 50_000
    expected[60_000:60_100] = bytes(100)
    assert content == expected
    store.close()


def test_failed_copy_leaves_no_objects(store: BlockStore, storage: FaultyStorage) -> None:
    put(store, 1, b"a" * 200_000)
    before = set(storage.objects)
    storage.before = lambda method, key: failing("put")(method, key) if "9_2_" in key else None
    with pytest.raises(OSError) as caught:
        copy(store, [whole(0, 1, 200_000)], SliceId(9))
    assert caught.value.errno == errno.EIO
    assert set(storage.objects) == before
    store.close()
