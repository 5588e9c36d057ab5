"""The directory of a cache: its identity, what is in it, and what room there is."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from juicepy.cache.options import CacheOptions


def walk(path: str) -> Iterator[os.DirEntry[str]]:
    """All files below `path`; those that vanish meanwhile are left out."""
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from walk(entry.path)
                else:
                    yield entry
    except FileNotFoundError:
        return


def make(path: str, file_mode: int) -> list[str]:
    """Make the directory and what it lies in; those that had a name added.

    Whoever may read files of `file_mode` may enter it.
    """
    try:
        os.mkdir(path, file_mode | (file_mode & 0o444) >> 2)  # x for each r
    except FileExistsError:
        return []
    except FileNotFoundError:
        return [*make(os.path.dirname(path), file_mode), *make(path, file_mode)]
    return [os.path.dirname(path)]


def identity(path: str) -> str:
    """The id in `.lock`, made if there is none."""
    try:
        write_identity(path, str(uuid.uuid4()))
    except FileExistsError:
        pass  # the usual case: it is read below, like our own
    with open(path, encoding="ascii") as file:
        return file.read()


def write_identity(path: str, ident: str) -> None:
    """Whole or not at all, and never over another client's."""
    partial = f"{path}.{uuid.uuid4()}.tmp"
    with open(partial, "x", encoding="ascii") as file:
        file.write(ident)
    try:
        os.link(partial, path)
    finally:
        os.unlink(partial)


def mount_point(path: str) -> str:
    """Where the file system that `path` lies on is mounted."""
    path = os.path.realpath(path)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes and inodes of a file system. `inodes` 0: it knows no such limit."""

    total: int
    free: int
    inodes: int
    free_inodes: int

    @classmethod
    def of(cls, path: str) -> Space:
        disk = os.statvfs(path)
        unit = disk.f_frsize
        return cls(disk.f_blocks * unit, disk.f_bavail * unit, disk.f_files, disk.f_favail)

    def reserve(self, options: CacheOptions) -> int:
        """The bytes that a cache with these options leaves free."""
        return max(int(self.total * options.free_space), options.reserve)
