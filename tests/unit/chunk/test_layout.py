"""Names of objects, as the volumes of other clients have them."""

from __future__ import annotations

import pytest

from juicepy.chunk.layout import Layout
from juicepy.types import BlockKey, SliceId

MiB = 1 << 20


@pytest.mark.parametrize(
    ("hash_prefix", "block", "key"),
    [
        (False, (8, 2, 1048576), "chunks/0/0/8_2_1048576"),
        (True, (1, 4, 525288), "chunks/01/0/1_4_525288"),
        (False, (123456789, 0, 4194304), "chunks/123/123456/123456789_0_4194304"),
        (True, (123456789, 0, 4194304), "chunks/15/123/123456789_0_4194304"),
        (True, (255, 0, 1), "chunks/FF/0/255_0_1"),
    ],
)
def test_keys_are_those_of_other_clients(
    hash_prefix: bool, block: tuple[int, int, int], key: str
) -> None:
    layout = Layout(4 * MiB, hash_prefix)
    made = BlockKey(SliceId(block[0]), block[1], block[2])
    assert layout.object_key(made) == key
    assert layout.parse_key(key) == made


@pytest.mark.parametrize(
    "key", ["", "chunks/0/0/8_2", "chunks/0/1/8_2_5", "chunks/0/0/8_2_5.tmp", "x/chunks/0/0/8_2_5"]
)
def test_other_names_are_no_blocks(key: str) -> None:
    assert Layout(4 * MiB).parse_key(key) is None


def test_last_block_is_short_and_empty_slices_have_none() -> None:
    layout = Layout(4 * MiB)
    assert [block.size for block in layout.blocks(SliceId(7), 9 * MiB)] == [4 * MiB, 4 * MiB, MiB]
    assert [block.size for block in layout.blocks(SliceId(7), 4 * MiB)] == [4 * MiB]
    assert list(layout.blocks(SliceId(7), 0)) == []
