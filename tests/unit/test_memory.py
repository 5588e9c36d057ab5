"""The budget of a mount's buffers: who gets memory, who waits, who makes room."""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable

import pytest

from juicepy.memory import MemoryBudget
from tests.support.waiting import wait_for


def started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def holding_kept(memory: MemoryBudget, size: int) -> list[tuple[int, bool]]:
    """`size` kept bytes, dropped when asked for; what was asked."""
    asked: list[tuple[int, bool]] = []

    def drop(lacking: int, urgent: bool) -> None:
        asked.append((lacking, urgent))
        memory.dropped(min(lacking, memory.stats().kept))

    assert memory.take_coming(size)
    assert memory.keep(size)
    memory.on_drop(drop)
    return asked


def test_all_kinds_share_the_limit() -> None:
    memory = MemoryBudget(100)
    memory.take(40)
    assert memory.take_coming(30)
    assert memory.take_queued(20)
    assert not memory.take_coming(11)
    assert not memory.take_queued(6)
    assert memory.keep(30)
    assert memory.stats().total == 90
    memory.give_back(40)
    memory.give_back_queued(20)
    memory.dropped(30)
    assert memory.stats().total == 0


def test_a_writer_waits_until_bytes_are_given_back() -> None:
    memory = MemoryBudget(100)
    memory.take(100)
    done = threading.Event()
    thread = started(lambda: (memory.take(30), done.set())[0])
    wait_for(memory.has_waiting_writer, "a writer that waits")
    assert not done.wait(0.05)
    memory.give_back(30)
    thread.join(20)
    assert done.is_set()
    assert memory.stats().dirty == 100


def test_a_writer_that_waits_too_long_gets_eio_and_leaves_nothing_behind() -> None:
    memory = MemoryBudget(100)
    memory.take(100)
    with pytest.raises(OSError) as caught:
        memory.take(1, timeout_s=0.05)
    assert caught.value.errno == errno.EIO
    assert not memory.has_waiting_writer()
    memory.give_back(100)
    assert memory.stats().total == 0


def test_a_full_budget_calls_for_a_flush() -> None:
    memory = MemoryBudget(100)
    memory.take(100)
    memory.when_full = lambda: memory.give_back(100)  # at once, on the thread that waits
    memory.take(50, timeout_s=10)
    assert memory.stats().dirty == 50


def test_writers_are_served_in_order() -> None:
    memory = MemoryBudget(100)
    memory.take(100)
    order: list[int] = []
    threads = []
    for number, size in enumerate((95, 10, 5)):

        def work(number: int = number, size: int = size) -> None:
            memory.take(size)
            order.append(number)
            memory.give_back(size)

        threads.append(started(work))
        wait_for(lambda: len(memory._writers) == len(threads), "all waiting")
    memory.give_back(50)  # room for the small ones, but they came later
    assert order == []
    memory.give_back(50)
    for thread in threads:
        thread.join(20)
    assert order[0] == 0
    assert memory.stats().total == 0


@pytest.mark.parametrize("size", [101, 1000])
def test_a_single_one_is_let_through_whatever_its_size(size: int) -> None:
    memory = MemoryBudget(100)
    memory.take(size, timeout_s=1)
    memory.give_back(size)
    memory.wait_coming(size, timeout_s=1)
    assert not memory.keep(size)  # but is not kept
    assert memory.stats().total == 0


def test_writers_get_what_readers_keep_above_their_floor() -> None:
    memory = MemoryBudget(100, floor_bytes=20)
    asked = holding_kept(memory, 100)
    memory.take(70, timeout_s=5)
    assert asked == [(70, True)]
    assert memory.stats().kept == 30
    with pytest.raises(OSError):
        memory.take(20, timeout_s=0.05)  # would go below the floor
    assert memory.stats().kept == 20


def test_while_a_writer_waits_readers_have_their_floor_only() -> None:
    memory = MemoryBudget(100, floor_bytes=20)
    memory.take(70)
    assert memory.take_coming(30)
    thread = started(lambda: memory.take(40, 20))
    wait_for(memory.has_waiting_writer, "a writer that waits")
    assert not memory.take_coming(1)
    assert not memory.keep(30)  # so its memory is the writer's
    assert memory.take_coming(20)
    memory.give_back(30)
    thread.join(20)
    assert not thread.is_alive()
    assert memory.stats().dirty == 80


def test_readers_find_their_floor_though_writers_want_it_all() -> None:
    memory = MemoryBudget(100, floor_bytes=20)
    memory.take(100)
    assert not memory.take_coming(20)
    thread = started(lambda: memory.take(10, 20))
    wait_for(memory.has_waiting_writer, "a writer that waits")
    memory.give_back(20)
    assert memory.take_coming(20)
    memory.give_back(10)
    thread.join(20)
    assert memory.stats().dirty == 80 + 10 - 10


def test_a_reader_asks_for_idle_blocks_only() -> None:
    memory = MemoryBudget(100)
    asked = holding_kept(memory, 90)
    assert memory.take_coming(40)
    assert asked == [(30, False)]


def test_readers_without_an_alternative_come_through_one_by_one() -> None:
    memory = MemoryBudget(100)
    memory.take(100)
    got: list[int] = []

    def read(number: int) -> None:
        memory.wait_coming(60, 20)
        got.append(number)
        time.sleep(0.01)
        assert memory.stats().coming == 60
        memory.give_back_coming(60)

    threads = [started(lambda number=number: read(number)) for number in range(5)]  # type: ignore[misc]
    for thread in threads:
        thread.join(20)
    assert sorted(got) == [0, 1, 2, 3, 4]


def test_blocks_that_wait_for_a_disk_have_a_quarter_at_most() -> None:
    memory = MemoryBudget(100)
    assert memory.take_queued(25)
    assert not memory.take_queued(1)


def test_what_is_set_aside_is_gone() -> None:
    memory = MemoryBudget(100)
    memory.set_aside(30)
    assert not memory.take_coming(71)
    assert memory.take_coming(70)


@pytest.mark.parametrize("limit", [1, 64, 300])
def test_random_use_ends_and_keeps_the_limit(limit: int) -> None:
    memory = MemoryBudget(limit, floor_bytes=limit // 4)
    kept: list[int] = []
    lock = threading.Lock()
    failures: list[BaseException] = []

    def drop(lacking: int, urgent: bool) -> None:
        freed = 0
        with lock:
            while kept and freed < lacking:
                freed += kept.pop()
        memory.dropped(freed)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(60):
                size = chance.choice([1, 4, 16])
                if chance.random() < 0.5:
                    memory.take(size, 30)
                    time.sleep(chance.random() / 2000)
                    memory.give_back(size)
                    continue
                memory.wait_coming(size, 30)
                time.sleep(chance.random() / 2000)
                assert memory.stats().total <= limit + 32  # one of either kind may exceed it
                if memory.keep(size):
                    with lock:
                        kept.append(size)
        except BaseException as error:
            failures.append(error)

    memory.on_drop(drop)
    threads = [started(lambda seed=seed: work(seed)) for seed in range(16)]  # type: ignore[misc]
    for thread in threads:
        thread.join(60)
    assert not failures
    drop(limit + 1000, True)
    assert memory.stats().total == 0
