"""Asking a running mount through its `.control` file, ours or that of JuiceFS.

    request  = u32 opcode, u32 body length, body                  (big-endian, mount-surface.md 3)
    response = { FE u64 a u64 b }*  then  FF u32 length data  or  one byte of errno

An empty read means that there is no answer yet.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from juicepy.errors import Refused, posix_error

FILL_CACHE, INFO = 1004, 1005

_PROGRESS, _DATA = 0xFE, 0xFF
_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.3
_NAMES = (".jfs.control", ".control")


def find(directory: str) -> str:
    """Path of the control file that serves `directory`. Refused where no mount does."""
    for name in _NAMES:
        path = os.path.join(directory, name)
        if os.path.lexists(path):
            return path
    raise Refused(f"{directory} is not inside a JuiceFS mount", errno.ENOTTY)


def ask(
    path: str,
    opcode: int,
    body: bytes,
    *,
    progress: Callable[[int, int], None] = lambda first, second: None,
    idle_timeout_s: float = 300.0,
) -> bytes:
    """Send one request to the control file at `path`; the data of the answer.

    Raises OSError with the status the mount answers, ETIMEDOUT if it says nothing for long.
    """
    fd = os.open(path, os.O_RDWR)
    try:
        os.write(fd, struct.pack(">II", opcode, len(body)) + body)
        return _answer(_Stream(fd, idle_timeout_s), progress)
    finally:
        os.close(fd)


def info(path: str, ino: int, *, recursive: bool, raw: bool, strict: bool, **how: Any) -> Any:
    """What the mount knows of an inode: the JSON of mount-surface.md 3. ENOENT if there is none."""
    body = struct.pack(">QBBB", ino, recursive, raw, strict)
    found = json.loads(ask(path, INFO, body, **how))
    if found.get("Failed"):
        raise OSError(errno.ENOENT, found.get("Reason") or os.strerror(errno.ENOENT))
    return found


def fill_cache(
    path: str, paths: Sequence[bytes], threads: int, action: int, *, background: bool, **how: Any
) -> dict[str, Any]:
    """Warm (0), evict (1) or check (2) what lies at paths below the root of the mount.

    The counts of mount-surface.md 3: FileCount, SliceCount, TotalBytes, MissBytes, Locations.
    """
    text = b"\n".join(paths)
    body = struct.pack(">I", len(text)) + text + struct.pack(">HBB", threads, background, action)
    found: dict[str, Any] = json.loads(ask(path, FILL_CACHE, body, **how))
    return found


def setting(root: str, name: str, default: int) -> int:
    """A number of the mount's `.config`; `default` where that may not be read."""
    for start in (".jfs.", "."):
        try:
            with open(os.path.join(root, f"{start}config"), "rb") as file:
                return int(json.load(file).get(name, default))
        except (FileNotFoundError, PermissionError):
            continue
    return default


def _answer(stream: _Stream, progress: Callable[[int, int], None]) -> bytes:
    while True:
        kind = stream.take(1)[0]
        if kind == _PROGRESS:
            progress(*struct.unpack(">QQ", stream.take(16)))
        elif kind == _DATA:
            (length,) = struct.unpack(">I", stream.take(4))
            return stream.take(length)
        elif kind == 0:
            return b""
        elif kind == errno.EINVAL:
            raise OSError(kind, "the mount does not know this request: it is too old")
        else:
            raise posix_error(kind)


class _Stream:
    """Bytes of the answer, waited for."""

    def __init__(self, fd: int, idle_timeout_s: float) -> None:
        self._fd, self._idle_timeout_s = fd, idle_timeout_s
        self._buffer = b""

    def take(self, count: int) -> bytes:
        pause_s, deadline_s = _PAUSE_S, time.monotonic() + self._idle_timeout_s
        while len(self._buffer) < count:
            more = os.read(self._fd, 1 << 16)
            if more:
                self._buffer += more
                deadline_s = time.monotonic() + self._idle_timeout_s
                continue
            if time.monotonic() > deadline_s:
                raise posix_error(errno.ETIMEDOUT)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken
