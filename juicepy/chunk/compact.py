"""Compaction of a chunk: which slices to merge (spec metadata.md 7.4), and the copying of data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from juicepy.chunk import overlay
from juicepy.chunk.store import BlockStore, Part
from juicepy.types import BlockKey, Buffer, Slice, SliceId

MAX_RECORDS = 1000  # of a list, looked at in one round
LEFT_ALONE = 1 << 20  # a slice at least that long, at the front, may stay as it is
UPLOADS_AHEAD = 4  # blocks in memory while copying


@dataclass(frozen=True, slots=True)
class Plan:
    """Replace records [skipped, taken) of a list by one slice that shows `view`.

    `view` is disjoint, by rising pos and without gaps; the new slice goes to `pos`, `size` long.
    """

    skipped: int
    taken: int
    view: tuple[Slice, ...]

    @property
    def pos(self) -> int:
        return self.view[0].pos

    @property
    def size(self) -> int:
        return self.view[-1].pos + self.view[-1].length - self.view[0].pos


def plan(slices: Sequence[Slice]) -> Plan | None:
    """What to merge of the chunk's list, oldest first; None if nothing is worth it."""
    taken = min(len(slices), MAX_RECORDS)
    skipped = 0
    while taken - skipped >= 2:
        view = _merged(slices[skipped:taken])
        if not _is_left_alone(slices, skipped, taken, view):
            return Plan(skipped, taken, view)
        skipped += 1
    return None


def _merged(slices: Sequence[Slice]) -> tuple[Slice, ...]:
    """The view without holes at its ends; one byte of hole if that is all there is."""
    view = overlay.build(slices, begin=min(piece.pos for piece in slices))
    first = view[0] if view else overlay.hole(slices[0].pos, 1)
    while view and view[0].id == overlay.HOLE:
        view.pop(0)
    while view and view[-1].id == overlay.HOLE:
        view.pop()
    return tuple(view) or (overlay.hole(first.pos, 1),)


def _is_left_alone(slices: Sequence[Slice], at: int, taken: int, view: tuple[Slice, ...]) -> bool:
    """Whether record `at` is big, stands first in the view, and nothing later touches it."""
    piece = slices[at]
    size = view[-1].pos + view[-1].length - view[0].pos
    if piece.length < LEFT_ALONE or piece.length * 5 < size:
        return False
    return view[0] == piece and piece not in slices[at + 1 : taken]


def copy(store: BlockStore, view: Sequence[Slice], new: SliceId) -> int:
    """Write what `view` shows as blocks of slice `new`; its size. OSError: nothing is left."""
    size = view[-1].pos + view[-1].length - view[0].pos
    uploads: list[Future[None]] = []
    try:
        for block, data in _blocks(store, view, new, size):
            if len(uploads) >= UPLOADS_AHEAD:
                uploads.pop(0).result()
            uploads.append(store.upload(partial(_put, store, block, data)))
        while uploads:
            uploads.pop(0).result()
    except OSError:
        for upload in uploads:
            upload.exception()  # ended, so that what it stored is removed too
        store.remove(new, size)
        raise
    return size


def _put(store: BlockStore, block: BlockKey, data: Buffer) -> None:
    try:
        store.put(block, data)
    finally:
        store.memory.give_back(block.size)


def _blocks(
    store: BlockStore, view: Sequence[Slice], new: SliceId, size: int
) -> Iterator[tuple[BlockKey, Buffer]]:
    """The new slice's blocks with their bytes, each in a buffer of its own, counted as dirty."""
    begin = view[0].pos
    for block in store.layout.blocks(new, size):
        store.memory.take(block.size)
        try:
            start = begin + block.index * store.block_size
            data = _shown(store, overlay.build(view, start, start + block.size))
        except BaseException:
            store.memory.give_back(block.size)
            raise
        yield block, data


def _shown(store: BlockStore, view: Sequence[Slice]) -> bytearray:
    data = bytearray()
    for piece in view:
        if piece.id == overlay.HOLE:
            data += bytes(piece.length)
            continue
        for part in store.read_parts([Part(piece.id, piece.size, piece.off, piece.length)]):
            data += part
    return data
