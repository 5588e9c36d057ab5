"""Writer and reader of one file against an array of bytes: random steps, failures, threads."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from juicepy.cache.memory import NoCache
from juicepy.chunk.compact import copy, plan
from juicepy.chunk.store import StoreOptions
from juicepy.types import CHUNK_SIZE, Slice
from tests.unit.vfs.fakes import FakeMeta, Stack, open_stack

BLOCK = 65536
# Around block and chunk borders, where mistakes live
PLACES = [0, 1, BLOCK - 1, BLOCK, 3 * BLOCK - 7, CHUNK_SIZE - BLOCK, CHUNK_SIZE - 3, CHUNK_SIZE]

steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "read", "flush", "advance", "compact"]),
        st.sampled_from(PLACES),
        st.integers(0, 300),
        st.sampled_from([1, 10, 100, 5000, BLOCK, 2 * BLOCK + 3]),
    ),
    max_size=40,
)


class Model:
    """What the file should hold, sparse: only bytes that were written."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.length = 0

    def write(self, offset: int, data: bytes) -> None:
        self.pieces.append((offset, data))
        self.length = max(self.length, offset + len(data))

    def read(self, offset: int, size: int) -> bytes:
        size = max(0, min(size, self.length - offset))
        seen = bytearray(size)
        for begin, data in self.pieces:
            first, last = max(begin, offset), min(begin + len(data), offset + size)
            if first < last:
                seen[first - offset : last - offset] = data[first - begin : last - begin]
        return bytes(seen)


@settings(max_examples=60)
@given(steps, st.sampled_from(["none", "lz4"]), st.integers(0, 1 << 30))
def test_reads_see_all_writes(
    plan: list[tuple[str, int, int, int]], compression: str, seed: int
) -> None:
    rng, model = random.Random(seed), Model()
    options = StoreOptions(buffer_size=4 * BLOCK, max_uploads=3, max_downloads=3)
    with open_stack(options=options, cache=NoCache(), compression=compression) as stack:
        for what, place, shift, size in plan:
            offset = place + shift
            if what == "write":
                data = rng.randbytes(size)
                model.write(offset, data)
                stack.writer.write(offset, memoryview(data))
            elif what == "read":
                assert stack.read(offset, size) == model.read(offset, size)
            elif what == "flush":
                stack.writer.flush()
                assert not stack.writer.has_dirty()
            elif what == "advance":
                stack.writer.advance(force=True)
            else:
                compact(stack, 0)
        stack.writer.flush()
        for place in PLACES:
            assert stack.read(place, 3 * BLOCK) == model.read(place, 3 * BLOCK)
        assert stack.meta.length == model.length
        assert stack.buffers.used_bytes() == 0
        assert named_blocks(stack) <= set(stack.storage.objects)


def compact(stack: Stack, index: int) -> None:
    """As the metadata client does it, with the old objects removed at once."""
    key = (stack.writer.ino, index)
    slices = stack.meta.slices(*key)
    found = plan(slices)
    if found is None:
        return
    new = stack.meta.new_slice()
    size = copy(stack.store, found.view, new)
    piece = Slice(found.pos, new, size, 0, size)
    stack.meta.replace(key, slices[: found.taken], [*slices[: found.skipped], piece])
    left = {kept.id for listed in stack.meta.lists.values() for kept in listed}
    for old in slices[found.skipped : found.taken]:
        if old.id and old.id not in left:
            stack.store.remove(old.id, old.size)


def named_blocks(stack: Stack) -> set[str]:
    layout = stack.store.layout
    return {
        layout.object_key(block)
        for listed in stack.meta.lists.values()
        for piece in listed
        if piece.id
        for block in layout.blocks(piece.id, piece.size)
    }


@pytest.mark.parametrize("seed", range(12))
def test_failures_lose_whole_writes_since_the_last_flush_and_say_so(seed: int) -> None:
    """After a reported failure the file is a prefix, in time, of what was written."""
    rng = random.Random(seed)
    with open_stack(options=StoreOptions(buffer_size=4 * BLOCK, max_uploads=3)) as stack:
        chance = rng.choice([0.0, 0.1, 0.3])

        def flaky(method: str, key: str = "") -> None:
            if method in ("put", "write") and rng.random() < chance:
                raise OSError(errno.EIO, "injected", key)

        stack.storage.before, stack.meta.before = flaky, flaky
        stored, pending, failures = Model(), list[tuple[int, bytes]](), 0
        for step in range(60):
            offset, size = rng.randrange(6 * BLOCK), rng.choice([10, 1000, BLOCK + 5])
            data = bytes([step + 1]) * size
            try:
                if rng.random() < 0.2:
                    stack.writer.flush()
                    for piece in pending:
                        stored.write(*piece)
                    pending = []
                else:
                    stack.writer.write(offset, memoryview(data))
                    pending.append((offset, data))
            except OSError as error:
                failures += error.errno == errno.EIO
                stored = settle(stack, stored, [*pending, (offset, data)])
                pending = []
        stack.storage.before, stack.meta.before = (lambda *_: None), (lambda *_: None)
        try:
            stack.writer.flush()
        except OSError:
            stored = settle(stack, stored, pending)
            pending = []
        for piece in pending:
            stored.write(*piece)
        assert stack.fresh() == stored.read(0, stored.length)
        assert stack.buffers.used_bytes() == 0
        assert (failures > 0) == (chance > 0)


def settle(stack: Stack, stored: Model, pending: list[tuple[int, bytes]]) -> Model:
    """The volume after a failure: each byte is what it was, or what some write since made it."""
    stack.storage.before, saved = (lambda *_: None), stack.storage.before
    content = stack.fresh()
    stack.storage.before = saved
    allowed: list[Callable[[int], int | None]] = []
    for offset, data in pending:
        allowed.append(
            lambda at, offset=offset, data=data: (  # type: ignore[misc]
                data[0] if offset <= at < offset + len(data) else None
            )
        )
    before = stored.read(0, len(content)).ljust(len(content), b"\0")
    for at in range(0, len(content), 97):
        values = {before[at]} | {found for f in allowed if (found := f(at)) is not None}
        assert content[at] in values
    settled = Model()
    settled.write(0, content)
    return settled


def test_many_threads_on_one_file_each_see_their_own_writes() -> None:
    size, rounds = 10_000, 40
    wrong: list[str] = []
    meta = FakeMeta()
    with open_stack(meta=meta, options=StoreOptions(buffer_size=16 * BLOCK)) as stack:

        def work(number: int) -> None:
            rng = random.Random(number)
            base = number * size
            mine = bytearray(size)
            stack.writer.write(base, memoryview(bytes(mine)))
            for _ in range(rounds):
                at, length = rng.randrange(size - 1), rng.randrange(1, 3000)
                data = rng.randbytes(min(length, size - at))
                mine[at : at + len(data)] = data
                stack.writer.write(base + at, memoryview(data))
                if stack.read(base, size) != mine:
                    wrong.append(f"thread {number}")
                    return

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong
        stack.writer.flush()
        assert stack.buffers.used_bytes() == 0
