"""How open files reach their data: through us, or (Linux 6.9+) straight from a local file.

The kernel wants one way per inode: while a file is open for passthrough every other open must be
so too, with the same backing id; while one is open the ordinary way none may be passthrough. An
answer against this fails the open with EIO, so all opens are counted, from the answer to RELEASE.

While a file is open for passthrough, opens that write are served by us (FOPEN_DIRECT_IO), and who
offered the `backing_fd` keeps it up to date. A shared mapping, though, always goes to the local
file: an open for reading and writing waits until the passthrough ones are closed, then fails with
ETXTBSY.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import threading
from dataclasses import dataclass

from juicepy.errors import posix_error
from juicepy.fuse import wire
from juicepy.types import Inode

logger = logging.getLogger(__name__)

LONGEST_WAIT_S = 2.0

_WRITES = os.O_WRONLY | os.O_RDWR


@dataclass(slots=True)
class _Opens:
    count: int = 0
    backing_id: int = 0  # 0: the ordinary way


class Passthrough:
    """Decides for each open whether the kernel reads from `backing_fd`, and keeps the ids."""

    def __init__(self, fd: int, *, enabled: bool) -> None:
        self.enabled = enabled
        self._fd = fd
        self._changed = threading.Condition(threading.Lock())  # guards _opens
        self._opens: dict[Inode, _Opens] = {}

    def choose(
        self, ino: Inode, flags: int, backing_fd: int | None, *, direct_io: bool
    ) -> tuple[int, int]:
        """(flags to add to open_flags, backing id) for one more open of `ino`."""
        if not self.enabled:
            return 0, 0
        direct_io |= bool(flags & os.O_DIRECT)  # the local file system would ask for alignment
        with self._changed:
            if flags & os.O_RDWR:
                self._wait_ordinary_locked(ino)
            opens = self._opens.get(ino)
            if opens is None:
                opens = self._opens[ino] = _Opens()
                if backing_fd is not None and not flags & _WRITES and not direct_io:
                    opens.backing_id = self._register(backing_fd)
            opens.count += 1
            backing_id = opens.backing_id
        if not backing_id:
            return 0, 0
        if backing_fd is None or flags & _WRITES or direct_io:
            return wire.FOPEN_PASSTHROUGH | wire.FOPEN_DIRECT_IO, backing_id  # data through us
        return wire.FOPEN_PASSTHROUGH, backing_id

    def _wait_ordinary_locked(self, ino: Inode) -> None:
        def is_ordinary() -> bool:
            opens = self._opens.get(ino)
            return opens is None or not opens.backing_id

        if not self._changed.wait_for(is_ordinary, LONGEST_WAIT_S):
            raise posix_error(errno.ETXTBSY)

    def released(self, ino: Inode) -> None:
        if not self.enabled:
            return
        with self._changed:
            opens = self._opens.get(ino)
            if opens is None:
                return
            opens.count -= 1
            if opens.count > 0:
                return
            del self._opens[ino]
            if opens.backing_id:
                self._unregister(opens.backing_id)
                self._changed.notify_all()

    def _register(self, backing_fd: int) -> int:
        """The kernel's id for the file; 0 where it refuses (no privilege, stacked file system)."""
        try:
            request = bytearray(wire.BACKING_MAP.pack(backing_fd, 0))  # mutable: ioctl gives an int
            return int(fcntl.ioctl(self._fd, wire.DEV_IOC_BACKING_OPEN, request))
        except OSError as error:
            logger.debug("no passthrough: %s", error)
            return 0

    def _unregister(self, backing_id: int) -> None:
        try:
            fcntl.ioctl(self._fd, wire.DEV_IOC_BACKING_CLOSE, struct.pack("=I", backing_id))
        except OSError as error:
            logger.debug("backing id %d: %s", backing_id, error)
