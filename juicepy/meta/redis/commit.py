"""The writes of a transaction as one program for `scripts/commit.lua`: checks, then changes.

Every change of a name sets a field of `d<parent>`, every change of an inode its `i<inode>`: what
clients of JuiceFS watch. Counters change relatively. What each field of `Writes` becomes stands in
one function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from juicepy.meta.codec import (
    MTIME_AT,
    NLINK_AT,
    encode_attr,
    encode_entry,
    encode_refs,
    encode_slice,
    encode_times,
)
from juicepy.meta.redis import scripts
from juicepy.meta.redis.keys import Keys, delayed_field, owner_field, owner_of, ref_field
from juicepy.meta.tx import Key, LockOwner, Ref, Writes
from juicepy.types import Inode, SessionId

_STRING, _FIELD, _EMPTY, _PREFIX, _LIST, _HASH, _PARTS, _EXISTS, _IN = range(
    1, 10
)  # as in commit.lua

# Of a directory read loosely: flags, kind, mode, owner; then parent, ACLs, tier. Not times, nlink.
_HEAD_BYTES, _TAIL_AT = 11, 63

HELD: Key = ("held",)  # what a check of a lock belongs to: it has no value

_MANY = 1000  # arguments of one command: Lua's stack holds some thousands

STATS = ("dirDataLength", "dirUsedSpace", "dirUsedInodes")
QUOTAS = ("dirQuota", "dirQuotaUsedSpace", "dirQuotaUsedInodes")


@dataclass(slots=True)
class Program:
    """Input of the script, and what its results belong to.

    `checked` has the read key of each check; `asked` of each change with a reply: a chunk or a
    slice reference; `patched` the inode of each patch. `attrs` and `entries` are new raw values.
    """

    checks: list[Sequence[Any]] = field(default_factory=list)
    asks: list[Sequence[Any]] = field(default_factory=list)
    changes: list[Sequence[Any]] = field(default_factory=list)
    patches: list[Sequence[Any]] = field(default_factory=list)
    checked: list[Key] = field(default_factory=list)
    asked: list[tuple[str, tuple[int, int]]] = field(default_factory=list)
    patched: list[Inode] = field(default_factory=list)
    attrs: dict[Inode, bytes | None] = field(default_factory=dict)
    entries: dict[tuple[Inode, bytes], bytes | None] = field(default_factory=dict)

    def pack(self) -> bytes:
        return scripts.pack((self.checks, self.asks, self.changes, self.patches))

    def check(self, key: Key, *how: Any) -> None:
        self.checks.append(how)
        self.checked.append(key)


def build(keys: Keys, raws: Mapping[Key, Any], writes: Writes) -> Program:
    """The program that verifies `raws`, which the body read, and stores `writes`."""
    program = Program()
    verified = {("chunk", replace.ino, replace.index) for replace in writes.replaces}
    verified |= {("chunk", *chunk) for chunk in writes.chunks_dropped}
    for key, raw in raws.items():
        if key not in verified:
            _check_read(program, keys, raws, key, raw)
    if writes.attrs:
        _put_attrs(program, keys, raws, writes)
    if writes.entries:
        _put_entries(program, keys, writes)
    if writes.touches:
        _touch(program, keys, raws, writes)
    if writes.appends or writes.replaces or writes.chunks_dropped:
        _put_chunks(program, keys, writes)
    if writes.refs:
        _count_refs(program, keys, writes)
    if writes.relied_on is not None:
        sid, (ino, owner, posix) = writes.relied_on
        program.check(HELD, _IN, keys.locks(ino, posix), owner_field((sid, owner)))
    if writes.locks:
        _put_locks(program, keys, raws, writes)
    program.changes.extend(_inode_changes(keys, writes))
    program.changes.extend(_volume_changes(keys, writes))
    return program


def _flag(raw: Any) -> Any:
    """As Lua sees an absent value."""
    return False if raw is None else raw


def _check_read(program: Program, keys: Keys, raws: Mapping[Key, Any], key: Key, raw: Any) -> None:
    kind = key[0]
    if kind == "attr" or (kind == "dir" and raw is None):
        program.check(key, _STRING, keys.attr(key[1]), _flag(raw))
    elif kind == "dir":
        if ("attr", key[1]) not in raws:
            head, tail = raw[:_HEAD_BYTES], raw[_TAIL_AT:]
            program.check(key, _PARTS, keys.attr(key[1]), head, _TAIL_AT + 1, tail)
    elif kind == "entry":
        program.check(key, _FIELD, keys.directory(key[1]), _flag(raw), key[2])
    elif kind == "empty":
        program.check(key, _EMPTY, keys.directory(key[1]), raw == 0)
    elif kind == "xattr":
        program.check(key, _FIELD, keys.xattrs(key[1]), _flag(raw), key[2])
    elif kind == "parents":
        program.check(key, _HASH, keys.parents(key[1]), raw)
    elif kind == "locks":
        program.check(key, _HASH, keys.locks(key[1], key[2]), raw)
    elif kind == "delayed":
        program.check(key, _FIELD, keys.named("delSlices"), raw, delayed_field(key[1], key[2]))
    elif kind == "chunk":  # appends do not matter, but compaction takes slices away
        program.check(key, _PREFIX, keys.chunk(key[1], key[2]), raw)


def _put_attrs(program: Program, keys: Keys, raws: Mapping[Key, Any], writes: Writes) -> None:
    for ino, attr in writes.attrs.items():
        key = keys.attr(ino)
        raw = None if attr is None else encode_attr(attr)
        program.attrs[ino] = raw
        if ino in writes.created and ("attr", ino) not in raws:
            program.check(("attr", ino), _STRING, key, False)
        program.changes.append(("DEL", key) if raw is None else ("SET", key, raw))


def _put_entries(program: Program, keys: Keys, writes: Writes) -> None:
    for (parent, name), entry in writes.entries.items():
        key = keys.directory(parent)
        raw = None if entry is None else encode_entry(entry)
        program.entries[parent, name] = raw
        program.changes.append(("HDEL", key, name) if raw is None else ("HSET", key, name, raw))


def _touch(program: Program, keys: Keys, raws: Mapping[Key, Any], writes: Writes) -> None:
    for ino, touch in writes.touches.items():
        key = keys.attr(ino)
        if ("dir", ino) not in raws and ("attr", ino) not in raws and ino not in writes.attrs:
            program.check(("dir", ino), _EXISTS, key)
        if touch.nlink or touch.time_ns is not None:
            times = touch.time_ns is not None and (MTIME_AT + 1, encode_times(touch.time_ns))
            program.patches.append((key, times, bool(touch.nlink) and (NLINK_AT + 1, touch.nlink)))
            program.patched.append(ino)


def _put_chunks(program: Program, keys: Keys, writes: Writes) -> None:
    for replace in writes.replaces:
        key = keys.chunk(replace.ino, replace.index)
        prefix = [encode_slice(piece) for piece in replace.prefix]
        program.check(("chunk", replace.ino, replace.index), _PREFIX, key, prefix)
        program.changes.append(("LTRIM", key, len(prefix), -1))
        new = [encode_slice(piece) for piece in reversed(replace.slices)]
        program.changes.extend(("LPUSH", key, *part) for part in _parts(new))
    for (ino, index), pieces in writes.chunks_dropped.items():
        key = keys.chunk(ino, index)
        records = [encode_slice(piece) for piece in pieces]
        program.check(("chunk", ino, index), _LIST, key, records)
        program.changes.append(("DEL", key))
    for append in writes.appends:
        key = keys.chunk(append.ino, append.index)
        command = "RPUSHX" if append.only_existing else "RPUSH"
        for part in _parts([encode_slice(piece) for piece in append.slices]):
            program.asks.append((command, key, *part))
            program.asked.append(("chunk", (append.ino, append.index)))


def _parts(records: list[bytes]) -> Iterator[list[bytes]]:
    for begin in range(0, len(records), _MANY):
        yield records[begin : begin + _MANY]


def _count_refs(program: Program, keys: Keys, writes: Writes) -> None:
    refs = keys.named("sliceRef")
    for ref, delta in writes.refs.items():
        program.asks.append(("HINCRBY", refs, ref_field(ref), delta))
        program.asked.append(("ref", ref))


def _put_locks(program: Program, keys: Keys, raws: Mapping[Key, Any], writes: Writes) -> None:
    """Fields of lock hashes, and the sessions' sets of the hashes they are in."""
    for (ino, posix), changes in writes.locks.items():
        key = keys.locks(ino, posix)
        held: dict[LockOwner, bytes] = {
            owner_of(one): one for one in raws["locks", ino, posix][::2]
        }
        for owner, value in changes.items():
            one = owner_field(owner)
            if value is None:
                held.pop(owner, None)
                program.changes.append(("HDEL", key, one))
            else:
                held[owner] = one
                program.changes.append(("HSET", key, one, value))
        holders = {sid for sid, _ in held}
        for sid in {sid for sid, _ in changes}:
            change = "SADD" if sid in holders else "SREM"
            program.changes.append((change, keys.locked(SessionId(sid)), key))


def _inode_changes(keys: Keys, writes: Writes) -> Iterator[Sequence[Any]]:
    """What hangs on single inodes, without their records and chunks."""
    for ino in writes.xattrs_dropped:
        yield "DEL", keys.xattrs(ino)
    for ino in writes.parents_dropped:
        yield "DEL", keys.parents(ino)
    for ino, target in writes.links.items():
        yield ("DEL", keys.link(ino)) if target is None else ("SET", keys.link(ino), target)
    for (ino, name), value in writes.xattrs.items():
        if ino in writes.xattrs_dropped:
            continue
        key = keys.xattrs(ino)
        yield ("HDEL", key, name) if value is None else ("HSET", key, name, value)
    for (ino, parent), delta in writes.parents.items():
        if delta and ino not in writes.parents_dropped:
            yield "HINCRBY", keys.parents(ino), b"%d" % parent, delta
    for row in STATS:
        for ino in writes.stats_made:
            yield "HSET", keys.named(row), b"%d" % ino, b"0"
        for ino in writes.stats_dropped:
            yield "HDEL", keys.named(row), b"%d" % ino
    for row in QUOTAS:
        for ino in writes.quotas_dropped:
            yield "HDEL", keys.named(row), b"%d" % ino


def _volume_changes(keys: Keys, writes: Writes) -> Iterator[Sequence[Any]]:
    """Lists of deleted things, sustained inodes and usage."""
    for ino, (length, when_s) in writes.deleted_files.items():
        yield "ZADD", keys.named("delfiles"), when_s, b"%d:%d" % (ino, length)
    for ino, length in writes.deleted_done.items():
        yield "ZREM", keys.named("delfiles"), b"%d:%d" % (ino, length)
    for (sid, ino), on in writes.sustained.items():
        yield "SADD" if on else "SREM", keys.sustained(sid), b"%d" % ino
    for (new, when_s), refs in writes.delayed.items():
        one = delayed_field(new, when_s)
        yield _delayed(keys.named("delSlices"), one, refs)
    if writes.space:
        yield "INCRBY", keys.named("usedSpace"), writes.space
    if writes.inodes:
        yield "INCRBY", keys.named("totalInodes"), writes.inodes


def _delayed(key: bytes, one: bytes, refs: tuple[Ref, ...] | None) -> Sequence[Any]:
    return ("HDEL", key, one) if refs is None else ("HSET", key, one, encode_refs(refs))
