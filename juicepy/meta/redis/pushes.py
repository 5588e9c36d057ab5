"""The server's word of changed keys: tracking, with one connection for what it tells.

Reads whose keys shall be tracked go over connections of their own (`CLIENT TRACKING ON REDIRECT`):
what transactions read needs no tracking. The server forgets what a connection has read when that
ends, so all of them are watched: the loss of any, and silence of the one for pushes, ends the
tracking, and whoever holds values is told before anything else. Then it begins anew.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from juicepy.concurrency import Lock
from juicepy.meta.redis import wire
from juicepy.meta.redis.link import Link, ReplyRefused, refusal_of
from juicepy.meta.redis.wire import Command, Wire

logger = logging.getLogger(__name__)

BEAT_S = 1.0
SILENCE_S = 3.0  # without an answer for so long the connection is taken for lost
_CHANNEL = b"__redis__:invalidate"
_LONGEST_PAUSE_S = 30.0


class Refused(OSError):
    """The server does not track keys for us."""


class Pushes:
    """`tell(keys)` is called, by a thread of its own, with keys that have changed; None: any may
    have. `beat()` follows about every second. Both must be quick and raise nothing.

    `number` counts how often tracking has begun; 0 while it is off.
    """

    def __init__(
        self,
        link: Link,
        tell: Callable[[Sequence[bytes] | None], None],
        beat: Callable[[], None],
    ) -> None:
        self._link, self._tell, self._beat = link, tell, beat
        self._lock = Lock("pushes")  # guards what follows
        self._free: list[Wire] = []
        self._all: set[Wire] = set()
        self._begun = 0
        self._client_id = 0
        self._listener: Wire | None = None
        self.number = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to track. Refused if the server does not; OSError if it does not answer."""
        listener = self._open()
        self._thread = threading.Thread(
            target=self._run, args=[listener], name="redis-push", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        listener = self._listener
        if listener is not None:
            listener.shut()
        if self._thread is not None:
            self._thread.join()
        self._lose()

    def read(self, commands: Sequence[Command]) -> list[Any]:
        """Replies of read-only commands, whose keys are tracked from now on. OSError if that, or
        the exchange, fails; then nothing is tracked any more.
        """
        number = self.number
        connection = self._take(number)
        try:
            replies = connection.exchange(wire.pack(commands), len(commands))
        except OSError:
            self._lose(number)
            raise
        with self._lock:
            if number == self.number:
                self._free.append(connection)
        refusal = refusal_of(replies)
        if refusal is not None:
            refused = ReplyRefused(self._link.where, refusal)
            if refused.code != "NOSCRIPT":  # the keys may be elsewhere by now: begin there
                self._lose(number)
            raise refused
        return replies

    def _take(self, number: int) -> Wire:
        with self._lock:
            if number == 0 or number != self.number:
                raise ConnectionError("keys are not tracked")
            if self._free:
                return self._free.pop()
            client_id = self._client_id
        connection = self._tracking(client_id)
        with self._lock:
            if number == self.number:
                self._all.add(connection)
                return connection
        connection.close()
        raise ConnectionError("keys are no longer tracked")

    def _tracking(self, client_id: int) -> Wire:
        connection = self._link.dial()
        try:
            _ask(connection, ("CLIENT", "TRACKING", "ON", "REDIRECT", client_id))
        except OSError:
            connection.close()
            raise
        return connection

    def _open(self) -> Wire:
        """The connection for pushes, once the server has agreed to send any."""
        listener = self._link.dial()
        try:
            client_id = _ask(listener, ("CLIENT", "ID"))
            first = self._tracking(client_id)
            _ask(listener, ("SUBSCRIBE", _CHANNEL))
        except OSError:
            listener.close()
            raise
        with self._lock:
            self._begun += 1
            self._client_id, self.number = client_id, self._begun
            self._free, self._all = [first], {first}
            self._listener = listener
        return listener

    def _lose(self, number: int | None = None) -> None:
        """Tracking has ended: first those who hold values hear of it."""
        with self._lock:
            if self.number == 0 or number not in (None, self.number):
                return
            self.number = 0
            wires, self._free, self._all = self._all, [], set()
        self._tell(None)
        for connection in wires:
            connection.shut()  # who uses it gets an error, and closes it

    # -- the thread
    def _run(self, listener: Wire) -> None:
        while True:
            try:
                self._listen(listener)
            except Exception as error:
                level = logging.DEBUG if self._stop.is_set() else logging.WARNING
                logger.log(level, "redis at %s tells no changes: %s", self._link.where, error)
            self._lose()
            listener.close()
            if self._stop.is_set():
                return
            found = self._again()
            if found is None:
                return
            listener = found

    def _again(self) -> Wire | None:
        """Begin anew, with pauses that grow; None when closed."""
        pause_s = BEAT_S
        while not self._stop.wait(pause_s):
            self._beat()
            try:
                return self._open()
            except OSError as error:
                logger.log(
                    logging.WARNING if pause_s == BEAT_S else logging.DEBUG,
                    "redis at %s does not track keys: %s",
                    self._link.where,
                    error,
                )
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return None

    def _listen(self, listener: Wire) -> None:
        """Until tracking is over."""
        ping = wire.pack([("PING",)])
        heard_s = beaten_s = time.monotonic()
        while not self._stop.is_set():
            messages = listener.listen(BEAT_S)
            now_s = time.monotonic()
            if messages:
                heard_s = now_s
            for message in messages:
                if message[0] == b"message":
                    self._tell(message[2])
            if now_s - heard_s > SILENCE_S:
                raise TimeoutError(f"silent for {SILENCE_S:.0f} s")
            if now_s - beaten_s >= BEAT_S:
                beaten_s = now_s
                listener.send(ping)
                self._look()
                self._beat()

    def _look(self) -> None:
        """Have all connections whose keys are tracked still another end?"""
        with self._lock:
            if self.number == 0:
                raise ConnectionError("a connection with tracked keys was lost")
            wires = list(self._all)
        poll = select.poll()
        for connection in wires:
            poll.register(connection.fileno(), select.POLLRDHUP)
        if poll.poll(0):
            raise ConnectionError("the server closed a connection with tracked keys")


def _ask(connection: Wire, command: Command) -> Any:
    (reply,) = connection.exchange(wire.pack([command]), 1)
    if isinstance(reply, hiredis.ReplyError):
        raise Refused(f"{command[0]!s} {command[1]!s}: {reply}")
    return reply
