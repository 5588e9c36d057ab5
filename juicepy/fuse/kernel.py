"""What the kernel is told of inodes: packing of attributes and entries, and a memory of it."""

from __future__ import annotations

from juicepy.fuse import wire
from juicepy.types import S_IFMT, Attr, Inode, Kind
from juicepy.vfs.api import Found

BLOCK_SIZE = 1 << 16  # st_blksize
GENERATION = 1  # inode numbers are never used twice

_NS = 1_000_000_000
_SUID_SGID = 0o6000
_REMEMBERED = 100_000
_FILE = Kind.FILE


class KernelView:
    """Packs replies that carry attributes, and knows the last size the kernel has of a file.

    Its memory is a hint: what is forgotten (it is bounded) is taken for unknown. Thread-safe by
    single dict operations.
    """

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._setid: set[int] = set()

    def entry(self, found: Found) -> bytes:
        """fuse_entry_out."""
        return self.entry_of(found.ino, found.attr, found.attr_timeout_s, found.entry_timeout_s)

    def entry_of(self, ino: Inode, attr: Attr, attr_s: float, entry_s: float) -> bytes:
        entry_whole, attr_whole = int(entry_s), int(attr_s)
        return wire.ENTRY_OUT.pack(
            ino,
            GENERATION,
            entry_whole,
            attr_whole,
            int((entry_s - entry_whole) * _NS),
            int((attr_s - attr_whole) * _NS),
            *self._fields(ino, attr),
        )

    def attr(self, ino: Inode, attr: Attr, timeout_s: float) -> bytes:
        """fuse_attr_out."""
        whole = int(timeout_s)
        return wire.ATTR_OUT.pack(whole, int((timeout_s - whole) * _NS), *self._fields(ino, attr))

    def _fields(self, ino: Inode, attr: Attr) -> tuple[int, ...]:
        length = attr.length
        if attr.kind is _FILE:
            self._remember(ino, attr)
        atime, atime_ns = divmod(attr.atime_ns, _NS)
        mtime, mtime_ns = divmod(attr.mtime_ns, _NS)
        ctime, ctime_ns = divmod(attr.ctime_ns, _NS)
        return (
            ino,
            length,
            (length + 4095) >> 12 << 3,  # in the units that the volume counts
            atime,
            mtime,
            ctime,
            atime_ns,
            mtime_ns,
            ctime_ns,
            S_IFMT[attr.kind] | attr.mode,
            attr.nlink,
            attr.uid,
            attr.gid,
            attr.rdev,
            BLOCK_SIZE,
            0,
        )

    def _remember(self, ino: Inode, attr: Attr) -> None:
        sizes = self._sizes
        if len(sizes) >= _REMEMBERED:
            sizes.clear()
        if attr.mode & _SUID_SGID:
            self._setid.add(ino)
        elif self._setid:
            self._setid.discard(ino)
        sizes[ino] = attr.length

    def has_size(self, ino: Inode, length: int) -> bool:
        """Does the kernel surely believe that the file is `length` bytes long?"""
        return self._sizes.get(ino) == length

    def set_size(self, ino: Inode, length: int) -> None:
        if ino in self._sizes:
            self._sizes[ino] = length

    def grown(self, ino: Inode, end: int) -> None:
        """The kernel wrote up to `end`, and counts the file as at least that long."""
        known = self._sizes.get(ino)
        if known is not None and end > known:
            self._sizes[ino] = end

    def has_no_setid(self, ino: Inode) -> bool:
        """Was the kernel surely told a mode without set-uid and set-gid?"""
        return ino in self._sizes and ino not in self._setid

    def forget(self, ino: int) -> None:
        self._sizes.pop(ino, None)
        self._setid.discard(ino)
