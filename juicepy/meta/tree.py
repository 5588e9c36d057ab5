"""Walks over whole trees: usage, removal, the paths of an inode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from errno import ENOENT, ENOTEMPTY

from juicepy.meta.engine import MetaEngine
from juicepy.types import ROOT, TRASH, Attr, DirEntry, Inode, Kind


@dataclass(slots=True)
class TreeUsage:
    """Bytes of data, bytes of space, and numbers of what is in a tree, its top included."""

    length: int = 0
    space: int = 0
    files: int = 0
    dirs: int = 0

    def add(self, attr: Attr) -> None:
        self.length += attr.length if attr.kind is Kind.FILE else 0
        self.space += attr.space
        if attr.is_dir:
            self.dirs += 1
        else:
            self.files += 1


def usage(
    engine: MetaEngine,
    ino: Inode,
    attr: Attr,
    *,
    recursive: bool,
    strict: bool,
    progress: Callable[[int, int], None] | None = None,
) -> TreeUsage:
    """Usage of a file, or of a directory and what is below (one level unless `recursive`).

    Without `strict` a directory's statistics stand for its files. `progress(files, bytes)`.
    """
    total = TreeUsage()
    total.add(attr)
    pending = [ino] if attr.is_dir else []
    while pending:
        directory = pending.pop()
        for entry in _children(engine, directory, total, strict):
            if recursive:
                pending.append(entry)
        if progress is not None:
            progress(total.files + total.dirs, total.space)
    return total


def _children(engine: MetaEngine, directory: Inode, total: TreeUsage, strict: bool) -> list[Inode]:
    """Count a directory's children into `total`; its sub-directories."""
    stats = None if strict else engine.dir_stats(directory)
    if stats is not None and min(stats.length, stats.space, stats.inodes) < 0:
        stats = None  # between the deltas of two clients, or wrong
    below = []
    dirs = 0
    for page in engine.list_dir(directory, with_attrs=stats is None):
        for entry in page:
            if entry.kind is Kind.DIR:
                below.append(entry.ino)
                dirs += 1
            if stats is None and entry.attr is not None:
                total.add(entry.attr)
    if stats is not None:
        total.length += stats.length
        total.space += stats.space
        total.files += max(0, stats.inodes - dirs)
        total.dirs += dirs
    return below


def walk(engine: MetaEngine, top: Inode) -> Iterator[tuple[Inode, list[DirEntry]]]:
    """Every directory of the tree with a page of its entries (attributes included), top first."""
    pending = [top]
    while pending:
        directory = pending.pop()
        for page in engine.list_dir(directory, with_attrs=True):
            yield directory, page
            pending.extend(entry.ino for entry in page if entry.kind is Kind.DIR)


@dataclass(frozen=True, slots=True)
class Remover:
    """How single names are removed; both raise ENOENT for a name that is gone already."""

    unlink: Callable[[Inode, bytes], None]
    rmdir: Callable[[Inode, bytes], None]


def remove(
    engine: MetaEngine,
    parent: Inode,
    entry: DirEntry,
    remover: Remover,
    *,
    threads: int = 8,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Remove a name with all that is below it, bottom up; the number of names removed.

    Names that others add meanwhile are removed, too; ENOTEMPTY if they do so without end.
    """
    count = 0

    def one(directory: Inode, name: bytes) -> int:
        return _gone(remover.unlink, directory, name)

    def clear(pool: ThreadPoolExecutor, directory: Inode) -> None:
        nonlocal count
        for page in engine.list_dir(directory, with_attrs=False):
            for child in page:
                if child.kind is Kind.DIR:
                    clear_and_drop(pool, directory, child)
            files = [child.name for child in page if child.kind is not Kind.DIR]
            count += sum(pool.map(lambda name: one(directory, name), files))
            if progress is not None:
                progress(count)

    def clear_and_drop(pool: ThreadPoolExecutor, directory: Inode, child: DirEntry) -> None:
        nonlocal count
        for attempt in range(10):
            clear(pool, child.ino)
            try:
                count += _gone(remover.rmdir, directory, child.name)
                return
            except OSError as error:
                if error.errno != ENOTEMPTY or attempt == 9:
                    raise

    if entry.kind is not Kind.DIR:
        return one(parent, entry.name)
    with ThreadPoolExecutor(threads, thread_name_prefix="remove") as pool:
        clear_and_drop(pool, parent, entry)
    return count


def _gone(action: Callable[[Inode, bytes], None], parent: Inode, name: bytes) -> int:
    try:
        action(parent, name)
    except OSError as error:
        if error.errno != ENOENT:
            raise
        return 0
    return 1


def paths(engine: MetaEngine, ino: Inode, parents: dict[Inode, int], root: Inode) -> list[bytes]:
    """All absolute paths (below `root`) that lead to the inode."""
    if ino == root:
        return [b"/"]
    found = []
    for parent in parents:
        for name in _names(engine, parent, ino):
            for above in _dir_path(engine, parent, root):
                found.append(above.rstrip(b"/") + b"/" + name)
    return sorted(found)


def _dir_path(engine: MetaEngine, ino: Inode, root: Inode) -> list[bytes]:
    parts: list[bytes] = []
    while ino != root:
        if ino == TRASH:
            parts.append(b".trash")
            break
        attr = engine.attr(ino)
        if attr is None or ino == ROOT:
            return []
        names = _names(engine, attr.parent, ino)
        if not names:
            return []
        parts.append(names[0])
        ino = attr.parent
    return [b"/" + b"/".join(reversed(parts))]


def _names(engine: MetaEngine, parent: Inode, ino: Inode) -> list[bytes]:
    return [
        entry.name
        for page in engine.list_dir(parent, with_attrs=False)
        for entry in page
        if entry.ino == ino
    ]
