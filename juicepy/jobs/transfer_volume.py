"""A directory of a volume as an end of a transfer: metadata client and blocks, without a mount.

A file that is being made has a name and, as an extended attribute, what it is made from; each
extent is one slice, committed when its blocks are stored. So the next run finds what there is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Lock

from juicepy.cache.options import CacheOptions
from juicepy.chunk import overlay
from juicepy.chunk.store import BlockStore, Part, StoreOptions
from juicepy.errors import posix_error
from juicepy.jobs.transfer_ahead import Known, LookAhead
from juicepy.jobs.transfer_tree import Extent, Node, is_part, part_path
from juicepy.meta import paths
from juicepy.meta.client import MetaClient
from juicepy.object.target import DriverSettings
from juicepy.types import (
    CHUNK_BITS,
    CHUNK_SIZE,
    Attr,
    BlockKey,
    Buffer,
    Cred,
    Inode,
    Kind,
    SetAttr,
    Slice,
    SliceId,
)
from juicepy.vfs.open import VfsOptions, open_vfs

_ROOT = Cred()  # the caller holds the keys of the volume
_MADE_FROM = b"user.jfs-part"
_UNSUPPORTED = {errno.ENOTSUP, errno.EPERM}


@contextmanager
def open_tree(
    meta_url: str,
    path: bytes,
    *,
    read_only: bool,
    threads: int,
    io_retries: int,
    passphrase: str = "",
    drivers: DriverSettings | None = None,
) -> Iterator[VolumeTree]:
    """The tree at `path` of the volume, of which all may be missing unless `read_only`."""
    store = StoreOptions(max_uploads=threads, max_downloads=threads, io_retries=io_retries)
    cache = CacheOptions(size=0)
    options = VfsOptions(read_only=read_only, no_bgjob=True, store=store, cache=cache)
    with open_vfs(meta_url, options, passphrase=passphrase, drivers=drivers) as vfs:
        if not read_only:
            paths.subdir(vfs.meta, os.fsdecode(os.path.dirname(path)), make=True)
        yield VolumeTree(vfs.meta, vfs.store, path)


class VolumeTree:
    """See `Tree`."""

    def __init__(self, meta: MetaClient, store: BlockStore, root: bytes) -> None:
        self.meta, self.store = meta, store
        self.block_size = store.block_size
        self._root = b"/" + root.strip(b"/")
        self._inodes: dict[bytes, Inode] = {}  # of directories
        self._made: set[bytes] = set()  # directories that this run has made
        self._ahead = LookAhead(meta)
        self._lock = Lock()  # guards _inodes

    def _at(self, path: bytes) -> bytes:
        return self._root.rstrip(b"/") + b"/" + path if path else self._root

    def _directory(self, path: bytes) -> Inode:
        with self._lock:
            found = self._inodes.get(path)
        if found is None:
            found, attr = self.meta.resolve(_ROOT, self._at(path), follow=not path)
            if not attr.is_dir:
                raise posix_error(errno.ENOTDIR, os.fsdecode(path))
            self._note(path, found)
        return found

    def _note(self, path: bytes, ino: Inode) -> None:
        with self._lock:
            self._inodes[path] = ino

    def place(self, path: bytes) -> tuple[Inode, bytes]:
        """(directory, name) of a path."""
        if not path:
            above, _, name = self._root.rpartition(b"/")
            return self.meta.resolve(_ROOT, above or b"/")[0], name
        above, _, name = path.rpartition(b"/")
        return self._directory(above), name

    def below(self, name: bytes) -> VolumeTree:
        return VolumeTree(self.meta, self.store, self._at(name))

    # -- reading
    def find(self, path: bytes) -> Node | None:
        try:
            if not path:
                return _node(path, *self.meta.resolve(_ROOT, self._root))
            return _node(path, *self.meta.lookup(_ROOT, *self.place(path)))
        except FileNotFoundError:
            return None

    def children(self, path: bytes) -> Iterator[Node]:
        for page in self.meta.list_dir(_ROOT, self._directory(path), with_attrs=True):
            nodes = []
            for entry in page:
                name = path + b"/" + entry.name if path else entry.name
                if entry.attr is not None and not is_part(name):
                    if entry.attr.is_dir:
                        self._note(name, entry.ino)
                    nodes.append(_node(name, entry.ino, entry.attr))
            self._ahead.learn(nodes)
            yield from nodes

    def target_of(self, node: Node) -> bytes:
        return self.meta.readlink(_ROOT, Inode(node.ino))

    def xattrs(self, node: Node) -> dict[bytes, bytes]:
        ino = Inode(node.ino)
        names = self.meta.listxattr(_ROOT, ino)
        return {name: self.meta.getxattr(_ROOT, ino, name) for name in names}

    def open(self, node: Node) -> VolumeReader:
        return VolumeReader(self, node, self._ahead.take(node))

    def was_there(self, path: bytes) -> Node | None:
        above, _, _ = path.rpartition(b"/")
        return None if path and above in self._made else self.find(path)

    # -- writing
    def make_dir(self, path: bytes) -> None:
        ino, _ = self.meta.mkdir(_ROOT, *self.place(path), 0o700, 0)
        self._note(path, ino)
        self._made.add(path)

    def make_special(self, node: Node, target: bytes, xattrs: Mapping[bytes, bytes]) -> None:
        parent, part = self._free_part(node.path)
        ino, _ = self.meta.mknod(_ROOT, parent, part, node.kind, 0o600, 0, node.rdev, target)
        self.dress(ino, node, xattrs)
        self.meta.rename(_ROOT, parent, part, *self.place(node.path))

    def make_link(self, first: bytes, path: bytes) -> bool:
        wanted, there = self.find(first), self.find(path)
        if wanted is None:
            raise posix_error(errno.ENOENT, os.fsdecode(first))
        if there is not None and there.ino == wanted.ino:
            return False
        parent, part = self._free_part(path)
        self.meta.link(_ROOT, Inode(wanted.ino), parent, part)
        self.meta.rename(_ROOT, parent, part, *self.place(path))
        return True

    def _free_part(self, path: bytes) -> tuple[Inode, bytes]:
        parent, name = self.place(path)
        part = part_path(name)
        with suppress(FileNotFoundError):
            self.meta.unlink(_ROOT, parent, part, skip_trash=True)
        return parent, part

    def draft(self, node: Node) -> VolumeDraft:
        return VolumeDraft(self, node)

    def set_attrs(self, node: Node, xattrs: Mapping[bytes, bytes]) -> None:
        there = self.find(node.path)
        if there is None:
            raise posix_error(errno.ENOENT, os.fsdecode(node.path))
        self.dress(Inode(there.ino), node, xattrs)

    def dress(self, ino: Inode, node: Node, xattrs: Mapping[bytes, bytes]) -> None:
        is_root = os.geteuid() == 0
        uid, gid = (node.uid, node.gid) if is_root else (os.geteuid(), os.getegid())
        for name, value in xattrs.items():
            try:
                self.meta.setxattr(_ROOT, ino, name, value, 0)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
        change = SetAttr(node.mode, uid, gid, node.atime_ns, node.mtime_ns)
        self.meta.setattr(_ROOT, ino, change)

    def finish(self) -> None:
        self.store.sync()


class VolumeReader:
    """See `Reader`."""

    def __init__(self, tree: VolumeTree, node: Node, known: Known | None) -> None:
        self._tree, self._store, self._known = tree, tree.store, known
        if known is None:
            chunks = tree.meta.all_slices(Inode(node.ino), node.length)
        else:
            chunks = {0: known.slices} if known.slices else {}
        self._views = {
            index: overlay.build(slices, 0, min(CHUNK_SIZE, node.length - (index << CHUNK_BITS)))
            for index, slices in sorted(chunks.items())
        }

    def extents(self) -> list[Extent]:
        found: list[Extent] = []
        for index, view in self._views.items():
            for piece in view:
                offset = (index << CHUNK_BITS) + piece.pos
                last = found[-1] if found else None
                if not piece.id:
                    continue
                if last and piece.pos and last.offset + last.length == offset:
                    found[-1] = Extent(last.offset, last.length + piece.length)
                else:
                    found.append(Extent(offset, piece.length))
        return found

    def read(self, offset: int, length: int) -> Buffer:
        parts = list(self._parts(offset, length))
        if len(parts) == 1:
            with self._store.reading_through(parts[0]) as data:
                return data
        whole = bytearray()
        for part in parts:
            with self._store.reading_through(part) as data:
                whole += data
        return whole

    def _parts(self, offset: int, length: int) -> Iterator[Part]:
        """What is to be read, each within one block."""
        pos, size = offset & (CHUNK_SIZE - 1), self._store.block_size
        for piece in self._views[offset >> CHUNK_BITS]:
            begin, end = max(pos, piece.pos), min(pos + length, piece.pos + piece.length)
            off = piece.off + begin - piece.pos
            while begin < end:
                part = min(end - begin, size - off % size)
                yield Part(piece.id, piece.size, off, part)
                begin, off = begin + part, off + part

    def xattrs(self, node: Node) -> dict[bytes, bytes]:
        return {} if self._known is not None and self._known.is_plain else self._tree.xattrs(node)

    def is_still(self, node: Node) -> bool:
        """True of what is known from before: see `transfer_ahead`."""
        return self._known is not None or node.same_content(self._tree.find(node.path))

    def close(self) -> None:
        """Nothing is held."""


class VolumeDraft:
    """See `Draft`."""

    def __init__(self, tree: VolumeTree, node: Node) -> None:
        self._tree, self._node = tree, node
        self._meta, self._store = tree.meta, tree.store
        self._is_large = node.length > tree.block_size
        self._slices: dict[Extent, SliceId] = {}
        self._lock = Lock()  # guards _slices
        self._made_from = b"%d %d %d" % (node.ino, node.length, node.mtime_ns)
        parent, name = tree.place(node.path)
        self._place, self._part = (parent, name), part_path(name)
        self._done = self._found() if self._is_large else set()
        self._length = 0  # of what is committed; asked for in the end of large files
        if not self._done:
            self._ino = self._new()
            if self._is_large:
                self._meta.setxattr(_ROOT, self._ino, _MADE_FROM, self._made_from, 0)

    def _new(self) -> Inode:
        """An empty file, in place of what an earlier run has left."""
        place = self._place[0], self._part
        try:
            return self._meta.mknod(_ROOT, *place, Kind.FILE, 0o600, 0)[0]
        except FileExistsError:
            self._meta.unlink(_ROOT, *place, skip_trash=True)
            return self._meta.mknod(_ROOT, *place, Kind.FILE, 0o600, 0)[0]

    def _found(self) -> set[Extent]:
        """The extents that an earlier run has committed, of a file that has not changed since."""
        try:
            self._ino, attr = self._meta.lookup(_ROOT, self._place[0], self._part)
            if self._meta.getxattr(_ROOT, self._ino, _MADE_FROM) != self._made_from:
                return set()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODATA):
                raise
            return set()
        chunks = self._meta.all_slices(self._ino, attr.length)
        return {
            Extent((index << CHUNK_BITS) + piece.pos, piece.length)
            for index, slices in chunks.items()
            for piece in slices
        }

    def has(self, extent: Extent) -> bool:
        return extent in self._done

    def _block(self, extent: Extent, off: int) -> BlockKey:
        with self._lock:
            if extent not in self._slices:
                self._slices[extent] = self._meta.new_slice()
            number = self._slices[extent]
        return self._store.layout.block(number, extent.length, off // self._store.block_size)

    def put(self, extent: Extent, off: int, data: Buffer) -> None:
        self._store.put(self._block(extent, off), data)

    def get(self, extent: Extent, off: int, length: int) -> Buffer:
        number = self._slices[extent]
        with self._store.reading_through(Part(number, extent.length, off, length)) as data:
            return data

    def commit(self, extent: Extent) -> None:
        with self._lock:
            number = self._slices.pop(extent)
        index, pos = extent.offset >> CHUNK_BITS, extent.offset & (CHUNK_SIZE - 1)
        piece = Slice(pos, number, extent.length, 0, extent.length)
        attr = self._meta.write(self._ino, index, piece, self._node.mtime_ns)
        if not self._is_large:  # else others commit at the same time
            self._length = attr.length

    def publish(self, node: Node, xattrs: Mapping[bytes, bytes]) -> None:
        if self._is_large:
            self._length = self._meta.getattr(self._ino).length
        if self._length != node.length:
            self._meta.truncate(_ROOT, self._ino, node.length, by_handle=True)
        if self._is_large:
            self._meta.removexattr(_ROOT, self._ino, _MADE_FROM)
        self._tree.dress(self._ino, node, xattrs)
        self._meta.rename(_ROOT, self._place[0], self._part, *self._place)

    def close(self) -> None:
        """Removes the blocks that no slice list names."""
        for extent, number in self._slices.items():
            self._store.discard(number, extent.length)


def _node(path: bytes, ino: Inode, attr: Attr) -> Node:
    return Node(
        path,
        attr.kind,
        attr.mode,
        attr.uid,
        attr.gid,
        attr.atime_ns,
        attr.mtime_ns,
        attr.length,
        attr.rdev,
        attr.nlink,
        ino,
    )
