"""Freed memory goes back to the machine."""

import subprocess
import sys

from juicepy.cmd import memory

# Many blocks are freed, and every hundredth stays: nothing is free at the end of the heap.
SCRIPT = """
from juicepy.cmd import memory
import ctypes
blocks = [bytes(100_000) for _ in range(4000)]
trimmer = memory.Trimmer(ctypes.CDLL(None).malloc_trim)
trimmer._least = 0
kept = blocks[::100]
del blocks
before = memory.resident_bytes()
trimmer.round()
print(before - memory.resident_bytes())
"""


def test_what_was_freed_between_what_is_kept_is_given_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 200 << 20


def test_nothing_is_done_while_the_process_does_not_grow() -> None:
    calls: list[int] = []
    trimmer = memory.Trimmer(lambda pad: calls.append(pad) or 0)
    trimmer.round()
    trimmer.round()
    assert calls == []
    trimmer._least -= 2 * memory.GROWTH
    trimmer.round()
    assert calls == [0]
    trimmer.round()
    assert calls == [0]
