"""Memory that is free inside the process goes back to the machine, whose other programs need it.

glibc keeps what threads have freed in arenas of 64 MiB each. Blocks of some MiB that many threads
get and free leave several times the buffers' size there (778 MiB of a mount were 285 after this).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from juicepy.concurrency import Periodic

INTERVAL_S = 5.0
GROWTH = 64 << 20  # bytes since the last time, below which it is not worth the look

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


def trimming() -> Periodic | None:
    """The thread that does so, not yet started; None where the C library is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return Periodic("memory", INTERVAL_S, Trimmer(trim).round) if trim is not None else None
