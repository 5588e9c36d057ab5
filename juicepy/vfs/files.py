"""Open files: what the handles of one inode share, and the order of buffers and metadata.

A file's data is in three places: slices in the metadata, a writer's buffers on top of them, and
the views a reader keeps of the slices. The rules here keep them telling one story:

- what was written here is seen at once: by reads (they flush what they overlap) and in attributes
  (`merged`: length and mtime of unwritten data count);
- what others wrote is seen after the next open, and as soon as attributes tell of it (`seen`);
- an operation on stored data (truncate, fallocate, copy, setting times) flushes first;
- what could not be stored is gone here too: length, views and the kernel's pages go back to what
  the metadata tells;
- an error of a background upload belongs to the writer: a flush on behalf of somebody else leaves
  it for the next write, fsync or close.
"""

from __future__ import annotations

import errno
import os
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event

from juicepy.chunk import overlay
from juicepy.chunk.store import BlockStore
from juicepy.concurrency import Lock
from juicepy.errors import posix_error
from juicepy.meta import rules
from juicepy.meta.client import MetaClient
from juicepy.types import (
    CHUNK_BITS,
    CHUNK_SIZE,
    MAX_FILE_SIZE,
    Attr,
    Buffer,
    Inode,
    Slice,
    SliceId,
)
from juicepy.vfs.buffers import WriteBuffers
from juicepy.vfs.local_copy import CopyHolder
from juicepy.vfs.open_cache import OpenCache
from juicepy.vfs.pages import Scattered
from juicepy.vfs.reader import FileReader
from juicepy.vfs.whole import WholeFileMode
from juicepy.vfs.writer import FileWriter

REMEMBERED = 100_000  # closed files of which we know what the kernel's pages show
ROOM_AHEAD = 4 << 20  # growth that is checked against quotas at once
ROOM_VALID_S = 2.0
HOLE_UNIT = 4096  # holes that seeking finds begin and end at its multiples
MANY_CHUNKS = 8  # in a file of more, seeking asks first which chunks there are

Seen = tuple[int, int]  # mtime_ns, length


class OpenFile:
    """One inode with its reader, its writer once somebody writes, and what is known of it.

    `seen` is what the metadata told last: another value there means that the slices have changed.
    `version` counts the changes of the file that were made through here. `drop_pages` is called
    when the kernel's pages show data that could not be stored, `push(file, index)` when a whole
    block is worth giving to the kernel.
    """

    def __init__(
        self,
        meta: MetaClient,
        store: BlockStore,
        buffers: WriteBuffers,
        ino: Inode,
        drop_pages: Callable[[Inode], None] = lambda _: None,
        push: Callable[[OpenFile, int], None] | None = None,
    ):
        self.ino = ino
        self.reader = FileReader(meta, store, ino)
        self.local = CopyHolder(ino)
        self.writer: FileWriter | None = None
        self.handles = 0
        self.length = 0
        self.version = 0
        self.is_gone = False
        self.is_appended = False  # somebody has opened it with O_APPEND
        self.is_pushable = True  # nobody has opened it for writing
        self.posix_owners: set[int] = set()
        self.ending: dict[FileHandle, Event] = {}  # being released, with locks to give up
        self._meta, self._store, self._buffers = meta, store, buffers
        self._drop_pages, self._push = drop_pages, push
        self._scattered = Scattered(store.block_size)
        self._lock = Lock("open_file")  # guards the making of `writer`, and `length`, `seen`
        self._seen: Seen | None = None
        self._checked_s = 0.0
        self._wrote_ns = 0
        self._strip = False  # a user without privileges wrote: suid and sgid go
        self._failure: OSError | None = None  # of the writer, met by somebody else
        self._room = (0, 0.0)  # a length that fits the quotas, until when that may be believed

    # -- attributes
    def saw(self, attr: Attr, version: int) -> None:
        """The metadata told `attr`, asked for when `version` was current."""
        seen = (attr.mtime_ns, attr.length)
        with self._lock:
            changed = self._seen is not None and self._seen != seen
            self._seen = seen
            if version == self.version:
                self.length = max(attr.length, self.writer.length if self.writer else 0)
            else:
                self.length = max(attr.length, self.length)
            self._checked_s = time.monotonic()
        if changed:
            self.reader.invalidate_all()
            self.local.changed(attr.length, self._flush_quietly)

    def merged(self, attr: Attr) -> Attr:
        """`attr` with what is written here and not stored yet."""
        writer = self.writer
        if writer is None or not writer.has_dirty():
            return attr
        changes = attr.with_(
            length=max(attr.length, writer.length), mtime_ns=max(attr.mtime_ns, self._wrote_ns)
        )
        if self._strip:
            changes.mode = rules.without_privileges(attr.mode)
        return changes

    def fresh(self) -> Attr:
        """Attributes as the metadata has them now, merged. ENOENT."""
        for _ in range(3):  # a commit in between makes what was fetched too old
            version = self.version
            attr = self._meta.getattr(self.ino)
            if version == self.version:
                break
        self.saw(attr, version)
        return self.merged(attr)

    def current(self, attr: Attr) -> Attr:
        """What to tell of the file, of which a lookup or listing has just told `attr`."""
        if self.is_written:
            return self.fresh()  # `attr` may be from before a commit of ours
        self.saw(attr, 0)
        return attr

    @property
    def is_written(self) -> bool:
        """Whether it was changed through here since it was opened."""
        return self.version > 0 or self.writer is not None

    def is_dirty(self) -> bool:
        return self.writer is not None and self.writer.has_dirty()

    @property
    def seen(self) -> Seen | None:
        return self._seen

    # -- data
    def read(self, offset: int, size: int, max_age_s: float) -> list[Buffer]:
        if self.writer is not None and self.writer.has_dirty(offset, size):
            self.flush_for_others()
        if offset + size > self.length and time.monotonic() - self._checked_s > max_age_s:
            self.fresh()  # others may have appended
        local = self.local.current
        if local is not None:
            return local.read(offset, size)
        pieces = self.reader.read(offset, size, self.length)
        if self._push is not None and self.is_pushable:
            self._note_scattered(offset, size)
        return pieces

    def _note_scattered(self, offset: int, size: int) -> None:
        index = self._scattered.note(offset, size)
        if index is None or self.content_epoch is None:
            return
        begin = index * self._store.block_size
        is_here = self.reader.is_here(begin, min(self._store.block_size, self.length - begin))
        if is_here and self._scattered.done(index) and self._push is not None:
            self._push(self, index)

    @property
    def content_epoch(self) -> int | None:
        """See `pages.Pushable`."""
        if self.is_written or not self.is_pushable or self.local.current is not None:
            return None
        return self.reader.epoch

    def peek(self, offset: int, size: int) -> list[Buffer] | None:
        return self.reader.peek(offset, size)

    def write(self, offset: int, data: memoryview, *, strip: bool) -> None:
        end = offset + len(data)
        if end > MAX_FILE_SIZE:
            raise posix_error(errno.EFBIG)
        if self._failure is not None:
            self._raise_failure()
        if end > self.length:
            self._check_room(end)
        writer = self.writer or self._make_writer()
        self._wrote_ns = time.time_ns()
        self._strip = strip or (self._strip and writer.has_dirty())
        with self.local.writing(offset, data):
            writer.write(offset, data)
        if end > self.length:
            with self._lock:
                self.length = max(self.length, end)

    def flush(self) -> None:
        """Store all that was written before; raises what failed, once."""
        if self.writer is not None:
            self.writer.flush()
        if self._failure is not None:
            self._raise_failure()

    def flush_for_others(self) -> None:
        """Like `flush`, but an error is also kept for who wrote the data."""
        if self.writer is None:
            return
        try:
            self.writer.flush()
        except OSError as error:
            self._failure = error
            raise

    def lose(self, *, is_gone: bool) -> None:
        """The session in which the file was opened has ended: its locks and its data are lost.

        `is_gone`: so is the inode, which had no name. Others may have changed all that is known.
        """
        self.is_gone = is_gone
        self.posix_owners.clear()
        if self.writer is None or not self.writer.abandon(lost_error(self.ino)):
            self._lost()

    def changed(self, offset: int, size: int | None, attr: Attr) -> None:
        """The slices of the range (None: all) were changed by an operation of ours."""
        with self._lock:
            self.version += 1
            self.length = attr.length
        if size is None:
            self.reader.invalidate_all()
        else:
            self.reader.invalidate(offset, size)
        self.local.changed(attr.length)

    # -- the local copy
    def bring(self, whole: WholeFileMode) -> None:
        """Read from a copy of the whole file on this machine, if it can be had."""
        version, length = self.version, self.length
        if self.local.current is not None or self.is_dirty():
            return
        copy = whole.copy_of(self.ino, length)
        if copy is None:
            return
        self.local.take(copy)
        if version != self.version or length != self.length or self.is_dirty():
            self.local.changed(self.length)  # it was changed meanwhile

    def _flush_quietly(self) -> None:
        """A mirror follows what is committed; an error is kept for who wrote the data."""
        try:
            self.flush_for_others()
        except OSError:
            return

    # -- what the writer asks
    def new_slice(self) -> SliceId:
        return self._meta.new_slice()

    @property
    def epoch(self) -> int:
        return self._meta.epoch

    def commit(self, index: int, piece: Slice, epoch: int) -> Attr:
        """The time is that of the last write, as `merged` has been telling."""
        wrote_ns, strip = self._wrote_ns, self._strip
        return self._meta.write(self.ino, index, piece, wrote_ns, strip=strip, epoch=epoch)

    # -- private
    def _make_writer(self) -> FileWriter:
        with self._lock:
            if self.writer is None:
                self.writer = FileWriter(
                    _Sink(self), self._store, self.ino, self._buffers, self._committed, self._lost
                )
            return self.writer

    def _committed(self, offset: int, size: int, attr: Attr) -> None:
        with self._lock:
            self.version += 1
            self.length = max(self.length, attr.length)
        self.reader.invalidate(offset, size)

    def _lost(self) -> None:
        """Written data was given up: forget all that it made us believe."""
        with self._lock:
            self.version += 1
            if self._seen is not None:
                self.length = self._seen[1]  # or longer, if some of it was committed
            self._seen = None  # so the next open does not keep the pages either
            self._checked_s = 0.0
        self.reader.invalidate_all()
        self.local.changed(self.length)
        self._drop_pages(self.ino)

    def _check_room(self, end: int) -> None:
        """ENOSPC, EDQUOT if the file may not grow so."""
        length, until_s = self._room
        if end <= length and time.monotonic() < until_s:
            return
        stored = self._seen[1] if self._seen else 0
        length = end + ROOM_AHEAD
        try:
            self._meta.check_growth(self.ino, stored, length)
        except OSError:
            length = end
            self._meta.check_growth(self.ino, stored, length)
        self._room = (length, time.monotonic() + ROOM_VALID_S)

    def _raise_failure(self) -> None:
        with self._lock:
            error, self._failure = self._failure, None
        if error is not None:
            raise error


@dataclass(frozen=True, slots=True)
class _Sink:
    """Where the writer of a file commits."""

    file: OpenFile

    def new_slice(self) -> SliceId:
        return self.file.new_slice()

    @property
    def epoch(self) -> int:
        return self.file.epoch

    def write(self, ino: Inode, index: int, piece: Slice, mtime_ns: int, /, *, epoch: int) -> Attr:
        return self.file.commit(index, piece, epoch)


@dataclass(slots=True, eq=False)
class FileHandle:
    """An open file. `flags` as in open(2).

    `is_lost`: the session that opened it has ended and what it held or had not stored is gone, so
    that nothing may be written and no lock taken until it is closed.
    `record_owners` took record locks through it and have not closed it since. A process closes
    before the last descriptor is gone: those left then are locks of the open file itself (OFD).
    """

    file: OpenFile
    flags: int
    is_lost: bool = False
    flock_owners: set[int] = field(default_factory=set)
    record_owners: set[int] = field(default_factory=set)
    accessed: tuple[int, int] = (-1, 0)  # version of the file and second of its last access

    @property
    def is_writable(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_RDONLY

    @property
    def is_readable(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_WRONLY

    def check_owned(self) -> None:
        if self.is_lost:
            raise lost_error(self.file.ino)


def lost_error(ino: Inode) -> OSError:
    return OSError(errno.EIO, "the session that opened it has ended", f"inode {ino}")


class Files:
    """The open files of a mount by inode. Thread-safe."""

    def __init__(self, make: Callable[[Inode], OpenFile], open_cache: OpenCache) -> None:
        self._make, self.open_cache = make, open_cache
        self._lock = Lock("files")  # guards what follows, and the counts of handles
        self._by_inode: dict[Inode, OpenFile] = {}
        self._known: OrderedDict[Inode, Seen] = OrderedDict()

    def acquire(self, ino: Inode, attr: Attr) -> tuple[OpenFile, bool]:
        """The open file with one more handle; whether it is as it was when last open here."""
        now = (attr.mtime_ns, attr.length)
        with self._lock:
            file = self._by_inode.get(ino)
            if file is None:
                file = self._by_inode[ino] = self._make(ino)
                before = self._known.pop(ino, None)
            else:
                before = file.seen
            file.handles += 1
        file.saw(attr, file.version)
        if file.handles == 1 and not file.is_written:
            file.reader.adopt(self.open_cache.views(ino, attr))
        return file, before == now

    def release(self, file: OpenFile) -> bool:
        """One handle less; tells whether it was the last."""
        with self._lock:
            file.handles -= 1
            if file.handles:
                return False
            self._by_inode.pop(file.ino, None)
            if file.version:
                self.open_cache.forget(file.ino)
            elif file.seen is not None and self.open_cache.is_on:
                self.open_cache.keep(file.ino, *file.seen, file.reader.views())
            if file.seen is not None:
                self._known[file.ino] = file.seen
                self._known.move_to_end(file.ino)
                if len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
            return True

    def find(self, ino: Inode) -> OpenFile | None:
        return self._by_inode.get(ino)

    def recent(self, ino: Inode) -> Attr | None:
        """Attributes of a file that nobody has written here since an open told them."""
        file = self._by_inode.get(ino)
        return None if file is not None and file.is_written else self.open_cache.attr(ino)

    def lose(self, handles: list[FileHandle], gone: set[Inode], *, had_locks: bool) -> None:
        """Other clients have ended our session: mark what must not go on, forget the rest.

        Whoever holds a lock may write other files under it, so with `had_locks` none of the open
        files is written any more; without, only files whose data is lost are marked.
        """
        for handle in handles:
            file = handle.file
            has_lost = had_locks or file.is_dirty()
            if (handle.is_writable and has_lost) or handle.flock_owners or file.posix_owners:
                handle.is_lost = True
            handle.is_lost |= file.ino in gone
            handle.flock_owners.clear()
            handle.record_owners.clear()
        for file in self.all():
            file.lose(is_gone=file.ino in gone)

    def all(self) -> list[OpenFile]:
        with self._lock:
            return list(self._by_inode.values())

    def sync(self) -> None:
        """Flush every open file; raises the first error after all were tried."""
        first: OSError | None = None
        for file in self.all():
            try:
                file.flush_for_others()
            except OSError as error:
                first = first or error
        if first is not None:
            raise first


def seek(meta: MetaClient, ino: Inode, offset: int, length: int, *, data: bool) -> int:
    """Where from `offset` on stored data (or a hole) begins; the end of the file is a hole.

    Holes are whole units of `HOLE_UNIT`, as on a local disk: programs find the unit by trial and
    take what follows data up to its end for data too. ENXIO beyond the end, or if no data follows.
    """
    if not 0 <= offset < length:
        raise posix_error(errno.ENXIO)
    for begin, end in _stored(meta, ino, _unit(offset), length):
        begins = max(offset, _unit(begin))
        if data:
            return begins
        if begins > offset:
            return offset
        offset = max(offset, _unit(end + HOLE_UNIT - 1))
    if data:
        raise posix_error(errno.ENXIO)
    return min(offset, length)


def _unit(offset: int) -> int:
    """The begin of the unit that the byte is in."""
    return offset & -HOLE_UNIT


def _stored(meta: MetaClient, ino: Inode, offset: int, length: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of what is stored between `offset` and `length`, in order."""
    indexes: Sequence[int] = range((length + CHUNK_SIZE - 1) >> CHUNK_BITS)
    if len(indexes) > MANY_CHUNKS:
        indexes = sorted(meta.chunk_indexes(ino))
    for index in indexes[bisect_left(indexes, offset >> CHUNK_BITS) :]:
        base = index << CHUNK_BITS
        for piece in overlay.build(meta.slices(ino, index), max(0, offset - base)):
            if base + piece.pos >= length:
                return
            if piece.id:
                yield base + piece.pos, min(base + piece.pos + piece.length, length)
