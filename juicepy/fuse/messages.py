"""The bytes of replies and of the memory for requests."""

from __future__ import annotations

import errno
import mmap

from juicepy.errors import posix_error
from juicepy.fuse import wire
from juicepy.types import Buffer

_HEADER = wire.IN_HEADER.size
_MAX_PIECES = 1000  # writev takes 1024


def failure(unique: int, code: int) -> bytes:
    """The reply with that errno; 0 is an empty success."""
    return wire.OUT_HEADER.pack(16, -code if 0 <= code < 1000 else -errno.EIO, unique)


def pieces(unique: int, pieces: list[Buffer]) -> list[Buffer]:
    """A reply of several buffers, which are sent as they are."""
    if len(pieces) > _MAX_PIECES:
        pieces = [b"".join(pieces)]
    size = sum(map(_nbytes, pieces))
    return [wire.OUT_HEADER.pack(16 + size, 0, unique), *pieces]


def request_buffer(size: int) -> tuple[mmap.mmap, memoryview]:
    """Memory that counts only once used, in which the data of a WRITE begins on a page.

    The mapping is to give it back by: private, as shared memory stays when it is not needed.
    """
    headers = _HEADER + wire.WRITE_IN.size
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, mmap.PAGESIZE + size, flags=flags)
    return memory, memoryview(memory)[mmap.PAGESIZE - headers :][:size]


def _nbytes(piece: Buffer) -> int:
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)


def extensions(view: memoryview, length: int, size: int) -> tuple[int, tuple[int, ...]]:
    """(length without extensions, the groups that one of them names)."""
    end, at = length, length - size
    length = at
    groups: tuple[int, ...] = ()
    while at + wire.EXT_HEADER.size <= end:
        this, kind = wire.EXT_HEADER.unpack_from(view, at)
        if this < wire.EXT_HEADER.size or at + this > end:
            raise posix_error(errno.EINVAL)
        if kind == wire.EXT_GROUPS:
            start = at + wire.EXT_HEADER.size + wire.SUPP_GROUPS.size
            (count,) = wire.SUPP_GROUPS.unpack_from(view, start - wire.SUPP_GROUPS.size)
            groups = tuple(view[start : start + 4 * count].cast("I"))
        at += (this + 7) & ~7
    return length, groups
