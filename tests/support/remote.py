"""A process that does file operations when told to: locks and open files belong to processes.

    with Remote() as other:
        fd = other.call("open", path, os.O_RDWR)
        other.call("flock", fd, fcntl.LOCK_EX)

Run as a script, this file is that process. It reads one JSON list per line (operation, arguments)
and answers each with [result, errno, text]. SIGUSR1 breaks what it waits for with EINTR.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
from types import FrameType, TracebackType
from typing import Any

F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of a 64 bit Linux


def ofd_lock(fd: int, kind: int, start: int, length: int, wait: int) -> None:
    record = _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
    fcntl.fcntl(fd, F_OFD_SETLKW if wait else F_OFD_SETLK, record)


def lock_in_the_way(fd: int, kind: int, start: int, length: int) -> list[int]:
    """[kind, start, length, pid] as F_GETLK tells it."""
    record = _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
    found, _, at, size, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, record))
    return [found, at, size, pid]


def write_text(fd: int, text: str) -> int:
    return os.write(fd, text.encode())


def read_text(fd: int, size: int, offset: int) -> str:
    return os.pread(fd, size, offset).decode()


def append_locked(lock: str, log: str, text: str) -> None:
    """Append under a flock."""
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with open(log, "a") as file:
            file.write(text)


def lock_again_until(lock: str, log: str, size: int) -> int:
    """Take a flock as soon as it has been given up, until a file is so long; how often."""
    count, length = 0, 0
    with open(lock) as held:
        while length < size:
            fcntl.flock(held, fcntl.LOCK_EX)
            with open(log, "rb") as file:
                length = len(file.read())
            fcntl.flock(held, fcntl.LOCK_UN)
            count += 1
    return count


OPERATIONS: dict[str, Any] = {
    "open": lambda path, flags: os.open(path, flags, 0o644),
    "close": os.close,
    "dup": os.dup,
    "fsync": os.fsync,
    "ftruncate": os.ftruncate,
    "flock": fcntl.flock,
    "lockf": lambda fd, how, length, start: fcntl.lockf(fd, how, length, start),
    "ofd": ofd_lock,
    "getlk": lock_in_the_way,
    "write": write_text,
    "pwrite": lambda fd, text, offset: os.pwrite(fd, text.encode(), offset),
    "read": read_text,
    "append_locked": append_locked,
    "lock_again_until": lock_again_until,
    "exit": lambda code: os._exit(code),
    "ping": lambda: True,
}


class Remote:
    """See the module. Killed at the end of its context, whatever it is doing."""

    def __enter__(self) -> Remote:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """kill -9. Returns when the process is gone, unless it hangs in the kernel."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait(60)

    def call(self, operation: str, *args: Any, timeout_s: float = 60.0) -> Any:
        """The result; raises the OSError that it met."""
        self.begin(operation, *args)
        return self.result(timeout_s)

    def begin(self, operation: str, *args: Any) -> None:
        """Like `call`, without waiting for the result."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([operation, *args]).encode() + b"\n")

    def is_done(self) -> bool:
        """Whether the result of what was begun is there."""
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def result(self, timeout_s: float = 60.0) -> Any:
        if not select.select([self.process.stdout], [], [], timeout_s)[0]:
            raise AssertionError(f"no answer of {self.process.pid} in {timeout_s:.0f} s")
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"process {self.process.pid} is gone")
        value, code, text = json.loads(line)
        if code:
            raise OSError(code, text)
        return value

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGUSR1)


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise InterruptedError(errno.EINTR, "interrupted")


def _serve() -> None:
    signal.signal(signal.SIGUSR1, _interrupted)
    for line in iter(sys.stdin.readline, ""):
        operation, *args = json.loads(line)
        try:
            answer = [OPERATIONS[operation](*args), 0, ""]
        except OSError as error:
            answer = [None, error.errno, str(error)]
        if answer[1] == 0 and isinstance(answer[0], bytes):
            answer[0] = answer[0].decode()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
