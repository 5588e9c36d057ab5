"""The heap of this process: which lines have allocated what is still there, by tracemalloc."""

from __future__ import annotations

import errno
import os
import struct
import time
import tracemalloc

from juicepy.errors import posix_error
from juicepy.types import Cred
from juicepy.vfs.control import Job, data_response

HEAP = 0x4A500001  # a command of `.control` that JuiceFS has not
_STEP_S = 0.1


def profile(cred: Cred, data: bytes, job: Job) -> bytes:
    """Trace for u16 tenths of a second; the u16 lines with the most bytes, as text.

    Seen is what was allocated meanwhile. EPERM for who does not run the mount, EBUSY while one
    trace is running.
    """
    if cred.uid not in (0, os.geteuid()):
        raise posix_error(errno.EPERM)
    tenths, count = struct.unpack(">HH", data)
    if tracemalloc.is_tracing():
        raise posix_error(errno.EBUSY)
    tracemalloc.start()
    try:
        end_s = time.monotonic() + tenths / 10
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(_STEP_S, left_s))
            job.add(0, 0)  # ends this if who asked is gone
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    return data_response(_text(snapshot, count).encode())


def _text(snapshot: tracemalloc.Snapshot, count: int) -> str:
    own = snapshot.filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)])
    lines = [f"{'KiB':>10}{'blocks':>10}  line"]
    for found in own.statistics("lineno")[:count]:
        frame = found.traceback[0]
        place = os.sep.join(frame.filename.split(os.sep)[-3:])
        lines.append(f"{found.size / 1024:10.1f}{found.count:10}  {place}:{frame.lineno}")
    return "\n".join(lines)
