"""A local directory as an end of a transfer; also a mount of a volume.

Beside the file that is being made lies a list of its extents that are whole, for the next run. It
tells the boot of the machine too: after a power cut nothing of the file is relied on.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from juicepy.errors import posix_error
from juicepy.jobs.transfer_tree import Extent, Node, is_part, part_path, within_chunks
from juicepy.types import KIND_OF, S_IFMT, Buffer, Kind

_BLOCK = 4 << 20
_UNSUPPORTED = {errno.ENOTSUP, errno.EPERM, errno.EACCES}
_NEW = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class LocalTree:
    """See `Tree`. `root`: an absolute path, whose last component may be missing."""

    block_size = _BLOCK

    def __init__(self, root: str) -> None:
        self._root = os.fsencode(root)
        self._is_root = os.geteuid() == 0
        self._made: set[bytes] = set()  # directories that this run has made
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()

    def _at(self, path: bytes) -> bytes:
        return os.path.join(self._root, path) if path else self._root

    def below(self, name: bytes) -> LocalTree:
        return LocalTree(os.fsdecode(self._at(name)))

    # -- reading
    def find(self, path: bytes) -> Node | None:
        try:
            return _node(path, os.lstat(self._at(path)))
        except FileNotFoundError:
            return None

    def children(self, path: bytes) -> Iterator[Node]:
        with os.scandir(self._at(path)) as entries:
            for entry in entries:
                name = os.path.join(path, entry.name)
                if not is_part(name):
                    with suppress(FileNotFoundError):  # removed meanwhile
                        yield _node(name, entry.stat(follow_symlinks=False))

    def target_of(self, node: Node) -> bytes:
        return os.readlink(self._at(node.path))

    def xattrs(self, node: Node) -> dict[bytes, bytes]:
        path = self._at(node.path)
        try:
            names = os.listxattr(path, follow_symlinks=False)
            values = {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            return {}
        return {os.fsencode(name): value for name, value in values.items()}

    def open(self, node: Node) -> LocalReader:
        return LocalReader(self, os.open(self._at(node.path), os.O_RDONLY | os.O_CLOEXEC), node)

    def was_there(self, path: bytes) -> Node | None:
        return None if path and os.path.dirname(path) in self._made else self.find(path)

    # -- writing
    def make_dir(self, path: bytes) -> None:
        os.mkdir(self._at(path), 0o700)
        self._made.add(path)

    def make_special(self, node: Node, target: bytes, xattrs: Mapping[bytes, bytes]) -> None:
        part = self._free_part(node.path)
        if node.kind is Kind.SYMLINK:
            os.symlink(target, part)
        else:
            os.mknod(part, S_IFMT[node.kind] | 0o600, node.rdev)
        self.dress(part, node, xattrs)
        os.rename(part, self._at(node.path))

    def make_link(self, first: bytes, path: bytes) -> bool:
        there = self.find(path)
        if there is not None and there.ino == os.lstat(self._at(first)).st_ino:
            return False
        part = self._free_part(path)
        os.link(self._at(first), part, follow_symlinks=False)
        os.rename(part, self._at(path))
        return True

    def _free_part(self, path: bytes) -> bytes:
        part = part_path(self._at(path))
        with suppress(FileNotFoundError):
            os.unlink(part)
        return part

    def draft(self, node: Node) -> LocalDraft:
        part = part_path(self._at(node.path))
        return LocalDraft(self, part, self._at(node.path), node, self._boot)

    def set_attrs(self, node: Node, xattrs: Mapping[bytes, bytes]) -> None:
        self.dress(self._at(node.path), node, xattrs)

    def dress(self, path: bytes, node: Node, xattrs: Mapping[bytes, bytes]) -> None:
        """Owner first: a change of it takes set-user-id and capabilities away."""
        if self._is_root:
            os.chown(path, node.uid, node.gid, follow_symlinks=False)
        if node.kind is not Kind.SYMLINK:
            for name, value in xattrs.items():
                try:
                    os.setxattr(path, name, value)
                except OSError as error:
                    if error.errno not in _UNSUPPORTED:
                        raise
            os.chmod(path, node.mode)
        os.utime(path, ns=(node.atime_ns, node.mtime_ns), follow_symlinks=False)

    def finish(self) -> None:
        """As cp does: the kernel writes it in its own time."""


class LocalReader:
    def __init__(self, tree: LocalTree, fd: int, node: Node) -> None:
        self._tree, self._fd, self._length = tree, fd, node.length

    def extents(self) -> list[Extent]:
        found: list[Extent] = []
        at = 0
        while at < self._length:
            try:
                begin = os.lseek(self._fd, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break
            at = min(self._length, os.lseek(self._fd, begin, os.SEEK_HOLE))
            found += within_chunks(begin, at - begin)
        return found

    def read(self, offset: int, length: int) -> Buffer:
        data = os.pread(self._fd, length, offset)
        while len(data) < length:
            more = os.pread(self._fd, length - len(data), offset + len(data))
            if not more:
                raise OSError(errno.EIO, "the file became shorter while it was read")
            data += more
        return data

    def xattrs(self, node: Node) -> dict[bytes, bytes]:
        return self._tree.xattrs(node)

    def is_still(self, node: Node) -> bool:
        return node.same_content(self._tree.find(node.path))

    def close(self) -> None:
        os.close(self._fd)


class LocalDraft:
    """See `Draft`."""

    def __init__(self, tree: LocalTree, part: bytes, path: bytes, node: Node, boot: str) -> None:
        self._tree, self._part, self._path = tree, part, path
        self._list = part + b".done"
        self._done: set[Extent] = set()
        self._has_list = node.length > _BLOCK
        self._head = json.dumps([boot, node.ino, node.length, node.mtime_ns])
        self._load()
        self._fd = os.open(part, _NEW if self._done else _NEW | os.O_TRUNC, 0o600)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.close(self._fd)
            raise posix_error(errno.EEXIST, os.fsdecode(part))

    def _load(self) -> None:
        """Know what an earlier run has done; else begin a list. Short files have none."""
        if not self._has_list:
            return
        try:
            head, *lines = Path(os.fsdecode(self._list)).read_text("ascii").split("\n")
        except (FileNotFoundError, UnicodeDecodeError):
            head, lines = "", []
        if head == self._head and os.path.exists(self._part):
            for line in lines[:-1]:  # the last one is empty, or was cut short
                offset, _, length = line.partition(" ")
                self._done.add(Extent(int(offset), int(length)))
        else:
            Path(os.fsdecode(self._list)).write_text(self._head + "\n", "ascii")

    def has(self, extent: Extent) -> bool:
        return extent in self._done

    def put(self, extent: Extent, off: int, data: Buffer) -> None:
        view, at = memoryview(data), extent.offset + off
        while view:
            written = os.pwrite(self._fd, view, at)
            view, at = view[written:], at + written

    def get(self, extent: Extent, off: int, length: int) -> Buffer:
        return os.pread(self._fd, length, extent.offset + off)

    def commit(self, extent: Extent) -> None:
        if self._has_list:
            line = f"{extent.offset} {extent.length}\n".encode()
            fd = os.open(self._list, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)

    def publish(self, node: Node, xattrs: Mapping[bytes, bytes]) -> None:
        os.ftruncate(self._fd, node.length)
        self._tree.dress(self._part, node, xattrs)
        os.rename(self._part, self._path)
        if self._has_list:
            os.unlink(self._list)

    def close(self) -> None:
        os.close(self._fd)


def _node(path: bytes, found: os.stat_result) -> Node:
    return Node(
        path,
        KIND_OF[stat.S_IFMT(found.st_mode)],
        stat.S_IMODE(found.st_mode),
        found.st_uid,
        found.st_gid,
        found.st_atime_ns,
        found.st_mtime_ns,
        found.st_size,
        found.st_rdev,
        found.st_nlink,
        found.st_ino,
    )
