"""Random operations through the VFS against a model in dictionaries, without a mount."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable

import pytest

from juicepy.types import ROOT, Cred, Fh, Inode, Kind, SetAttr
from juicepy.vfs.vfs import VFS
from tests.support.meta import scan
from tests.unit.vfs.volumes import ME, KiB, close, create, names, opened, read, write

LIMIT = 300 * KiB  # of a file: a few blocks of 64 KiB
NAMES = [b"a", b"b", b"c", b"d"]


class Tree:
    """What the file system should be: directories are dicts, files are lists of one bytes."""

    def __init__(self) -> None:
        self.root: dict[bytes, object] = {}

    def dirs(self) -> list[tuple[tuple[bytes, ...], dict[bytes, object]]]:
        found: list[tuple[tuple[bytes, ...], dict[bytes, object]]] = []

        def walk(path: tuple[bytes, ...], node: dict[bytes, object]) -> None:
            found.append((path, node))
            for name, child in node.items():
                if isinstance(child, dict):
                    walk((*path, name), child)

        walk((), self.root)
        return found


class Run:
    """One random run: each step does the same to the file system and the model."""

    def __init__(self, vfs: VFS, seed: int) -> None:
        self.vfs, self.rng, self.tree = vfs, random.Random(seed), Tree()
        self.open: list[tuple[Inode, Fh, list[bytes]]] = []

    def step(self) -> None:
        steps = [
            self.make_file, self.make_dir, self.write, self.write, self.write, self.read,
            self.read, self.truncate, self.remove, self.rename, self.close, self.sync, self.punch,
            self.copy, self.link,
        ]  # fmt: skip
        self.rng.choice(steps)()

    # -- helpers
    def place(self) -> tuple[Inode, dict[bytes, object], bytes]:
        path, node = self.rng.choice(self.tree.dirs())
        ino = ROOT
        for name in path:
            ino = self.vfs.lookup(ME, ino, name).ino
        return ino, node, self.rng.choice(NAMES)

    def expect(self, code: int, work: Callable[[], object]) -> None:
        with pytest.raises(OSError) as caught:
            work()
        assert caught.value.errno == code

    def handle(self) -> tuple[Inode, Fh, list[bytes]] | None:
        return self.rng.choice(self.open) if self.open else None

    def data(self) -> bytes:
        size = self.rng.choice([1, 100, 5000, 64 * KiB, 100 * KiB])
        return self.rng.randbytes(self.rng.randint(1, size))

    # -- steps
    def make_file(self) -> None:
        parent, node, name = self.place()
        if isinstance(node.get(name), dict):
            return
        flags = os.O_RDWR | self.rng.choice([0, os.O_TRUNC, os.O_EXCL])
        if name in node and flags & os.O_EXCL:
            self.expect(errno.EEXIST, lambda: self.vfs.create(ME, parent, name, 0o644, 0, flags))
            return
        found, handle = self.vfs.create(ME, parent, name, 0o644, 0, flags)
        content = node.setdefault(name, [b""])
        assert isinstance(content, list)
        if flags & os.O_TRUNC:
            content[0] = b""
        assert handle.length == len(content[0])
        self.open.append((found.ino, handle.fh, content))

    def make_dir(self) -> None:
        parent, node, name = self.place()
        if name in node:
            self.expect(errno.EEXIST, lambda: self.vfs.mkdir(ME, parent, name, 0o755, 0))
        elif len(self.tree.dirs()) < 12:
            self.vfs.mkdir(ME, parent, name, 0o755, 0)
            node[name] = {}

    def write(self) -> None:
        if (chosen := self.handle()) is None:
            return
        ino, fh, content = chosen
        data = self.data()
        offset = self.rng.randint(0, min(len(content[0]) + 1000, LIMIT))
        assert write(self.vfs, ino, fh, offset, data) == len(data)
        old = content[0].ljust(offset, b"\0")
        content[0] = old[:offset] + data + old[offset + len(data) :]

    def read(self) -> None:
        if (chosen := self.handle()) is None:
            return
        ino, fh, content = chosen
        offset, size = self.rng.randint(0, LIMIT), self.rng.randint(1, 128 * KiB)
        assert read(self.vfs, ino, fh, offset, size) == content[0][offset : offset + size]
        assert self.vfs.getattr(ME, ino, fh)[0].length == len(content[0])

    def truncate(self) -> None:
        if (chosen := self.handle()) is None:
            return
        ino, fh, content = chosen
        size = self.rng.randint(0, LIMIT)
        attr, _ = self.vfs.setattr(ME, ino, SetAttr(), size, fh)
        assert attr.length == size
        content[0] = content[0][:size].ljust(size, b"\0")

    def punch(self) -> None:
        if (chosen := self.handle()) is None:
            return
        ino, fh, content = chosen
        offset, size = self.rng.randint(0, LIMIT), self.rng.randint(1, 100 * KiB)
        self.vfs.fallocate(ME, ino, fh, 1 | 2, offset, size)  # KEEP_SIZE, PUNCH_HOLE
        hole = bytes(max(0, min(size, len(content[0]) - offset)))
        content[0] = content[0][:offset] + hole + content[0][offset + size :]

    def copy(self) -> None:
        if (chosen := self.handle()) is None or (other := self.handle()) is None:
            return
        if chosen[0] == other[0] or not chosen[2][0]:
            return
        offset = self.rng.randrange(len(chosen[2][0]))
        target, size = self.rng.randint(0, LIMIT), self.rng.randint(1, 100 * KiB)
        data = chosen[2][0][offset : offset + size]
        copied = self.vfs.copy_file_range(
            ME, chosen[0], chosen[1], offset, other[0], other[1], target, size
        )
        assert copied == len(data)
        old = other[2][0].ljust(target, b"\0")
        other[2][0] = old[:target] + data + old[target + copied :]

    def remove(self) -> None:
        parent, node, name = self.place()
        child = node.get(name)
        if child is None:
            self.expect(errno.ENOENT, lambda: self.vfs.unlink(ME, parent, name))
        elif isinstance(child, list):
            self.vfs.unlink(ME, parent, name)
            del node[name]
        elif child:
            self.expect(errno.ENOTEMPTY, lambda: self.vfs.rmdir(ME, parent, name))
        else:
            self.vfs.rmdir(ME, parent, name)
            del node[name]

    def rename(self) -> None:
        parent, node, name = self.place()
        parent2, node2, name2 = self.place()
        moved, replaced = node.get(name), node2.get(name2)
        if not isinstance(moved, list) or isinstance(replaced, dict) or moved is replaced:
            return
        self.vfs.rename(ME, parent, name, parent2, name2, 0)
        del node[name]
        node2[name2] = moved

    def link(self) -> None:
        parent, node, name = self.place()
        parent2, node2, name2 = self.place()
        if not isinstance(node.get(name), list) or name2 in node2:
            return
        ino = self.vfs.lookup(ME, parent, name).ino
        assert self.vfs.link(ME, ino, parent2, name2).attr.nlink > 1
        node2[name2] = node[name]

    def close(self) -> None:
        if self.open:
            ino, fh, _ = self.open.pop(self.rng.randrange(len(self.open)))
            close(self.vfs, ino, fh)

    def sync(self) -> None:
        if (chosen := self.handle()) is not None:
            self.vfs.fsync(ME, chosen[0], chosen[1], False)

    # -- the end
    def check(self) -> None:
        for path, node in self.tree.dirs():
            ino = ROOT
            for name in path:
                ino = self.vfs.lookup(ME, ino, name).ino
            shown = {name for name in names(self.vfs, ino) if not name.startswith(b".")}
            assert shown == set(node)
            for name, child in node.items():
                if isinstance(child, list):
                    self.check_file(ino, name, child[0])

    def check_file(self, parent: Inode, name: bytes, content: bytes) -> None:
        found = self.vfs.lookup(ME, parent, name)
        assert found.attr.kind is Kind.FILE
        assert found.attr.length == len(content)
        handle = self.vfs.open(ME, found.ino, os.O_RDONLY)
        assert read(self.vfs, found.ino, handle.fh, 0, LIMIT * 2) == content
        close(self.vfs, found.ino, handle.fh)


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_agree_with_a_model(seed: int) -> None:
    with opened() as vfs:
        run = Run(vfs, seed)
        for _ in range(1500):
            run.step()
        run.check()
        for ino, fh, _ in run.open:
            close(vfs, ino, fh)
        run.check()
        engine, meta = vfs.meta.engine, vfs.meta
    found = scan(engine)
    assert found.faults == []
    assert meta.usage() == (found.space, found.inodes)


def test_writes_of_an_append_only_reader_are_seen_through_a_second_handle() -> None:
    with opened() as vfs:
        ino, fh = create(vfs, b"log", b"one\n")
        other = vfs.open(ME, ino, os.O_RDONLY)
        assert read(vfs, ino, other.fh) == b"one\n"
        write(vfs, ino, fh, 4, b"two\n")
        assert read(vfs, ino, other.fh) == b"one\ntwo\n"
        assert vfs.getattr(ME, ino, None)[0].length == 8
        assert vfs.lookup(ME, ROOT, b"log").attr.length == 8
        close(vfs, ino, fh)
        close(vfs, ino, other.fh)


def test_listing_with_attributes_tells_the_unwritten_length() -> None:
    with opened() as vfs:
        ino, fh = create(vfs, b"f", b"x" * 5000)
        directory = vfs.opendir(ME, ROOT, 0)
        entries = [e for _, e in vfs.readdir(ME, ROOT, directory.fh, 0, plus=True)]
        assert [e.attr.length for e in entries if e.name == b"f" and e.attr] == [5000]
        close(vfs, ino, fh)


def test_inode_of_the_mounted_directory_is_1_with_subdir() -> None:
    with opened(subdir="/deep/er") as vfs:
        assert vfs.getattr(ME, ROOT, None)[0].kind is Kind.DIR
        ino, fh = create(vfs, b"f", b"data")
        close(vfs, ino, fh)
        below = vfs.mkdir(ME, ROOT, b"d", 0o755, 0)
        assert b".trash" not in names(vfs)
        assert b"f" in names(vfs)
        handle = vfs.opendir(ME, below.ino, 0)
        listed = {e.name: e.ino for _, e in vfs.readdir(ME, below.ino, handle.fh, 0, plus=True)}
        assert listed == {b".": below.ino, b"..": ROOT}
        assert vfs.lookup(ME, below.ino, b"..").ino == ROOT
        assert vfs.lookup(ME, ROOT, b"..").ino == ROOT


def test_callers_are_mapped_to_the_user_of_the_option() -> None:
    with opened(root_squash=(1000, 2000)) as vfs:
        assert vfs.mkdir(ME, ROOT, b"root", 0o755, 0).attr.uid == 1000
        assert vfs.mkdir(Cred(7, 7), ROOT, b"other", 0o755, 0).attr.uid == 7
    with opened(all_squash=(1000, 2000)) as vfs:
        attr = vfs.mkdir(Cred(7, 7), ROOT, b"other", 0o755, 0).attr
        assert (attr.uid, attr.gid) == (1000, 2000)


def test_umask_of_the_mount_takes_the_place_of_the_callers() -> None:
    with opened(umask=0o077) as vfs:
        assert vfs.mkdir(ME, ROOT, b"d", 0o777, 0o022).attr.mode == 0o700


def test_timeouts_are_those_of_the_options() -> None:
    with opened(
        attr_cache_s=2.0, entry_cache_s=3.0, dir_entry_cache_s=4.0, negative_entry_cache_s=5.0
    ) as vfs:
        found = vfs.mkdir(ME, ROOT, b"d", 0o777, 0)
        assert (found.attr_timeout_s, found.entry_timeout_s) == (2.0, 4.0)
        found = vfs.mknod(ME, ROOT, b"p", 0o10644, 0, 0)
        assert (found.attr_timeout_s, found.entry_timeout_s) == (2.0, 3.0)
        assert vfs.entry_timeouts(True) == (2.0, 4.0)
        assert vfs.negative_timeout_s() == 5.0


def test_operations_and_their_errors_are_counted() -> None:
    with opened() as vfs:
        vfs.mkdir(ME, ROOT, b"d", 0o777, 0)
        with pytest.raises(FileExistsError):
            vfs.mkdir(ME, ROOT, b"d", 0o777, 0)
        list(vfs.readdir(ME, ROOT, vfs.opendir(ME, ROOT, 0).fh, 0, plus=True))
        totals = vfs.metrics.fuse_ops.totals()
        assert totals["mkdir"][0] == 2
        assert totals["readdir"][0] == 1
        told = vfs.metrics.stats().decode()
        for line in (
            "juicefs_fuse_ops_io_errors_EEXIST 1",
            "juicefs_meta_ops_total_Mknod 2",
            "juicefs_transaction_durations_histogram_seconds_total 2",
            "juicefs_used_inodes 1",
            "juicefs_fuse_open_handlers 1",
        ):
            assert f"{line}\n" in told
