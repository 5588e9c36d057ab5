"""Memory that is free inside the process goes back to the machine, whose other programs need it.

glibc keeps what threads have freed in arenas of 64 MiB each. Blocks of some MiB that many threads
get and free leave several times the buffers' size there (778 MiB of a mount were 285 after this).
So there are few arenas, and blocks do not come from them: glibc's rule, to serve from arenas what
is as large as something that was freed before, is switched off.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from juicepy.concurrency import Periodic

INTERVAL_S = 5.0
GROWTH = 64 << 20  # bytes since the last time, below which it is not worth the look

ARENAS = 4
BLOCK = (1 << 20) + (1 << 16)  # more than a request of the kernel: gets pages of its own
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # of glibc's malloc.h

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE


class Trimmer:
    """Gives memory back when the process has grown."""

    def __init__(self, trim: Callable[[int], int]) -> None:
        self._trim = trim
        self._least = resident_bytes()

    def round(self) -> None:
        if resident_bytes() > self._least + GROWTH:
            self._trim(0)
            self._least = resident_bytes()
        else:
            self._least = min(self._least, resident_bytes())


def keep_arenas_small() -> None:
    """Settings of glibc's allocator; elsewhere nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS)
        mallopt(_M_MMAP_THRESHOLD, BLOCK)


def trimming() -> Periodic | None:
    """The thread that does so, not yet started; None where the C library is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return Periodic("memory", INTERVAL_S, Trimmer(trim).round) if trim is not None else None
