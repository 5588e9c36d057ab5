"""Paths to inodes and back: resolving as the kernel would, for who comes without one."""

from __future__ import annotations

import os
from errno import ELOOP, ENOENT, ENOTDIR
from typing import Protocol

from juicepy.errors import posix_error
from juicepy.types import ROOT, Attr, Cred, Inode, Kind

MAX_SYMLINKS = 40


class Namespace(Protocol):
    """What resolving needs of a client."""

    def getattr(self, ino: Inode) -> Attr: ...
    def lookup(self, cred: Cred, parent: Inode, name: bytes) -> tuple[Inode, Attr]: ...
    def readlink(self, cred: Cred, ino: Inode) -> bytes: ...
    def access(self, cred: Cred, ino: Inode, mask: int) -> None: ...
    def mkdir(
        self, cred: Cred, parent: Inode, name: bytes, mode: int, umask: int
    ) -> tuple[Inode, Attr]: ...


def resolve(space: Namespace, cred: Cred, path: bytes, *, follow: bool) -> tuple[Inode, Attr]:
    """Walk an absolute path with `cred`'s permissions. ENOENT, ENOTDIR, EACCES, ELOOP."""
    for _ in range(MAX_SYMLINKS):
        ino, attr, rest = _walk(space, cred, path, follow=follow)
        if rest is None:
            return ino, attr
        path = rest
    raise posix_error(ELOOP, path)


def _walk(
    space: Namespace, cred: Cred, path: bytes, *, follow: bool
) -> tuple[Inode, Attr, bytes | None]:
    """To the end of `path`, or to the first symlink: then the path to go on with."""
    parts = [part for part in path.split(b"/") if part and part != b"."]
    ino, attr = ROOT, space.getattr(ROOT)
    for position, part in enumerate(parts):
        if not attr.is_dir:
            raise posix_error(ENOTDIR, part)
        space.access(cred, ino, 1)
        ino, attr = space.lookup(cred, ino, part)
        is_last = position == len(parts) - 1
        if attr.kind is Kind.SYMLINK and (follow or not is_last):
            target = space.readlink(cred, ino)
            above = b"" if target.startswith(b"/") else b"/".join(parts[:position])
            return ino, attr, b"/".join((above, target, *parts[position + 1 :]))
    return ino, attr, None


def subdir(space: Namespace, path: str, *, make: bool) -> Inode:
    """The directory to mount instead of the root; made where it is missing if `make`."""
    superuser, ino = Cred(), ROOT
    for part in (part for part in os.fsencode(path).split(b"/") if part):
        try:
            ino, attr = space.lookup(superuser, ino, part)
        except OSError as error:
            if error.errno != ENOENT or not make:
                raise
            ino, attr = space.mkdir(superuser, ino, part, 0o777, 0)
        if not attr.is_dir:
            raise posix_error(ENOTDIR, path)
    return ino
