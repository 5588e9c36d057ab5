"""POSIX record locks of one owner: splitting and merging."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from juicepy.meta.ops.locks import merged
from juicepy.types import LockKind, PosixLock

changes = st.lists(
    st.tuples(st.sampled_from(LockKind), st.integers(0, 30), st.integers(0, 10)), max_size=12
)


@given(changes)
def test_records_say_what_a_byte_map_says(
    changes: list[tuple[LockKind, int, int]],
) -> None:
    model: dict[int, LockKind] = {}
    records: tuple[PosixLock, ...] = ()
    for kind, start, extra in changes:
        records = merged(records, PosixLock(kind, start, start + extra, 1))
        for byte in range(start, start + extra + 1):
            if kind is LockKind.UNLOCK:
                model.pop(byte, None)
            else:
                model[byte] = kind
    told = {byte: r.kind for r in records for byte in range(r.start, r.end + 1)}
    assert told == model
    assert list(records) == sorted(records, key=lambda r: r.start)
    for left, right in itertools.pairwise(records):
        assert left.end < right.start
        assert left.kind != right.kind or left.end + 1 < right.start
