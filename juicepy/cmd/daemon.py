"""`jfs mount -d`: go on in the background; return when the mount answers, or tell why not."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

from juicepy.cmd import handover
from juicepy.errors import Refused

READY_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 30.0
_POLL_S = 0.02


def start(mount_point: str, log_path: str) -> int | None:
    """Fork. In the child, which is the daemon: the descriptor to report through.

    In the parent None, when the mount answers; Refused if it fails. To be called before a driver
    or a store is opened, for their threads and connections do not live through a fork.
    """
    log_fd = _open_log(log_path)
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _detach(log_fd, writer)
        return writer
    os.close(log_fd)
    os.close(writer)
    try:
        told = wait_told(reader)
    except BaseException:
        _stop(child)
        raise
    finally:
        os.close(reader)
    if told != handover.READY:
        _stop(child)
        raise Refused(told or f"the mount process ended without a word, see the log {log_path}")
    if os.stat(mount_point).st_ino != 1:
        raise Refused(f"mounted, but {mount_point} does not show the volume's root")
    return None


def _detach(log_fd: int, writer: int) -> None:
    """Leave the terminal, and let go of all that the caller has open: it may wait for its end."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for number, fd in enumerate((null, log_fd, log_fd)):
        os.dup2(fd, number)
    os.closerange(3, writer)
    os.closerange(writer + 1, os.sysconf("SC_OPEN_MAX"))


def _open_log(path: str) -> int:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Refused(f"--log {path}: {error.strerror}") from error


def wait_told(reader: int) -> str:
    """What the mount process says; empty if it ended without a word."""
    said = b""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not select.select([reader], [], [], left_s)[0]:
            raise Refused(f"the mount does not answer after {READY_TIMEOUT_S:.0f} s")
        piece = os.read(reader, 4096)
        if not piece:
            return said.decode(errors="replace")
        said += piece


def _stop(child: int) -> None:
    """End a mount process that is of no use; it unmounts on SIGTERM."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(child, number)
        except ProcessLookupError:
            return
        deadline_s = time.monotonic() + _STOP_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            time.sleep(_POLL_S)
