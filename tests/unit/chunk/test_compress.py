"""Compressed blocks have the bytes other clients write and expect."""

from __future__ import annotations

import errno
import threading

import pytest

from juicepy.chunk.compress import compressor
from juicepy.errors import Refused

NAMES = ["none", "", "lz4", "zstd"]


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("none", "736d616c6c"),
        ("lz4", "50736d616c6c"),
        ("zstd", "28b52ffd2005290000736d616c6c"),
    ],
)
def test_stored_bytes_are_those_of_other_clients(name: str, stored: str) -> None:
    codec = compressor(name)
    assert bytes(codec.compress(bytearray(b"small"))).hex() == stored
    assert bytes(codec.decompress(bytes.fromhex(stored), 5)) == b"small"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("data", [b"\0", b"ab" * 50_000, bytes(range(256)) * 3])
def test_what_was_packed_is_unpacked(name: str, data: bytes) -> None:
    codec = compressor(name)
    assert bytes(codec.decompress(codec.compress(memoryview(data)), len(data))) == data


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", [b"", b"garbage, not a block", b"\xff" * 40])
def test_damaged_blocks_are_eio(name: str, damage: bytes) -> None:
    with pytest.raises(OSError) as caught:
        compressor(name).decompress(damage, 5)
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [4, 6])
def test_another_length_than_the_name_tells_is_eio(name: str, size: int) -> None:
    codec = compressor(name)
    with pytest.raises(OSError) as caught:
        codec.decompress(codec.compress(b"small"), size)
    assert caught.value.errno == errno.EIO


def test_many_threads_may_use_one_compressor() -> None:
    codec = compressor("zstd")
    failed: list[int] = []

    def work(seed: int) -> None:
        data = bytes([seed]) * 100_000
        for _ in range(20):
            if codec.decompress(codec.compress(data), len(data)) != data:
                failed.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failed


def test_unknown_name_is_refused() -> None:
    with pytest.raises(Refused):
        compressor("gzip")
