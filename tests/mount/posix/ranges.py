"""System calls on ranges of files that `os` does not have."""

from __future__ import annotations

import ctypes
import os

KEEP_SIZE, PUNCH_HOLE, COLLAPSE, ZERO_RANGE, INSERT, UNSHARE = 0x1, 0x2, 0x8, 0x10, 0x20, 0x40

MIB = 1 << 20
BLOCK, CHUNK = 4 * MIB, 64 * MIB  # sizes at which our files are cut; just numbers elsewhere

_libc = ctypes.CDLL(None, use_errno=True)


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    if _libc.fallocate(fd, mode, ctypes.c_longlong(offset), ctypes.c_longlong(length)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
