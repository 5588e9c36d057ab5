"""Attributes and entries that are true until the server says otherwise: client-side caching.

A value is kept only if no change of its key was told, or made by this client, since the question
was sent (`_changed_at`). What has changed within the last second is read without being kept: who
changes a directory all the time is not told of it all the time. Nor is kept that a name is not
there: who waits for it shall see it at once.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from juicepy.concurrency import Lock
from juicepy.meta.codec import decode_attr, decode_entry
from juicepy.meta.engine import Changed, TrackingCounts
from juicepy.meta.redis.guesses import Guesses
from juicepy.meta.redis.keys import Keys
from juicepy.meta.redis.link import Link
from juicepy.meta.redis.pushes import Pushes
from juicepy.meta.redis.scripts import LOOKUP
from juicepy.meta.redis.wire import Command
from juicepy.types import Attr, Entry, Inode

logger = logging.getLogger(__name__)

_LIMIT = 200_000  # inodes, and names
_REMEMBERED = 100_000  # changes
_QUIET_S = 1.0
_DOUBTFUL = b""  # no record

Key = tuple[bytes, Inode]  # b"i" or b"d" and the inode
Found = tuple[Entry, Attr | None]


@dataclass(slots=True)
class _Question:
    """When it was asked: the number of the tracking, and of the changes till then; and whether
    the answer may be kept.
    """

    tracking: int
    clock: int
    keeps: bool


class TrackedReads:
    """Implements `meta.engine.Tracked` on Redis. Thread-safe."""

    def __init__(self, link: Link, keys: Keys, guesses: Guesses, limit: int = _LIMIT) -> None:
        self._link, self._keys, self._guesses, self._limit = link, keys, guesses, limit
        self._pushes = Pushes(link, self._told, self._beat)
        self._lock = Lock("tracked")  # guards what follows; lookups need none
        self._attrs: dict[Inode, bytes] = {}
        self._names: dict[Inode, dict[bytes, bytes]] = {}
        self._count = 0  # of names
        self._clock = 0  # of changes and answers
        self._asking = 0
        self._seen: dict[Inode, tuple[int, bytes]] = {}  # while anybody asks: the last answers
        self._changed_at: OrderedDict[Key, tuple[int, float]] = OrderedDict()
        self._forgotten = 0  # the clock of the last change that is not remembered
        self._again = Changed()
        self._tell: Callable[[Changed], None] = lambda changed: None
        self.counts = TrackingCounts()

    def start(self, tell: Callable[[Changed], None]) -> None:
        """Begin; `tell` hears of what is no longer true. OSError if the server does not track."""
        self._tell = tell
        self._pushes.start()

    def close(self) -> None:
        self._pushes.close()

    # -- reads
    def attr(self, ino: Inode) -> Attr | None:
        raw = self._attrs.get(ino)
        if raw is not None:
            self.counts.hits += 1
            return decode_attr(raw)
        raw = self._fetch_attr(ino)
        return None if raw is None else decode_attr(raw)

    def lookup(self, parent: Inode, name: bytes) -> Found | None:
        names = self._names.get(parent)
        if names is not None and name in names:
            entry = decode_entry(names[name])
            attr = self.attr(entry.ino)
            if attr is not None:
                return entry, attr
            # the inode is gone: another one has the name, or will be told to have lost it
            return self._found(self._link.script(LOOKUP, *self._words(parent, name)))
        return self._fetch_name(parent, name)

    def _words(self, parent: Inode, name: bytes) -> tuple[bytes, bytes, bytes]:
        """Key and arguments of the script."""
        return self._keys.directory(parent), name, self._keys.prefix + b"i"

    def holds_attr(self, ino: Inode) -> bool:
        return ino in self._attrs

    def holds_name(self, parent: Inode, name: bytes) -> bool:
        names = self._names.get(parent)
        return names is not None and name in names

    def _fetch_attr(self, ino: Inode) -> bytes | None:
        command = ("GET", self._keys.attr(ino))
        question = self._ask((b"i", ino))
        raw: bytes | None = None
        try:
            raw = self._reply(
                question, lambda: self._pushes.read([command])[0], lambda: self._link.call(*command)
            )
        finally:
            self._answered(question, {ino: raw} if raw is not None else {})
        return raw

    def _fetch_name(self, parent: Inode, name: bytes) -> Found | None:
        """Of what a script reads, Redis before 7.2 tracks only the keys it was given: the
        attributes are kept if a guess of the inode allows to ask for them in the same exchange.
        """
        words = self._words(parent, name)
        guess = self._guesses.entry(parent, name)
        inodes = [] if guess is None else [decode_entry(guess).ino]
        extra = [("GET", self._keys.attr(ino)) for ino in inodes]
        attrs: dict[Inode, bytes] = {}

        def read(commands: Sequence[Command]) -> list[Any]:
            *replies, last = self._pushes.read([*extra, *commands])
            attrs.update((ino, raw) for ino, raw in zip(inodes, replies, strict=True) if raw)
            return [last]

        question = self._ask((b"d", parent))
        names: dict[tuple[Inode, bytes], bytes] = {}
        try:
            found: list[bytes | None] | None = self._reply(
                question,
                lambda: self._link.script_over(read, LOOKUP, *words),
                lambda: self._link.script(LOOKUP, *words),
            )
            if found is not None and found[0] is not None:
                names = {(parent, name): found[0]}
        finally:
            self._answered(question, attrs, names)
        return self._found(found)

    @staticmethod
    def _found(found: list[bytes | None] | None) -> Found | None:
        if found is None or found[0] is None:
            return None
        return decode_entry(found[0]), None if found[1] is None else decode_attr(found[1])

    @staticmethod
    def _reply(question: _Question, tracked: Callable[[], Any], plain: Callable[[], Any]) -> Any:
        """The answer, tracked if it may be kept; where that fails it is not kept, but there."""
        if question.keeps:
            try:
                return tracked()
            except OSError as error:
                logger.debug("tracked read: %s", error)
                question.keeps = False
        return plain()

    def _ask(self, key: Key) -> _Question:
        changed = self._changed_at.get(key)
        is_quiet = changed is None or time.monotonic() - changed[1] > _QUIET_S
        with self._lock:
            self._asking += 1
            number = self._pushes.number
            return _Question(number, self._clock, keeps=number > 0 and is_quiet)

    def _answered(
        self,
        question: _Question,
        attrs: dict[Inode, bytes],
        names: dict[tuple[Inode, bytes], bytes] | None = None,
    ) -> None:
        """The end of a question. What it has told is kept if nothing else was told since."""
        with self._lock:
            for ino, raw in attrs.items():
                is_only = self._note_seen(ino, raw, question.clock)
                if is_only and self._may_keep(question, (b"i", ino)):
                    self._attrs[ino] = raw
            for (parent, name), entry in (names or {}).items():
                if self._may_keep(question, (b"d", parent)):
                    known = self._names.setdefault(parent, {})
                    self._count += name not in known
                    known[name] = entry
            self._asking -= 1
            if not self._asking:
                self._seen.clear()
            excess = self._shrink()
        self._announce(excess)

    def _note_seen(self, ino: Inode, raw: bytes, since: int) -> bool:
        """Somebody has read this record, so nobody shall be told an older one from now on; which
        of two that were read at once is older is not known. False if there were two.
        """
        self._clock += 1
        seen, kept = self._seen.get(ino), self._attrs.get(ino)
        is_only = kept is None or kept == raw
        if seen is not None and seen[0] > since:
            is_only &= seen[1] == raw
        if not is_only:
            self._attrs.pop(ino, None)
        self._seen[ino] = self._clock, raw if is_only else _DOUBTFUL
        return is_only

    def _may_keep(self, question: _Question, key: Key) -> bool:
        return (
            question.keeps
            and question.tracking == self._pushes.number
            and question.clock >= self._forgotten
            and self._is_unchanged(question, key)
        )

    def _is_unchanged(self, question: _Question, key: Key) -> bool:
        changed = self._changed_at.get(key)
        return changed is None or changed[0] <= question.clock

    def _shrink(self) -> Changed:
        """Drop what was kept first; the kernel must not keep it either, for it is told no more."""
        dropped = Changed()
        if len(self._attrs) > self._limit:
            for ino in list(self._attrs)[: self._limit // 8]:
                del self._attrs[ino]
                dropped.inodes.add(ino)
        while self._count > self._limit:
            self._drop_names(next(iter(self._names)), dropped)
        return dropped

    # -- changes
    def changed_here(self, attrs: Iterable[Inode], entries: Iterable[tuple[Inode, bytes]]) -> None:
        """This client has changed these: the kernel knows, what is kept here must go."""
        with self._lock:
            for ino in attrs:
                if ino in self._attrs:
                    del self._attrs[ino]
                self._note((b"i", ino))
            for parent, name in entries:
                known = self._names.get(parent)
                if known is not None and name in known:
                    del known[name]
                    self._count -= 1
                self._note((b"d", parent))

    def saw(self, ino: Inode, raw: bytes) -> None:
        """A record that was read elsewhere in this client."""
        with self._lock:
            self._note_seen(ino, raw, self._clock)
            if not self._asking:
                self._seen.clear()

    def forget(self, ino: Inode) -> None:
        """It turned out not to be what some name leads to, before that was told."""
        number = ino.to_bytes(8, "big")
        with self._lock:
            self._attrs.pop(ino, None)
            self._note((b"i", ino))
            for parent, names in self._names.items():
                wrong = [name for name, raw in names.items() if raw[1:] == number]
                for name in wrong:
                    del names[name]
                    self._note((b"d", parent))
                self._count -= len(wrong)

    def _told(self, keys: Sequence[bytes] | None) -> None:
        if keys is None:
            self._drop_all()
            return
        changed = Changed()
        prefix = self._keys.prefix
        with self._lock:
            for key in keys:
                plain = key[len(prefix) :]
                kind, digits = plain[:1], plain[1:]
                if not (key.startswith(prefix) and digits.isdigit() and kind in (b"i", b"d")):
                    continue
                ino = Inode(int(digits))
                self.counts.pushes += 1
                self._note((kind, ino))
                if kind == b"d":
                    self._drop_names(ino, changed)
                else:  # also where nothing is kept: the kernel may know what was changed here
                    self._attrs.pop(ino, None)
                    changed.inodes.add(ino)
        self._announce(changed)

    def _drop_names(self, parent: Inode, changed: Changed) -> None:
        for name in self._names.pop(parent, ()):
            self._count -= 1
            changed.names.add((parent, name))

    def _note(self, key: Key) -> None:
        self._clock += 1
        self._changed_at[key] = self._clock, time.monotonic()
        self._changed_at.move_to_end(key)
        if len(self._changed_at) > _REMEMBERED:
            self._forgotten = self._changed_at.popitem(last=False)[1][0]

    def _drop_all(self) -> None:
        dropped = Changed()
        with self._lock:
            self._clock += 1
            self._forgotten = self._clock
            dropped.inodes.update(self._attrs)
            self._attrs.clear()
            for parent in list(self._names):
                self._drop_names(parent, dropped)
            self.counts.lost += 1
        self._announce(dropped)

    def _announce(self, changed: Changed) -> None:
        """Tell it now, and once more by the next beats: a reply that was on its way to the kernel
        may get there after the word of its change.
        """
        if not changed:
            return
        self.counts.drops += len(changed.inodes) + len(changed.names)
        with self._lock:
            self._again.add(changed)
        self._tell(changed)

    def _beat(self) -> None:
        with self._lock:
            again, self._again = self._again, Changed()
        if again:
            self._tell(again)
