"""The virtual files `.accesslog .control .stats .config` and the directory `.trash` (spec: mount
surface, 1 and 3).

They have inodes above all others and stand under the mounted root; `.control` is found in every
directory. An open virtual file is a `Stream`: `.stats` and `.config` are texts taken at the open.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import time
from collections.abc import Callable
from typing import Protocol

from juicepy.concurrency import Lock, Workers
from juicepy.errors import posix_error
from juicepy.types import INTERNAL, ROOT, TRASH, Attr, Cred, DirEntry, Inode, Kind
from juicepy.vfs.accesslog import ACCESSLOG, AccessLog, LogReader

logger = logging.getLogger(__name__)

CONTROL = Inode(INTERNAL + 2)
STATS = Inode(INTERNAL + 3)
CONFIG = Inode(INTERNAL + 4)

ATTR_TIMEOUT_S = 3600.0
PROGRESS_S = 0.3
_HEADER = struct.Struct(">II")
_PROGRESS = struct.Struct(">BQQ")
_LIMIT_BODY = 64 << 20


class Cancelled(Exception):
    """Who asked for the job has closed the channel."""


class Job(Protocol):
    """What a running command tells of itself."""

    def add(self, first: int, second: int) -> None:
        """Count progress; Cancelled once nobody waits for the job any more. Thread-safe."""


Command = Callable[[Cred, bytes, Job], bytes]  # the response after the progress; OSError: a status


class Snapshot:
    """A text as it was at the open."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def read(self, cred: Cred, offset: int, size: int) -> bytes:
        return self._text[offset : offset + size]


class ControlChannel:
    """One open `.control`: requests and responses in one stream of bytes. Thread-safe.

    A response follows its request in the stream, and a descriptor's offset has moved past the
    request by writing it, so that plain reads give the response. An empty read means: nothing yet.
    """

    def __init__(self, commands: dict[int, Command], workers: Workers) -> None:
        self._commands, self._workers = commands, workers
        self._lock = Lock("control_channel")  # guards all below
        self._stream = bytearray()
        self._request = bytearray()  # what of the next request has come
        self._counts = [0, 0]
        self._told_s = 0.0
        self._is_closed = False

    def write(self, cred: Cred, data: bytes | memoryview) -> int:
        with self._lock:
            self._stream += data
            self._request += data
            if len(self._request) < _HEADER.size:
                return len(data)
            opcode, length = _HEADER.unpack_from(self._request)
            if length > _LIMIT_BODY:
                self._request.clear()
                self._stream.append(errno.EIO)
                return len(data)
            if len(self._request) < _HEADER.size + length:
                return len(data)
            body = bytes(self._request[_HEADER.size :])
            self._request.clear()
            self._counts, self._told_s = [0, 0], time.monotonic()
        self._workers.run(self._serve, cred, opcode, body)
        return len(data)

    def read(self, cred: Cred, offset: int, size: int) -> bytes:
        with self._lock:
            return bytes(self._stream[offset : offset + size])

    def add(self, first: int, second: int) -> None:
        with self._lock:
            if self._is_closed:
                raise Cancelled
            self._counts[0] += first
            self._counts[1] += second
            now = time.monotonic()
            if now - self._told_s >= PROGRESS_S:
                self._told_s = now
                self._stream += _PROGRESS.pack(0xFE, *self._counts)

    def close(self) -> None:
        """Also ends the running job at its next `add`."""
        with self._lock:
            self._is_closed = True

    def _serve(self, cred: Cred, opcode: int, body: bytes) -> None:
        response = bytes([errno.EIO])  # unless we get to know better
        try:
            response = self._response(cred, opcode, body)
        except Cancelled:
            logger.info("control request %d was cancelled", opcode)
        finally:
            with self._lock:
                if any(self._counts):
                    self._stream += _PROGRESS.pack(0xFE, *self._counts)
                self._stream += response

    def _response(self, cred: Cred, opcode: int, body: bytes) -> bytes:
        command = self._commands.get(opcode)
        if command is None:
            return bytes([errno.EINVAL])
        try:
            return command(cred, body, self)
        except OSError as error:
            return bytes([(error.errno or errno.EIO) & 0xFF])
        except (struct.error, IndexError):
            return bytes([errno.EIO])  # the body is shorter than its fields


class VirtualFiles:
    """Which names and inodes are virtual, what they look like, what they hold."""

    def __init__(
        self,
        log: AccessLog,
        *,
        stats: Callable[[], bytes],
        config: Callable[[], bytes],
        commands: dict[int, Command],
        has_trash: bool,
        prefixed: bool = False,
        hidden: bool = False,
    ) -> None:
        self._log, self._stats, self._config, self._commands = log, stats, config, commands
        self._hidden = hidden
        self._workers = Workers("control", 8)
        prefix = b".jfs." if prefixed else b"."
        nodes = {
            b"accesslog": (ACCESSLOG, 0o400),
            b"control": (CONTROL, 0o666),
            b"stats": (STATS, 0o444),
            b"config": (CONFIG, 0o400),
        }
        if has_trash:
            nodes[b"trash"] = (TRASH, 0o555)
        self._inodes = {prefix + name: ino for name, (ino, _) in nodes.items()}
        self._attrs = {ino: _attr(ino, mode) for ino, mode in nodes.values()}

    def find(self, parent: Inode, name: bytes) -> Inode | None:
        """The virtual inode of that name; None for an ordinary name."""
        ino = self._inodes.get(name)
        return ino if ino is not None and (parent == ROOT or ino == CONTROL) else None

    def attr(self, ino: Inode) -> Attr | None:
        """Attributes of a virtual inode, None for others."""
        attr = self._attrs.get(ino)
        if attr is not None and ino == CONFIG:
            return attr.with_(length=len(self._config()))
        return attr

    def is_virtual(self, ino: Inode) -> bool:
        """Whether the inode is one of the four virtual files."""
        return INTERNAL < ino <= CONFIG

    def listed(self) -> list[DirEntry]:
        """What a listing of the root shows."""
        if self._hidden:
            return []
        return [
            DirEntry(name, ino, self._attrs[ino].kind, self.attr(ino))
            for name, ino in self._inodes.items()
            if ino != CONTROL
        ]

    def open(self, ino: Inode, flags: int) -> Snapshot | LogReader | ControlChannel:
        if ino != CONTROL and flags & os.O_ACCMODE != os.O_RDONLY:
            raise posix_error(errno.EACCES)
        if ino == ACCESSLOG:
            return self._log.open()
        if ino == CONTROL:
            return ControlChannel(self._commands, self._workers)
        return Snapshot(self._stats() if ino == STATS else self._config())

    def release(self, stream: object) -> None:
        if isinstance(stream, LogReader):
            self._log.close(stream)
        elif isinstance(stream, ControlChannel):
            stream.close()

    def close(self) -> None:
        self._workers.close(cancel=True)


def _attr(ino: Inode, mode: int) -> Attr:
    now_ns = time.time_ns()
    attr = Attr(Kind.FILE, mode, os.getuid(), os.getgid(), now_ns, now_ns, now_ns, parent=ROOT)
    if ino == TRASH:
        return attr.with_(kind=Kind.DIR, uid=0, gid=0, nlink=2)
    return attr


def data_response(text: bytes) -> bytes:
    """A response that ends with data."""
    return struct.pack(">BI", 0xFF, len(text)) + text
