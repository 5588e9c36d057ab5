"""Directory listings in the kernel's form, filled up to the size it asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from juicepy.fuse import wire
from juicepy.fuse.kernel import KernelView
from juicepy.types import S_IFMT, DirEntry

_DT = {kind: bits >> 12 for kind, bits in S_IFMT.items()}
_PADDING = [b"\0" * (-n % 8) for n in range(8)]
_DIRENT = wire.DIRENT.size
_ENTRY = wire.ENTRY_OUT.size
_NO_ENTRY = bytes(_ENTRY)  # inode 0: nothing was looked up, so nothing is to be forgotten

Entries = Iterator[tuple[int, DirEntry]]


def fill(entries: Entries, size: int) -> bytes | None:
    """fuse_dirent records that fit in `size`; None at the end of the directory."""
    parts: list[bytes] = []
    for cookie, entry in entries:
        name = entry.name
        size -= (_DIRENT + len(name) + 7) & ~7
        if size < 0:
            break
        parts += (
            wire.DIRENT.pack(entry.ino, cookie, len(name), _DT[entry.kind]),
            name,
            _PADDING[len(name) & 7],
        )
    return b"".join(parts) or None


def fill_plus(
    entries: Entries,
    size: int,
    view: KernelView,
    timeouts: Callable[[bool], tuple[float, float]],
) -> bytes | None:
    """fuse_direntplus records: each entry with attributes counts as looked up."""
    of_file, of_dir = timeouts(False), timeouts(True)
    parts: list[bytes] = []
    for cookie, entry in entries:
        name, attr = entry.name, entry.attr
        size -= _ENTRY + ((_DIRENT + len(name) + 7) & ~7)
        if size < 0:
            break
        if attr is None or name in (b".", b".."):
            packed = _NO_ENTRY
        else:
            attr_s, entry_s = of_dir if attr.is_dir else of_file
            packed = view.entry_of(entry.ino, attr, attr_s, entry_s)
        parts += (
            packed,
            wire.DIRENT.pack(entry.ino, cookie, len(name), _DT[entry.kind]),
            name,
            _PADDING[len(name) & 7],
        )
    return b"".join(parts) or None
