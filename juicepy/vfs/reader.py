"""The read path of a file: which slices are seen, their blocks, and what to fetch ahead."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Protocol

from juicepy.chunk import overlay
from juicepy.chunk.store import BlockLost, BlockStore, Part
from juicepy.concurrency import Lock
from juicepy.types import CHUNK_BITS, CHUNK_SIZE, BlockKey, Buffer, Inode, Slice
from juicepy.vfs.streams import Stream, Streams

ZEROS = memoryview(bytes(1 << 20))
LOST_BLOCK_PAUSE_S = 0.2  # a client that writes back may be about to upload the block

View = tuple[list[int], list[Slice]]


class SliceSource(Protocol):
    """Where slice lists come from: the part of the metadata client that a reader needs."""

    def slices(self, ino: Inode, index: int) -> tuple[Slice, ...]: ...


class FileReader:
    """The reader of one inode, shared by its handles. Thread-safe.

    Keeps the view of each chunk it read until told by `invalidate`.
    """

    def __init__(self, meta: SliceSource, store: BlockStore, ino: Inode) -> None:
        self.ino = ino
        self._meta, self._store = meta, store
        self._block_size = store.block_size
        self._lock = Lock("file_reader")  # guards _views, _epoch
        self._views: dict[int, View] = {}
        self._epoch = 0
        self._streams = Streams(store.block_size, *_window_bytes(store))

    def read(self, offset: int, size: int, length: int) -> list[Buffer]:
        """Bytes [offset, offset+size) of the file, whose length is `length`, in pieces.

        Shorter only at the end of the file. Nobody changes the pieces. EIO if a block is lost.
        """
        size = min(size, length - offset)
        if size <= 0:
            return []
        if length > self._block_size:
            ahead = self._streams.note(offset, size)
            if ahead is not None:
                self._read_ahead(*ahead, offset, length)
        try:
            return self._read(offset, size)
        except BlockLost:
            return self._read_again(offset, size)

    def invalidate(self, offset: int, size: int) -> None:
        """The slices of the range have changed."""
        first, last = offset >> CHUNK_BITS, (offset + max(size, 1) - 1) >> CHUNK_BITS
        with self._lock:
            self._epoch += 1
            if last - first < len(self._views):
                for index in range(first, last + 1):
                    self._views.pop(index, None)
            else:
                for index in [index for index in self._views if first <= index <= last]:
                    del self._views[index]

    def invalidate_all(self) -> None:
        with self._lock:
            self._epoch += 1
            self._views.clear()

    def adopt(self, views: Mapping[int, list[Slice]]) -> None:
        """What is seen of chunks, known from before; called before the first read."""
        with self._lock:
            for index, pieces in views.items():
                self._views.setdefault(index, ([piece.pos for piece in pieces], pieces))

    def views(self) -> dict[int, list[Slice]]:
        """What is seen of the chunks that were read."""
        with self._lock:
            return {index: pieces for index, (_, pieces) in self._views.items()}

    @property
    def epoch(self) -> int:
        """Changes with every invalidation."""
        return self._epoch

    def is_here(self, offset: int, size: int) -> bool:
        """Whether all bytes of the range are on this machine."""
        return all(map(self._store.contains, self._blocks(self._parts(offset, size))))

    def peek(self, offset: int, size: int) -> list[Buffer] | None:
        """The bytes if all of them are on this machine; the range must lie within the file."""
        return self._read(offset, size) if self.is_here(offset, size) else None

    # -- slices
    def _view(self, index: int) -> View:
        view = self._views.get(index)
        if view is not None:
            return view
        epoch = self._epoch
        pieces = overlay.build(self._meta.slices(self.ino, index))
        view = [piece.pos for piece in pieces], pieces
        with self._lock:
            if epoch == self._epoch:  # else it may be from before the change
                self._views[index] = view
        return view

    def _parts(self, offset: int, size: int) -> list[Part | int]:
        """What the range is made of: parts of slices, and numbers of zeros."""
        found: list[Part | int] = []
        while size > 0:
            pos = offset & (CHUNK_SIZE - 1)
            end = min(pos + size, CHUNK_SIZE)
            offset, size = offset + end - pos, size - (end - pos)
            starts, pieces = self._view((offset - 1) >> CHUNK_BITS)
            at = max(bisect_right(starts, pos) - 1, 0)
            while pos < end and at < len(pieces):
                piece = pieces[at]
                upto = min(piece.pos + piece.length, end)
                if upto > pos:
                    if piece.id:
                        off = piece.off + pos - piece.pos
                        found.append(Part(piece.id, piece.size, off, upto - pos))
                    else:
                        found.append(upto - pos)
                    pos = upto
                at += 1
            if pos < end:
                found.append(end - pos)
        return found

    # -- bytes
    def _read(self, offset: int, size: int) -> list[Buffer]:
        pos = offset & (CHUNK_SIZE - 1)
        view = self._views.get(offset >> CHUNK_BITS)
        if view is not None:  # nearly all reads lie in one slice that is known
            at = bisect_right(view[0], pos) - 1
            if at >= 0:
                piece = view[1][at]
                into = pos - piece.pos
                if piece.id and into + size <= piece.length:
                    return self._store.read(piece.id, piece.size, piece.off + into, size)
        parts = self._parts(offset, size)
        stored = [part for part in parts if not isinstance(part, int)]
        if len(stored) == len(parts):
            return self._store.read_parts(stored)
        return self._with_zeros(parts, self._store.read_parts(stored))

    def _with_zeros(self, parts: list[Part | int], stored: list[Buffer]) -> list[Buffer]:
        pieces: list[Buffer] = []
        at = 0
        for part in parts:
            if isinstance(part, int):
                pieces += _zeros(part)
                continue
            got = 0
            while got < part.length:
                pieces.append(stored[at])
                got += len(stored[at])
                at += 1
        return pieces

    def _read_again(self, offset: int, size: int) -> list[Buffer]:
        """After a lost block: compaction may have replaced the slices, so ask for them anew."""
        before = self._parts(offset, size)
        self.invalidate(offset, size)
        if self._parts(offset, size) == before:
            time.sleep(LOST_BLOCK_PAUSE_S)
        return self._read(offset, size)

    # -- ahead
    def _read_ahead(self, stream: Stream, begin: int, end: int, offset: int, length: int) -> None:
        """Have the blocks of the range fetched, as far as there is room; `offset` is read now."""
        end = min(end, length)
        if begin >= end:
            return
        try:
            if not self.is_here(offset, 1):
                self._streams.waited(stream)
            parts = self._parts(begin, end - begin)
        except OSError:
            return  # the read that needs these slices is told
        for at, block in self._placed_blocks(parts, begin):
            if not self._store.prefetch(block):
                self._streams.stopped(stream, at)
                return

    def _blocks(self, parts: list[Part | int]) -> Iterator[BlockKey]:
        """The blocks that the parts lie in."""
        return (block for _, block in self._placed_blocks(parts, 0))

    def _placed_blocks(
        self, parts: list[Part | int], offset: int
    ) -> Iterator[tuple[int, BlockKey]]:
        """The blocks that the parts from `offset` on lie in, each with where that begins."""
        for part in parts:
            if isinstance(part, int):
                offset += part
                continue
            first = part.off // self._block_size
            last = (part.off + part.length - 1) // self._block_size
            for index in range(first, last + 1):
                into = max(0, index * self._block_size - part.off)
                yield offset + into, self._store.layout.block(part.id, part.size, index)
            offset += part.length


def _window_bytes(store: BlockStore) -> tuple[int, int]:
    """How far a stream may be ahead: usually, and where it waits for blocks nevertheless.

    Four at full speed fill half of the buffer. One that waits has as many downloads as there may
    be; where that is more than there is memory for, the store stops it.
    """
    options = store.options
    if options.readahead > 0:
        return options.readahead, options.readahead
    usual = max(store.block_size, min(32 << 20, options.buffer_size // 8))
    most = min(options.max_downloads * store.block_size, options.buffer_size // 2)
    return usual, max(usual, most)


def _zeros(size: int) -> list[Buffer]:
    pieces: list[Buffer] = []
    while size > 0:
        pieces.append(ZEROS[:size])
        size -= len(ZEROS)
    return pieces
