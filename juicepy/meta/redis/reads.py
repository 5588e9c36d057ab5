"""What a transaction reads: fetched in one exchange per hint, or guessed, and kept raw.

The raw values are what the commit compares. Each kind of key (see `meta/tx.py`) has one line in
the tables below: the command that reads it and how its reply becomes a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from juicepy.meta.codec import decode_acl, decode_attr, decode_entry, decode_slices
from juicepy.meta.redis.acls import AclRules
from juicepy.meta.redis.guesses import Guesses
from juicepy.meta.redis.keys import Keys, delayed_field, owner_of
from juicepy.meta.redis.link import Link
from juicepy.meta.redis.wire import Command
from juicepy.meta.tx import Key
from juicepy.types import AclRule, Attr, Entry, Inode

# Not compared at a commit, or not to the end, and may change: read again when the body runs again.
_VOLATILE = frozenset(("chunk", "xattrs"))


def pairs(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Fields and values of a HGETALL reply."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def _attr(raw: bytes | None) -> Attr | None:
    return None if raw is None else decode_attr(raw)


def _entry(raw: bytes | None) -> Entry | None:
    return None if raw is None else decode_entry(raw)


def _parents(raw: Sequence[bytes]) -> dict[Inode, int]:
    counts = ((Inode(int(parent)), int(count)) for parent, count in pairs(raw))
    return {parent: count for parent, count in counts if count > 0}


_REQUESTS: dict[str, Callable[..., Command]] = {
    "attr": lambda keys, ino: ("GET", keys.attr(ino)),
    "dir": lambda keys, ino: ("GET", keys.attr(ino)),
    "entry": lambda keys, parent, name: ("HGET", keys.directory(parent), name),
    "empty": lambda keys, ino: ("HLEN", keys.directory(ino)),
    "chunk": lambda keys, ino, index: ("LRANGE", keys.chunk(ino, index), 0, -1),
    "link": lambda keys, ino: ("GET", keys.link(ino)),
    "xattr": lambda keys, ino, name: ("HGET", keys.xattrs(ino), name),
    "xattrs": lambda keys, ino: ("HKEYS", keys.xattrs(ino)),
    "parents": lambda keys, ino: ("HGETALL", keys.parents(ino)),
    "acl": lambda keys, rule_id: ("HGET", keys.named("acl"), b"%d" % rule_id),
    "locks": lambda keys, ino, posix: ("HGETALL", keys.locks(ino, posix)),
    "delayed": lambda keys, new, when_s: (
        ("HGET", keys.named("delSlices"), delayed_field(new, when_s))
    ),
}

_VALUES: dict[str, Callable[[Any], Any]] = {
    "attr": _attr,
    "dir": _attr,
    "entry": _entry,
    "empty": lambda raw: raw == 0,
    "chunk": lambda raw: decode_slices(b"".join(raw)),
    "link": lambda raw: raw,
    "xattr": lambda raw: raw,
    "xattrs": tuple,
    "parents": _parents,
    "acl": lambda raw: None if raw is None else decode_acl(raw),
    "locks": lambda raw: {owner_of(field): value for field, value in pairs(raw)},
    "delayed": lambda raw: raw,
}


class Reads:
    """The `Source` of one run of a transaction.

    `raws` are values by key. `guessed` tells that some may be out of date, `instants` at how many
    moments they were read: one moment is a consistent view.
    """

    __slots__ = ("_acls", "_guesses", "_keys", "_link", "guessed", "instants", "raws")

    def __init__(
        self,
        link: Link,
        keys: Keys,
        acls: AclRules,
        guesses: Guesses | None,
        raws: dict[Key, Any] | None = None,
    ) -> None:
        """Without `guesses` everything is read; `raws` were true a moment ago."""
        self._link, self._keys, self._acls, self._guesses = link, keys, acls, guesses
        self.raws: dict[Key, Any] = {} if raws is None else raws
        self.guessed = False
        self.instants = 1 if self.raws else 0

    def fetch(self, keys: Sequence[Key]) -> list[Any]:
        raws = self.raws
        missing = [key for key in keys if key not in raws and not self._known(key)]
        if missing and not (self._guesses is not None and self._guess(missing, self._guesses)):
            self._read(missing)
        return [_VALUES[key[0]](raws[key]) for key in keys]

    def save_acl(self, rule: AclRule) -> int:
        return self._acls.save(rule)

    @property
    def is_consistent(self) -> bool:
        return not self.guessed and self.instants <= 1

    def again(self, present: Mapping[Key, Any]) -> Reads:
        """For another run, after a commit that found the `present` values and all others right."""
        raws = {key: raw for key, raw in self.raws.items() if key[0] not in _VOLATILE}
        raws.update(present)
        return Reads(self._link, self._keys, self._acls, self._guesses, raws)

    def _known(self, key: Key) -> bool:
        """A directory's record read loosely also serves a strict read, and rules are kept."""
        if key[0] == "attr" and ("dir", key[1]) in self.raws:
            self.raws[key] = self.raws["dir", key[1]]
            return True
        if key[0] == "acl":
            raw = self._acls.raw(key[1])
            if raw is not None:
                self.raws[key] = raw
                return True
        return False

    def _guess(self, keys: Sequence[Key], guesses: Guesses) -> bool:
        """Guess them all, or none."""
        found: dict[Key, Any] = {}
        for key in keys:
            kind = key[0]
            if kind == "attr" or kind == "dir":
                raw = guesses.attr(key[1])
                if raw is None:
                    return False
                found[key] = raw
            elif kind == "entry":
                found[key] = guesses.entry(key[1], key[2])
            elif kind == "empty":
                found[key] = 0
            else:
                return False
        self.raws.update(found)
        self.guessed = True
        return True

    def _read(self, keys: Sequence[Key]) -> None:
        replies = self._link.run([_REQUESTS[key[0]](self._keys, *key[1:]) for key in keys])
        self.raws.update(zip(keys, replies, strict=True))
        self.instants += 1
        if self._guesses is not None:
            learn(self._guesses, dict(zip(keys, replies, strict=True)))


def learn(guesses: Guesses, raws: Mapping[Key, Any]) -> None:
    """Remember those values that are ever guessed."""
    guesses.learn(
        [(key[1], raw) for key, raw in raws.items() if key[0] in ("attr", "dir")],
        [((key[1], key[2]), raw) for key, raw in raws.items() if key[0] == "entry"],
    )
