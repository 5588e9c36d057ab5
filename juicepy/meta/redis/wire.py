"""One connection to a Redis server: commands out, replies in, over TCP, TLS or a Unix socket.

A socket and hiredis, without the layers of a general client: an exchange costs the round trip.
"""

from __future__ import annotations

import errno
import select
import socket
import ssl
import struct
from collections.abc import Iterable
from typing import Any

import hiredis

from juicepy.meta.redis.url import Address, RedisUrl, Tls

Command = tuple[bytes | str | int, ...]

_READ_BYTES = 65536


class NotSent(OSError):
    """The connection broke before the server had the whole request: it did nothing."""


class WrongPassword(OSError):
    """The server wants another user or password; trying again is in vain."""


class Wire:
    """A connection, used by one thread at a time. Any OSError leaves it unusable."""

    __slots__ = ("_poll", "_reader", "_sock", "address")

    def __init__(self, sock: socket.socket, address: Address) -> None:
        self.address = address
        self._sock = sock
        self._reader = hiredis.Reader()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def exchange(self, packed: bytes, count: int) -> list[Any]:
        """Send packed commands, return their `count` replies; error replies are among them."""
        try:
            self._sock.sendall(packed)
        except OSError as error:
            raise NotSent(error.errno, str(error)) from error
        replies: list[Any] = []
        reader = self._reader
        try:
            while len(replies) < count:
                reply = reader.gets()
                if reply is False:  # hiredis: more bytes are needed
                    reader.feed(self._receive())
                else:
                    replies.append(reply)
        except hiredis.ProtocolError as error:
            raise ConnectionError(f"not a Redis reply: {error}") from error
        return replies

    def _receive(self) -> bytes:
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError as error:
            raise TimeoutError("no reply in time") from error
        if not data:
            raise ConnectionError("the server closed the connection")
        return data

    def send(self, packed: bytes) -> None:
        """Send commands whose replies are left to `listen`."""
        self._sock.sendall(packed)

    def listen(self, timeout_s: float) -> list[Any]:
        """What the server has said, unasked or in reply; waits for it. Empty after the time."""
        found = self._said()
        if not found:
            pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()
            if pending or self._poll.poll(timeout_s * 1000):
                self._reader.feed(self._receive())
                found = self._said()
        return found

    def _said(self) -> list[Any]:
        found: list[Any] = []
        while (said := self._reader.gets()) is not False:
            found.append(said)
        return found

    def fileno(self) -> int:
        return self._sock.fileno()

    def shut(self) -> None:
        """End it from another thread than the one that uses it, which meets an error."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EBADF):
                raise

    def is_stale(self) -> bool:
        """Whether an idle connection was closed by the server (or has bytes nobody asked for)."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        self._sock.close()


def pack(commands: Iterable[Command]) -> bytes:
    packed = hiredis.pack_command
    return b"".join([packed(command) for command in commands])  # type: ignore[arg-type]  # stub


def connect(url: RedisUrl, address: Address, *, user: str, password: str, db: int | None) -> Wire:
    """An authenticated connection with database `db` selected (None: as it is)."""
    wire = Wire(_open_socket(url, address), address)
    login: list[Command] = []
    if password:
        login.append(("AUTH", user, password) if user else ("AUTH", password))
    if db:
        login.append(("SELECT", db))
    try:
        replies = wire.exchange(pack(login), len(login)) if login else ()
    except OSError:
        wire.close()
        raise
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            wire.close()
            raise _login_error(str(reply))
    return wire


def _login_error(text: str) -> OSError:
    if text.startswith(("LOADING", "MASTERDOWN", "CLUSTERDOWN")):
        return ConnectionError(text)
    return WrongPassword(text)


def _open_socket(url: RedisUrl, address: Address) -> socket.socket:
    if url.unix:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(url.connect_timeout_s)
        try:
            sock.connect(address[0])
        except OSError:
            sock.close()
            raise
    else:
        sock = socket.create_connection(address, url.connect_timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if url.tls is not None:
        try:
            wrapped = _context(url.tls).wrap_socket(
                sock, server_hostname=url.tls.server_name or address[0]
            )
        except OSError:
            sock.close()
            raise
        wrapped.settimeout(url.read_timeout_s)
        return wrapped
    _kernel_timeouts(sock, url)
    return sock


def _kernel_timeouts(sock: socket.socket, url: RedisUrl) -> None:
    """Time limits kept by the kernel: Python's own cost a poll() before every call."""
    sock.settimeout(None)
    for option, limit_s in (
        (socket.SO_RCVTIMEO, url.read_timeout_s),
        (socket.SO_SNDTIMEO, url.write_timeout_s),
    ):
        seconds = int(limit_s)
        value = struct.pack("ll", seconds, int((limit_s - seconds) * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, option, value)


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_file or None)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file:
        context.load_cert_chain(tls.cert_file, tls.key_file or None)
    return context
