"""The file of a cached block: checksums, damage, and how much each level looks at."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import google_crc32c
import pytest

from juicepy.cache.blockfile import PART, BlockFile, Corrupt, has_checksums, trailer, write

SIZE = 3 * PART + 100
CONTENT = bytes(range(256)) * (SIZE // 256) + bytes(SIZE % 256)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "block")


def flip(path: str, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize(("length", "size"), [(4 << 20, 512), (525288, 68), (5, 4)])
def test_trailer_has_four_bytes_for_each_part(length: int, size: int) -> None:
    assert len(trailer(bytes(length))) == size


def test_file_is_the_block_and_big_endian_checksums(path: str) -> None:
    write(path, memoryview(CONTENT), mode=0o600, checksums=True)
    raw = Path(path).read_bytes()
    assert raw[:SIZE] == CONTENT
    sums = [google_crc32c.value(CONTENT[at : at + PART]) for at in range(0, SIZE, PART)]
    assert raw[SIZE:] == struct.pack(">4I", *sums)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.listdir(os.path.dirname(path)) == ["block"]


def test_without_checksums_the_file_is_the_block(path: str) -> None:
    write(path, CONTENT, mode=0o600, checksums=False)
    assert Path(path).read_bytes() == CONTENT
    assert bytes(BlockFile(path, SIZE).read(0, SIZE, "extend")) == CONTENT


def test_a_file_somebody_writes_is_left_alone(path: str) -> None:
    Path(path + ".tmp").write_bytes(b"half")
    with pytest.raises(FileExistsError):
        write(path, CONTENT, mode=0o600, checksums=True)
    assert Path(path + ".tmp").read_bytes() == b"half"


@pytest.mark.parametrize(
    ("extra", "expected"), [(0, False), (16, True), (40, True), (17, False), (1, False)]
)
def test_length_tells_whether_there_are_checksums(extra: int, expected: bool) -> None:
    assert has_checksums(SIZE + extra, SIZE) is expected


@pytest.mark.parametrize("extra", [-1, 4, 12])
def test_lengths_that_fit_nothing_are_corrupt(extra: int) -> None:
    with pytest.raises(Corrupt):
        has_checksums(SIZE + extra, SIZE)


@pytest.mark.parametrize("level", ["none", "full", "shrink", "extend"])
@pytest.mark.parametrize(
    ("off", "size"), [(0, SIZE), (5, 10), (PART, PART), (PART - 1, PART + 2), (SIZE - 3, 3)]
)
def test_sound_files_give_every_range_at_every_level(
    path: str, level: str, off: int, size: int
) -> None:
    write(path, CONTENT, mode=0o600, checksums=True)
    assert bytes(BlockFile(path, SIZE).read(off, size, level)) == CONTENT[off : off + size]


# a byte at PART + 7 is wrong: which reads notice?
@pytest.mark.parametrize(
    ("level", "off", "size", "notices"),
    [
        ("none", 0, SIZE, False),
        ("full", 0, SIZE, True),
        ("full", 0, SIZE - 1, False),
        ("shrink", PART, PART, True),
        ("shrink", PART + 5, 10, False),
        ("shrink", 5, 2 * PART, True),
        ("extend", PART + 50, 1, True),
        ("extend", 0, PART, False),
        ("extend", 2 * PART, PART, False),
    ],
)
def test_levels_check_what_they_say(
    path: str, level: str, off: int, size: int, notices: bool
) -> None:
    write(path, CONTENT, mode=0o600, checksums=True)
    flip(path, PART + 7)
    file = BlockFile(path, SIZE)
    if notices:
        with pytest.raises(Corrupt):
            file.read(off, size, level)
    else:
        assert len(file.read(off, size, level)) == size


def test_last_short_part_and_the_trailer_itself_are_checked(path: str) -> None:
    write(path, CONTENT, mode=0o600, checksums=True)
    flip(path, SIZE - 1)
    with pytest.raises(Corrupt):
        BlockFile(path, SIZE).read(SIZE - 100, 100, "shrink")
    flip(path, SIZE - 1)
    flip(path, SIZE + 1)
    with pytest.raises(Corrupt):
        BlockFile(path, SIZE).read(0, 1, "extend")


def test_open_file_outlives_its_name(path: str) -> None:
    write(path, CONTENT, mode=0o600, checksums=True)
    file = BlockFile(path, SIZE)
    assert not file.is_unlinked()
    os.unlink(path)
    assert file.is_unlinked()
    assert bytes(file.read(0, SIZE, "full")) == CONTENT
