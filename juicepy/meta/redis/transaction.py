"""Optimistic transactions: run the body, then verify what it read and store what it wrote at once.

| the body                 | from guesses or several moments | else              |
|--------------------------|---------------------------------|-------------------|
| wrote                    | one call verifies and stores    | the same          |
| raised OSError           | one call verifies, then raise   | raise             |
| wrote nothing            | guesses: one call verifies      | return            |

Where verification fails the call returns the present values, and the body runs again with them.
"""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from juicepy.meta.redis import commit
from juicepy.meta.redis.acls import AclRules
from juicepy.meta.redis.commit import Program
from juicepy.meta.redis.guesses import Guesses, Name
from juicepy.meta.redis.keys import Keys
from juicepy.meta.redis.link import Link, ReplyLost
from juicepy.meta.redis.reads import Reads, learn
from juicepy.meta.redis.scripts import COMMIT
from juicepy.meta.tx import Committed, Key, LockLost, Tx, Writes
from juicepy.types import Inode

logger = logging.getLogger(__name__)

T = TypeVar("T")

_TRIES = 50
_LONGEST_PAUSE_MS = 200
_NOTHING = Writes()
_NO_REPLY = Committed()


class Conflict(Exception):
    """Some checks failed; `present` has the raw values of these keys now."""

    def __init__(self, present: dict[Key, Any]) -> None:
        super().__init__()
        self.present = present


class Transactions:
    """Runs bodies of operations. Thread-safe."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link, self._keys = link, keys
        self._acls = AclRules(link, keys)
        self.guesses = Guesses()
        # told of the inodes and names that a transaction has changed, before it returns
        self.on_change: Callable[[Iterable[Inode], Iterable[Name]], None] = lambda *changed: None

    def transact(self, body: Callable[[Tx], T]) -> tuple[T, Committed]:
        return self._run(body, self.guesses)

    def read(self, body: Callable[[Tx], T]) -> T:
        """Without guesses: at most one run, unless it fails on what it read bit by bit."""
        return self._run(body, None)[0]

    def _run(self, body: Callable[[Tx], T], guesses: Guesses | None) -> tuple[T, Committed]:
        reads = Reads(self._link, self._keys, self._acls, guesses)
        for attempt in range(_TRIES):
            if attempt > 1:
                limit_ms = min(attempt**2, _LONGEST_PAUSE_MS)
                time.sleep(random.uniform(0, limit_ms) / 1000)
                # what the conflict told is as old as the pause: others may well have changed it
                reads = Reads(self._link, self._keys, self._acls, None)
            try:
                return self._try(body, reads)
            except Conflict as conflict:
                reads = reads.again(conflict.present)
        logger.error("a transaction met others %d times and was given up", _TRIES)
        raise OSError(errno.EIO, f"transaction failed after {_TRIES} conflicts")

    def _try(self, body: Callable[[Tx], T], reads: Reads) -> tuple[T, Committed]:
        """One run of the body and its commit, or Conflict."""
        tx = Tx(reads)
        try:
            result = body(tx)
        except OSError:
            if not reads.is_consistent:
                self._commit(reads, _NOTHING)
            raise
        if not tx.writes and not reads.guessed:
            return result, _NO_REPLY
        return result, self._commit(reads, tx.writes)

    def _commit(self, reads: Reads, writes: Writes) -> Committed:
        """Verify and store; Conflict with nothing changed."""
        for ino, posix in writes.locks:
            reads.fetch([("locks", ino, posix)])
        for (new, when_s), refs in writes.delayed.items():
            if refs is None and reads.fetch([("delayed", new, when_s)]) == [None]:
                raise FileNotFoundError(errno.ENOENT, f"no delayed slices of {new}")
        program = commit.build(self._keys, reads.raws, writes)
        if not (program.checks or program.changes or program.asks or program.patches):
            return _NO_REPLY
        try:
            reply = self._send(program)
        finally:  # also where it is not known whether it was carried out
            self.on_change([*program.attrs, *program.patched], program.entries)
        if reply[0] == 0:
            present = {
                program.checked[number - 1]: raw
                for number, raw in zip(reply[1::2], reply[2::2], strict=True)
            }
            if commit.HELD in present:
                raise LockLost
            learn(self.guesses, present)
            raise Conflict(present)
        return self._done(program, reply[1:]) if reply[0] == 1 else _NO_REPLY

    def _send(self, program: Program) -> list[Any]:
        """The script's result; after a lost reply find out whether it was carried out."""
        packed = program.pack()
        key = self._keys.counter("usedSpace")
        try:
            reply: list[Any] = self._link.script(COMMIT, key, packed, repeatable=False)
            return reply
        except ReplyLost as lost:
            witnesses = _witnesses(program)
            if not (witnesses or _is_harmless(program)):
                raise
            logger.warning("%s; asking whether the change was made", lost.strerror)
            again: list[Any] = self._link.script(COMMIT, key, packed, repeatable=False)
            failed = dict(zip(again[1::2], again[2::2], strict=True)) if again[0] == 0 else {}
            if failed and witnesses:
                if any(failed.get(number, b"") != raw for number, raw in witnesses.items()):
                    raise
                return [2]
            return again

    def _done(self, program: Program, replies: list[Any]) -> Committed:
        committed = Committed()
        for (kind, what), reply in zip(program.asked, replies, strict=False):
            if kind == "chunk":
                if reply:  # 0: there was no list, and the append was for an existing one only
                    committed.chunks[Inode(what[0]), what[1]] = reply
            else:
                committed.refs[what] = reply + 1  # type: ignore[index]  # a Ref
        attrs = program.attrs
        attrs.update(zip(program.patched, replies[len(program.asked) :], strict=True))
        self.guesses.learn(attrs.items(), program.entries.items())
        return committed


def _witnesses(program: Program) -> dict[int, bytes | None]:
    """Checks by number that fail once the program was carried out, with the value they find."""
    found: dict[int, bytes | None] = {}
    for number, (check, key) in enumerate(zip(program.checks, program.checked, strict=True), 1):
        if key[0] == "attr" and key[1] in program.attrs:
            new, old = program.attrs[key[1]], check[2]
        elif key[0] == "entry" and (key[1], key[2]) in program.entries:
            new, old = program.entries[key[1], key[2]], check[2]
        else:
            continue
        if new != (None if old is False else old):
            found[number] = new
    return found


def _is_harmless(program: Program) -> bool:
    """Whether carrying it out twice does the same as once."""
    return not (program.asks or program.patches) and all(
        change[0] not in ("INCRBY", "HINCRBY", "LPUSH", "LTRIM") for change in program.changes
    )
