"""What is known of a page of short files before they are opened: three exchanges for all of them.

Slices are asked for before the attributes are asked for again: if these still tell what the listing
told, the slices are those of just that content, and as nobody changes a slice, so is what is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from juicepy.jobs.transfer_tree import Node
from juicepy.meta.client import MetaClient
from juicepy.meta.tx import Tx
from juicepy.types import CHUNK_SIZE, Attr, Inode, Kind, Slice


@dataclass(frozen=True, slots=True)
class Known:
    """The slices of the only chunk; whether the file has no extended attributes."""

    slices: tuple[Slice, ...]
    is_plain: bool


class LookAhead:
    """Thread-safe. What is learned is given once, to who opens the file."""

    def __init__(self, meta: MetaClient) -> None:
        self._meta = meta
        self._lock = Lock()  # guards _known
        self._known: dict[int, Known] = {}

    def learn(self, nodes: Sequence[Node]) -> None:
        short = {
            Inode(node.ino): node
            for node in nodes
            if node.kind is Kind.FILE and 0 < node.length <= CHUNK_SIZE and node.nlink == 1
        }
        if len(short) < 2:
            return

        def content(tx: Tx) -> dict[Inode, tuple[tuple[Slice, ...], bool]]:
            tx.fetch(*(("chunk", ino, 0) for ino in short), *(("xattrs", ino) for ino in short))
            return {ino: (tx.slices(ino, 0), not tx.xattr_names(ino)) for ino in short}

        def attrs(tx: Tx) -> dict[Inode, Attr | None]:
            tx.fetch(*(("attr", ino) for ino in short))
            return {ino: tx.attr(ino) for ino in short}

        found, now = self._meta.engine.read(content), self._meta.engine.read(attrs)
        with self._lock:
            for ino, (slices, has_none) in found.items():
                attr, node = now[ino], short[ino]
                if attr is None or (attr.mtime_ns, attr.length) != (node.mtime_ns, node.length):
                    continue
                is_plain = has_none and not attr.access_acl and not attr.default_acl
                self._known[ino] = Known(slices, is_plain)

    def take(self, node: Node) -> Known | None:
        with self._lock:
            return self._known.pop(node.ino, None)
