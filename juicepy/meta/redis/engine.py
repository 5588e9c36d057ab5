"""The metadata engine on Redis: one server, Sentinel or Cluster, shared with JuiceFS 1.4.

Mutations are `transaction.py` and `commit.py`; the layout of keys is `keys.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from juicepy.meta.codec import (
    decode_attr,
    decode_entry,
    decode_slices,
    encode_attr,
)
from juicepy.meta.engine import (
    Changed,
    DelayedSlices,
    DeletedFile,
    DirStats,
    Quota,
    StoredLock,
    StoredSession,
    Tracked,
)
from juicepy.meta.redis import url as redis_url
from juicepy.meta.redis.keys import Keys
from juicepy.meta.redis.leftovers import Leftovers, scan_hash, scan_keys
from juicepy.meta.redis.link import Link, ReplyRefused
from juicepy.meta.redis.names import NameSet
from juicepy.meta.redis.scripts import COMMIT, LOOKUP, pack
from juicepy.meta.redis.sessions import Sessions
from juicepy.meta.redis.tracked import TrackedReads
from juicepy.meta.redis.transaction import Transactions
from juicepy.meta.redis.usage import UsageRows
from juicepy.meta.tx import Committed, Ref, Tx
from juicepy.types import ROOT, TRASH, Attr, DirEntry, Entry, Inode, SessionId, Slice

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DIR_PAGE = 2000
_BATCH = 1000


def open_redis(url: str) -> RedisEngine:
    """The engine at `url`, connected. EIO: not reachable, EACCES: password, EINVAL: the URL."""
    settings = redis_url.parse(url)
    link = Link(settings)
    link.open()
    _check_server(link)
    prefix = b"{%d}" % settings.db if link.is_cluster else b""
    return RedisEngine(link, Keys(prefix))


def _check_server(link: Link) -> None:
    """Keys must never be evicted; warn of what may lose metadata."""
    try:
        told: bytes = link.call("INFO")
    except ReplyRefused as error:
        logger.warning("settings of redis at %s are not known: %s", link.where, error.strerror)
        return
    facts = dict(line.split(":", 1) for line in told.decode().splitlines() if ":" in line)
    if facts.get("maxmemory_policy", "noeviction") != "noeviction":
        try:
            link.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
        except ReplyRefused as error:
            logger.warning(
                "redis at %s may evict metadata: set maxmemory-policy to noeviction (%s)",
                link.where,
                error.strerror,
            )
    if facts.get("aof_enabled") == "0":
        logger.warning("AOF is off at redis %s: a crash of it may lose metadata", link.where)


class RedisEngine:
    """Implements `MetaEngine`."""

    scheme = "redis"

    def __init__(self, link: Link, keys: Keys) -> None:
        self._link, self._keys = link, keys
        self._transactions = Transactions(link, keys)
        self._guesses = self._transactions.guesses
        self._sessions = Sessions(link, keys)
        self._usage = UsageRows(link, keys)
        self._leftovers = Leftovers(link, keys)
        self._tracked: TrackedReads | None = None

    # -- life
    def track(self, tell: Callable[[Changed], None]) -> Tracked | None:
        tracked = TrackedReads(self._link, self._keys, self._guesses)
        tracked.start(tell)
        self._tracked = tracked
        self._transactions.on_change = tracked.changed_here
        return tracked

    def load_format(self) -> bytes | None:
        setting: bytes | None = self._link.call("GET", self._keys.named("setting"))
        return setting

    def init(self, setting: bytes, root: Attr, trash: Attr | None) -> None:
        made: list[tuple[bytes | str, ...]] = [
            ("SETNX", self._keys.attr(ROOT), encode_attr(root)),
            ("SET", self._keys.named("setting"), setting),
        ]
        if trash is not None:
            made.insert(1, ("SETNX", self._keys.attr(TRASH), encode_attr(trash)))
        self._link.run(made)

    def reset_dir_stats(self) -> None:
        self._usage.reset_dir_stats()

    def is_empty_database(self) -> bool:
        if not self._keys.prefix:
            return int(self._link.call("DBSIZE")) == 0
        return not any(scan_keys(self._link, self._keys.prefix + b"*"))

    def close(self) -> None:
        if self._tracked is not None:
            self._tracked.close()
        self._link.close()

    # -- transactions
    def transact(self, body: Callable[[Tx], T]) -> tuple[T, Committed]:
        return self._transactions.transact(body)

    def read(self, body: Callable[[Tx], T]) -> T:
        return self._transactions.read(body)

    # -- reads
    def lookup(self, parent: Inode, name: bytes) -> tuple[Entry, Attr | None] | None:
        key = self._keys.directory(parent)
        found = self._link.script(LOOKUP, key, name, self._keys.prefix + b"i")
        if found is None:
            self._guesses.learn((), (((parent, name), None),))
            return None
        entry = decode_entry(found[0])
        self._guesses.learn(((entry.ino, found[1]),), (((parent, name), found[0]),))
        return entry, None if found[1] is None else decode_attr(found[1])

    def attr(self, ino: Inode) -> Attr | None:
        raw: bytes | None = self._link.call("GET", self._keys.attr(ino))
        self._guesses.learn(((ino, raw),))
        if raw is None:
            if self._tracked is not None:
                self._tracked.forget(ino)
            return None
        if self._tracked is not None:
            self._tracked.saw(ino, raw)
        return decode_attr(raw)

    def attrs(self, inodes: Iterable[Inode]) -> dict[Inode, Attr]:
        found: dict[Inode, Attr] = {}
        remaining = iter(inodes)
        while batch := list(islice(remaining, _BATCH)):
            for ino, raw in zip(batch, self._raw_attrs(batch), strict=True):
                if raw is not None:
                    found[ino] = decode_attr(raw)
        return found

    def slices(self, ino: Inode, index: int) -> tuple[Slice, ...]:
        records: list[bytes] = self._link.call("LRANGE", self._keys.chunk(ino, index), 0, -1)
        return decode_slices(b"".join(records))

    def list_dir(self, ino: Inode, *, with_attrs: bool) -> Iterator[list[DirEntry]]:
        seen = NameSet()
        for page in scan_hash(self._link, self._keys.directory(ino), _DIR_PAGE):
            fresh = [(name, raw) for name, raw in page if seen.add(name)]
            if not fresh:
                continue
            entries = []
            for name, raw in fresh:
                entry = decode_entry(raw)
                entries.append(DirEntry(name, entry.ino, entry.kind))
            if with_attrs:
                self._add_attrs(ino, fresh, entries)
            yield entries

    def _add_attrs(
        self, parent: Inode, page: list[tuple[bytes, bytes]], entries: list[DirEntry]
    ) -> None:
        raws = self._raw_attrs([entry.ino for entry in entries])
        for entry, raw in zip(entries, raws, strict=True):
            if raw is not None:
                entry.attr = decode_attr(raw)
        self._guesses.learn(
            zip([entry.ino for entry in entries], raws, strict=True),
            [((parent, name), raw) for name, raw in page],
        )

    def _raw_attrs(self, inodes: Sequence[Inode]) -> list[bytes | None]:
        raws: list[bytes | None] = self._link.call("MGET", *map(self._keys.attr, inodes))
        return raws

    # -- ids and counters
    def allocate_inodes(self, count: int) -> range:
        return self._allocate("nextInode", count, first=2)

    def allocate_slices(self, count: int) -> range:
        return self._allocate("nextChunk", count, first=1)

    def _allocate(self, name: str, count: int, *, first: int) -> range:
        """The stored number is the last one given out."""
        while True:
            last = int(self._link.call("INCRBY", self._keys.counter(name), count))
            ids = range(max(first, last - count + 1), last + 1)
            if ids:
                return ids

    def next_trash(self) -> int:
        return int(self._link.call("INCR", self._keys.counter("nextTrash")))

    def counter(self, name: str) -> int:
        return int(self._link.call("GET", self._keys.counter(name)) or 0)

    def set_if_small(self, name: str, value: int, diff: int) -> bool:
        key = self._keys.counter(name)
        while True:
            old: bytes | None = self._link.call("GET", key)
            if int(old or 0) > value - diff:
                return False
            unchanged = (1, key, False if old is None else old)
            program = pack(((unchanged,), (), (("SET", key, b"%d" % value),), ()))
            if self._link.script(COMMIT, key, program)[0] == 1:
                return True

    def flush(self) -> None:
        """Nothing: usage is stored by the transaction that changes it."""

    # -- directory statistics and quotas
    def dir_stats(self, ino: Inode) -> DirStats | None:
        return self._usage.dir_stats(ino)

    def add_dir_stats(self, deltas: dict[Inode, DirStats]) -> list[Inode]:
        return self._usage.add_dir_stats(deltas)

    def set_dir_stats(self, ino: Inode, stats: DirStats) -> None:
        self._usage.set_dir_stats(ino, stats)

    def dir_quotas(self) -> dict[Inode, Quota]:
        return self._usage.dir_quotas()

    def set_dir_quota(self, ino: Inode, quota: Quota | None) -> None:
        self._usage.set_dir_quota(ino, quota)

    def add_dir_quotas(self, deltas: dict[Inode, tuple[int, int]]) -> None:
        self._usage.add_dir_quotas(deltas)

    def user_group_quotas(self) -> tuple[dict[int, Quota], dict[int, Quota]]:
        return self._usage.user_group_quotas()

    def add_user_group_usage(
        self, users: dict[int, tuple[int, int]], groups: dict[int, tuple[int, int]]
    ) -> None:
        self._usage.add_user_group_usage(users, groups)

    # -- sessions and locks
    def new_session(self, expire_s: int, record: Callable[[SessionId], bytes]) -> SessionId:
        return self._sessions.new(expire_s, record)

    def refresh_session(self, sid: SessionId, expire_s: int, record: bytes) -> bool:
        return self._sessions.refresh(sid, expire_s, record)

    def sessions(self) -> list[StoredSession]:
        return self._sessions.all()

    def sustained(self, sid: SessionId) -> list[Inode]:
        return self._sessions.sustained(sid)

    def session_locks(self, sid: SessionId) -> list[tuple[Inode, bool, StoredLock]]:
        return self._sessions.locks(sid)

    def release_locks(self, sid: SessionId) -> None:
        self._sessions.release_locks(sid)

    def drop_session(self, sid: SessionId) -> None:
        self._sessions.drop(sid)

    # -- clean-up
    def deleted_files(self, before_s: int, limit: int) -> list[DeletedFile]:
        return self._leftovers.deleted_files(before_s, limit)

    def chunk_indexes(self, ino: Inode, length: int) -> list[int]:
        return self._leftovers.chunk_indexes(ino, length)

    def unreferenced(self, limit: int) -> list[Ref]:
        return self._leftovers.unreferenced(limit)

    def forget_slice(self, ref: Ref) -> None:
        self._leftovers.forget_slice(ref)

    def delayed_slices(self, before_s: int, limit: int) -> list[DelayedSlices]:
        return self._leftovers.delayed_slices(before_s, limit)

    # -- everything
    def scan_attrs(self) -> Iterator[tuple[Inode, Attr]]:
        for inodes in self._scan_numbers(b"i"):
            yield from self.attrs(Inode(ino) for (ino,) in inodes).items()

    def scan_chunks(self) -> Iterator[tuple[Inode, int, tuple[Slice, ...]]]:
        for chunks in self._scan_numbers(b"c"):
            commands = [("LRANGE", self._keys.chunk(Inode(i), n), 0, -1) for i, n in chunks]
            for (ino, index), records in zip(chunks, self._link.run(commands), strict=True):
                if records:
                    yield Inode(ino), index, decode_slices(b"".join(records))

    def scan_refs(self) -> Iterator[tuple[Ref, int]]:
        return self._leftovers.refs()

    def _scan_numbers(self, kind: bytes) -> Iterator[list[Any]]:
        """Pages of the numbers in the names of keys of one kind, each name once."""
        begin = self._keys.prefix + kind
        parts = 2 if kind == b"c" else 1
        seen: set[tuple[int, ...]] = set()
        for page in scan_keys(self._link, begin + b"[0-9]*"):
            split = (key[len(begin) :].split(b"_") for key in page)
            numbers = {
                tuple(map(int, one))
                for one in split
                if len(one) == parts and all(map(bytes.isdigit, one))
            } - seen
            if numbers:
                seen |= numbers
                yield sorted(numbers)
