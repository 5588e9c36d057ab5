"""Serving a mount: worker threads that read a request, have it served, and write the reply.

A thread that reads a request while no other is left to read the next one starts another, up to
`FuseOptions.workers`; those that were not needed for a while end. So a request that blocks
keeps only its own thread. Waiting for file locks keeps none (`locks.py`).
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from juicepy.errors import posix_error
from juicepy.fuse import device, mounts, wire
from juicepy.fuse.creds import Creds, with_groups
from juicepy.fuse.dispatch import NO_REPLY, Dispatcher
from juicepy.fuse.kernel import KernelView
from juicepy.fuse.locks import LockWaiters
from juicepy.fuse.negotiate import Agreed, answer_init
from juicepy.fuse.notify import KernelNotifier
from juicepy.fuse.opcodes import Op, describe
from juicepy.fuse.options import FuseOptions
from juicepy.fuse.passthrough import Passthrough
from juicepy.types import Buffer
from juicepy.vfs.api import Operations

__all__ = ["FuseOptions", "Server", "StopFlag", "serve"]

logger = logging.getLogger(__name__)

_HEADER = wire.IN_HEADER.size
_ROOM = 4096  # beside the data of a WRITE: headers; for all else: two names and more
_FEW = 16  # threads: the buffers of more give back what a large request took
_LARGE = 64 << 10
_SPARE = 2  # with more threads waiting, the kernel wakes them in turn, each with cold caches
_SPARE_TURNS = 500  # a thread is not ended sooner: to start it anew takes 100 us
_MAX_PIECES = 1000  # writev takes 1024
_POLL_S = 0.2
_UNMOUNT_RETRY_S = 1.0
_GONE = (errno.ENODEV, errno.ECONNABORTED, errno.ENOTCONN)


class StopFlag(Protocol):
    """An Event as far as `serve` needs it."""

    def is_set(self) -> bool: ...


def serve(
    operations: Operations,
    mount_point: str,
    options: FuseOptions,
    ready: Callable[[], None] | None = None,
    stop: StopFlag | None = None,
) -> None:
    """Mount and serve until unmounted, or until `stop` is set, which unmounts.

    `ready` is called once the mount answers. On return all requests are served,
    `operations.destroy()` has returned, no thread is left.
    """
    with Server(operations, mount_point, options) as server:
        server.run(ready, stop)


class Server:
    """One mount. `open` mounts, `run` serves; `request_stop` may be called from signal handlers."""

    def __init__(self, operations: Operations, mount_point: str, options: FuseOptions) -> None:
        self._ops = operations
        self._path = mount_point
        self._options = options
        self._fd = -1
        self._stop_requested = False
        self._ended = threading.Event()  # the last worker is gone
        self._lock = threading.Lock()  # guards _idle, _spare_turns, _threads
        self._idle = 0
        self._spare_turns = 0  # requests since all were busy that ended with threads to spare
        self._threads: set[threading.Thread] = set()
        self._creds = Creds()
        self._locks = LockWaiters(self._answer, operations.lock_owners)

    def __enter__(self) -> Server:
        self._fd, self._options = device.mount(self._path, self._options)
        mount = mounts.find_mount(self._path)
        self._device = mount.device if mount else (0, 0)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def request_stop(self) -> None:
        """Unmount soon, lazily if the mount is in use."""
        self._stop_requested = True

    # life

    def run(self, ready: Callable[[], None] | None = None, stop: StopFlag | None = None) -> None:
        try:
            self._prepare(self._handshake())
            self._ops.init(self._notifier)
            self._start_worker()
        except BaseException:
            self._unmount_lazily()
            raise
        try:
            if ready is not None:
                ready()
            self._wait(stop)
        finally:
            self._shut_down()

    def _handshake(self) -> Agreed:
        """Read INIT, the first request of every connection, and answer it."""
        buffer = bytearray(max(wire.MIN_READ_BUFFER, self._options.max_write + _ROOM))
        length = os.readv(self._fd, [buffer])
        _, opcode, unique, *_ = wire.IN_HEADER.unpack_from(buffer)
        if opcode != Op.INIT:
            raise OSError(errno.EPROTO, f"the kernel began with request {opcode}, not INIT")
        body, agreed = answer_init(memoryview(buffer)[_HEADER:length], self._options)
        os.writev(self._fd, [wire.OUT_HEADER.pack(16 + len(body), 0, unique), body])
        logger.debug("FUSE 7.%d, flags %#x, %s", agreed.minor, agreed.flags, self._options)
        return agreed

    def _prepare(self, agreed: Agreed) -> None:
        self._buffer_size = max(wire.MIN_READ_BUFFER, agreed.max_write + _ROOM)
        self._notifier = KernelNotifier(self._fd)
        self._passthrough = Passthrough(self._fd, enabled=agreed.has(wire.PASSTHROUGH))
        self._table = Dispatcher(
            self._ops, agreed, KernelView(), self._notifier, self._locks, self._passthrough
        ).table()
        device.set_readahead(self._path, self._options.max_readahead)

    def _wait(self, stop: StopFlag | None) -> None:
        """Until the kernel has let go of the mount, or we are asked to stop."""
        while not self._ended.wait(_POLL_S):
            if self._stop_requested or (stop is not None and stop.is_set()):
                return

    def _end_mount(self) -> None:
        """Unmount if it is still there, wait for its users, in the end cut them off."""
        mount = mounts.find_mount(self._path)
        if mount is not None and mount.device == self._device:
            self._unmount_lazily()
        grace_s = self._options.stop_grace_s
        if self._ended.wait(min(1.0, grace_s)):
            return
        logger.info("%s: waiting up to %.0f s for files that are still open", self._path, grace_s)
        if self._ended.wait(grace_s):
            return
        logger.warning("%s is still in use: its connection is cut", self._path)
        if device.abort(self._device):
            self._ended.wait()
        else:
            logger.error("the connection of %s cannot be cut", self._path)

    def _unmount_lazily(self) -> None:
        """Unmount; where that is refused because of users, hide the mount from new ones."""
        until = time.monotonic() + _UNMOUNT_RETRY_S
        while True:
            try:
                mounts.unmount(self._path)
                return
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > until:
                    break
            if self._ended.wait(_POLL_S):
                return
        try:
            mounts.unmount(self._path, lazy=True)
        except OSError as error:
            logger.debug("unmount of %s: %s", self._path, error)

    def _shut_down(self) -> None:
        """After the last request: nothing of ours runs on."""
        self._end_mount()
        if self._ended.is_set():
            while self._threads:
                for thread in list(self._threads):
                    thread.join()
        self._locks.close()
        self._notifier.close()
        self._ops.destroy()

    # workers

    def _start_worker(self) -> None:
        with self._lock:
            if len(self._threads) >= self._options.workers:
                return
            thread = threading.Thread(target=self._work, name="fuse-worker", daemon=True)
            self._threads.add(thread)
            self._idle += 1
        try:
            thread.start()
        except RuntimeError as error:  # no more threads: those there are go on
            logger.warning("no further worker: %s", error)
            self._worker_ended(thread, was_idle=True)

    def _worker_ended(self, thread: threading.Thread, *, was_idle: bool) -> None:
        with self._lock:
            self._threads.discard(thread)
            self._idle -= was_idle
            last = not self._threads
        if last:
            self._ended.set()

    def _work(self) -> None:
        try:
            self._loop()
        except Exception:
            logger.exception("a worker of %s died", self._path)
        finally:
            self._worker_ended(threading.current_thread(), was_idle=False)

    def _loop(self) -> None:
        """Serve requests until the mount is gone or this thread is one too many."""
        memory, view = _request_buffer(self._buffer_size)
        buffers = [view]
        fd, lock, serve_one, readv = self._fd, self._lock, self._serve, os.readv
        while True:
            try:
                length = readv(fd, buffers)
            except OSError as error:
                if error.errno in _GONE:
                    return
                if error.errno in (errno.ENOENT, errno.EAGAIN, errno.EINTR):
                    continue  # the request was withdrawn
                raise
            with lock:
                self._idle -= 1
                alone = self._idle == 0
                if alone:
                    self._spare_turns = 0
            if alone:
                self._start_worker()
            message = serve_one(view, length)
            if length > _LARGE and len(self._threads) > _FEW:
                memory.madvise(mmap.MADV_DONTNEED)
            with lock:  # before the reply goes out: it brings the next request
                self._idle += 1
                is_spare = self._idle > _SPARE and self._is_spare_locked()
            if message is not None:
                self._write(message)
            if is_spare:
                return

    def _is_spare_locked(self) -> bool:
        """Is it time that a thread ends? The one that asks does, and no longer counts as idle."""
        self._spare_turns += 1
        if self._spare_turns <= _SPARE_TURNS:
            return False
        self._spare_turns = 0
        self._idle -= 1
        return True

    def _serve(self, view: memoryview, length: int) -> bytes | list[Buffer] | None:
        """One request, from its bytes to its reply; None where none is due."""
        _, opcode, unique, ino, uid, gid, pid, ext = wire.IN_HEADER.unpack_from(view)
        row = self._table.get(opcode)
        if row is None:
            return _failure(unique, errno.ENOSYS)
        parse, handler, takes_unique = row
        try:
            cred = self._creds.get(uid, gid, pid)
            if ext:
                length, groups = _extensions(view, length, ext * 8)
                cred = with_groups(cred, groups)
            args = parse(view, length)
            if self._options.debug:
                logger.debug("%d: %s", unique, describe(opcode, ino, args))
            reply = handler(cred, ino, *args, unique) if takes_unique else handler(cred, ino, *args)
        except OSError as error:
            return _failure(unique, error.errno or errno.EIO)
        except Exception:
            logger.exception("request %s of inode %d failed", Op(opcode).name, ino)
            return _failure(unique, errno.EIO)
        if reply is None:
            return wire.OUT_HEADER.pack(16, 0, unique)
        if isinstance(reply, bytes):
            return wire.OUT_HEADER.pack(16 + len(reply), 0, unique) + reply
        return None if reply is NO_REPLY else _pieces(unique, reply)

    def _answer(self, unique: int, code: int) -> None:
        """Reply to a request that was put off: an error, or with 0 an empty success."""
        self._write(_failure(unique, code))

    def _write(self, message: bytes | list[Buffer]) -> None:
        try:
            if isinstance(message, bytes):
                os.write(self._fd, message)
            else:
                os.writev(self._fd, message)
        except OSError as error:
            self._not_sent(message, error)

    def _not_sent(self, message: bytes | list[Buffer], error: OSError) -> None:
        """The kernel did not take a reply: fine if it no longer waits, a bug of ours if not."""
        if error.errno == errno.ENOENT or error.errno in _GONE:
            return
        header = message if isinstance(message, bytes) else message[0]
        _, _, unique = wire.OUT_HEADER.unpack_from(header)
        logger.error("reply to request %d was refused: %s", unique, error)
        try:
            os.write(self._fd, _failure(unique, errno.EIO))
        except OSError as again:
            logger.debug("request %d: %s", unique, again)


def _failure(unique: int, code: int) -> bytes:
    """The reply with that errno; 0 is an empty success."""
    return wire.OUT_HEADER.pack(16, -code if 0 <= code < 1000 else -errno.EIO, unique)


def _pieces(unique: int, pieces: list[Buffer]) -> list[Buffer]:
    """A reply of several buffers, which are sent as they are."""
    if len(pieces) > _MAX_PIECES:
        pieces = [b"".join(pieces)]
    size = sum(map(_nbytes, pieces))
    return [wire.OUT_HEADER.pack(16 + size, 0, unique), *pieces]


def _request_buffer(size: int) -> tuple[mmap.mmap, memoryview]:
    """Memory that counts only once used, in which the data of a WRITE begins on a page.

    The mapping is to give it back by: private, as shared memory stays when it is not needed.
    """
    headers = _HEADER + wire.WRITE_IN.size
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, mmap.PAGESIZE + size, flags=flags)
    return memory, memoryview(memory)[mmap.PAGESIZE - headers :][:size]


def _nbytes(piece: Buffer) -> int:
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)


def _extensions(view: memoryview, length: int, size: int) -> tuple[int, tuple[int, ...]]:
    """(length without extensions, the groups that one of them names)."""
    end, at = length, length - size
    length = at
    groups: tuple[int, ...] = ()
    while at + wire.EXT_HEADER.size <= end:
        this, kind = wire.EXT_HEADER.unpack_from(view, at)
        if this < wire.EXT_HEADER.size or at + this > end:
            raise posix_error(errno.EINVAL)
        if kind == wire.EXT_GROUPS:
            start = at + wire.EXT_HEADER.size + wire.SUPP_GROUPS.size
            (count,) = wire.SUPP_GROUPS.unpack_from(view, start - wire.SUPP_GROUPS.size)
            groups = tuple(view[start : start + 4 * count].cast("I"))
        at += (this + 7) & ~7
    return length, groups
