"""Telling the kernel that what it caches is no longer so."""

from __future__ import annotations

import errno
import logging
import os
import threading

from juicepy.fuse import wire
from juicepy.types import Buffer, Inode

logger = logging.getLogger(__name__)

_GONE = (errno.ENODEV, errno.ECONNABORTED, errno.ENOTCONN, errno.EPERM)
_JOIN_S = 30.0
_RENEW_S = 5.0


# (inode, offset, length) or (directory, name, flags)
What = tuple[int, int, int] | tuple[int, bytes, int]


def inode_message(ino: int, offset: int, length: int) -> bytes:
    """NOTIFY_INVAL_INODE; a negative offset drops attributes only, length 0 all after offset."""
    body = wire.NOTIFY_INVAL_INODE_OUT.pack(ino, offset, length)
    return wire.OUT_HEADER.pack(16 + len(body), wire.NOTIFY_INVAL_INODE, 0) + body


def store_header(ino: int, offset: int, size: int) -> bytes:
    """NOTIFY_STORE, which so many bytes of data follow."""
    body = wire.NOTIFY_STORE_OUT.pack(ino, offset, size)
    return wire.OUT_HEADER.pack(16 + len(body) + size, wire.NOTIFY_STORE, 0) + body


def entry_message(parent: int, name: bytes, flags: int = 0) -> bytes:
    body = wire.NOTIFY_INVAL_ENTRY_OUT.pack(parent, len(name), flags) + name + b"\0"
    return wire.OUT_HEADER.pack(16 + len(body), wire.NOTIFY_INVAL_ENTRY, 0) + body


class KernelNotifier:
    """Sends invalidations from a thread of its own: the kernel may hold the pages or the directory
    they are about locked until a request is answered, so no worker may wait for them.

    What is asked for twice before it is sent is sent once; so the queue is bounded by what there
    is to invalidate.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._changed = threading.Condition()  # guards _pending, _closed
        self._pending: dict[What, None] = {}
        self._sending: dict[What, None] = {}
        self._closed = False
        self._thread: threading.Thread | None = None

    def inval_inode(self, ino: Inode, offset: int = 0, length: int = 0) -> None:
        self._queue((ino, offset, length))

    def inval_entry(self, parent: Inode, name: bytes) -> None:
        self._queue((parent, name, 0))

    def renew_inode(self, ino: Inode, length: int, last: bytes = b"") -> None:
        """The last byte tells the length: it is where the kernel appends, without asking."""
        what = (ino, 0, 0)
        self._queue(what)
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or not (what in self._pending or what in self._sending),
                _RENEW_S,
            )
        if last:
            self.store(ino, length - len(last), last)

    def store(self, ino: Inode, offset: int, data: Buffer) -> bool:
        return self._send(store_header(ino, offset, len(data)), data)

    def inval_attr_now(self, ino: Inode) -> None:
        """Drop the attributes before this returns. Waits for no page or directory lock."""
        self._send(inode_message(ino, -1, 0))

    def _queue(self, what: What) -> None:
        with self._changed:
            if self._closed:
                return
            self._pending[what] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fuse-notify", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                batch, self._pending = self._pending, {}
                self._sending = batch
            for what in batch:
                if self._closed or not self._send(_message(what)):
                    return
            with self._changed:
                self._sending = {}
                self._changed.notify_all()

    def _send(self, *message: Buffer) -> bool:
        """False once the mount is gone. What the kernel does not know (ENOENT) is fine."""
        try:
            os.writev(self._fd, message)
        except OSError as error:
            if error.errno in _GONE:
                return False
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                logger.warning("invalidation was refused by the kernel: %s", error)
        return True

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_JOIN_S)


class ExpiringNotifier(KernelNotifier):
    """Of a kernel that knows FUSE_EXPIRE_ONLY."""

    def expire_entry(self, parent: Inode, name: bytes) -> None:
        """Have the name looked up again. Unlike `inval_entry` that does not make a directory
        one that was removed, for those who work in it.
        """
        self._queue((parent, name, wire.EXPIRE_ONLY))


def _message(what: What) -> bytes:
    parent, name, flags = what
    if isinstance(name, bytes):
        return entry_message(parent, name, flags)
    return inode_message(parent, name, flags)
