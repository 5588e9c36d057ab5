"""Compression of blocks, by the name the volume's setting gives (spec objects.md 3).

| name            | stored                                                               |
|-----------------|----------------------------------------------------------------------|
| `none`, empty   | the bytes                                                            |
| `lz4`           | one LZ4 block, no frame and no length                                |
| `zstd`          | one zstd frame, level 1, with content size and without checksum      |

The plain length is known from the object's name. Compressed bytes may be more than plain ones.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Protocol

import lz4.block
import zstandard

from juicepy.errors import Refused
from juicepy.types import Buffer


class Compressor(Protocol):
    """Thread-safe; `is_plain` if the stored bytes are the bytes, so that ranges can be read."""

    is_plain: bool

    def compress(self, data: Buffer) -> Buffer: ...

    def decompress(self, data: Buffer, size: int) -> Buffer:
        """The `size` plain bytes; EIO if `data` is anything else."""


def compressor(name: str) -> Compressor:
    """The compressor called `name`; Refused for a name that is none."""
    known: dict[str, Callable[[], Compressor]]
    known = {"": Plain, "none": Plain, "lz4": Lz4, "zstd": Zstd}
    if name.lower() not in known:
        raise Refused(f"unknown compression {name!r}: none, lz4 or zstd")
    return known[name.lower()]()


class Plain:
    is_plain = True

    def compress(self, data: Buffer) -> Buffer:
        return data

    def decompress(self, data: Buffer, size: int) -> Buffer:
        return _sized(data, size)


class Lz4:
    is_plain = False

    def compress(self, data: Buffer) -> Buffer:
        packed: bytes = lz4.block.compress(data, store_size=False)
        return packed

    def decompress(self, data: Buffer, size: int) -> Buffer:
        try:
            plain: bytes = lz4.block.decompress(data, uncompressed_size=size)
        except lz4.block.LZ4BlockError as error:
            raise OSError(errno.EIO, f"a block is no lz4 data: {error}") from error
        return _sized(plain, size)


class Zstd:
    is_plain = False

    def __init__(self) -> None:
        self._local = threading.local()  # a context of zstandard serves one thread at a time

    def compress(self, data: Buffer) -> Buffer:
        packer = getattr(self._local, "packer", None)
        if packer is None:
            packer = self._local.packer = zstandard.ZstdCompressor(level=1, write_checksum=False)
        packed: bytes = packer.compress(data)
        return packed

    def decompress(self, data: Buffer, size: int) -> Buffer:
        unpacker = getattr(self._local, "unpacker", None)
        if unpacker is None:
            unpacker = self._local.unpacker = zstandard.ZstdDecompressor()
        try:
            # Asked first: the size a damaged frame claims is what would be allocated.
            claimed = zstandard.frame_content_size(data)
            if claimed not in (-1, size):
                raise OSError(errno.EIO, f"a block unpacks to {claimed} bytes, not {size}")
            plain: bytes = unpacker.decompress(data, max_output_size=size)
        except zstandard.ZstdError as error:
            raise OSError(errno.EIO, f"a block is no zstd data: {error}") from error
        return _sized(plain, size)


def _sized(data: Buffer, size: int) -> Buffer:
    if len(data) != size:
        raise OSError(errno.EIO, f"a block has {len(data)} bytes, not {size}")
    return data
