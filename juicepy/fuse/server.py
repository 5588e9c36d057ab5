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
from collections.abc import Callable, Sequence
from typing import Protocol

from juicepy.fuse import device, messages, mounts, wire
from juicepy.fuse.creds import Creds, with_groups
from juicepy.fuse.crew import Forwarder, Post, close_others, posts
from juicepy.fuse.dispatch import NO_REPLY, Dispatcher
from juicepy.fuse.kernel import KernelView
from juicepy.fuse.locks import LockWaiters
from juicepy.fuse.negotiate import Agreed, answer_init
from juicepy.fuse.notify import ExpiringNotifier, KernelNotifier
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
_POLL_S = 0.2
_UNMOUNT_RETRY_S = 1.0
_GONE = (errno.ENODEV, errno.ECONNABORTED, errno.ENOTCONN)


class StopFlag(Protocol):
    """An Event as far as `serve` needs it."""

    def is_set(self) -> bool: ...


class Crew(Protocol):
    """The other processes that serve a mount."""

    def start(self, posts: Sequence[Post]) -> None:
        """Returns when all of them serve. OSError, after which none is left."""

    def failed(self) -> bool:
        """Whether one has ended."""

    def wait_ended(self) -> None:
        """Until all have ended, by force if it takes long."""


def serve(
    operations: Operations,
    mount_point: str,
    options: FuseOptions,
    ready: Callable[[], None] | None = None,
    stop: StopFlag | None = None,
    crew: Crew | None = None,
) -> None:
    """Mount and serve until unmounted, or until `stop` is set, which unmounts.

    `ready` is called once the mount answers. On return all requests are served,
    `operations.destroy()` has returned, no thread is left. `crew`: those who help, as many as
    `options.processes` says. EIO if one of them ends before the mount.
    """
    with Server(operations, mount_point, options, crew=crew) as server:
        server.run(ready, stop)


def help_serving(
    operations: Operations, options: FuseOptions, post: Post, ready: Callable[[], None]
) -> None:
    """Serve a mount beside the process that has mounted it, until it is gone."""
    Server(operations, "", options, post=post).run(ready)


class Server:
    """One mount. `open` mounts, `run` serves; `request_stop` may be called from signal handlers."""

    def __init__(
        self,
        operations: Operations,
        mount_point: str,
        options: FuseOptions,
        *,
        post: Post | None = None,
        crew: Crew | None = None,
    ) -> None:
        self._ops = operations
        self._post, self._crew = post, crew
        self._forwarder: Forwarder | None = None
        self._path = mount_point
        self._options = options
        self._fd = -1 if post is None else post.fd
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
            agreed = self._handshake() if self._post is None else self._post.agreed
            crew_posts = self._posts(agreed)
            self._prepare(agreed)
            self._ops.init(self._notifier)
            self._start_worker()
        except BaseException:
            self._unmount_lazily()
            raise
        try:
            if self._crew is not None:
                self._crew.start(crew_posts[1:])
                close_others(crew_posts)
            if ready is not None:
                ready()
            self._wait(stop)
        finally:
            self._shut_down()

    def _posts(self, agreed: Agreed) -> list[Post]:
        """Those of all processes, if there are several; only the first makes them."""
        made: list[Post] = []
        if self._crew is not None:
            made = posts(self._fd, agreed, self._options.processes)
            self._post = made[0]
        if self._post is not None:
            self._forwarder = Forwarder(self._post, self._serve_for)
            self._forwarder.start()
        return made

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
        expires = agreed.minor >= wire.EXPIRE_ONLY_MINOR
        self._notifier = (ExpiringNotifier if expires else KernelNotifier)(self._fd)
        self._passthrough = Passthrough(self._fd, enabled=agreed.has(wire.PASSTHROUGH))
        self._table = Dispatcher(
            self._ops, agreed, KernelView(), self._notifier, self._locks, self._passthrough
        ).table()
        if self._path:
            device.set_readahead(self._path, self._options.max_readahead)

    def _wait(self, stop: StopFlag | None) -> None:
        """Until the kernel has let go of the mount, or we are asked to stop."""
        while not self._ended.wait(_POLL_S):
            if self._stop_requested or (stop is not None and stop.is_set()):
                return
            if self._crew is not None and self._crew.failed():
                self._lose_crew()
                return

    def _lose_crew(self) -> None:
        """A process has ended, with requests that nobody will answer: cut the connection.

        Unless the mount is gone, of which that process heard first.
        """
        if self._ended.wait(_UNMOUNT_RETRY_S):
            return
        logger.error("a process that serves %s has ended: the mount is cut", self._path)
        device.abort(self._device)
        raise OSError(errno.EIO, "a process of the mount has ended", self._path)

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
        if self._path:
            self._end_mount()
        if self._ended.is_set():
            while self._threads:
                for thread in list(self._threads):
                    thread.join()
        if self._crew is not None:
            self._crew.wait_ended()
        if self._forwarder is not None:
            self._forwarder.close()
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
        memory, view = messages.request_buffer(self._buffer_size)
        buffers = [view]
        fd, lock, serve_one, readv = self._fd, self._lock, self._serve, os.readv
        forwarder = self._forwarder
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
            if forwarder is not None and forwarder.pass_on(view, length):
                message = None
            else:
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
            return messages.failure(unique, errno.ENOSYS)
        parse, handler, takes_unique = row
        try:
            cred = self._creds.get(uid, gid, pid)
            if ext:
                length, groups = messages.extensions(view, length, ext * 8)
                cred = with_groups(cred, groups)
            args = parse(view, length)
            if self._options.debug:
                logger.debug("%d: %s", unique, describe(opcode, ino, args))
            reply = handler(cred, ino, *args, unique) if takes_unique else handler(cred, ino, *args)
        except OSError as error:
            return messages.failure(unique, error.errno or errno.EIO)
        except Exception:
            logger.exception("request %s of inode %d failed", Op(opcode).name, ino)
            return messages.failure(unique, errno.EIO)
        if reply is None:
            return wire.OUT_HEADER.pack(16, 0, unique)
        if isinstance(reply, bytes):
            return wire.OUT_HEADER.pack(16 + len(reply), 0, unique) + reply
        return None if reply is NO_REPLY else messages.pieces(unique, reply)

    def _serve_for(self, view: memoryview, length: int, fd: int) -> None:
        """A request that another process has read, from its clone `fd` of the device."""
        message = self._serve(view, length)
        if message is not None:
            self._write(message, fd)

    def _answer(self, unique: int, code: int) -> None:
        """Reply to a request that was put off: an error, or with 0 an empty success."""
        self._write(messages.failure(unique, code))

    def _write(self, message: bytes | list[Buffer], fd: int | None = None) -> None:
        fd = self._fd if fd is None else fd
        try:
            if isinstance(message, bytes):
                os.write(fd, message)
            else:
                os.writev(fd, message)
        except OSError as error:
            self._not_sent(message, error, fd)

    def _not_sent(self, message: bytes | list[Buffer], error: OSError, fd: int) -> None:
        """The kernel did not take a reply: fine if it no longer waits, a bug of ours if not."""
        if error.errno == errno.ENOENT or error.errno in _GONE:
            return
        header = message if isinstance(message, bytes) else message[0]
        _, _, unique = wire.OUT_HEADER.unpack_from(header)
        logger.error("reply to request %d was refused: %s", unique, error)
        try:
            os.write(fd, messages.failure(unique, errno.EIO))
        except OSError as again:
            logger.debug("request %d: %s", unique, again)
