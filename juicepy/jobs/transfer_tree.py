"""What a transfer asks of its two ends: a tree on a volume, or in a local directory.

Paths are bytes, relative to the top of the tree, b"" the top itself. Threads may share a tree.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from juicepy.types import CHUNK_SIZE, Buffer, Kind

PART = b".jfs-part-"  # unfinished files; what remains of a run that was killed is used by the next
_PART = re.compile(rb"\.jfs-part-[0-9a-f]{16}(?:\.done)?")


@dataclass(frozen=True, slots=True)
class Node:
    """A name in a tree and what it leads to; `ino` tells hard links."""

    path: bytes
    kind: Kind
    mode: int
    uid: int
    gid: int
    atime_ns: int
    mtime_ns: int
    length: int
    rdev: int
    nlink: int
    ino: int

    def same_content(self, other: Node | None) -> bool:
        """By what is looked at before contents are: kind, length, time of change."""
        if other is None or self.kind is not other.kind or self.mtime_ns != other.mtime_ns:
            return False
        return self.length == other.length


@dataclass(frozen=True, slots=True)
class Extent:
    """`length` bytes of data from `offset` on, within one chunk."""

    offset: int
    length: int


class Reader(Protocol):
    """An open file of the source."""

    def extents(self) -> list[Extent]:
        """Where there is data, in order; the rest reads as zeros."""

    def read(self, offset: int, length: int) -> Buffer:
        """All of these bytes, which lie within an extent; EIO if they are not there any more."""

    def xattrs(self, node: Node) -> dict[bytes, bytes]:
        """Extended attributes of the file."""

    def is_still(self, node: Node) -> bool:
        """Whether what was read is the content that `node` tells of."""

    def close(self) -> None: ...


class Draft(Protocol):
    """A file that is being made, under a name of its own until it is published."""

    def has(self, extent: Extent) -> bool:
        """Whether an earlier run has brought all of the extent."""

    def put(self, extent: Extent, off: int, data: Buffer) -> None:
        """Take a block of the extent: whole blocks of the target's size, but for the last."""

    def get(self, extent: Extent, off: int, length: int) -> Buffer:
        """Read a block of the extent back."""

    def commit(self, extent: Extent) -> None:
        """All blocks of the extent are there."""

    def publish(self, node: Node, xattrs: Mapping[bytes, bytes]) -> None:
        """Give the file length, attributes and its name, in place of what is there."""

    def close(self) -> None:
        """Leaves what is not published for the next run."""


class Tree(Protocol):
    """See the module. `block_size`: of what is written."""

    @property
    def block_size(self) -> int: ...

    def below(self, name: bytes) -> Tree:
        """The tree at a name of the top."""

    # -- reading
    def find(self, path: bytes) -> Node | None: ...
    def was_there(self, path: bytes) -> Node | None:
        """Like `find`, of what is from before this run: nothing, in directories that it made."""

    def children(self, path: bytes) -> Iterator[Node]: ...
    def target_of(self, node: Node) -> bytes: ...
    def xattrs(self, node: Node) -> dict[bytes, bytes]: ...
    def open(self, node: Node) -> Reader: ...

    # -- writing
    def make_dir(self, path: bytes) -> None: ...
    def make_special(self, node: Node, target: bytes, xattrs: Mapping[bytes, bytes]) -> None:
        """A symlink, device, FIFO or socket, in place of what is there."""

    def make_link(self, first: bytes, path: bytes) -> bool:
        """Another name for `first`, in place of what is there; False if it is one already."""

    def draft(self, node: Node) -> Draft: ...
    def set_attrs(self, node: Node, xattrs: Mapping[bytes, bytes]) -> None:
        """Owner (as root), permissions, times, extended attributes."""

    def finish(self) -> None:
        """All is there: make it last."""


def part_path(path: bytes) -> bytes:
    """Where the file is until it is whole: in the same directory, the same in every run."""
    above, slash, name = path.rpartition(b"/")
    return above + slash + PART + hashlib.sha256(name).hexdigest()[:16].encode()


def is_part(path: bytes) -> bool:
    return _PART.fullmatch(path.rpartition(b"/")[2]) is not None


def within_chunks(offset: int, length: int) -> Iterator[Extent]:
    """The range, cut where chunks end."""
    end = offset + length
    while offset < end:
        size = min(end, (offset // CHUNK_SIZE + 1) * CHUNK_SIZE) - offset
        yield Extent(offset, size)
        offset += size
