"""The way to the server that holds the volume: connections, retries, fail-over, scripts.

A volume's keys share one slot, so one server holds them all, in a cluster too. Who it is tells
the URL, a Sentinel or the cluster's slot table; after a lost connection or a redirection it is
asked anew. Redis errors leave here as OSError that name the server, never the password.
"""

from __future__ import annotations

import binascii
import errno
import logging
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import hiredis

from juicepy.meta.redis import wire
from juicepy.meta.redis.scripts import Script
from juicepy.meta.redis.url import Address, RedisUrl
from juicepy.meta.redis.wire import Command, NotSent, Wire, WrongPassword

logger = logging.getLogger(__name__)

Run = Callable[[Sequence[Command]], list[Any]]

_TRIES = 10
_TRIES_TO_OPEN = 3
_SLOTS = 16384
# The server did nothing and may do so later, here or elsewhere.
_TRANSIENT = frozenset(
    (
        *("ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "NOREPLICAS"),
        *("READONLY", "TRYAGAIN"),
    )
)
_ELSEWHERE = frozenset(("READONLY", "MASTERDOWN", "CLUSTERDOWN", "MOVED"))


class ReplyLost(OSError):
    """The request was sent and no reply came: it may have been done or not."""


class ReplyRefused(OSError):
    """An error reply; `code` is its first word."""

    def __init__(self, where: str, text: str) -> None:
        self.code = text.partition(" ")[0]
        code = errno.ENOSPC if self.code == "OOM" else errno.EIO
        super().__init__(code, f"redis at {where}: {text}")


class Link:
    """Exchanges with the server, by any number of threads."""

    def __init__(self, url: RedisUrl) -> None:
        self._url = url
        self._free: list[Wire] = []  # append and pop are atomic
        self._address: Address | None = None
        self._nodes: tuple[Address, ...] = url.addresses
        self._passwords = url.passwords or ("",)
        self._tries = _TRIES_TO_OPEN
        self.is_cluster = url.cluster

    @property
    def where(self) -> str:
        return self._url.where

    def open(self) -> None:
        """Find the server and learn whether it is a cluster; OSError if it cannot be reached."""
        if not (self._url.master or self._url.cluster or self._url.unix):
            self.is_cluster = self._is_cluster_node()
        self.call("PING")
        self._tries = _TRIES

    def close(self) -> None:
        self._drop_free()

    def call(self, *command: bytes | str | int, repeatable: bool = True) -> Any:
        return self.run((command,), repeatable=repeatable)[0]

    def script(self, script: Script, key: bytes, *args: bytes, repeatable: bool = True) -> Any:
        """Run `script` where `key` lies; the first time its text is sent along."""
        return self.script_over(partial(self.run, repeatable=repeatable), script, key, *args)

    def script_over(self, run: Run, script: Script, key: bytes, *args: bytes) -> Any:
        """The same, with commands sent by `run`."""
        try:
            return run([("EVALSHA", script.sha, 1, key, *args)])[0]
        except ReplyRefused as error:
            if error.code != "NOSCRIPT":
                raise
        return run([("EVAL", script.text, 1, key, *args)])[0]

    def run(self, commands: Sequence[Command], *, repeatable: bool = True) -> list[Any]:
        """Replies of `commands`, sent in one go, not atomic.

        What is not `repeatable` (one command) is sent again only if the server has not had it;
        else ReplyLost.
        """
        packed = wire.pack(commands)
        for attempt in range(1, self._tries + 1):
            try:
                replies = self._exchange(packed, len(commands))
                refusal = refusal_of(replies)
                if refusal is not None and refusal.startswith("ASK "):
                    replies = self._ask(commands, refusal.split()[2])
                    refusal = refusal_of(replies)
            except WrongPassword as error:
                raise self._not_let_in(f"redis at {self.where}: {error}") from error
            except NotSent as error:
                self._pause(attempt, error)
                continue
            except OSError as error:
                if not repeatable:
                    text = f"redis at {self.where} did not answer: {error}"
                    raise ReplyLost(errno.EIO, text) from error
                self._pause(attempt, error)
                continue
            if refusal is None:
                return replies
            refused = ReplyRefused(self.where, refusal)
            if refused.code == "NOAUTH":
                raise self._not_let_in(str(refused.strerror))
            if refused.code not in _TRANSIENT:
                raise refused
            self._pause(attempt, refused)
        raise AssertionError("the last pause raises")

    def _not_let_in(self, text: str) -> OSError:
        """EACCES for who opens; later it is the server that changed: no permission of a file."""
        is_opening = self._tries == _TRIES_TO_OPEN
        return OSError(errno.EACCES if is_opening else errno.EIO, text)

    # -- connections
    def dial(self) -> Wire:
        """A connection of the caller's own to the present server. OSError."""
        address = self._address
        if address is None:
            address = self._address = self._locate()
        return self._connect(address)

    def _exchange(self, packed: bytes, count: int) -> list[Any]:
        connection = self._take()
        try:
            replies = connection.exchange(packed, count)
        except OSError:
            connection.close()
            raise
        if connection.address == self._address:
            self._free.append(connection)
        else:
            connection.close()
        return replies

    def _take(self) -> Wire:
        """A connection to the present server; NotSent if there is none."""
        while self._free:
            try:
                connection = self._free.pop()
            except IndexError:  # another thread was faster
                break
            if connection.address == self._address and not connection.is_stale():
                return connection
            connection.close()
        try:
            return self.dial()
        except WrongPassword:
            raise
        except OSError as error:
            raise NotSent(error.errno, str(error)) from error

    def _connect(self, address: Address) -> Wire:
        return self._log_in(address, None if self.is_cluster else self._url.db)

    def _log_in(self, address: Address, db: int | None) -> Wire:
        """A connection with the password that fits, of the readings of the URL's."""
        user = self._url.user
        for password in self._passwords[:-1]:
            try:
                connection = wire.connect(self._url, address, user=user, password=password, db=db)
            except WrongPassword:
                continue
            self._passwords = (password,)
            return connection
        return wire.connect(self._url, address, user=user, password=self._passwords[-1], db=db)

    def _drop_free(self) -> None:
        while self._free:
            try:
                self._free.pop().close()
            except IndexError:  # another thread was faster
                return

    def _pause(self, attempt: int, error: OSError) -> None:
        """Before another try: forget the server where it may have moved; raises after the last."""
        code = getattr(error, "code", "")
        if not code or code in _ELSEWHERE:
            self._address = None
            self._drop_free()
        if attempt >= self._tries:
            if code:
                raise error
            reason = error.strerror or error
            raise OSError(errno.EIO, f"cannot reach redis at {self.where}: {reason}") from error
        limit_s = min(self._url.min_backoff_s * 2**attempt, self._url.max_backoff_s)
        if code != "MOVED" or attempt > 1:
            opening = self._tries == _TRIES_TO_OPEN  # then who opens tells the failure
            level = logging.DEBUG if opening else logging.WARNING
            logger.log(level, "redis at %s, try %d: %s", self.where, attempt, error)
            time.sleep(random.uniform(limit_s / 2, limit_s))

    # -- who holds the volume
    def _locate(self) -> Address:
        if self._url.master:
            return self._from_nodes(self._ask_sentinel)
        if self.is_cluster:
            return self._from_nodes(self._ask_cluster)
        return self._url.addresses[0]

    def _from_nodes(self, ask: Any) -> Address:
        """The answer of the first node that has one."""
        failure: OSError = ConnectionError("no node answers")
        for node in self._nodes:
            try:
                found: Address = ask(node)
                return found
            except WrongPassword:
                raise
            except OSError as error:
                failure = error
        raise failure

    def _ask_sentinel(self, node: Address) -> Address:
        password = self._url.sentinel_password
        connection = wire.connect(self._url, node, user="", password=password, db=None)
        command = ("SENTINEL", "get-master-addr-by-name", self._url.master)
        reply = _only_reply(connection, command)
        if reply is None:
            raise ConnectionError(f"sentinel knows no master {self._url.master!r}")
        return reply[0].decode(), int(reply[1])

    def _ask_cluster(self, node: Address) -> Address:
        slot = binascii.crc_hqx(b"%d" % self._url.db, 0) % _SLOTS
        ranges = _only_reply(self._log_in(node, None), ("CLUSTER", "SLOTS"))
        nodes = {(one[0].decode() or node[0], int(one[1])) for row in ranges for one in row[2:]}
        self._nodes = tuple(dict.fromkeys((*self._url.addresses, *sorted(nodes))))
        for first, last, master, *_ in ranges:
            if first <= slot <= last:
                return (master[0] or b"").decode() or node[0], int(master[1])
        raise ConnectionError(f"no node of the cluster holds slot {slot}")

    def _is_cluster_node(self) -> bool:
        for attempt in range(1, self._tries + 1):
            try:
                node = self._log_in(self._url.addresses[0], None)
                reply: bytes = _only_reply(node, ("CLUSTER", "INFO"))
                return b"cluster_state" in reply
            except WrongPassword as error:
                raise OSError(errno.EACCES, f"redis at {self.where}: {error}") from error
            except ReplyRefused:  # not a cluster, or its users may not ask
                return False
            except OSError as error:
                self._pause(attempt, error)
        raise AssertionError("the last pause raises")

    def _ask(self, commands: Sequence[Command], target: str) -> list[Any]:
        """The slot is just moving to `target`, which serves what we ask for explicitly."""
        host, _, port = target.rpartition(":")
        connection = self._connect((host, int(port)))
        doubled = [one for command in commands for one in (("ASKING",), command)]
        try:
            replies = connection.exchange(wire.pack(doubled), len(doubled))[1::2]
        finally:
            connection.close()
        return replies


def _only_reply(connection: Wire, command: Command) -> Any:
    """The reply to one command; the connection is closed."""
    try:
        (reply,) = connection.exchange(wire.pack((command,)), 1)
    finally:
        connection.close()
    if isinstance(reply, hiredis.ReplyError):
        host, port = connection.address
        raise ReplyRefused(f"{host}:{port}", str(reply))
    return reply


def refusal_of(replies: Sequence[Any]) -> str | None:
    """The first error reply."""
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            return str(reply)
    return None
