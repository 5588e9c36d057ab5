"""Bounded waits for a condition: tests never sleep for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str, *, timeout_s: float = 60.0) -> T:
    """Call `condition` until it returns something true and return that.

    An AssertionError or OSError that it raises counts as "not yet"; the last one is the cause of
    the failure after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = 0.02
    while True:
        last: Exception | None = None
        try:
            if result := condition():
                return result
        except (AssertionError, OSError) as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:.0f} s in vain: {what}") from last
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.5)
