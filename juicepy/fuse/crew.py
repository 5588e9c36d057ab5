"""Several processes that serve one mount, so that one interpreter is not the limit.

Each has a clone of the device (FUSE_DEV_IOC_CLONE), from which the kernel has it take requests
like another thread. A handle belongs to the process that opened it, which its number tells
(`Post.owner`). Reads of files are served by whoever gets them; other requests that name a handle
are sent to its owner, who has every clone open and replies through that of the sender, as the
kernel wants it.

A message is u32 length, u32 index of the sender, and the request (native byte order).
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from juicepy.concurrency import Workers
from juicepy.fuse import device, wire
from juicepy.fuse.negotiate import Agreed
from juicepy.fuse.opcodes import Op
from juicepy.types import INTERNAL

_CLONE = 0x8004E500  # FUSE_DEV_IOC_CLONE
_FRAME = struct.Struct("=II")
_FH = struct.Struct("=Q")
_THREADS = 64  # requests of others that may block at once

_FILES = (Op.WRITE, Op.FLUSH, Op.FSYNC, Op.RELEASE, Op.LSEEK, Op.IOCTL)
_LOCKS = (Op.GETLK, Op.SETLK, Op.SETLKW)
_DIRECTORIES = (Op.READDIR, Op.READDIRPLUS, Op.RELEASEDIR, Op.FSYNCDIR)
PINNED = frozenset((*_FILES, *_LOCKS, *_DIRECTORIES))


@dataclass(frozen=True, slots=True)
class Post:
    """One process of the crew: all clones of the device, and its sockets by the others' index."""

    index: int
    fds: tuple[int, ...]
    links: dict[int, int]
    agreed: Agreed

    @property
    def fd(self) -> int:
        return self.fds[self.index]

    def owner(self, fh: int) -> int:
        """Whose handle it is: numbers of process i are i + 1, i + 1 + n, ..."""
        return (fh - 1) % len(self.fds)

    def inherited(self) -> tuple[int, ...]:
        """The descriptors that the process needs."""
        return (*self.fds, *self.links.values())


def posts(fd: int, agreed: Agreed, count: int) -> list[Post]:
    """Of `count` processes; the first is this one, whose device `fd` is."""
    fds = (fd, *(_clone(fd) for _ in range(count - 1)))
    links: list[dict[int, int]] = [{} for _ in range(count)]
    for one, other in combinations(range(count), 2):
        ours, theirs = socket.socketpair()
        links[one][other], links[other][one] = ours.detach(), theirs.detach()
    return [Post(index, fds, links[index], agreed) for index in range(count)]


def close_others(crew: Sequence[Post]) -> None:
    """After the others have started: their ends of the sockets are theirs alone."""
    for post in crew[1:]:
        for fd in post.links.values():
            os.close(fd)


def _clone(fd: int) -> int:
    new = device.open_device()
    try:
        fcntl.ioctl(new, _CLONE, struct.pack("=I", fd))
    except BaseException:
        os.close(new)
        raise
    return new


class Forwarder:
    """Sends requests to the owners of their handles, and has those that come served."""

    def __init__(self, post: Post, serve: Callable[[memoryview, int, int], None]) -> None:
        """`serve(request, length, fd)` serves a request and replies through `fd`."""
        self._post, self._serve = post, serve
        self._links = {peer: socket.socket(fileno=fd) for peer, fd in post.links.items()}
        self._locks = {peer: threading.Lock() for peer in post.links}
        self._pool = Workers("fuse-forward", _THREADS)
        self._threads = [
            threading.Thread(target=self._receive, args=[link], name="fuse-crew", daemon=True)
            for link in self._links.values()
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        for link in self._links.values():
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # the other end is closed
        for thread in self._threads:
            thread.join()
        self._pool.close(cancel=True)
        for link in self._links.values():
            link.close()

    def pass_on(self, view: memoryview, length: int) -> bool:
        """Send the request to the process it belongs to; False if that is this one."""
        _, opcode, _, ino, *_ = wire.IN_HEADER.unpack_from(view)
        if opcode not in PINNED and not (opcode == Op.READ and ino > INTERNAL):
            return False
        owner = self._post.owner(_FH.unpack_from(view, wire.IN_HEADER.size)[0])
        if owner == self._post.index:
            return False
        frame = _FRAME.pack(length, self._post.index)
        with self._locks[owner]:
            self._links[owner].sendall(b"".join((frame, view[:length])))
        return True

    def _receive(self, link: socket.socket) -> None:
        with link.makefile("rb") as stream:
            while head := stream.read(_FRAME.size):
                if len(head) < _FRAME.size:
                    return
                length, sender = _FRAME.unpack(head)
                request = stream.read(length)
                if len(request) < length:
                    return
                self._pool.run(self._serve, memoryview(request), length, self._post.fds[sender])
