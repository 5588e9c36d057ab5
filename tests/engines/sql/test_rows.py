"""Rows as the real client reads and writes them."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from juicepy.meta.codec import encode_slices
from juicepy.meta.engine import MetaEngine
from juicepy.types import ROOT, AclRule, Attr, Entry, Inode, Kind, SessionId, Slice, SliceId
from tests.engines.sql.conftest import Cursor, cursor

Opened = Callable[..., MetaEngine]
FILE = Attr(Kind.FILE, 0o644, parent=ROOT)
INO = Inode(7)
ONE, TWO = Slice(0, SliceId(1), 9, 0, 9), Slice(9, SliceId(0), 0, 0, 5)


def test_times_are_microseconds_and_the_rest(opened: Opened, url: str, sql: Cursor) -> None:
    engine = opened(url)
    times = {"atime_ns": 1_796_005_909_235_313_463, "mtime_ns": -1, "ctime_ns": 1999}
    engine.transact(lambda tx: tx.make_inode(INO, FILE.with_(**times)))
    row = sql.run(
        "SELECT atime, atimensec, mtime, mtimensec, ctime, ctimensec FROM jfs_node WHERE inode=7"
    )
    assert row == [(1_796_005_909_235_313, 463, -1, 999, 1, 999)]


def test_null_is_read_as_zero(opened: Opened, url: str, sql: Cursor) -> None:
    engine = opened(url)
    engine.transact(lambda tx: tx.make_inode(INO, FILE.with_(rdev=5, access_acl=1, tier=2)))
    sql.run(
        "UPDATE jfs_node SET rdev=NULL, parent=NULL, access_acl_id=NULL, default_acl_id=NULL, "
        "tier_id=NULL WHERE inode=7"
    )
    assert engine.attr(INO) == FILE.with_(parent=Inode(0))


def test_appended_slices_are_one_blob(opened: Opened, url: str, sql: Cursor) -> None:
    engine = opened(url)
    for piece in (ONE, TWO):
        engine.transact(lambda tx, piece=piece: tx.append(INO, 3, piece))
    ((index, slices),) = sql.run("SELECT indx, slices FROM jfs_chunk WHERE inode=7")
    assert (index, bytes(slices)) == (3, encode_slices((ONE, TWO)))


def test_list_that_another_client_appended_to_is_read(opened: Opened, sqlite_url: str) -> None:
    """On SQLite the real client's `slices || ?` makes it TEXT, with any bytes."""
    engine = opened(sqlite_url)
    engine.transact(lambda tx: tx.append(INO, 0, ONE))
    with cursor(sqlite_url) as sql:
        sql.run("UPDATE jfs_chunk SET slices = slices || ?", encode_slices((TWO,)))
        assert sql.one("SELECT typeof(slices) FROM jfs_chunk") == b"text"
    assert engine.slices(INO, 0) == (ONE, TWO)
    assert engine.transact(lambda tx: tx.append(INO, 0, TWO))[1].chunks == {(INO, 0): 3}
    merged = Slice(0, SliceId(4), 14, 0, 14)
    engine.transact(lambda tx: tx.replace_slices(INO, 0, (ONE, TWO), (merged,)))
    with cursor(sqlite_url) as sql:
        sql.run("UPDATE jfs_chunk SET slices = slices || ?", encode_slices((ONE,)))
    assert engine.transact(lambda tx: tx.drop_chunk(INO, 0))[0] == (merged, TWO, ONE)


def test_written_slice_has_a_reference_row(opened: Opened, url: str, sql: Cursor) -> None:
    engine = opened(url)
    engine.transact(lambda tx: tx.made_slice((SliceId(5), 10)))
    assert sql.run("SELECT chunkid, size, refs FROM jfs_chunk_ref") == [(5, 10, 1)]


def test_locks_are_stored_as_codes_and_signed_owners(opened: Opened, url: str, sql: Cursor) -> None:
    engine = opened(url)
    engine.transact(lambda tx: tx.set_lock(INO, (SessionId(2), 2**64 - 3), b"W", posix=False))
    assert sql.run("SELECT inode, sid, owner, ltype FROM jfs_flock") == [(7, 2, -3, 87)]


def test_names_keep_their_row_and_moves_make_new_ones(
    opened: Opened, url: str, sql: Cursor
) -> None:
    engine = opened(url)
    for name in (b"a", b"b"):
        engine.transact(lambda tx, n=name: tx.set_entry(ROOT, n, Entry(INO, Kind.FILE)))
    ids = dict(sql.run("SELECT name, id FROM jfs_edge"))

    def move(tx: object) -> None:
        tx.entry(ROOT, b"a")  # type: ignore[attr-defined]
        tx.drop_entry(ROOT, b"a")  # type: ignore[attr-defined]
        tx.set_entry(ROOT, b"c", Entry(INO, Kind.FILE))  # type: ignore[attr-defined]
        tx.entry(ROOT, b"b")  # type: ignore[attr-defined]
        tx.set_entry(ROOT, b"b", Entry(Inode(8), Kind.DIR))  # type: ignore[attr-defined]

    engine.transact(move)
    after = {bytes(name): (id_, ino) for name, id_, ino in
             sql.run("SELECT name, id, inode FROM jfs_edge")}  # fmt: skip
    ids = {bytes(name): number for name, number in ids.items()}
    assert after[b"b"] == (ids[b"b"], 8)
    assert after[b"c"][0] > max(ids.values())
    assert after.keys() == {b"b", b"c"}


def test_acl_rule_is_columns_and_lists(opened: Opened, url: str, sql: Cursor) -> None:
    engine = opened(url)
    rule = AclRule(6, 0, 7, 0, ((1001, 7),), ())
    number, _ = engine.transact(lambda tx: tx.save_acl(rule))
    quoted = "`group`" if not sql.dialect.has_returning else '"group"'
    ((owner, group, mask, other, users, groups),) = sql.run(
        f"SELECT owner, {quoted}, mask, other, named_users, named_groups FROM jfs_acl WHERE id=?",
        number,
    )
    assert (owner, group, mask, other) == (6, 0, 7, 0)
    assert (bytes(users).hex(), bytes(groups)) == ("000003e90007", b"")
    sql.run("UPDATE jfs_acl SET named_groups = NULL WHERE id=?", number)
    assert engine.transact(lambda tx: tx.save_acl(rule))[0] == number


def test_usage_is_stored_by_flush(opened: Opened, url: str, sql: Cursor) -> None:
    engine = opened(url)
    stored = "SELECT value FROM jfs_counter WHERE name='usedSpace'"
    engine.transact(lambda tx: tx.use(space=4096, inodes=1))
    assert sql.one(stored) == 0
    assert engine.counter("usedSpace") == 4096
    engine.flush()
    assert sql.one(stored) == 4096
    engine.transact(lambda tx: tx.use(space=4096, inodes=1))
    engine.close()
    assert sql.one(stored) == 8192


def test_large_owner_fits_where_columns_are_large(opened: Opened, url: str) -> None:
    engine = opened(url)
    attr = FILE.with_(uid=3_000_000_000)
    if engine.scheme == "sqlite3":
        engine.transact(lambda tx: tx.make_inode(INO, attr))
        assert engine.attr(INO) == attr
        return
    with pytest.raises(OSError) as caught:
        engine.transact(lambda tx: tx.make_inode(INO, attr))
    assert caught.value.errno == errno.EINVAL
    assert engine.attr(INO) is None


def test_xattr_names_that_are_no_text(opened: Opened, url: str) -> None:
    """SQLite takes any bytes; a text column of a server does not."""
    engine = opened(url)
    engine.transact(lambda tx: tx.set_xattr(ROOT, "user.größe".encode(), b"1"))
    assert engine.read(lambda tx: tx.xattr_names(ROOT)) == ("user.größe".encode(),)
    name = b"user.\xff\xfe"
    if engine.scheme == "sqlite3":
        engine.transact(lambda tx: tx.set_xattr(ROOT, name, b"2"))
        assert engine.read(lambda tx: tx.xattr(ROOT, name)) == b"2"
        assert name in engine.read(lambda tx: tx.xattr_names(ROOT))
        return
    for access in (lambda tx: tx.xattr(ROOT, name), lambda tx: tx.set_xattr(ROOT, name, b"2")):
        with pytest.raises(OSError) as caught:
            engine.transact(access)
        assert caught.value.errno == errno.EINVAL
