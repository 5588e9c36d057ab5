"""A metadata client with slice lists in memory, and what stands below a file."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from juicepy.cache.cache import BlockCache
from juicepy.cache.memory import MemoryCache
from juicepy.chunk.layout import Layout
from juicepy.chunk.store import BlockStore, StoreOptions
from juicepy.types import CHUNK_BITS, Attr, Inode, Kind, Slice, SliceId
from juicepy.vfs.buffers import WriteBuffers
from juicepy.vfs.reader import FileReader
from juicepy.vfs.writer import FileWriter
from tests.unit.chunk.fakes import FaultyStorage

INO = Inode(2)


class FakeMeta:
    """`before(method)` runs ahead of each call and may raise or wait."""

    def __init__(self) -> None:
        self.lists: dict[tuple[Inode, int], list[Slice]] = {}
        self.commits: list[tuple[int, Slice, int]] = []
        self.length = 0
        self.before: Callable[[str], None] = lambda method: None
        self._ids = itertools.count(1)
        self._lock = threading.Lock()

    def new_slice(self) -> SliceId:
        self.before("new_slice")
        return SliceId(next(self._ids))

    epoch = 0

    def write(self, ino: Inode, index: int, piece: Slice, mtime_ns: int, *, epoch: int = 0) -> Attr:
        self.before("write")
        with self._lock:
            self.lists.setdefault((ino, index), []).append(piece)
            self.commits.append((index, piece, mtime_ns))
            self.length = max(self.length, (index << CHUNK_BITS) + piece.pos + piece.length)
            return Attr(Kind.FILE, 0o644, length=self.length, mtime_ns=mtime_ns)

    def replace(
        self, key: tuple[Inode, int], prefix: tuple[Slice, ...], slices: list[Slice]
    ) -> None:
        """The commit of a compaction: what was appended meanwhile stays."""
        with self._lock:
            present = self.lists[key]
            assert tuple(present[: len(prefix)]) == prefix
            self.lists[key] = [*slices, *present[len(prefix) :]]

    def slices(self, ino: Inode, index: int) -> tuple[Slice, ...]:
        self.before("slices")
        with self._lock:
            return tuple(self.lists.get((ino, index), ()))


@dataclass
class Stack:
    """A file with all below it."""

    storage: FaultyStorage
    meta: FakeMeta
    store: BlockStore
    buffers: WriteBuffers
    reader: FileReader
    writer: FileWriter
    seen: list[tuple[int, int]] = field(default_factory=list)

    def read(self, offset: int, size: int) -> bytes:
        """As the vfs reads: flush what overlaps, then read up to the length."""
        if self.writer.has_dirty(offset, size):
            self.writer.flush()
        length = max(self.meta.length, self.writer.length)
        return b"".join(self.reader.read(offset, size, length))

    def fresh(self) -> bytes:
        """The whole file as another client sees it, all fetched anew."""
        with open_stack(storage=self.storage, meta=self.meta, block_size=self.store.block_size) as (
            other
        ):
            return other.read(0, self.meta.length)


@contextmanager
def open_stack(
    *,
    block_size: int = 65536,
    options: StoreOptions | None = None,
    cache: BlockCache | None = None,
    compression: str = "none",
    storage: FaultyStorage | None = None,
    meta: FakeMeta | None = None,
    wait_timeout_s: float = 30.0,
) -> Iterator[Stack]:
    storage, meta = storage or FaultyStorage(), meta or FakeMeta()
    options = options or StoreOptions(buffer_size=8 << 20, max_uploads=4, max_downloads=4)
    cache = cache if cache is not None else MemoryCache(64 << 20)
    store = BlockStore(storage, cache, Layout(block_size), compression, options)
    buffers = WriteBuffers(store.memory, store.block_size, wait_timeout_s).start()
    reader = FileReader(meta, store, INO)
    seen: list[tuple[int, int]] = []

    def committed(offset: int, length: int, attr: Attr) -> None:
        seen.append((offset, length))
        reader.invalidate(offset, length)

    writer = FileWriter(meta, store, INO, buffers, committed)
    try:
        yield Stack(storage, meta, store, buffers, reader, writer, seen)
    finally:
        storage.before, meta.before = (lambda *_: None), (lambda *_: None)
        buffers.close()
        store.close()
