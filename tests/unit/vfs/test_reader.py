"""Reading: the view of a chunk, invalidation, lost blocks, and reading ahead."""

from __future__ import annotations

import errno
import random
import threading
import time
from itertools import pairwise

import pytest

from juicepy.cache.memory import NoCache
from juicepy.chunk.store import StoreOptions
from juicepy.types import CHUNK_SIZE, Slice, SliceId
from juicepy.vfs.streams import STREAMS, Streams
from tests.unit.vfs.fakes import INO, Stack, open_stack

BLOCK = 65536


def put_slice(stack: Stack, number: int, content: bytes, pos: int = 0, index: int = 0) -> None:
    """A committed slice, without the writer."""
    for block in stack.store.layout.blocks(SliceId(number), len(content)):
        start = block.index * BLOCK
        stack.storage.objects[stack.store.layout.object_key(block)] = content[
            start : start + block.size
        ]
    piece = Slice(pos, SliceId(number), len(content), 0, len(content))
    stack.meta.write(INO, index, piece, 0)


def gets(stack: Stack) -> list[tuple[str, int, int | None]]:
    return [call[1:] for call in stack.storage.calls if call[0] == "get"]


def wait_for(claim, timeout_s: float = 20.0) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.01)


def test_reads_stop_at_the_end_of_the_file() -> None:
    with open_stack() as stack:
        put_slice(stack, 1, b"hello")
        assert stack.read(3, 100) == b"lo"
        assert stack.read(5, 100) == b""
        assert stack.read(500, 1) == b""


def test_ranges_without_slices_are_zeros() -> None:
    with open_stack() as stack:
        put_slice(stack, 1, b"hello", pos=10)
        put_slice(stack, 2, b"world", pos=3, index=2)
        assert stack.read(0, 20) == bytes(10) + b"hello" + bytes(5)
        assert stack.read(2 * CHUNK_SIZE - 2, 20) == bytes(5) + b"world"
        assert stack.read(CHUNK_SIZE - 3, 3 << 20) == bytes(3 << 20)


def test_cached_blocks_are_handed_out_without_a_copy() -> None:
    with open_stack() as stack:
        put_slice(stack, 1, b"hello")
        first, second = (stack.reader.read(0, 5, 5)[0] for _ in range(2))
        assert isinstance(first, memoryview)
        assert isinstance(second, memoryview)
        assert first.obj is second.obj
        assert first.readonly


def test_slices_are_asked_for_once_until_invalidated() -> None:
    with open_stack() as stack:
        asked: list[str] = []
        put_slice(stack, 1, b"aaaa")
        stack.meta.before = asked.append
        for _ in range(3):
            assert stack.read(0, 4) == b"aaaa"
        assert asked == ["slices"]
        put_slice(stack, 2, b"bb", pos=1)
        stack.reader.invalidate(1, 2)
        assert stack.read(0, 4) == b"abba"
        put_slice(stack, 3, b"cc", pos=1)
        stack.reader.invalidate_all()
        assert stack.read(0, 4) == b"acca"


def test_invalidation_during_a_lookup_is_not_lost() -> None:
    with open_stack() as stack:
        put_slice(stack, 1, b"aaaa")

        def overtake(method: str) -> None:
            if method == "slices":
                stack.meta.before = lambda _: None
                stack.reader.invalidate(0, 4)

        stack.meta.before = overtake
        stack.read(0, 4)
        put_slice(stack, 2, b"bbbb")
        assert stack.read(0, 4) == b"bbbb"


def test_invalidate_of_a_huge_range_is_quick() -> None:
    with open_stack() as stack:
        put_slice(stack, 1, b"aaaa")
        stack.read(0, 4)
        stack.reader.invalidate(0, 1 << 56)
        put_slice(stack, 2, b"bbbb")
        assert stack.read(0, 4) == b"bbbb"


def test_lost_block_is_eio() -> None:
    with open_stack() as stack:
        put_slice(stack, 1, b"hello")
        stack.storage.objects.clear()
        with pytest.raises(OSError) as caught:
            stack.read(0, 5)
        assert caught.value.errno == errno.EIO


def test_compaction_meanwhile_is_noticed() -> None:
    with open_stack() as stack:
        put_slice(stack, 1, b"aaaa")
        assert stack.read(0, 4) == b"aaaa"
        stack.store.drop_cached(stack.store.layout.block(SliceId(1), 4, 0))
        stack.storage.objects.clear()
        stack.meta.lists.clear()
        put_slice(stack, 9, b"aaaa")
        assert stack.read(0, 4) == b"aaaa"


def test_sequential_reads_fetch_ahead_and_random_ones_do_not() -> None:
    with open_stack() as stack:
        content = bytes(range(256)) * (16 * BLOCK // 256)
        put_slice(stack, 1, content)
        assert stack.read(0, 4096) == content[:4096]
        assert len(gets(stack)) == 1
        assert stack.read(4096, 4096) == content[4096:8192]
        wait_for(lambda: len(gets(stack)) >= 2)
        assert gets(stack)[1][0].endswith(f"_1_{BLOCK}")
        for at in range(8192, len(content), 4096):
            assert stack.read(at, 4096) == content[at : at + 4096]
        assert len(gets(stack)) == 16
        assert all(size is None for _, _, size in gets(stack))


def test_small_reads_inside_a_block_get_their_ranges_and_after_many_the_block_follows() -> None:
    with open_stack() as stack:
        content = bytes(range(256)) * (4 * BLOCK // 256)
        put_slice(stack, 1, content)
        block = stack.store.layout.block(SliceId(1), len(content), 2)
        name = f"chunks/0/0/1_2_{BLOCK}"
        for number in range(8):
            assert not stack.store.contains(block)
            at = 2 * BLOCK + 4096 + 7000 * number
            assert stack.read(at, 100) == content[at : at + 100]
            assert gets(stack)[number] == (name, at - 2 * BLOCK, 100)
        wait_for(lambda: stack.store.contains(block))
        assert gets(stack)[8:] == [(name, 0, None)]
        assert stack.read(2 * BLOCK + 8192, 100) == content[:100]
        assert len(gets(stack)) == 9


def test_without_prefetch_a_small_read_stays_small() -> None:
    options = StoreOptions(buffer_size=8 << 20, prefetch=0)
    with open_stack(options=options) as stack:
        put_slice(stack, 1, bytes(BLOCK))
        stack.read(4096, 100)
        stack.read(4096, 100)
        assert gets(stack) == [(f"chunks/0/0/1_0_{BLOCK}", 4096, 100)] * 2


def test_compressed_blocks_are_always_fetched_whole() -> None:
    with open_stack(compression="zstd") as stack:
        stack.writer.write(0, memoryview(bytes(BLOCK)))
        stack.writer.flush()
        assert stack.read(4096, 100) == bytes(100)
        assert gets(stack) == [(f"chunks/0/0/1_0_{BLOCK}", 0, None)]


def test_readers_of_one_block_share_one_get() -> None:
    with open_stack(cache=NoCache()) as stack:
        put_slice(stack, 1, b"x" * BLOCK)
        gate = threading.Event()
        stack.storage.before = lambda *_: gate.wait(20) and None
        results: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: results.append(stack.read(0, BLOCK))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        wait_for(lambda: gets(stack))
        gate.set()
        for thread in threads:
            thread.join(20)
        assert results == [b"x" * BLOCK] * 8
        assert len(gets(stack)) == 1


def test_blocks_of_one_read_are_fetched_at_the_same_time() -> None:
    with open_stack() as stack:
        put_slice(stack, 1, b"x" * 4 * BLOCK)
        meeting = threading.Barrier(4, timeout=20)
        stack.storage.before = lambda *_: meeting.wait() and None
        assert stack.read(0, 4 * BLOCK) == b"x" * 4 * BLOCK


def test_failed_read_leaves_nothing_behind() -> None:
    with open_stack() as stack:
        put_slice(stack, 1, b"x" * BLOCK)

        def fail(method: str, key: str) -> None:
            raise OSError(errno.EACCES, "forbidden", key)

        stack.storage.before = fail
        with pytest.raises(OSError) as caught:
            stack.read(0, BLOCK)
        assert caught.value.errno == errno.EIO
        stack.storage.before = lambda *_: None
        assert stack.read(0, BLOCK) == b"x" * BLOCK


def test_short_object_is_eio_never_zeros() -> None:
    with open_stack() as stack:
        put_slice(stack, 1, b"x" * BLOCK)
        stack.storage.objects[f"chunks/0/0/1_0_{BLOCK}"] = b"x" * 5000
        for offset, size in ((0, BLOCK), (4096, 4096)):
            with pytest.raises(OSError) as caught:
                stack.read(offset, size)
            assert caught.value.errno == errno.EIO


def test_read_ahead_stays_within_the_buffer() -> None:
    options = StoreOptions(buffer_size=8 * BLOCK, readahead=64 * BLOCK)
    with open_stack(options=options, cache=NoCache()) as stack:
        content = b"y" * 64 * BLOCK
        put_slice(stack, 1, content)
        highest = 0
        for at in range(0, len(content), 8192):
            assert stack.read(at, 8192) == content[at : at + 8192]
            highest = max(highest, stack.store.buffered_bytes())
        assert highest <= 9 * BLOCK


def test_read_ahead_that_found_no_room_goes_on_later() -> None:
    options = StoreOptions(buffer_size=4 * BLOCK, readahead=16 * BLOCK, max_downloads=4)
    with open_stack(options=options, cache=NoCache()) as stack:
        content = bytes(range(256)) * (32 * BLOCK // 256)
        put_slice(stack, 1, content)
        for at in range(0, len(content), 8192):
            assert stack.read(at, 8192) == content[at : at + 8192]
        asked = sum(BLOCK if size is None else size for _, _, size in gets(stack))
        assert asked <= 1.3 * len(content)


@pytest.mark.parametrize(("widest", "least", "most"), [(2, 1, 4), (32, 6, 34)])
def test_a_stream_that_waits_for_its_blocks_gets_a_wider_window(
    widest: int, least: int, most: int
) -> None:
    options = StoreOptions(buffer_size=512 * BLOCK, max_downloads=32)
    with open_stack(options=options, cache=NoCache()) as stack:
        stack.reader._streams = Streams(BLOCK, 2 * BLOCK, widest * BLOCK)
        content = b"z" * (128 * BLOCK)
        put_slice(stack, 1, content)
        stack.storage.before = lambda *_: time.sleep(0.01)
        at_once = 0
        for at in range(0, len(content), BLOCK // 2):
            stack.read(at, BLOCK // 2)
            at_once = max(at_once, stack.store.stats().fetching)
        assert least <= at_once <= most


@pytest.mark.parametrize("streams", [2, 4, 24])
def test_interleaved_streams_of_one_file_read_each_byte_about_once(streams: int) -> None:
    """What exceeds it is the window that each has open when it comes to the end of its region."""
    options = StoreOptions(buffer_size=16 << 20, max_downloads=8, readahead=2 * BLOCK)
    with open_stack(options=options, cache=NoCache()) as stack:
        region = 24 * BLOCK
        content = bytes(range(256)) * (streams * region // 256)
        put_slice(stack, 1, content)
        for step in range(0, region, 16384):
            for number in range(streams):
                at = number * region + step
                assert stack.read(at, 16384) == content[at : at + 16384]
        asked = sum(BLOCK if size is None else size for _, _, size in gets(stack))
        assert asked <= len(content) + streams * 3 * BLOCK


def test_random_small_reads_fetch_no_whole_blocks() -> None:
    chance = random.Random(4)
    blocks, pages = range(400), range(1, 16, 2)  # none continues another
    with open_stack(cache=NoCache()) as stack:
        content = bytes(range(256)) * (len(blocks) * BLOCK // 256)
        put_slice(stack, 1, content)
        places = [chance.choice(blocks) * BLOCK + chance.choice(pages) * 4096 for _ in range(300)]
        for at in places:
            assert stack.read(at, 4096) == content[at : at + 4096]
        assert [size for _, _, size in gets(stack)] == [4096] * len(places)


def test_several_streams_each_have_their_window() -> None:
    streams = Streams(BLOCK, 8 * BLOCK)
    bases = [number << 30 for number in range(40)]
    for base in bases:
        assert streams.note(base, 4096) is None
    for base in bases:
        assert asked(streams, base + 4096, 4096) == (base + 8192, base + 8192 + BLOCK)


def test_only_so_many_streams_are_remembered() -> None:
    streams = Streams(BLOCK, 8 * BLOCK)
    for number in range(10 * STREAMS):
        assert streams.note(number << 30, 4096) is None
    assert asked(streams, 4096, 4096) is None
    assert asked(streams, ((10 * STREAMS - 1) << 30) + 4096, 4096) is not None


def test_window_grows_with_what_was_read_up_to_its_bound() -> None:
    streams = Streams(BLOCK, 4 * BLOCK)
    found = [each for at in range(0, 64 * BLOCK, 8192) if (each := asked(streams, at, 8192))]
    assert all(left[1] == right[0] for left, right in pairwise(found))
    assert found[-1][1] - 64 * BLOCK <= 4 * BLOCK
    assert max(end - begin for begin, end in found) <= 4 * BLOCK


def asked(streams: Streams, offset: int, size: int) -> tuple[int, int] | None:
    """The range that is to be fetched ahead for a read."""
    found = streams.note(offset, size)
    return found and found[1:]


def test_requests_out_of_order_are_one_stream() -> None:
    streams = Streams(4 << 20, 32 << 20)
    size = 128 << 10
    order = [0, 2, 1, 4, 3, 6, 5, 7]
    found = [streams.note(number * size, size) for number in order]
    assert sum(1 for ahead in found if ahead) == 1


def test_random_reads_start_no_stream() -> None:
    streams = Streams(4 << 20, 32 << 20)
    places = [(7919 * number % 1009) << 24 for number in range(200)]
    assert all(streams.note(place, 4096) is None for place in places)
