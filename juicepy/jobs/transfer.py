"""Copying a tree between a volume and a local directory, many files and blocks at once.

One thread walks the source and hands out work; `threads` others do it. The work is a whole file if
it is short, else a block of a file, so that few huge files keep all of them as busy as many small
ones. Files appear whole, under their names, with all attributes; directories get theirs at the
end. What an earlier run has copied is skipped, and what it has begun is gone on with.

| state a crash leaves                     | who repairs it                                  |
|------------------------------------------|-------------------------------------------------|
| `.jfs-part-*`, on either side            | the next run goes on with them                  |
| directories open to their owner only     | the next run                                    |
| on a volume, blocks that no file names   | `gc`                                            |
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Event, Lock

from juicepy.errors import posix_error
from juicepy.jobs.matching import Matcher
from juicepy.jobs.transfer_tree import Draft, Extent, Node, Reader, Tree
from juicepy.types import Kind

FATAL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}  # of the target: nothing else would fare better

Work = Callable[[], None]


@dataclass(slots=True)
class Summary:
    """What was done. `files` are names that are no directories."""

    files: int = 0
    size: int = 0  # bytes of content that travelled
    skipped: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    threads: int
    checksum: bool = False
    matcher: Matcher = field(default_factory=Matcher)


class Changed(OSError):
    """EAGAIN: the source is not what it was when the copy began."""

    def __init__(self, path: bytes) -> None:
        super().__init__(errno.EAGAIN, "changed while it was copied", os.fsdecode(path))


class Transfer:
    """One run. `told` is called with every failure, from any thread; `progress` by `run`."""

    def __init__(
        self,
        source: Tree,
        target: Tree,
        options: Options,
        told: Callable[[bytes, OSError], None] = lambda path, error: None,
        progress: Callable[[int, int], None] = lambda files, size: None,
    ) -> None:
        self._source, self._target, self._options = source, target, options
        self._told, self._progress = told, progress
        self._lock = Lock()  # guards what follows
        self.summary = Summary()
        self._fatal: OSError | None = None
        self._large: list[_LargeFile] = []  # with blocks that nobody has begun
        self._open: set[_LargeFile] = set()
        self._stop = Event()
        self._first: dict[int, bytes] = {}  # inode -> its first name; the walk's alone, as these
        self._links: list[tuple[bytes, bytes]] = []
        self._directories: list[Node] = []

    def run(self) -> Summary:
        """Copy all. Raises what makes going on useless: ENOSPC, EDQUOT, EROFS of the target."""
        top = self._source.find(b"")
        if top is None:
            raise posix_error(errno.ENOENT)
        pool = ThreadPoolExecutor(self._options.threads, thread_name_prefix="transfer")
        try:
            self._feed(pool, self._walk(top))
        finally:
            self._stop.set()
            pool.shutdown(cancel_futures=True)
            for large in list(self._open):
                large.close()
        self._check_fatal()
        for first, path in self._links:
            self._guarded(path, partial(self._link, first, path))
        for node in reversed(self._directories):
            self._guarded(node.path, partial(self._set_attrs, node))
        self._check_fatal()
        self._target.finish()
        return self.summary

    def _check_fatal(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    # -- who does what
    def _feed(self, pool: ThreadPoolExecutor, walk: Iterator[Work]) -> None:
        """Keep the threads busy: begun files first, so that few are open at a time."""
        ended: SimpleQueue[Future[None]] = SimpleQueue()
        running, most, more = 0, 2 * self._options.threads, True
        while True:
            work = self._next_block() if running < most else None
            if work is None and running < most and more and self._fatal is None:
                work = next(walk, None)
                more = work is not None
            if work is not None:
                pool.submit(work).add_done_callback(ended.put)
                running += 1
                continue
            if not running:
                return
            ended.get().result()  # a bug is raised here
            running -= 1
            self._progress(self.summary.files + self.summary.skipped, self.summary.size)

    def _next_block(self) -> Work | None:
        with self._lock:
            if self._fatal is not None:
                return None
            while self._large:
                work = next(self._large[0].work, None)
                if work is not None:
                    return work
                self._large.pop(0)
        return None

    def _guarded(self, path: bytes, work: Work) -> None:
        """Do it; count and tell a failure."""
        if self._stop.is_set() and self._fatal is not None:
            return
        try:
            work()
        except OSError as error:
            self._fail(path, error)

    def _fail(self, path: bytes, error: OSError) -> None:
        with self._lock:
            self.summary.failed += 1
            is_first = self._fatal is None
            if error.errno in FATAL and is_first:
                self._fatal = error
        if error.errno not in FATAL:
            self._told(path, error)

    def _count(self, *, files: int = 0, size: int = 0, skipped: int = 0) -> None:
        with self._lock:
            self.summary.files += files
            self.summary.size += size
            self.summary.skipped += skipped

    # -- the walk
    def _walk(self, top: Node) -> Iterator[Work]:
        """The work on all that is no directory; makes the directories on its way."""
        if top.kind is not Kind.DIR:
            yield partial(self._guarded, b"", partial(self._copy, top))
            return
        pending = [top]
        while pending:
            directory = pending.pop()
            try:
                self._enter(directory)
                for node in self._source.children(directory.path):
                    if not self._is_meant(node):
                        continue
                    if node.kind is Kind.DIR:
                        pending.append(node)
                    elif (
                        node.nlink > 1 and self._first.setdefault(node.ino, node.path) != node.path
                    ):
                        self._links.append((self._first[node.ino], node.path))
                    else:
                        yield partial(self._guarded, node.path, partial(self._copy, node))
            except OSError as error:
                self._fail(directory.path, error)

    def _is_meant(self, node: Node) -> bool:
        path = os.fsdecode(node.path)
        return self._options.matcher.takes(path, is_dir=node.kind is Kind.DIR)

    def _enter(self, directory: Node) -> None:
        there = self._target.find(directory.path)
        if there is None:
            self._target.make_dir(directory.path)
        elif there.kind is not Kind.DIR:
            raise posix_error(errno.ENOTDIR, os.fsdecode(directory.path))
        self._directories.append(directory)

    # -- one name
    def _copy(self, node: Node) -> None:
        there = self._target.was_there(node.path)
        if there is not None and there.kind is Kind.DIR:
            raise posix_error(errno.EISDIR, os.fsdecode(node.path))
        if node.same_content(there) and there is not None and self._is_equal(node, there):
            if _attributes(node) != _attributes(there) and os.geteuid() == 0:
                self._set_attrs(node)
            self._count(skipped=1)
        elif node.kind is Kind.FILE:
            self._copy_file(node)
        else:
            target = self._source.target_of(node) if node.kind is Kind.SYMLINK else b""
            self._target.make_special(node, target, self._xattrs(node))
            self._count(files=1)

    def _is_equal(self, node: Node, there: Node) -> bool:
        """Whether what looks the same is, as far as is asked for."""
        if node.kind is Kind.SYMLINK:
            return self._source.target_of(node) == self._target.target_of(there)
        if node.kind is not Kind.FILE:
            return node.rdev == there.rdev
        if not self._options.checksum:
            return True
        return _digest(self._source, node) == _digest(self._target, there)

    def _xattrs(self, node: Node) -> dict[bytes, bytes]:
        return {} if node.kind is Kind.SYMLINK else self._source.xattrs(node)

    def _set_attrs(self, node: Node) -> None:
        self._target.set_attrs(node, self._xattrs(node))

    def _link(self, first: bytes, path: bytes) -> None:
        there = self._target.find(path)
        if there is not None and there.kind is Kind.DIR:
            raise posix_error(errno.EISDIR, os.fsdecode(path))
        is_new = self._target.make_link(first, path)
        self._count(files=int(is_new), skipped=int(not is_new))

    # -- the content of files
    def _copy_file(self, node: Node) -> None:
        with ExitStack() as stack:
            reader = self._source.open(node)
            stack.callback(reader.close)
            draft = self._target.draft(node)
            stack.callback(draft.close)
            extents = reader.extents()
            if node.length > self._target.block_size:
                large = _LargeFile(self, node, reader, draft, extents)
                stack.pop_all()  # which closes them itself
                self._begin(large)
                return
            for extent in extents:
                for off, length in self.blocks(extent):
                    self.copy_block(reader, draft, extent, off, length)
                draft.commit(extent)
            self.publish(node, reader, draft)

    def _begin(self, large: _LargeFile) -> None:
        is_done = not large.left
        with self._lock:
            self._open.add(large)
            if not is_done:
                self._large.append(large)
        if is_done:
            large.end()

    def blocks(self, extent: Extent) -> Iterator[tuple[int, int]]:
        size = self._target.block_size
        for off in range(0, extent.length, size):
            yield off, min(size, extent.length - off)

    def copy_block(
        self, reader: Reader, draft: Draft, extent: Extent, off: int, length: int
    ) -> None:
        data = reader.read(extent.offset + off, length)
        draft.put(extent, off, data)
        if self._options.checksum and bytes(draft.get(extent, off, length)) != bytes(data):
            raise OSError(errno.EIO, "what was written reads back different")
        self._count(size=length)

    def publish(self, node: Node, reader: Reader, draft: Draft) -> None:
        if not reader.is_still(node):
            raise Changed(node.path)
        draft.publish(node, reader.xattrs(node))
        self._count(files=1)

    def is_redone(self) -> bool:
        """Whether what an earlier run has brought is not to be relied on."""
        return self._options.checksum

    def stops(self) -> bool:
        return self._stop.is_set() or self._fatal is not None

    def failed(self, path: bytes, error: OSError) -> None:
        self._fail(path, error)

    def closed(self, large: _LargeFile) -> None:
        with self._lock:
            self._open.discard(large)


class _LargeFile:
    """A file whose blocks are copied by many threads; the last one publishes it."""

    def __init__(
        self, run: Transfer, node: Node, reader: Reader, draft: Draft, extents: list[Extent]
    ) -> None:
        self._run, self._node, self._reader, self._draft = run, node, reader, draft
        self._lock = Lock()  # guards what follows
        self._has_failed = self._is_closed = False
        wanted = [extent for extent in extents if run.is_redone() or not draft.has(extent)]
        self._counts = {extent: sum(1 for _ in run.blocks(extent)) for extent in wanted}
        self.left = sum(self._counts.values())
        self.work = self._blocks(wanted)

    def _blocks(self, extents: list[Extent]) -> Iterator[Work]:
        for extent in extents:
            for off, length in self._run.blocks(extent):
                yield partial(self._one, extent, off, length)

    def _one(self, extent: Extent, off: int, length: int) -> None:
        try:
            if not self._has_failed and not self._run.stops():
                self._run.copy_block(self._reader, self._draft, extent, off, length)
                with self._lock:
                    self._counts[extent] -= 1
                    is_whole = not self._counts[extent]
                if is_whole:
                    self._draft.commit(extent)
        except OSError as error:
            self._fail(error)
        with self._lock:
            self.left -= 1
            is_last = not self.left
        if is_last:
            self.end()

    def _fail(self, error: OSError) -> None:
        with self._lock:
            is_first, self._has_failed = not self._has_failed, True
        if is_first:
            self._run.failed(self._node.path, error)

    def end(self) -> None:
        """All blocks have been tried."""
        try:
            if not self._has_failed and not any(self._counts.values()):
                self._run.publish(self._node, self._reader, self._draft)
        except OSError as error:
            self._fail(error)
        finally:
            self.close()

    def close(self) -> None:
        """After the threads have ended, or by the last one of them."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._draft.close()
        self._reader.close()
        self._run.closed(self)


def _attributes(node: Node) -> tuple[int, int, int]:
    return (0 if node.kind is Kind.SYMLINK else node.mode), node.uid, node.gid


def _digest(tree: Tree, node: Node) -> bytes:
    """Of the content; holes and zeros are the same."""
    digest, at = hashlib.blake2b(), 0
    zeros = bytes(1 << 20)
    with closing(tree.open(node)) as reader:
        for extent in [*reader.extents(), Extent(node.length, 0)]:
            while at < extent.offset:
                size = min(len(zeros), extent.offset - at)
                digest.update(zeros[:size])
                at += size
            for off in range(0, extent.length, tree.block_size):
                size = min(tree.block_size, extent.length - off)
                digest.update(reader.read(extent.offset + off, size))
            at = extent.offset + extent.length
    return digest.digest()
