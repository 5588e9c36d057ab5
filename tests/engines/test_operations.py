"""The operations of MetaClient, on every engine."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from juicepy.meta import acl, rules
from juicepy.meta.client import SUPERUSER as ROOT_USER
from juicepy.meta.client import MetaClient
from juicepy.meta.compaction import Compacted
from juicepy.meta.engine import MetaEngine, Quota
from juicepy.meta.tx import Tx
from juicepy.types import (
    CHUNK_SIZE,
    ROOT,
    TRASH,
    AclRule,
    Cred,
    Inode,
    Kind,
    LockKind,
    PosixLock,
    SetAttr,
    Slice,
    SliceId,
)
from tests.support.meta import format_engine, scan, session

ALICE = Cred(1001, 100)
BOB = Cred(1002, 200)


def refused(code: int) -> pytest.RaisesExc[OSError]:
    return pytest.raises(OSError, check=lambda error: error.errno == code)


@pytest.fixture(params=[0, 1], ids=["trash0", "trash1"])
def trash_days(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def client(engine: MetaEngine, trash_days: int) -> Iterator[MetaClient]:
    format_engine(engine, trash_days=trash_days)
    with session(engine, no_bgjob=True) as opened:
        yield opened
    outcome = scan(engine)
    assert outcome.faults == []


def make_file(client: MetaClient, name: bytes, parent: Inode = ROOT, size: int = 0) -> Inode:
    ino, _ = client.mknod(ROOT_USER, parent, name, Kind.FILE, 0o644, 0)
    if size:
        write(client, ino, size)
    return ino


def write(client: MetaClient, ino: Inode, size: int, offset: int = 0) -> Slice:
    piece = Slice(offset % CHUNK_SIZE, client.new_slice(), size, 0, size)
    client.write(ino, offset // CHUNK_SIZE, piece, time.time_ns())
    return piece


def names(client: MetaClient, ino: Inode = ROOT) -> set[bytes]:
    pages = client.list_dir(ROOT_USER, ino, with_attrs=False)
    return {entry.name for page in pages for entry in page}


def eventually(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s, "condition not met in 30 s"
        time.sleep(0.02)


def test_new_directory(client: MetaClient) -> None:
    ino, attr = client.mkdir(ALICE, ROOT, b"d", 0o777, 0o022)
    assert (attr.kind, attr.mode, attr.uid, attr.gid, attr.nlink) == (Kind.DIR, 0o755, 1001, 100, 2)
    assert client.lookup(ALICE, ROOT, b"d") == (ino, attr)
    assert client.getattr(ROOT).nlink == 3
    assert client.lookup(ALICE, ino, b"..")[0] == ROOT


def test_names_are_bytes(client: MetaClient) -> None:
    for name in (b"\xff\xfe", b"new\nline", b"-rf", b"x" * 255, "é".encode(), b" "):
        ino = make_file(client, name)
        assert client.lookup(ROOT_USER, ROOT, name)[0] == ino
    assert b"\xff\xfe" in names(client)


def test_existing_name_is_refused(client: MetaClient) -> None:
    make_file(client, b"f")
    with refused(errno.EEXIST):
        client.mkdir(ROOT_USER, ROOT, b"f", 0o755, 0)
    with refused(errno.EEXIST):
        client.create(ROOT_USER, ROOT, b"f", 0o644, 0, os.O_EXCL | os.O_CREAT)


def test_create_without_excl_opens_what_is_there(client: MetaClient) -> None:
    ino = make_file(client, b"f", size=10)
    opened, attr = client.create(ROOT_USER, ROOT, b"f", 0o644, 0, os.O_CREAT | os.O_RDWR)
    assert (opened, attr.length) == (ino, 10)
    client.close(ino)


def test_missing_names(client: MetaClient) -> None:
    with refused(errno.ENOENT):
        client.lookup(ROOT_USER, ROOT, b"none")
    with refused(errno.ENOENT):
        client.unlink(ROOT_USER, ROOT, b"none")
    with refused(errno.ENOENT):
        client.rename(ROOT_USER, ROOT, b"none", ROOT, b"other")
    with refused(errno.ENOENT):
        client.mkdir(ROOT_USER, Inode(999_999), b"d", 0o755, 0)


def test_permission_of_the_directory_decides(client: MetaClient) -> None:
    folder, _ = client.mkdir(ALICE, ROOT, b"d", 0o755, 0)
    with refused(errno.EACCES):
        client.mkdir(BOB, folder, b"x", 0o755, 0)
    client.mkdir(ALICE, folder, b"x", 0o755, 0)
    with refused(errno.EACCES):
        client.rmdir(BOB, folder, b"x")


def test_symlink(client: MetaClient) -> None:
    ino, attr = client.mknod(ALICE, ROOT, b"l", Kind.SYMLINK, 0o777, 0, target=b"\xffsome/where")
    assert (attr.length, attr.mode) == (11, 0o777)
    assert client.readlink(ALICE, ino) == b"\xffsome/where"
    client.unlink(ALICE, ROOT, b"l")
    with refused(errno.EINVAL):
        client.readlink(ALICE, make_file(client, b"f"))


def test_device_numbers(client: MetaClient) -> None:
    _, attr = client.mknod(ROOT_USER, ROOT, b"dev", Kind.CHAR, 0o600, 0, rdev=0x0010052C)
    assert client.lookup(ROOT_USER, ROOT, b"dev")[1].rdev == attr.rdev == 0x0010052C


def test_unlink_of_a_directory_and_rmdir_of_a_file(client: MetaClient) -> None:
    client.mkdir(ROOT_USER, ROOT, b"d", 0o755, 0)
    make_file(client, b"f")
    with refused(errno.EISDIR):
        client.unlink(ROOT_USER, ROOT, b"d")
    with refused(errno.ENOTDIR):
        client.rmdir(ROOT_USER, ROOT, b"f")


def test_only_an_empty_directory_is_removed(client: MetaClient) -> None:
    folder, _ = client.mkdir(ROOT_USER, ROOT, b"d", 0o755, 0)
    make_file(client, b"f", folder)
    with refused(errno.ENOTEMPTY):
        client.rmdir(ROOT_USER, ROOT, b"d")
    client.unlink(ROOT_USER, folder, b"f")
    client.rmdir(ROOT_USER, ROOT, b"d")
    assert client.getattr(ROOT).nlink == 2


def test_unlinked_file_goes_to_the_trash_or_for_good(client: MetaClient, trash_days: int) -> None:
    ino = make_file(client, b"f", size=5000)
    client.unlink(ROOT_USER, ROOT, b"f")
    used = client.engine.counter("usedSpace")
    if trash_days:
        (hour,) = [e for page in client.list_dir(ROOT_USER, TRASH, with_attrs=False) for e in page]
        assert names(client, hour.ino) == {b"1-%d-f" % ino}
        assert used == 8192 + 4096
    else:
        assert used == 0
        with refused(errno.ENOENT):
            client.getattr(ino)


@pytest.mark.parametrize("by_rename", [False, True])
def test_link_whose_name_the_trash_has_already_is_counted_once(
    client: MetaClient, by_rename: bool
) -> None:
    """JuiceFS counts it twice on Redis and fails on SQL, where a rename replaces it."""
    ino = make_file(client, b"a", size=10)
    client.link(ROOT_USER, ino, ROOT, b"b")
    client.unlink(ROOT_USER, ROOT, b"b")
    client.link(ROOT_USER, ino, ROOT, b"b")
    if by_rename:
        make_file(client, b"c")
        client.rename(ROOT_USER, ROOT, b"c", ROOT, b"b")
    else:
        client.unlink(ROOT_USER, ROOT, b"b")
    assert client.getattr(ino).nlink == 1


def test_open_file_outlives_its_name(client: MetaClient, trash_days: int) -> None:
    ino, _ = client.create(ROOT_USER, ROOT, b"f", 0o644, 0, os.O_RDWR)
    client.unlink(ROOT_USER, ROOT, b"f")
    assert client.getattr(ino).nlink == 0
    write(client, ino, 100)
    assert client.getattr(ino).length == 100
    client.close(ino)
    if not trash_days:
        with refused(errno.ENOENT):
            client.getattr(ino)


def test_data_of_a_deleted_file_is_deleted(client: MetaClient, trash_days: int) -> None:
    if trash_days:
        client.setattr(ROOT_USER, ROOT, SetAttr(flags=32))  # skip the trash, inherited
    deleted: list[tuple[SliceId, int]] = []
    client.on_delete_slice(lambda ident, size: deleted.append((ident, size)))
    ino = make_file(client, b"f")
    pieces = [write(client, ino, 10), write(client, ino, 20, CHUNK_SIZE + 5)]
    client.unlink(ROOT_USER, ROOT, b"f")
    eventually(lambda: not client.engine.deleted_files(1 << 40, 10))
    assert sorted(deleted) == [(piece.id, piece.size) for piece in pieces]
    assert not list(client.engine.scan_chunks())


def test_hard_links_count(client: MetaClient) -> None:
    ino = make_file(client, b"f", size=10)
    folder, _ = client.mkdir(ROOT_USER, ROOT, b"d", 0o755, 0)
    assert client.link(ROOT_USER, ino, folder, b"g").nlink == 2
    assert client.link(ROOT_USER, ino, ROOT, b"h").nlink == 3
    assert client.parents(ino) == {ROOT: 2, folder: 1}
    client.unlink(ROOT_USER, ROOT, b"f")
    assert client.getattr(ino).nlink == 2
    client.rename(ROOT_USER, folder, b"g", ROOT, b"i")
    assert client.parents(ino).get(ROOT) == 2
    assert client.paths(ino) == [b"/h", b"/i"]


def test_what_cannot_be_linked(client: MetaClient) -> None:
    folder, _ = client.mkdir(ROOT_USER, ROOT, b"d", 0o755, 0)
    with refused(errno.EPERM):
        client.link(ROOT_USER, folder, ROOT, b"e")
    ino = make_file(client, b"f")
    with refused(errno.EEXIST):
        client.link(ROOT_USER, ino, ROOT, b"d")


def test_rename_replaces_a_file(client: MetaClient) -> None:
    old, new = make_file(client, b"old", size=9000), make_file(client, b"new", size=1)
    assert client.rename(ROOT_USER, ROOT, b"new", ROOT, b"old") == (new, old)
    assert client.lookup(ROOT_USER, ROOT, b"old")[0] == new
    assert names(client) == {b"old"}


def test_rename_of_a_directory_moves_its_parent_link(client: MetaClient) -> None:
    left, _ = client.mkdir(ROOT_USER, ROOT, b"left", 0o755, 0)
    right, _ = client.mkdir(ROOT_USER, ROOT, b"right", 0o755, 0)
    moved, _ = client.mkdir(ROOT_USER, left, b"m", 0o755, 0)
    empty, _ = client.mkdir(ROOT_USER, right, b"m", 0o755, 0)
    assert client.rename(ROOT_USER, left, b"m", right, b"m") == (moved, empty)
    assert client.getattr(moved).parent == right
    assert (client.getattr(left).nlink, client.getattr(right).nlink) == (2, 3)


def test_directory_cannot_move_below_itself(client: MetaClient) -> None:
    top, _ = client.mkdir(ROOT_USER, ROOT, b"a", 0o755, 0)
    middle, _ = client.mkdir(ROOT_USER, top, b"b", 0o755, 0)
    client.mkdir(ROOT_USER, middle, b"c", 0o755, 0)
    with refused(errno.EINVAL):
        client.rename(ROOT_USER, ROOT, b"a", middle, b"x")


def test_rename_refuses_wrong_kinds(client: MetaClient) -> None:
    folder, _ = client.mkdir(ROOT_USER, ROOT, b"d", 0o755, 0)
    make_file(client, b"f")
    make_file(client, b"in", folder)
    client.mkdir(ROOT_USER, ROOT, b"e", 0o755, 0)
    with refused(errno.EISDIR):
        client.rename(ROOT_USER, ROOT, b"f", ROOT, b"d")
    with refused(errno.ENOTDIR):
        client.rename(ROOT_USER, ROOT, b"d", ROOT, b"f")
    with refused(errno.ENOTEMPTY):
        client.rename(ROOT_USER, ROOT, b"e", ROOT, b"d")


def test_rename_noreplace_and_exchange(client: MetaClient) -> None:
    file = make_file(client, b"f", size=1)
    folder, _ = client.mkdir(ROOT_USER, ROOT, b"d", 0o755, 0)
    inner = make_file(client, b"in", folder, size=5000)
    with refused(errno.EEXIST):
        client.rename(ROOT_USER, ROOT, b"f", folder, b"in", rules.NOREPLACE)
    client.rename(ROOT_USER, ROOT, b"f", folder, b"in", rules.EXCHANGE)
    assert client.lookup(ROOT_USER, ROOT, b"f")[0] == inner
    assert client.lookup(ROOT_USER, folder, b"in")[0] == file
    other, _ = client.mkdir(ROOT_USER, folder, b"sub", 0o755, 0)
    client.rename(ROOT_USER, ROOT, b"f", folder, b"sub", rules.EXCHANGE)
    assert client.getattr(other).parent == ROOT
    assert (client.getattr(ROOT).nlink, client.getattr(folder).nlink) == (4, 2)
    with refused(errno.ENOENT):
        client.rename(ROOT_USER, ROOT, b"f", ROOT, b"none", rules.EXCHANGE)


def test_rename_whiteout_leaves_a_device_and_counts_it(client: MetaClient) -> None:
    folder, _ = client.mkdir(ROOT_USER, ROOT, b"d", 0o777, 0)
    moved, replaced = make_file(client, b"a", size=5000), make_file(client, b"b", folder)
    assert client.rename(ROOT_USER, ROOT, b"a", folder, b"b", rules.WHITEOUT) == (moved, replaced)
    left, attr = client.lookup(ROOT_USER, ROOT, b"a")
    assert (attr.kind, attr.mode, attr.rdev, attr.uid) == (Kind.CHAR, 0, 0, ROOT_USER.uid)
    assert left not in (moved, replaced)
    assert client.lookup(ROOT_USER, folder, b"b")[0] == moved
    with refused(errno.EINVAL):
        client.rename(ROOT_USER, folder, b"b", ROOT, b"a", rules.WHITEOUT | rules.EXCHANGE)


def test_a_name_that_is_too_long_is_not_looked_up(client: MetaClient) -> None:
    with refused(errno.ENAMETOOLONG):
        client.lookup(ROOT_USER, ROOT, b"n" * 256)


def test_rename_onto_a_link_of_the_same_file_changes_nothing(client: MetaClient) -> None:
    ino = make_file(client, b"f")
    client.link(ROOT_USER, ino, ROOT, b"g")
    client.rename(ROOT_USER, ROOT, b"f", ROOT, b"g")
    assert names(client) == {b"f", b"g"}


def test_sticky_directory(client: MetaClient) -> None:
    folder, _ = client.mkdir(ROOT_USER, ROOT, b"tmp", 0o1777, 0)
    client.mknod(ALICE, folder, b"hers", Kind.FILE, 0o666, 0)
    client.mknod(BOB, folder, b"his", Kind.FILE, 0o666, 0)
    with refused(errno.EACCES):
        client.unlink(BOB, folder, b"hers")
    with refused(errno.EACCES):
        client.rename(BOB, folder, b"his", folder, b"hers")
    client.unlink(ALICE, folder, b"hers")


def test_setattr(client: MetaClient) -> None:
    ino = make_file(client, b"f")
    changed = client.setattr(
        ROOT_USER, ino, SetAttr(mode=0o4711, uid=1001, gid=100, atime_ns=1_000, mtime_ns=2_345)
    )
    assert (changed.uid, changed.gid, changed.atime_ns, changed.mtime_ns) == (1001, 100, 1000, 2345)
    assert client.getattr(ino) == changed
    with refused(errno.EPERM):
        client.setattr(BOB, ino, SetAttr(mode=0o777))


def test_nanoseconds_survive(client: MetaClient) -> None:
    ino = make_file(client, b"f")
    when_ns = 1_796_005_909_235_313_463
    client.setattr(ROOT_USER, ino, SetAttr(mtime_ns=when_ns, atime_ns=-5_000_000_001))
    attr = client.getattr(ino)
    assert (attr.mtime_ns, attr.atime_ns) == (when_ns, -5_000_000_001)


def test_write_grows_the_file_and_its_space(client: MetaClient) -> None:
    ino = make_file(client, b"f")
    piece = write(client, ino, 5000, CHUNK_SIZE + 100)
    assert client.getattr(ino).length == CHUNK_SIZE + 5100
    assert client.slices(ino, 1) == (piece,)
    assert client.slices(ino, 0) == ()
    assert client.engine.counter("usedSpace") == CHUNK_SIZE + 8192


def test_truncate_records_holes_both_ways(client: MetaClient) -> None:
    ino = make_file(client, b"f", size=10_000)
    client.truncate(ROOT_USER, ino, 100, by_handle=True)
    client.truncate(ROOT_USER, ino, 20_000, by_handle=True)
    assert client.slices(ino, 0)[1:] == (rules.hole(100, 9900), rules.hole(100, 19_900))
    assert client.getattr(ino).length == 20_000
    client.truncate(ROOT_USER, ino, 5 << 40, by_handle=True)
    client.truncate(ROOT_USER, ino, 0, by_handle=True)
    with refused(errno.EISDIR):
        client.truncate(
            ROOT_USER, client.mkdir(ROOT_USER, ROOT, b"d", 0o755, 0)[0], 0, by_handle=False
        )


def test_huge_sparse_file_is_resized_by_its_few_chunks(client: MetaClient) -> None:
    ino = make_file(client, b"f", size=10)
    client.truncate(ROOT_USER, ino, 999_999_999_999_999, by_handle=True)
    write(client, ino, 5, 7 << 40)
    client.fallocate(ROOT_USER, ino, 3, 0, 900_000_000_000_000)
    client.truncate(ROOT_USER, ino, 1, by_handle=True)
    assert len(list(client.engine.scan_chunks())) <= 4
    assert client.slices(ino, (7 << 40) // CHUNK_SIZE)[-1] == rules.hole(0, CHUNK_SIZE)


def test_fallocate(client: MetaClient) -> None:
    ino = make_file(client, b"f", size=10_000)
    assert client.fallocate(ROOT_USER, ino, 0, 0, 50_000).length == 50_000
    assert client.fallocate(ROOT_USER, ino, 1, 0, 90_000).length == 50_000
    client.fallocate(ROOT_USER, ino, 3, 100, 200)
    assert client.slices(ino, 0)[-1] == rules.hole(100, 200)
    client.fallocate(ROOT_USER, ino, 0x10, 49_000, 5_000)
    assert client.getattr(ino).length == 54_000
    with refused(errno.EINVAL):
        client.fallocate(ROOT_USER, ino, 0, 0, 0)


def test_copy_file_range_shares_slices(client: MetaClient) -> None:
    source, target = make_file(client, b"s"), make_file(client, b"t", size=10)
    piece = write(client, source, 8000, 1000)
    copied = client.copy_file_range(ROOT_USER, source, 500, target, CHUNK_SIZE - 2000, 100_000)
    assert copied == 8500
    assert client.getattr(target).length == CHUNK_SIZE + 6500
    end = client.slices(target, 0)[-1]
    assert end == Slice(CHUNK_SIZE - 1500, piece.id, 8000, 0, 1500)
    assert client.slices(target, 1)[-1] == Slice(0, piece.id, 8000, 1500, 6500)
    counts = dict(client.engine.scan_refs())
    assert counts[piece.id, 8000] == 3


def test_slices_shared_by_copies_are_deleted_last(client: MetaClient, trash_days: int) -> None:
    if trash_days:
        client.setattr(ROOT_USER, ROOT, SetAttr(flags=32))
    deleted: list[tuple[SliceId, int]] = []
    client.on_delete_slice(lambda ident, size: deleted.append((ident, size)))
    source, target = make_file(client, b"s"), make_file(client, b"t")
    piece = write(client, source, 8000)
    client.copy_file_range(ROOT_USER, source, 0, target, 0, 8000)
    client.unlink(ROOT_USER, ROOT, b"s")
    eventually(lambda: not client.engine.deleted_files(1 << 40, 10))
    assert deleted == []
    client.unlink(ROOT_USER, ROOT, b"t")
    eventually(lambda: not client.engine.deleted_files(1 << 40, 10))
    assert deleted == [(piece.id, piece.size)]


def test_file_without_a_name_ends_with_its_last_handle(client: MetaClient) -> None:
    folder, _ = client.mkdir(ALICE, ROOT, b"d", 0o755, 0)
    before = client.usage()
    ino, attr = client.tmpfile(ALICE, folder, 0o666, 0o022, linkable=True)
    assert (attr.kind, attr.mode, attr.uid, attr.nlink) == (Kind.FILE, 0o644, 1001, 0)
    write(client, ino, 5000)
    assert names(client, folder) == set()
    assert scan(client.engine, statistics=False).faults == []
    with refused(errno.EACCES):
        client.tmpfile(BOB, folder, 0o644, 0, linkable=True)
    client.close(ino)
    with refused(errno.ENOENT):
        client.getattr(ino)
    assert client.usage() == before


def test_file_without_a_name_is_given_one(client: MetaClient) -> None:
    folder, _ = client.mkdir(ALICE, ROOT, b"d", 0o755, 0)
    ino, _ = client.tmpfile(ALICE, folder, 0o644, 0, linkable=True)
    write(client, ino, 5000)
    assert client.link(ALICE, ino, folder, b"f").nlink == 1
    assert client.link(ALICE, ino, ROOT, b"g").nlink == 2
    client.unlink(ALICE, folder, b"f", skip_trash=True)
    assert client.lookup(ALICE, ROOT, b"g")[1].nlink == 1
    client.unlink(ROOT_USER, ROOT, b"g", skip_trash=True)
    with refused(errno.ENOENT):
        client.link(ALICE, ino, folder, b"again")
    client.close(ino)
    with refused(errno.ENOENT):
        client.getattr(ino)


def test_linked_file_outlives_its_handle(client: MetaClient) -> None:
    ino, _ = client.tmpfile(ALICE, ROOT, 0o644, 0, linkable=True)
    write(client, ino, 5000)
    client.link(ROOT_USER, ino, ROOT, b"f")
    client.close(ino)
    assert client.engine.sustained(client.sid) == []
    assert client.lookup(ALICE, ROOT, b"f")[1].length == 5000
    only_here, _ = client.tmpfile(ALICE, ROOT, 0o644, 0, linkable=False)
    with refused(errno.ENOENT):
        client.link(ROOT_USER, only_here, ROOT, b"g")
    client.close(only_here)


def test_attributes_of_an_unlinked_open_file_stay(client: MetaClient) -> None:
    ino, _ = client.create(ROOT_USER, ROOT, b"f", 0o644, 0, os.O_RDWR)
    client.setxattr(ROOT_USER, ino, b"user.a", b"1", 0)
    client.unlink(ROOT_USER, ROOT, b"f", skip_trash=True)
    assert client.getxattr(ROOT_USER, ino, b"user.a") == b"1"
    client.close(ino)
    assert client.listxattr(ROOT_USER, ino) == []


def test_an_allocation_beyond_the_volume_is_refused(client: MetaClient) -> None:
    ino = make_file(client, b"f")
    room = client.statfs(ROOT_USER).avail_bytes
    with refused(errno.ENOSPC):
        client.fallocate(ROOT_USER, ino, 0, 0, room + (1 << 30))


def test_the_longest_value_of_an_xattr_is_kept_or_has_no_room(client: MetaClient) -> None:
    """On MySQL the column that JuiceFS made is one byte too short."""
    ino = make_file(client, b"f")
    try:
        client.setxattr(ROOT_USER, ino, b"user.a", b"x" * 65536, 0)
    except OSError as error:
        assert error.errno == errno.ENOSPC  # noqa: PT017
        assert client.listxattr(ROOT_USER, ino) == []
    else:
        assert client.getxattr(ROOT_USER, ino, b"user.a") == b"x" * 65536
    client.setxattr(ROOT_USER, ino, b"user.a", b"x" * 65535, 0)


def test_xattrs(client: MetaClient) -> None:
    ino = make_file(client, b"f")
    client.setxattr(ROOT_USER, ino, b"user.a", b"1\0\xff", 0)
    client.setxattr(ROOT_USER, ino, b"user.b", b"x" * 60_000, 1)
    with refused(errno.EEXIST):
        client.setxattr(ROOT_USER, ino, b"user.a", b"2", 1)
    with refused(errno.ENODATA):
        client.setxattr(ROOT_USER, ino, b"user.c", b"2", 2)
    assert client.getxattr(ROOT_USER, ino, b"user.a") == b"1\0\xff"
    assert sorted(client.listxattr(ROOT_USER, ino)) == [b"user.a", b"user.b"]
    client.removexattr(ROOT_USER, ino, b"user.a")
    with refused(errno.ENODATA):
        client.getxattr(ROOT_USER, ino, b"user.a")
    with refused(errno.ENODATA):
        client.removexattr(ROOT_USER, ino, b"user.a")


def test_acl_is_stored_and_decides(client: MetaClient) -> None:
    ino, _ = client.mknod(ALICE, ROOT, b"f", Kind.FILE, 0o640, 0)
    rule = AclRule(6, 0, 4, 0, ((1002, 7),))
    client.setxattr(ALICE, ino, acl.ACCESS, acl.to_xattr(rule), 0)
    assert client.getattr(ino).mode == 0o640
    assert acl.from_xattr(client.getxattr(ALICE, ino, acl.ACCESS)) == rule
    assert acl.ACCESS in client.listxattr(ALICE, ino)
    client.access(BOB, ino, rules.READ)
    with refused(errno.EACCES):
        client.access(BOB, ino, rules.WRITE)
    client.setattr(ALICE, ino, SetAttr(mode=0o660))
    client.access(BOB, ino, rules.WRITE)
    client.removexattr(ALICE, ino, acl.ACCESS)
    with refused(errno.EACCES):
        client.access(BOB, ino, rules.READ)


def test_default_acl_is_inherited(client: MetaClient) -> None:
    folder, _ = client.mkdir(ALICE, ROOT, b"d", 0o755, 0)
    rule = AclRule(7, 5, 7, 0, ((1002, 7),))
    client.setxattr(ALICE, folder, acl.DEFAULT, acl.to_xattr(rule), 0)
    _, attr = client.mknod(ALICE, folder, b"f", Kind.FILE, 0o666, 0o077)
    assert attr.mode == 0o660
    sub, attr = client.mkdir(ALICE, folder, b"sub", 0o777, 0o077)
    assert acl.from_xattr(client.getxattr(ALICE, sub, acl.DEFAULT)) == rule


def test_flock(client: MetaClient) -> None:
    ino = make_file(client, b"f")
    client.flock(ino, 1, LockKind.READ)
    client.flock(ino, 2, LockKind.READ)
    with refused(errno.EAGAIN):
        client.flock(ino, 1, LockKind.WRITE)
    client.flock(ino, 2, LockKind.UNLOCK)
    client.flock(ino, 1, LockKind.WRITE)
    with refused(errno.EAGAIN):
        client.flock(ino, 2, LockKind.READ)
    client.flock(ino, 1, LockKind.UNLOCK)
    assert client.engine.session_locks(client.sid) == []


def test_posix_locks(client: MetaClient) -> None:
    ino = make_file(client, b"f")
    owner = 0xFFFF_FFFF_FFFF_FFFE  # owners are unsigned 64 bit
    client.setlk(ino, owner, PosixLock(LockKind.WRITE, 10, 19, 77))
    with refused(errno.EAGAIN):
        client.setlk(ino, 2, PosixLock(LockKind.READ, 15, 30, 78))
    wanted = PosixLock(LockKind.READ, 0, 0x7FFFFFFFFFFFFFFF, 78)
    assert client.getlk(ino, 2, wanted) == PosixLock(LockKind.WRITE, 10, 19, 77)
    assert client.lock_owners(ino, 2, wanted) == {owner}
    assert client.lock_owners(ino, owner, wanted) == set()
    client.setlk(ino, owner, PosixLock(LockKind.UNLOCK, 12, 14, 77))
    client.setlk(ino, 2, PosixLock(LockKind.READ, 12, 14, 78))
    client.setlk(ino, owner, PosixLock(LockKind.UNLOCK, 0, 0x7FFFFFFFFFFFFFFF, 77))
    client.setlk(ino, 2, PosixLock(LockKind.UNLOCK, 0, 0x7FFFFFFFFFFFFFFF, 78))
    assert client.engine.session_locks(client.sid) == []


def test_statfs_follows_capacity(engine: MetaEngine) -> None:
    format_engine(engine, capacity=1 << 20, inodes=5)
    with session(engine) as client:
        ino = make_file(client, b"f")
        write(client, ino, 500_000)
        with refused(errno.ENOSPC):
            client.check_growth(ino, 500_000, 2 << 20)
        with refused(errno.ENOSPC):
            client.truncate(ROOT_USER, ino, 2 << 20, by_handle=True)
        told = client.statfs(ROOT_USER)
        assert (told.total_bytes, told.used_inodes) == (1 << 20, 1)
        assert told.avail_bytes == (1 << 20) - 503_808
        for number in range(4):
            make_file(client, b"%d" % number)
        with refused(errno.ENOSPC):
            make_file(client, b"one too many")


def test_directory_quota(client: MetaClient) -> None:
    folder, _ = client.mkdir(ROOT_USER, ROOT, b"q", 0o755, 0)
    sub, _ = client.mkdir(ROOT_USER, folder, b"s", 0o755, 0)
    client.engine.set_dir_quota(folder, Quota(24_000, 4, 4096, 1))
    client.heartbeat()
    ino = make_file(client, b"f", sub, size=5000)
    with refused(errno.EDQUOT):
        client.truncate(ROOT_USER, ino, 20_000, by_handle=True)
    make_file(client, b"g", sub)
    make_file(client, b"h", sub)
    with refused(errno.EDQUOT):
        make_file(client, b"i", sub)
    client.unlink(ROOT_USER, sub, b"g")
    client.rename(ROOT_USER, sub, b"h", ROOT, b"h")
    client._service.accounts.flush_quotas()
    assert client.engine.dir_quotas()[folder] == Quota(24_000, 4, 4096 + 8192, 2)
    client.rename(ROOT_USER, folder, b"s", ROOT, b"s")
    client._service.accounts.flush_quotas()
    assert client.engine.dir_quotas()[folder] == Quota(24_000, 4, 0, 0)


def test_a_move_into_a_quota_needs_room_there(client: MetaClient) -> None:
    folder, _ = client.mkdir(ROOT_USER, ROOT, b"q", 0o755, 0)
    tree, _ = client.mkdir(ROOT_USER, ROOT, b"tree", 0o755, 0)
    make_file(client, b"f", tree, size=9000)
    client.engine.set_dir_quota(folder, Quota(16_000, 0, 0, 0))
    client.heartbeat()
    with refused(errno.EDQUOT):
        client.rename(ROOT_USER, ROOT, b"tree", folder, b"tree")
    small = make_file(client, b"small", ROOT, size=10)
    client.rename(ROOT_USER, ROOT, b"small", folder, b"small")
    with refused(errno.EDQUOT):
        client.rename(ROOT_USER, ROOT, b"tree", folder, b"small", rules.EXCHANGE)
    client.link(ROOT_USER, small, folder, b"second")
    large = make_file(client, b"large", ROOT, size=9000)
    with refused(errno.EDQUOT):
        client.link(ROOT_USER, large, folder, b"large")
    client._service.accounts.flush_quotas()
    assert client.engine.dir_quotas()[folder] == Quota(16_000, 0, 8192, 2)


def test_all_slices_of_a_file_are_told_by_chunk(client: MetaClient) -> None:
    ino = make_file(client, b"f")
    assert client.all_slices(ino, 0) == {}
    first = write(client, ino, 10)
    second = write(client, ino, 5, 3 * CHUNK_SIZE + 7)
    length = 3 * CHUNK_SIZE + 12
    assert client.all_slices(ino, length) == {0: (first,), 3: (second,)}
    assert client.all_slices(ino, 10) == {0: (first,)}
    last = write(client, ino, 1, 100 * CHUNK_SIZE)
    length = 100 * CHUNK_SIZE + 1
    assert client.all_slices(ino, length) == {0: (first,), 3: (second,), 100: (last,)}


def test_two_clients_see_each_other(engine: MetaEngine, trash_days: int) -> None:
    format_engine(engine, trash_days=trash_days)
    with session(engine) as one, session(engine) as two:
        assert one.sid != two.sid
        ino = make_file(one, b"f", size=10)
        assert two.lookup(ROOT_USER, ROOT, b"f")[1].length == 10
        two.rename(ROOT_USER, ROOT, b"f", ROOT, b"g")
        assert one.lookup(ROOT_USER, ROOT, b"g")[0] == ino
        one.flock(ino, 1, LockKind.WRITE)
        with refused(errno.EAGAIN):
            two.flock(ino, 1, LockKind.WRITE)
    assert scan(engine).faults == []


def test_dead_session_is_cleaned(engine: MetaEngine) -> None:
    format_engine(engine)
    with session(engine, no_bgjob=True) as alive:
        dead = session(engine, no_bgjob=True)
        client = dead.__enter__()
        ino, _ = client.create(ROOT_USER, ROOT, b"f", 0o644, 0, os.O_RDWR)
        client.flock(ino, 1, LockKind.WRITE)
        client.unlink(ROOT_USER, ROOT, b"f")
        engine.refresh_session(client.sid, int(time.time()) - 100, b"{}")
        assert alive._service.sessions.clean_stale() == 1
        assert [s.sid for s in engine.sessions()] == [alive.sid]
        assert engine.session_locks(client.sid) == []
        with refused(errno.ENOENT):
            alive.getattr(ino)
        dead.__exit__(None, None, None)
    assert scan(engine).faults == []


def test_what_was_begun_before_a_session_was_found_lost_is_not_committed(
    engine: MetaEngine,
) -> None:
    """Whichever thread finds it out, and however far it has come with telling."""
    format_engine(engine)
    with session(engine, no_bgjob=True) as alive, session(engine, no_bgjob=True) as client:
        ino = make_file(client, b"f")
        client.flock(ino, 1, LockKind.WRITE)
        sessions = client._service.sessions
        sessions._lease_until = float("-inf")  # it was frozen
        engine.refresh_session(client.sid, int(time.time()) - 100, b"{}")
        assert alive._service.sessions.clean_stale() == 1
        outcomes: list[OSError | None] = []

        def commit() -> None:
            piece = Slice(0, client.new_slice(), 10, 0, 10)
            try:
                client.write(ino, 0, piece, 1, epoch=begun)
            except OSError as error:
                outcomes.append(error)
            else:
                outcomes.append(None)

        begun = client.epoch
        thread = threading.Thread(target=commit)

        def tell(had_locks: bool) -> None:
            nonlocal begun
            assert had_locks
            begun = client.epoch
            thread.start()
            thread.join(0.3)  # it must wait until all is told

        sessions.on_lost = tell
        sessions.refresh()
        thread.join()
        assert [error and error.errno for error in outcomes] == [errno.EIO]
        assert alive.getattr(ino).length == 0
        begun = client.epoch
        commit()
        assert outcomes[1:] == [None]
        assert alive.getattr(ino).length == 10
    assert scan(engine).faults == []


def test_read_only_client_changes_nothing(engine: MetaEngine) -> None:
    format_engine(engine)
    with session(engine, read_only=True) as client:
        assert client.sid == 0
        with refused(errno.EROFS):
            client.mkdir(ROOT_USER, ROOT, b"d", 0o755, 0)
        assert engine.sessions() == []


def test_expired_trash_is_removed(engine: MetaEngine) -> None:
    format_engine(engine, trash_days=1)
    with session(engine, no_bgjob=True) as client:
        folder, _ = client.mkdir(ROOT_USER, ROOT, b"d", 0o755, 0)
        make_file(client, b"f", folder, size=10)
        client.unlink(ROOT_USER, folder, b"f")
        client.rmdir(ROOT_USER, ROOT, b"d")
        (hour,) = [e for page in engine.list_dir(TRASH, with_attrs=False) for e in page]
        assert client.clean_trash() == 0

        def age(tx: Tx) -> None:
            entry = tx.entry(TRASH, hour.name)
            assert entry is not None
            tx.drop_entry(TRASH, hour.name)
            tx.set_entry(TRASH, b"2020-01-01-00", entry)

        engine.transact(age)
        assert client.clean_trash() == 3
        assert names(client, TRASH) == set()
    assert scan(engine).faults == []


def test_compaction_replaces_what_it_read(client: MetaClient) -> None:
    ino = make_file(client, b"f")
    pieces = [write(client, ino, 100, 100 * n) for n in range(5)]

    def compactor(slices: tuple[Slice, ...], new: Callable[[], SliceId]) -> Compacted:
        write(client, ino, 7, 900)  # somebody appends meanwhile
        return Compacted(1, len(slices), Slice(100, new(), 400, 0, 400))

    client.on_compact(compactor)
    assert client.compact(ino, 0)
    after = client.slices(ino, 0)
    assert after[0] == pieces[0]
    assert (after[1].pos, after[1].size) == (100, 400)
    assert after[2].pos == 900
    assert len(after) == 3


def test_lost_compaction_leaves_the_winners_slices(client: MetaClient) -> None:
    deleted: list[tuple[SliceId, int]] = []
    client.on_delete_slice(lambda ident, size: deleted.append((ident, size)))
    ino = make_file(client, b"f")
    for n in range(5):
        write(client, ino, 100, 100 * n)

    def compactor(slices: tuple[Slice, ...], new: Callable[[], SliceId]) -> Compacted:
        merged = Slice(0, new(), 500, 0, 500)
        client.engine.transact(lambda tx: tx.replace_slices(ino, 0, slices, (merged,)))
        return Compacted(0, len(slices), Slice(0, SliceId(merged.id + 1), 500, 0, 500))

    client.on_compact(compactor)
    assert not client.compact(ino, 0)
    assert len(client.slices(ino, 0)) == 1


def test_copy_shares_nothing_that_a_compaction_has_released(
    client: MetaClient, before_commit: Callable[[Callable[[], Any]], list[bool]]
) -> None:
    """Between the reading of the source's slices and the commit of the copy."""
    deleted: list[SliceId] = []
    client.on_delete_slice(lambda ident, _: deleted.append(ident))
    source, target = make_file(client, b"source"), make_file(client, b"target")
    for n in range(5):
        write(client, source, 100, 100 * n)
    client.on_compact(lambda slices, new: Compacted(0, len(slices), Slice(0, new(), 500, 0, 500)))
    done: list[bool] = []
    before_commit(lambda: done.append(client.compact(source, 0)))
    assert client.copy_file_range(ROOT_USER, source, 0, target, 0, 500) == 500
    assert done == [True]
    shared = {piece.id for piece in client.slices(target, 0)}
    assert not shared & set(deleted)


def test_recursive_removal(client: MetaClient) -> None:
    top, _ = client.mkdir(ROOT_USER, ROOT, b"top", 0o755, 0)
    parent = top
    for depth in range(5):
        for number in range(10):
            make_file(client, b"f%d" % number, parent)
        parent, _ = client.mkdir(ROOT_USER, parent, b"d%d" % depth, 0o755, 0)
    usage = client.summary(top)
    assert (usage.files, usage.dirs) == (50, 6)
    assert client.remove_tree(ROOT_USER, ROOT, b"top") == 56
    assert names(client) == set()


def test_subdir_is_the_root_of_its_client(engine: MetaEngine) -> None:
    format_engine(engine)
    with session(engine) as whole, session(engine, subdir="/a/b") as part:
        part.mkdir(ROOT_USER, ROOT, b"c", 0o755, 0)
        ino, _ = whole.resolve(ROOT_USER, b"/a/b/c")
        assert part.paths(ino) == [b"/c"]
        assert part.lookup(ROOT_USER, ROOT, b"..")[0] == ROOT
        assert whole.paths(ino) == [b"/a/b/c"]


def test_skipped_directory_times_still_follow_eventually(client: MetaClient) -> None:
    before = client.getattr(ROOT).mtime_ns
    time.sleep(0.15)
    make_file(client, b"f")
    assert client.getattr(ROOT).mtime_ns > before
