"""Open directories: what a listing shows, and what is known of a directory that is no more."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import chain

from juicepy.errors import posix_error
from juicepy.meta.client import MetaClient
from juicepy.types import ROOT, Attr, Cred, DirEntry, Fh, Inode, Kind
from juicepy.vfs.control import VirtualFiles
from juicepy.vfs.files import Files
from juicepy.vfs.handles import DirHandle, HandleTable


class Directories:
    """The open directories of a mount. Thread-safe. `sort`: listings are in the order of names."""

    def __init__(
        self,
        meta: MetaClient,
        files: Files,
        virtual: VirtualFiles,
        numbers: Iterator[int],
        *,
        sort: bool,
    ) -> None:
        self.handles: HandleTable[DirHandle] = HandleTable(numbers)
        self._meta, self._files, self._virtual, self._sort = meta, files, virtual, sort

    def open(self, cred: Cred, ino: Inode) -> Fh:
        """Costs nothing: whether the directory is there, the first listing tells."""
        handle = DirHandle(ino, lambda plus: self._pages(cred, handle, plus))
        return self.handles.add(handle)

    def remember(self, cred: Cred, parent: Inode, name: bytes) -> None:
        """The name is about to go: if it is a directory open here, keep what an fstat will ask."""
        handles = self.handles.all()
        if not handles:
            return
        try:
            ino, attr = self._meta.lookup(cred, parent, name)
        except OSError:
            return  # the operation itself will tell
        for handle in handles:
            if handle.ino == ino:
                handle.attr = attr

    def removed(self, ino: Inode) -> Attr:
        """Last known attributes of an open directory that is no more. ENOENT if it is not open."""
        for handle in self.handles.all():
            if handle.ino == ino and handle.attr is not None:
                return handle.attr.with_(nlink=0)
        raise posix_error(errno.ENOENT)

    # -- private
    def _pages(self, cred: Cred, handle: DirHandle, plus: bool) -> Iterator[list[DirEntry]]:
        """`.`, `..`, below the root the virtual files, and then what the metadata tell."""
        ino = handle.ino
        handle.attr = attr = self._virtual.attr(ino) or self._meta.getattr(ino)
        is_top = ino == ROOT
        above = ROOT if is_top or attr.parent == self._meta.root else attr.parent
        first = [DirEntry(b".", ino, Kind.DIR, attr), DirEntry(b"..", above, Kind.DIR)]
        pages = self._meta.list_dir(cred, ino, with_attrs=plus)
        if self._sort:
            pages = iter([sorted(chain.from_iterable(pages), key=lambda entry: entry.name)])
        if plus:
            first[1].attr = attr if is_top else self._meta.getattr(above)
            pages = map(self._current, pages)
        return chain([first + (self._virtual.listed() if is_top else [])], pages)

    def _current(self, page: list[DirEntry]) -> list[DirEntry]:
        """The page, with unwritten data counted in its attributes."""
        for entry in page:
            file = self._files.find(entry.ino)
            if file is not None and entry.attr is not None:
                entry.attr = file.current(entry.attr)
        return page
