"""`jfs mount -d`: start the mount process, and return when it answers or tell why it does not."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from juicepy.cmd import handover
from juicepy.errors import Refused

READY_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 30.0


def start(arguments: Sequence[str], url: str, mount_point: str, log_path: str) -> None:
    """Run `jfs` with `arguments` in the background until the mount answers. Refused if it fails."""
    log_fd = _open_log(log_path)
    reader, writer = os.pipe()
    url_fd = handover.url_pipe(url)
    try:
        process = subprocess.Popen(
            handover.own_command(arguments),
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            pass_fds=(writer, url_fd),
            start_new_session=True,
            env={**os.environ, handover.REPORT_FD: str(writer), handover.URL_FD: str(url_fd)},
        )
    finally:
        for fd in (log_fd, writer, url_fd):
            os.close(fd)
    try:
        told = wait_told(reader)
    except BaseException:
        _stop(process)
        raise
    finally:
        os.close(reader)
    if told != handover.READY:
        _stop(process)
        raise Refused(told or f"the mount process ended without a word, see the log {log_path}")
    if os.stat(mount_point).st_ino != 1:
        raise Refused(f"mounted, but {mount_point} does not show the volume's root")


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


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a mount process that is of no use; it unmounts on SIGTERM."""
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_TIMEOUT_S)
