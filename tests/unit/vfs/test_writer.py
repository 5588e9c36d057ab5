"""Writing: what is committed, when, in which order, and what becomes of failures."""

from __future__ import annotations

import errno
import random
import threading
import time

import pytest

from juicepy.chunk.store import StoreOptions
from juicepy.types import CHUNK_SIZE
from tests.unit.chunk.fakes import failing
from tests.unit.vfs.fakes import open_stack

BLOCK = 65536


def data_of(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def wait_for(claim, timeout_s: float = 20.0) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.01)


def test_small_file_is_one_object_and_one_record_without_other_threads() -> None:
    with open_stack() as stack:
        callers = set()
        stack.storage.before = lambda *_: callers.add(threading.get_ident())
        stack.writer.write(0, memoryview(b"hello"))
        assert stack.writer.length == 5
        stack.writer.flush()
        assert stack.storage.objects == {"chunks/0/0/1_0_5": b"hello"}
        assert [piece.length for _, piece, _ in stack.meta.commits] == [5]
        assert callers == {threading.get_ident()}
        assert not stack.writer.has_dirty()
        assert stack.writer.length == 0


def test_flush_of_a_clean_file_asks_nobody() -> None:
    with open_stack() as stack:
        stack.writer.flush()
        assert stack.storage.calls == []


def test_sequential_writes_become_one_slice_of_full_blocks() -> None:
    with open_stack() as stack:
        content = data_of(5 * BLOCK + 100)
        for at in range(0, len(content), 10_000):
            stack.writer.write(at, memoryview(content)[at : at + 10_000])
        stack.writer.flush()
        assert len(stack.meta.commits) == 1
        assert stack.meta.commits[0][1].size == len(content)
        assert stack.fresh() == content


def test_full_block_is_uploaded_before_any_flush() -> None:
    with open_stack() as stack:
        stack.writer.write(0, memoryview(bytes(BLOCK + 1)))
        wait_for(lambda: stack.storage.objects)
        assert list(stack.storage.objects) == [f"chunks/0/0/1_0_{BLOCK}"]
        assert stack.meta.commits == []


def test_the_callers_buffer_may_change_after_the_write() -> None:
    with open_stack() as stack:
        buffer = bytearray(b"a" * 2 * BLOCK)
        stack.writer.write(0, memoryview(buffer))
        buffer[:] = b"b" * len(buffer)
        stack.writer.flush()
        assert stack.fresh() == b"a" * 2 * BLOCK


def test_write_across_a_chunk_boundary_makes_two_slices() -> None:
    with open_stack() as stack:
        stack.writer.write(CHUNK_SIZE - 3, memoryview(b"abcdef"))
        stack.writer.flush()
        assert [(index, piece.pos, piece.length) for index, piece, _ in stack.meta.commits] == [
            (0, CHUNK_SIZE - 3, 3),
            (1, 0, 3),
        ]
        assert stack.read(CHUNK_SIZE - 4, 10) == b"\0abcdef"


def test_overwriting_unsent_bytes_changes_them_in_place() -> None:
    with open_stack() as stack:
        stack.writer.write(0, memoryview(b"aaaa"))
        stack.writer.write(1, memoryview(b"bb"))
        stack.writer.write(3, memoryview(b"cccc"))
        stack.writer.flush()
        assert len(stack.meta.commits) == 1
        assert stack.fresh() == b"abbcccc"


def test_overwriting_sent_bytes_starts_a_slice_that_wins() -> None:
    with open_stack() as stack:
        stack.writer.write(0, memoryview(b"a" * BLOCK * 2))
        stack.writer.write(10, memoryview(b"b" * 10))
        stack.writer.flush()
        assert len(stack.meta.commits) == 2
        assert stack.fresh() == b"a" * 10 + b"b" * 10 + b"a" * (BLOCK * 2 - 20)


def test_older_slice_is_not_extended_under_a_newer_one() -> None:
    with open_stack() as stack:
        stack.writer.write(0, memoryview(b"a" * 10))
        stack.writer.write(15, memoryview(b"b" * 10))
        stack.writer.write(10, memoryview(b"c" * 10))  # touches both, must be seen over b
        stack.writer.flush()
        assert stack.fresh() == b"a" * 10 + b"c" * 10 + b"b" * 5


def test_streams_in_one_chunk_keep_a_slice_each() -> None:
    with open_stack() as stack:
        for step in range(10):
            for stream in range(4):
                stack.writer.write((stream << 20) + step * 100, memoryview(bytes([stream]) * 100))
        stack.writer.flush()
        assert len(stack.meta.commits) == 4


def test_idle_data_is_committed_without_a_flush() -> None:
    with open_stack() as stack:
        stack.writer.write(0, memoryview(b"hello"))
        wait_for(lambda: stack.meta.commits)
        wait_for(lambda: not stack.writer.has_dirty())
        stack.writer.flush()
        assert len(stack.meta.commits) == 1


def test_mtime_of_a_record_is_the_time_of_the_last_write() -> None:
    with open_stack() as stack:
        stack.writer.write(0, memoryview(b"a"))
        before = time.time_ns()
        stack.writer.write(1, memoryview(b"b"))
        after = time.time_ns()
        stack.writer.flush()
        assert before <= stack.meta.commits[0][2] <= after


def test_reader_is_told_before_the_data_stops_being_dirty() -> None:
    with open_stack() as stack:
        stack.writer.write(0, memoryview(b"old!"))
        assert stack.read(0, 4) == b"old!"
        stack.writer.write(0, memoryview(b"new!"))
        assert stack.writer.has_dirty(3, 1)
        assert not stack.writer.has_dirty(4, 1)
        assert stack.read(0, 4) == b"new!"
        assert stack.seen == [(0, 4), (0, 4)]


@pytest.mark.parametrize("method", ["put", "write"])
def test_failure_is_reported_once_and_nothing_of_it_is_committed(method: str) -> None:
    with open_stack() as stack:
        stack.writer.write(0, memoryview(b"good"))
        stack.writer.flush()
        if method == "put":
            stack.storage.before = failing("put")
        else:
            stack.meta.before = lambda name: failing("write")(name, "")
        stack.writer.write(4, memoryview(b"lost"))
        with pytest.raises(OSError) as caught:
            stack.writer.flush()
        assert caught.value.errno == errno.EIO
        stack.storage.before, stack.meta.before = (lambda *_: None), (lambda *_: None)
        stack.writer.flush()
        assert stack.fresh() == b"good"
        stack.writer.write(4, memoryview(b" again"))
        stack.writer.flush()
        assert stack.fresh() == b"good again"
        assert stack.buffers.used_bytes() == 0


def test_refused_commit_keeps_its_errno_and_leaves_no_objects() -> None:
    with open_stack() as stack:
        stack.meta.before = lambda name: failing("write", errno.EDQUOT)(name, "")
        stack.writer.write(0, memoryview(data_of(BLOCK + 10)))
        with pytest.raises(OSError) as caught:
            stack.writer.flush()
        assert caught.value.errno == errno.EDQUOT
        wait_for(lambda: not stack.storage.objects)


def test_failure_in_the_background_reaches_the_next_write() -> None:
    with open_stack() as stack:
        stack.storage.before = failing("put")
        stack.writer.write(0, memoryview(data_of(3 * BLOCK + 1)))
        wait_for(lambda: not stack.writer.has_dirty())
        with pytest.raises(OSError):
            stack.writer.write(0, memoryview(b"x"))
        stack.writer.flush()
        assert stack.meta.commits == []
        assert stack.buffers.used_bytes() == 0


def test_data_behind_a_lost_block_is_not_committed_either() -> None:
    with open_stack() as stack:
        stack.storage.before = lambda method, key: (
            failing("put")(method, key) if "1_1_" in key else None
        )
        stack.writer.write(0, memoryview(data_of(3 * BLOCK)))
        stack.writer.write(CHUNK_SIZE, memoryview(b"later"))
        with pytest.raises(OSError):
            stack.writer.flush()
        assert stack.meta.commits == []
        wait_for(lambda: not stack.storage.objects)


def test_writers_wait_for_room_and_go_on() -> None:
    options = StoreOptions(buffer_size=4 * BLOCK, max_uploads=2)
    with open_stack(options=options) as stack:
        gate = threading.Event()
        stack.storage.before = lambda *_: gate.wait(20) and None
        content = data_of(16 * BLOCK)
        done = threading.Event()

        def work() -> None:
            for at in range(0, len(content), BLOCK // 4):
                stack.writer.write(at, memoryview(content)[at : at + BLOCK // 4])
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        wait_for(lambda: stack.buffers.used_bytes() == 4 * BLOCK)
        assert not done.wait(0.05)
        gate.set()
        thread.join(20)
        assert done.is_set()
        stack.writer.flush()
        assert len(stack.meta.commits) == 1  # waiting for room does not cut a stream up
        assert stack.fresh() == content


def test_small_unsent_pieces_of_many_files_make_room_by_themselves() -> None:
    options = StoreOptions(buffer_size=4 * BLOCK, max_uploads=2)
    with open_stack(options=options) as stack:
        for number in range(32):
            stack.writer.write(number << 20, memoryview(bytes(BLOCK // 2)))
        stack.writer.flush()
        assert sum(piece.length for _, piece, _ in stack.meta.commits) == 32 * BLOCK // 2


def test_full_buffer_that_stays_full_is_an_error() -> None:
    options = StoreOptions(buffer_size=BLOCK, max_uploads=2)
    with open_stack(options=options, wait_timeout_s=0.2) as stack:
        gate = threading.Event()
        stack.storage.before = lambda *_: gate.wait(20) and None
        stack.writer.write(0, memoryview(bytes(BLOCK)))
        with pytest.raises(OSError) as caught:
            stack.writer.write(BLOCK, memoryview(bytes(10)))
        assert caught.value.errno == errno.EIO
        gate.set()
        stack.writer.flush()
        assert stack.meta.length == BLOCK
        assert stack.buffers.used_bytes() == 0


def test_flush_all_flushes_every_dirty_file() -> None:
    with open_stack() as stack:
        stack.writer.write(0, memoryview(b"hello"))
        stack.buffers.flush_all()
        assert stack.fresh() == b"hello"


def test_many_threads_write_disjoint_parts() -> None:
    with open_stack() as stack:
        size = 37_000
        parts = [data_of(size, seed) for seed in range(32)]

        def work(mine: range) -> None:
            for number in mine:
                for at in range(0, size, 5000):
                    part = memoryview(parts[number])[at : at + 5000]
                    stack.writer.write(number * size + at, part)
                stack.writer.flush()

        threads = [threading.Thread(target=work, args=(range(t, 32, 4),)) for t in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert stack.fresh() == b"".join(parts)
        assert stack.buffers.used_bytes() == 0
