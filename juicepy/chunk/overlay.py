"""From the list of slices of a chunk to what is seen of them: later records win."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from juicepy.types import CHUNK_SIZE, Slice, SliceId

HOLE = SliceId(0)


def hole(pos: int, length: int) -> Slice:
    return Slice(pos, HOLE, 0, 0, length)


def build(slices: Iterable[Slice], begin: int = 0, end: int = CHUNK_SIZE) -> list[Slice]:
    """What is visible in [begin, end): disjoint pieces by rising `pos`, `slices` oldest first.

    Starts at `begin` and has no gap up to the last byte of any slice; uncovered ranges are holes
    (id 0), neighbouring holes are one piece. Empty if no slice reaches past `begin`.
    """
    starts: list[int] = []
    view: list[Slice] = []
    for piece in slices:
        cut = _clip(piece, begin, end)
        if cut is not None:
            _lay(starts, view, cut)
    return _without_gaps(view, begin)


def _clip(piece: Slice, begin: int, end: int) -> Slice | None:
    first, last = max(piece.pos, begin), min(piece.pos + piece.length, end)
    if first >= last:
        return None
    if first == piece.pos and last - first == piece.length:
        return piece
    off = piece.off + first - piece.pos if piece.id else 0
    return Slice(first, piece.id, piece.size, off, last - first)


def _lay(starts: list[int], view: list[Slice], piece: Slice) -> None:
    """Put `piece` on top of the disjoint `view`, whose positions are `starts`."""
    if not view or piece.pos >= view[-1].pos + view[-1].length:
        starts.append(piece.pos)
        view.append(piece)
        return
    end = piece.pos + piece.length
    first = bisect_right(starts, piece.pos) - 1
    if first < 0 or view[first].pos + view[first].length <= piece.pos:
        first += 1
    last = bisect_left(starts, end)
    parts = [piece]
    if first < last:
        before = _clip(view[first], 0, piece.pos)
        after = _clip(view[last - 1], end, CHUNK_SIZE)
        parts = [part for part in (before, piece, after) if part is not None]
    view[first:last] = parts
    starts[first:last] = [part.pos for part in parts]


def _without_gaps(view: list[Slice], begin: int) -> list[Slice]:
    filled: list[Slice] = []
    at = begin
    for piece in view:
        if piece.pos > at:
            _append(filled, hole(at, piece.pos - at))
        _append(filled, piece)
        at = piece.pos + piece.length
    return filled


def _append(view: list[Slice], piece: Slice) -> None:
    if piece.id == HOLE:
        last = view[-1] if view else None
        if last is not None and last.id == HOLE:
            view[-1] = hole(last.pos, last.length + piece.length)
            return
        piece = hole(piece.pos, piece.length)
    view.append(piece)
