"""The visible view of a chunk against an array of bytes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from juicepy.chunk.overlay import build, hole
from juicepy.types import CHUNK_SIZE, Slice, SliceId

SPAN = 60
Seen = list[tuple[int, int]]  # per byte: slice id and offset in it


@st.composite
def slices(draw: st.DrawFn) -> list[Slice]:
    found = []
    for number in range(draw(st.integers(0, 12))):
        pos, length = draw(st.integers(0, SPAN - 1)), draw(st.integers(0, 20))
        length = min(length, SPAN - pos)
        if draw(st.booleans()):
            off = draw(st.integers(0, 5))
            found.append(Slice(pos, SliceId(number + 1), off + length + 3, off, length))
        else:
            found.append(Slice(pos, SliceId(0), 0, 0, length))
    return found


def painted(pieces: list[Slice]) -> Seen:
    seen = [(0, 0)] * SPAN
    for piece in pieces:
        for at in range(piece.length):
            seen[piece.pos + at] = (piece.id, piece.off + at) if piece.id else (0, 0)
    return seen


@settings(max_examples=300)
@given(slices(), st.integers(0, SPAN), st.integers(0, SPAN))
def test_view_shows_what_painting_in_order_shows(pieces: list[Slice], begin: int, end: int) -> None:
    view = build(pieces, begin, end)
    assert painted(view)[begin:end] == painted(pieces)[begin:end] or begin >= end
    at = begin
    for piece in view:
        assert piece.pos == at, "gaps or overlaps"
        assert piece.length > 0
        at += piece.length
    last = max(
        (min(p.pos + p.length, end) for p in pieces if p.length and p.pos < end), default=begin
    )
    assert at == max(last, begin) if begin < end else not view
    assert not any(left.id == right.id == 0 for left, right in pairwise(view))


def test_nothing_shows_nothing() -> None:
    assert build([]) == []
    assert build([Slice(0, SliceId(1), 10, 0, 10)], begin=10) == []


def test_untouched_pieces_are_the_records_themselves() -> None:
    piece = Slice(5, SliceId(1), 100, 7, 10)
    assert build([piece]) == [hole(0, 5), piece]


def test_a_piece_in_the_middle_splits_what_lies_below() -> None:
    below, above = Slice(0, SliceId(1), 100, 0, 100), Slice(40, SliceId(2), 20, 0, 20)
    assert build([below, above]) == [
        Slice(0, SliceId(1), 100, 0, 40),
        above,
        Slice(60, SliceId(1), 100, 60, 40),
    ]


def test_thousands_of_records_are_quick() -> None:
    pieces = [
        Slice(number * 7919 % 16000 * 4096, SliceId(number + 1), 8192, 0, 8192)
        for number in range(3000)
    ]
    view = build(pieces)
    assert sum(piece.length for piece in view) <= CHUNK_SIZE
