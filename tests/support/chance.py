"""For how long tests with random input run, and with which seeds."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator


def timeout_s(default_s: float) -> float:
    """For pytest: when a test with `seeds` hangs. Making a failure small takes a while."""
    return _seconds(default_s) + 300


def seeds(default_s: float) -> Iterator[int]:
    """New ones until the time is up, one at least; JFS_RANDOM_SECONDS sets it.

    JFS_RANDOM_SEED gives that one only, to run a failure again.
    """
    given = os.environ.get("JFS_RANDOM_SEED")
    if given is not None:
        yield int(given)
        return
    until = time.monotonic() + _seconds(default_s)
    while True:
        yield secrets.randbelow(1 << 32)
        if time.monotonic() >= until:
            return


def _seconds(default_s: float) -> float:
    return float(os.environ.get("JFS_RANDOM_SECONDS", default_s))


def run_again(test: str, seed: int) -> str:
    """The command that repeats a failure."""
    return f"to run it again: JFS_RANDOM_SEED={seed} python -m pytest '{test}'"
