"""Parsing of requests, negotiation, options, directory records: all that needs no kernel."""

from __future__ import annotations

import errno
import struct
from typing import Any

import pytest

from juicepy.errors import Refused
from juicepy.fuse import creds, wire
from juicepy.fuse.dispatch import Dispatcher
from juicepy.fuse.kernel import KernelView
from juicepy.fuse.locks import LockWaiters
from juicepy.fuse.messages import extensions
from juicepy.fuse.mounts import Mount, _parse
from juicepy.fuse.negotiate import Agreed, answer_init
from juicepy.fuse.notify import KernelNotifier
from juicepy.fuse.opcodes import SPECS, Op, describe
from juicepy.fuse.options import MS_NODEV, MS_NOEXEC, MS_RDONLY, FuseOptions, flag_words, resolve
from juicepy.fuse.passthrough import Passthrough
from juicepy.fuse.readdir import fill, fill_plus
from juicepy.types import ROOT, Attr, Cred, DirEntry, Inode, Kind
from tests.support.toyfs import ToyFs

WRITE_IN = struct.pack("=QQIIQII", 1, 2, 3, 4, 5, 6, 0)
SETXATTR_IN = struct.pack("=IIII", 3, 1, 0, 0)


def request(op: Op, body: bytes) -> tuple[Any, ...]:
    """Arguments that the table makes of a request with this body."""
    message = bytearray(bytes(40) + body + b"rubbish of an earlier request")
    return SPECS[op].parser()(memoryview(message), 40 + len(body))


def init_body(minor: int, flags: int) -> memoryview:
    low, high = flags & 0xFFFFFFFF, flags >> 32
    return memoryview(struct.pack("=IIIII44x", 7, minor, 131072, low, high))


@pytest.mark.parametrize(
    ("op", "body", "parsed"),
    [
        (Op.LOOKUP, b"na\xffme\0", (b"na\xffme",)),
        (Op.SYMLINK, b"name\0to/there\0", (b"name", b"to/there")),
        (Op.RENAME2, struct.pack("=QII", 7, 2, 0) + b"a\0b\0", (7, 2, b"a", b"b")),
        (Op.MKDIR, struct.pack("=II", 0o777, 0o22) + b"d\0", (0o777, 0o22, b"d")),
        (Op.READLINK, b"", ()),
        (Op.INTERRUPT, struct.pack("=Q", 99), (99,)),
        (Op.WRITE, WRITE_IN + b"abc", (1, 2, 3, 4, 5, 6, b"abc")),
        (Op.SETXATTR, SETXATTR_IN + b"user.x\0a\0b", (3, 1, 0, b"user.x", b"a\0b")),
    ],
)
def test_request_is_taken_apart(op: Op, body: bytes, parsed: tuple[Any, ...]) -> None:
    assert request(op, body) == parsed


def test_every_request_has_its_handler() -> None:
    locks = LockWaiters(lambda unique, code: None, ToyFs().lock_owners)
    dispatcher = Dispatcher(
        ToyFs(),
        Agreed(45, wire.SETXATTR_EXT, 4096),
        KernelView(),
        KernelNotifier(-1),
        locks,
        Passthrough(-1, enabled=False),
    )
    assert set(dispatcher.table()) == {int(op) for op in SPECS}


def test_debug_print_hides_data_and_knows_the_unknown() -> None:
    line = describe(Op.WRITE, 5, (1, 2, memoryview(b"secret")))
    assert line == "WRITE ino=5 1 2 <6 bytes>"
    assert describe(4711, 1, ()) == "OP4711 ino=1 "


def test_init_takes_what_both_sides_know() -> None:
    offered = wire.INIT_EXT | wire.MAX_PAGES | wire.PASSTHROUGH | wire.POSIX_ACL
    body, agreed = answer_init(init_body(45, offered), FuseOptions("x"))
    values = wire.INIT_OUT.unpack(body)
    assert agreed.flags == wire.INIT_EXT | wire.MAX_PAGES | wire.PASSTHROUGH
    assert (values[3], values[10]) == (agreed.flags & 0xFFFFFFFF, agreed.flags >> 32)
    assert (values[6], values[8]) == (1 << 20, 256)
    assert values[11] == 1


def test_init_follows_the_options() -> None:
    everything = (1 << 64) - 1
    _, plain = answer_init(init_body(45, everything), FuseOptions("x"))
    assert not plain.flags & (wire.POSIX_ACL | wire.WRITEBACK_CACHE | wire.EXPORT_SUPPORT)
    chosen = FuseOptions("x", enable_acl=True, writeback_cache=True, auto_inval_data=True)
    _, agreed = answer_init(init_body(45, everything), chosen)
    assert agreed.has(wire.POSIX_ACL)
    assert agreed.has(wire.WRITEBACK_CACHE)
    assert agreed.has(wire.AUTO_INVAL_DATA)
    assert not agreed.has(wire.PASSTHROUGH)


def test_init_of_an_old_kernel() -> None:
    body, agreed = answer_init(init_body(31, wire.BIG_WRITES), FuseOptions("x"))
    assert (agreed.minor, agreed.max_write) == (31, 1 << 17)
    assert wire.INIT_OUT.unpack(body)[1] == 31
    with pytest.raises(Refused, match=r"7\.30"):
        answer_init(init_body(30, 0), FuseOptions("x"))


def test_options_are_sorted_out() -> None:
    options, flags = resolve(
        FuseOptions("x", options=["ro,noexec", "dev,max_read=65536,_netdev"]), as_root=True
    )
    assert flags.flags & (MS_RDONLY | MS_NOEXEC | MS_NODEV) == MS_RDONLY | MS_NOEXEC
    assert flags.words == ("default_permissions", "allow_other", "max_read=65536")
    assert options.read_only
    assert set(flag_words(flags.flags)) == {"ro", "nosuid", "noexec"}


def test_allow_other_is_on_for_root_only() -> None:
    _, mine = resolve(FuseOptions("x"), as_root=False)
    assert mine.words == ("default_permissions",)
    _, asked = resolve(FuseOptions("x", options=["allow_other"]), as_root=False)
    assert "allow_other" in asked.words
    _, refused = resolve(FuseOptions("x", allow_other=False), as_root=True)
    assert "allow_other" not in refused.words


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("nosuch", "-o nosuch: unknown"),
        ("ro=1", "-o ro=1: unknown"),
        ("max_read=many", "needs a number"),
        ("max_write=5", "max write 5"),
    ],
)
def test_bad_option_is_named(item: str, text: str) -> None:
    with pytest.raises(Refused, match=text):
        resolve(FuseOptions("x", options=[item]), as_root=True)


def test_mount_table_lines_are_unescaped() -> None:
    line = (
        rb"42 27 0:39 / /mnt/a\040b\134c rw,nosuid shared:1 - fuse.juicefs JuiceFS:v\011w rw" b"\n"
    )
    assert _parse(line) == Mount(
        "/mnt/a b\\c", "JuiceFS:v\tw", "fuse.juicefs", "rw,nosuid", (0, 39)
    )


def test_directory_records_fill_the_buffer_and_no_more() -> None:
    entries = [(n + 1, DirEntry(b"n" * (n + 1), Inode(n + 10), Kind.FILE)) for n in range(20)]
    packed = fill(iter(entries), 200)
    assert packed is not None
    assert len(packed) <= 200
    at, names = 0, []
    while at < len(packed):
        ino, cookie, length, kind = wire.DIRENT.unpack_from(packed, at)
        names.append(packed[at + 24 : at + 24 + length])
        assert (ino, cookie, kind) == (length + 9, length, 8)
        at += (24 + length + 7) & ~7
    assert names == [entry.name for _, entry in entries[: len(names)]]
    assert len(names) == 6
    assert fill(iter([]), 200) is None


def test_dot_entries_are_not_looked_up() -> None:
    attr = Attr(Kind.DIR, 0o755)
    entries = [
        (1, DirEntry(b".", ROOT, Kind.DIR, attr)),
        (2, DirEntry(b"d", Inode(5), Kind.DIR, attr)),
        (3, DirEntry(b"gone", Inode(6), Kind.FILE)),
    ]
    packed = fill_plus(iter(entries), 4096, KernelView(), lambda is_dir: (1.0, 2.5))
    assert packed is not None
    record = 128 + 32
    nodes = [wire.ENTRY_OUT.unpack_from(packed, at)[0] for at in (0, record, 2 * record)]
    assert nodes == [0, 5, 0]
    assert wire.ENTRY_OUT.unpack_from(packed, record)[2:6] == (2, 1, 500_000_000, 0)


def test_view_knows_sizes_until_it_forgets() -> None:
    view, ino = KernelView(), Inode(7)
    assert not view.has_size(ino, 3)
    view.attr(ino, Attr(Kind.FILE, 0o4755, length=3), 1.0)
    assert view.has_size(ino, 3)
    assert not view.has_no_setid(ino)
    view.attr(ino, Attr(Kind.FILE, 0o755, length=3), 1.0)
    assert view.has_no_setid(ino)
    view.grown(ino, 10)
    view.grown(ino, 5)
    assert view.has_size(ino, 10)
    view.forget(ino)
    assert not view.has_size(ino, 10)
    assert not view.has_no_setid(ino)


def test_time_before_1970_is_packed() -> None:
    packed = KernelView().attr(Inode(2), Attr(Kind.FILE, 0, mtime_ns=-1), 0.0)
    values = wire.ATTR_OUT.unpack(packed)
    assert (values[6], values[9]) == (-1, 999_999_999)


def test_groups_of_an_extension_are_read() -> None:
    extension = struct.pack("=IIIII", 20, wire.EXT_GROUPS, 2, 100, 200).ljust(24, b"\0")
    message = memoryview(bytes(40) + b"name\0\0\0\0" + extension)
    assert extensions(message, len(message), 24) == (48, (100, 200))


def test_broken_extension_is_refused() -> None:
    message = memoryview(bytes(40) + struct.pack("=II", 4, wire.EXT_GROUPS))
    with pytest.raises(OSError) as caught:
        extensions(message, len(message), 8)
    assert caught.value.errno == errno.EINVAL


def test_groups_are_read_for_users_and_not_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def read_groups(pid: int) -> tuple[int, ...]:
        asked.append(pid)
        return (7,)

    monkeypatch.setattr(creds, "read_groups", read_groups)
    now = [0.0]
    known = creds.Creds(clock=lambda: now[0])
    assert known.get(0, 0, 1) == Cred(0, 0, (), 1)
    assert known.get(5, 6, 77) == known.get(5, 6, 77) == Cred(5, 6, (7,), 77)
    assert asked == [77]
    now[0] = 2.0
    known.get(5, 6, 77)
    assert asked == [77, 77]


def test_interrupt_may_come_before_its_lock_request() -> None:
    answers: list[tuple[int, int]] = []
    locks = LockWaiters(lambda unique, code: answers.append((unique, code)), ToyFs().lock_owners)
    locks.interrupt(8)
    locks.wait(8, lambda: None)
    locks.close()
    assert answers == [(8, errno.EINTR)]
