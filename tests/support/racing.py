"""Worker processes that race on mounts, ended by their id if they hang."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any


def race(
    jobs: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]],
    timeout_s: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Run each `function(*args)` in a process of its own, all at once; their results in order.

    Functions and arguments are picklable: POSIX locks belong to processes, so threads will not do.
    `meanwhile` runs here when all have been started. A worker that fails or is not done in time
    fails the race, and none is left running.
    """
    spawn = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks
    start = spawn.Barrier(len(jobs))
    workers = []
    try:
        for function, args in jobs:
            receive, send = spawn.Pipe(duplex=False)
            worker = spawn.Process(target=_work, args=(start, send, function, args))
            worker.start()
            send.close()
            workers.append((worker, receive, function.__name__, args))
        meanwhile()
        deadline = time.monotonic() + timeout_s
        return [_result(deadline, pipe, name, args) for _, pipe, name, args in workers]
    finally:
        for worker, *_ in workers:
            worker.kill()
            worker.join(10)


def _result(deadline: float, receive: Connection, name: str, args: tuple[Any, ...]) -> Any:
    if not receive.poll(max(0.0, deadline - time.monotonic())):
        raise AssertionError(f"{name}{args} is not done in time")
    try:
        is_done, value = receive.recv()
    except EOFError:
        raise AssertionError(f"{name}{args} died") from None
    if not is_done:
        raise AssertionError(f"{name}{args} failed:\n{value}")
    return value


def _work(
    start: Any, send: Connection, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    try:
        start.wait(60)
        send.send((True, function(*args)))
    except BaseException:
        send.send((False, traceback.format_exc()))
