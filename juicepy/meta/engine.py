"""The protocol of a metadata engine: storage of records, no rule of POSIX.

Implementations: `meta/redis/`, `meta/sql/`, `meta/mem/`; only `meta/registry.py` names them.
Every method may be called by many threads and raises OSError: EIO when the database cannot be
reached after bounded retries, EINVAL for a malformed URL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from juicepy.meta.tx import Committed, Ref, Tx
from juicepy.types import Attr, DirEntry, Entry, Inode, SessionId, Slice, SliceId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DirStats:
    """Of one directory, its direct children only: bytes of data, bytes of space, inodes."""

    length: int = 0
    space: int = 0
    inodes: int = 0


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits (0 or less: none) and usage below a directory, or of a user or group."""

    max_space: int = 0
    max_inodes: int = 0
    used_space: int = 0
    used_inodes: int = 0


@dataclass(frozen=True, slots=True)
class StoredSession:
    sid: SessionId
    expire_s: int
    record: bytes  # JSON, see meta/sessions.py


@dataclass(frozen=True, slots=True)
class DeletedFile:
    ino: Inode
    length: int
    deleted_s: int


@dataclass(frozen=True, slots=True)
class DelayedSlices:
    """Slices that a compaction replaced by `new` at `deleted_s`, kept while the trash keeps."""

    new: SliceId
    deleted_s: int
    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class StoredLock:
    sid: SessionId
    owner: int
    value: bytes  # b"R"/b"W" of flock, 24-byte records of POSIX locks


@dataclass(slots=True)
class Changed:
    """What is no longer surely as it was told: attributes of inodes, names in directories."""

    inodes: set[Inode] = field(default_factory=set)
    names: set[tuple[Inode, bytes]] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.inodes or self.names)

    def add(self, other: Changed) -> None:
        self.inodes |= other.inodes
        self.names |= other.names


@dataclass(slots=True)
class TrackingCounts:
    """Reads answered without an exchange, changes told by the server, values dropped, and how
    often all were dropped. Without a lock: near enough.
    """

    hits: int = 0
    pushes: int = 0
    drops: int = 0
    lost: int = 0


class Tracked(Protocol):
    """Reads that are remembered while the database promises to tell of changes."""

    counts: TrackingCounts

    def attr(self, ino: Inode) -> Attr | None: ...
    def lookup(self, parent: Inode, name: bytes) -> tuple[Entry, Attr | None] | None: ...
    def holds_attr(self, ino: Inode) -> bool:
        """Whether a change of it, from now on, would be told."""

    def holds_name(self, parent: Inode, name: bytes) -> bool: ...
    def forget(self, ino: Inode) -> None:
        """Drop what is remembered of an inode, and names that lead to it."""


class MetaEngine(Protocol):
    """Where metadata lives."""

    scheme: str  # "redis", "sqlite3", "mysql", "postgres", "mem": as `status` prints it

    # -- life
    def load_format(self) -> bytes | None:
        """The setting as stored (JSON), None where no volume is."""

    def init(self, setting: bytes, root: Attr, trash: Attr | None) -> None:
        """Make schema and counters, the root and trash root if absent; store the setting.

        Existing inodes stay as they are, so it also updates the setting of a volume.
        """

    def reset_dir_stats(self) -> None:
        """Forget all directory statistics (they are computed anew on demand)."""

    def is_empty_database(self) -> bool: ...

    def close(self) -> None: ...

    def track(self, tell: Callable[[Changed], None]) -> Tracked | None:
        """From now on `tell` what other clients change of what the result has read; None if this
        database cannot. OSError if it could and does not. Names that are told may be unchanged.
        """

    # -- transactions
    def transact(self, body: Callable[[Tx], T]) -> tuple[T, Committed]:
        """Run `body` and store all it wrote, or nothing. Raises what `body` raises, or EIO.

        `body` may run several times, so it changes nothing but its transaction and its own result.
        """

    def read(self, body: Callable[[Tx], T]) -> T:
        """Run a `body` that writes nothing; it sees no half-done transaction of one record."""

    # -- reads that have a form of their own, one exchange each
    def lookup(self, parent: Inode, name: bytes) -> tuple[Entry, Attr | None] | None:
        """The entry and its attributes; None if there is no such name."""

    def attr(self, ino: Inode) -> Attr | None: ...

    def attrs(self, inodes: Iterable[Inode]) -> dict[Inode, Attr]:
        """Those that exist."""

    def slices(self, ino: Inode, index: int) -> tuple[Slice, ...]: ...

    def list_dir(self, ino: Inode, *, with_attrs: bool) -> Iterator[list[DirEntry]]:
        """All names of a directory in pages of some hundred to some thousand.

        A name that is there from begin to end comes exactly once. Lazy: the first page costs
        one page. With `with_attrs` an entry whose inode is missing has `attr` None.
        """

    # -- ids and counters
    def allocate_inodes(self, count: int) -> range: ...
    def allocate_slices(self, count: int) -> range: ...
    def next_trash(self) -> int:
        """A new number for an hourly trash directory: inode TRASH + n."""

    def counter(self, name: str) -> int:
        """usedSpace, totalInodes, nextInode, ... (generic names of the spec); absent is 0.

        SQL adds what is gathered here but not flushed yet.
        """

    def set_if_small(self, name: str, value: int, diff: int) -> bool:
        """Store `value` if the counter is <= value - diff; tells whether it did."""

    def flush(self) -> None:
        """Store usage that the engine gathers between transactions (SQL), about once a second."""

    # -- directory statistics and quotas: deltas that the client gathers
    def dir_stats(self, ino: Inode) -> DirStats | None: ...
    def add_dir_stats(self, deltas: dict[Inode, DirStats]) -> list[Inode]:
        """Add to existing rows; returns directories that have no row (or a negative one)."""

    def set_dir_stats(self, ino: Inode, stats: DirStats) -> None: ...
    def dir_quotas(self) -> dict[Inode, Quota]: ...
    def set_dir_quota(self, ino: Inode, quota: Quota | None) -> None: ...
    def add_dir_quotas(self, deltas: dict[Inode, tuple[int, int]]) -> None:
        """(space, inodes) used, relative."""

    def user_group_quotas(self) -> tuple[dict[int, Quota], dict[int, Quota]]: ...
    def add_user_group_usage(
        self, users: dict[int, tuple[int, int]], groups: dict[int, tuple[int, int]]
    ) -> None: ...

    # -- sessions and locks
    def new_session(self, expire_s: int, record: Callable[[SessionId], bytes]) -> SessionId: ...
    def refresh_session(self, sid: SessionId, expire_s: int, record: bytes) -> bool:
        """Also makes again a record that another client has cleaned; False if it did."""

    def sessions(self) -> list[StoredSession]: ...
    def sustained(self, sid: SessionId) -> list[Inode]: ...
    def session_locks(self, sid: SessionId) -> list[tuple[Inode, bool, StoredLock]]:
        """(inode, is POSIX, lock) of every lock the session holds."""

    def release_locks(self, sid: SessionId) -> None: ...
    def drop_session(self, sid: SessionId) -> None: ...

    # -- clean-up
    def deleted_files(self, before_s: int, limit: int) -> list[DeletedFile]: ...
    def chunk_indexes(self, ino: Inode, length: int) -> list[int]:
        """Indexes of the chunks that have a list, for a file of `length` bytes."""

    def unreferenced(self, limit: int) -> list[Ref]:
        """Slices with no reference left, whose blocks may be deleted."""

    def forget_slice(self, ref: Ref) -> None:
        """Drop the record of a slice without references, after its blocks."""

    def delayed_slices(self, before_s: int, limit: int) -> list[DelayedSlices]: ...

    # -- everything, for dump, check and tests
    def scan_attrs(self) -> Iterator[tuple[Inode, Attr]]: ...
    def scan_chunks(self) -> Iterator[tuple[Inode, int, tuple[Slice, ...]]]: ...
    def scan_refs(self) -> Iterator[tuple[Ref, int]]:
        """Real counts. Redis yields only slices whose count is not 1."""
