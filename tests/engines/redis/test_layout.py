"""What lies in which key, byte for byte; the shared layout of JuiceFS 1.4."""

from __future__ import annotations

from collections.abc import Callable

import redis

from juicepy.meta.engine import DelayedSlices, DeletedFile, DirStats, Quota, StoredLock
from juicepy.meta.redis.engine import RedisEngine
from juicepy.meta.tx import Tx
from juicepy.types import (
    ROOT,
    TRASH,
    AclRule,
    Attr,
    Entry,
    Inode,
    Kind,
    SessionId,
    Slice,
    SliceId,
)
from tests.engines.redis.bodies import NOW_NS, make, remove

TIME = "000000006553f100" + "00000005"
NO_TIME = "00" * 12


def run(engine: RedisEngine, body: Callable[[Tx], object]) -> None:
    engine.transact(body)


def test_fresh_volume_has_three_keys(engine: RedisEngine, raw: redis.Redis) -> None:
    assert sorted(raw.keys()) == [b"i1", b"setting"]
    assert engine.load_format() == b"{}"
    trash = Attr(Kind.DIR, 0o555, nlink=2, length=4096, parent=ROOT)
    changed = Attr(Kind.DIR, 0o700, nlink=9, length=4096, parent=ROOT)
    engine.init(b"{1}", changed, trash)
    assert sorted(raw.keys()) == [b"i1", b"i9223372032828243968", b"setting"]
    assert engine.load_format() == b"{1}"
    found = engine.attr(ROOT)
    assert found is not None
    assert found.mode == 0o777, "an existing root stays"
    assert engine.attr(TRASH) == trash


def test_mkdir_stores_record_entry_statistics_and_usage(
    engine: RedisEngine, raw: redis.Redis
) -> None:
    run(engine, make(3, b"dir", Kind.DIR))
    assert raw.hgetall("d1") == {b"dir": bytes.fromhex("020000000000000003")}
    assert raw.get("i3").hex() == (
        "00" + "21a4" + "00000000" * 2 + NO_TIME * 3 + "00000002" + "0000000000001000"
        "00000000" + "0000000000000001" + "00"
    )
    assert raw.get("i1").hex() == (
        "00" + "21ff" + "00000000" * 2 + NO_TIME + TIME * 2 + "00000003" + "0000000000001000"
        "00000000" + "0000000000000001" + "00"
    )
    for name in ("dirDataLength", "dirUsedSpace", "dirUsedInodes"):
        assert raw.hgetall(name) == {b"3": b"0"}
    assert (raw.get("usedSpace"), raw.get("totalInodes")) == (b"4096", b"1")


def test_removed_directory_leaves_no_row(engine: RedisEngine, raw: redis.Redis) -> None:
    run(engine, make(3, b"dir", Kind.DIR))
    engine.set_dir_quota(Inode(3), Quota(1 << 30, 5))

    def body(tx: Tx) -> None:
        remove(b"dir")(tx)
        tx.drop_directory_records(Inode(3))

    run(engine, body)
    assert sorted(raw.keys()) == [b"i1", b"setting", b"totalInodes", b"usedSpace"]
    assert (raw.get("usedSpace"), raw.get("totalInodes")) == (b"0", b"0")


def test_parent_counts_stay_at_zero_and_count_nothing(
    engine: RedisEngine, raw: redis.Redis
) -> None:
    ino = Inode(5)
    run(engine, lambda tx: (tx.count_parent(ino, ROOT, 2), tx.count_parent(ino, Inode(7), 1)))
    run(engine, lambda tx: tx.count_parent(ino, Inode(7), -1))
    assert raw.hgetall("p5") == {b"1": b"2", b"7": b"0"}
    assert engine.read(lambda tx: tx.parents(ino)) == {ROOT: 2}
    run(engine, lambda tx: tx.drop_inode(ino))
    assert raw.exists("p5") == 0


def test_symlink_and_xattrs(engine: RedisEngine, raw: redis.Redis) -> None:
    ino = Inode(5)
    run(engine, lambda tx: (tx.set_link(ino, b"to/\xff"), tx.set_xattr(ino, b"user.a", b"\0")))
    run(engine, lambda tx: tx.set_xattr(ino, b"user.b", b""))
    assert raw.get("s5") == b"to/\xff"
    assert raw.hgetall("x5") == {b"user.a": b"\0", b"user.b": b""}
    assert engine.read(lambda tx: tx.xattr(ino, b"user.a")) == b"\0"
    assert sorted(engine.read(lambda tx: tx.xattr_names(ino))) == [b"user.a", b"user.b"]
    run(engine, lambda tx: tx.drop_xattr(ino, b"user.a"))
    assert engine.read(lambda tx: tx.link_target(ino)) == b"to/\xff"
    run(engine, lambda tx: (tx.drop_link(ino), tx.drop_xattrs(ino)))
    assert raw.exists("s5", "x5") == 0


def test_slices_and_references(engine: RedisEngine, raw: redis.Redis) -> None:
    ino, piece = Inode(5), Slice(8, SliceId(4), 2, 0, 2)
    run(engine, lambda tx: (tx.append(ino, 3, piece), tx.made_slice((piece.id, 2))))
    record = bytes.fromhex("000000080000000000000004000000020000000000000002")
    assert raw.lrange("c5_3", 0, -1) == [record]
    assert raw.exists("sliceRef") == 0, "absent is one reference"
    assert engine.slices(ino, 3) == (piece,)
    ref = (SliceId(4), 2)
    counts = [engine.transact(lambda tx, n=n: tx.count_ref(ref, n))[1].refs for n in (1, -1, -1)]
    assert counts == [{ref: 2}, {ref: 1}, {ref: 0}]
    assert raw.hgetall("sliceRef") == {b"k4_2": b"-1"}
    assert engine.unreferenced(10) == [ref]
    engine.forget_slice(ref)
    run(engine, lambda tx: tx.count_ref(ref, 1))
    assert list(engine.scan_refs()) == [(ref, 2)]
    run(engine, lambda tx: tx.count_ref(ref, -1))
    assert list(engine.scan_refs()) == []
    assert engine.unreferenced(10) == []
    assert raw.exists("sliceRef") == 0, "a zero says what an absent field says"


def test_large_appends_go_in_parts(engine: RedisEngine) -> None:
    pieces = tuple(Slice(n, SliceId(n + 1), 1, 0, 1) for n in range(20_000))
    told = engine.transact(lambda tx: tx.append(Inode(5), 0, *pieces))[1]
    assert told.chunks == {(Inode(5), 0): 20_000}
    assert engine.slices(Inode(5), 0) == pieces
    new = tuple(Slice(n, SliceId(n + 1), 2, 0, 1) for n in range(9_000))
    engine.transact(lambda tx: tx.replace_slices(Inode(5), 0, pieces[:19_999], new))
    assert engine.slices(Inode(5), 0) == (*new, pieces[-1])
    dropped = engine.transact(lambda tx: tx.drop_chunk(Inode(5), 0))[0]
    assert len(dropped) == 9_001
    assert engine.slices(Inode(5), 0) == ()


def test_deleted_files(engine: RedisEngine, raw: redis.Redis) -> None:
    run(engine, lambda tx: (tx.delete_file(Inode(5), 77, 1000), tx.delete_file(Inode(6), 0, 2000)))
    assert raw.zrange("delfiles", 0, -1, withscores=True) == [(b"5:77", 1000.0), (b"6:0", 2000.0)]
    raw.zadd("delfiles", {"1:2:3": 5})
    assert engine.deleted_files(1500, 10) == [DeletedFile(Inode(5), 77, 1000)]
    run(engine, lambda tx: tx.delete_done(Inode(5), 77))
    assert [one.ino for one in engine.deleted_files(3000, 10)] == [6]


def test_chunks_of_a_deleted_file_are_found_behind_its_end(engine: RedisEngine) -> None:
    piece = Slice(0, SliceId(1), 1, 0, 1)
    for index in (0, 2, 60, 120):
        run(engine, lambda tx, index=index: tx.append(Inode(5), index, piece))
    assert engine.chunk_indexes(Inode(5), 5) == [0, 2, 60, 120]
    assert engine.chunk_indexes(Inode(5), 1 << 50) == [0, 2, 60, 120]
    assert engine.chunk_indexes(Inode(6), 0) == []


def test_delayed_slices(engine: RedisEngine, raw: redis.Redis) -> None:
    refs = ((SliceId(1), 2), (SliceId(3), 4))
    run(engine, lambda tx: tx.delay_slices(SliceId(16), 1796005785, refs))
    expected = bytes.fromhex("000000000000000100000002000000000000000300000004")
    assert raw.hgetall("delSlices") == {b"16_1796005785": expected}
    assert engine.delayed_slices(1796005785, 10) == []
    found = DelayedSlices(SliceId(16), 1796005785, refs)
    assert engine.delayed_slices(1796005786, 10) == [found]
    run(engine, lambda tx: tx.drop_delayed(SliceId(16), 1796005785))
    assert raw.exists("delSlices") == 0


def test_counters_hold_the_last_id_given_out(engine: RedisEngine, raw: redis.Redis) -> None:
    assert engine.allocate_inodes(1024) == range(2, 1025)
    assert engine.allocate_inodes(1024) == range(1025, 2049)
    assert engine.allocate_slices(4096) == range(1, 4097)
    assert engine.next_trash() == 1
    assert raw.mget("nextinode", "nextchunk", "nextTrash") == [b"2048", b"4096", b"1"]
    assert engine.counter("nextInode") == 2048
    assert engine.counter("usedSpace") == 0


def test_set_if_small(engine: RedisEngine, raw: redis.Redis) -> None:
    assert engine.set_if_small("lastCleanupFiles", 1000, 100)
    assert not engine.set_if_small("lastCleanupFiles", 1099, 100)
    assert engine.set_if_small("lastCleanupFiles", 1100, 100)
    assert raw.get("lastCleanupFiles") == b"1100"


def test_sessions(engine: RedisEngine, raw: redis.Redis) -> None:
    sid = engine.new_session(500, lambda sid: b'{"sid":%d}' % sid)
    assert sid == 1
    assert raw.zrange("allSessions", 0, -1, withscores=True) == [(b"1", 500.0)]
    assert raw.hgetall("sessionInfos") == {b"1": b'{"sid":1}'}
    raw.hdel("sessionInfos", 1)
    engine.refresh_session(sid, 600, b"again")
    assert [(one.sid, one.expire_s, one.record) for one in engine.sessions()] == [
        (1, 600, b"again")
    ]
    run(engine, lambda tx: tx.sustain(sid, Inode(9), on=True))
    assert raw.smembers("session1") == {b"9"}
    assert engine.sustained(sid) == [9]
    run(engine, lambda tx: tx.sustain(sid, Inode(9), on=False))
    engine.drop_session(sid)
    assert engine.sessions() == []
    assert raw.exists("session1", "sessionInfos", "allSessions") == 0


def test_locks(engine: RedisEngine, raw: redis.Redis) -> None:
    ino, sid = Inode(5), SessionId(3)
    mine, wide = (sid, 0xAB), (sid, 0xFFFFFFFFFFFFFFFF)

    def lock(owner: tuple[SessionId, int], value: bytes | None, posix: bool) -> None:
        def body(tx: Tx) -> None:
            tx.locks(ino, posix=posix)
            tx.set_lock(ino, owner, value, posix=posix)

        engine.transact(body)

    lock(mine, b"R", False)
    lock(wide, b"R", False)
    lock(mine, b"x" * 24, True)
    assert raw.hgetall("lockf5") == {
        b"3_00000000000000AB": b"R",
        b"3_FFFFFFFFFFFFFFFF": b"R",
    }
    assert raw.hgetall("lockp5") == {b"3_00000000000000AB": b"x" * 24}
    assert raw.smembers("locked3") == {b"lockf5", b"lockp5"}
    raw.hset("lockf5", "99_00000000000000AB", "W")
    assert set(engine.read(lambda tx: tx.locks(ino, posix=False))) == {
        mine,
        wide,
        (SessionId(99), 0xAB),
    }
    lock(mine, None, False)
    assert raw.smembers("locked3") == {b"lockf5", b"lockp5"}
    lock(wide, None, False)
    assert raw.smembers("locked3") == {b"lockp5"}
    lock(mine, b"W", False)
    assert engine.session_locks(sid) == [
        (ino, False, StoredLock(sid, 0xAB, b"W")),
        (ino, True, StoredLock(sid, 0xAB, b"x" * 24)),
    ]
    engine.release_locks(sid)
    assert raw.exists("locked3", "lockp5") == 0
    assert raw.hgetall("lockf5") == {b"99_00000000000000AB": b"W"}


def test_directory_statistics(engine: RedisEngine, raw: redis.Redis) -> None:
    run(engine, lambda tx: tx.make_stats(Inode(5)))
    delta = DirStats(100, 4096, 1)
    odd = engine.add_dir_stats({Inode(5): delta, Inode(6): delta})
    assert odd == [6]
    assert engine.dir_stats(Inode(5)) == delta
    assert engine.dir_stats(Inode(6)) is None
    assert engine.add_dir_stats({Inode(5): DirStats(0, -8192, 0)}) == [5], "below zero"
    engine.set_dir_stats(Inode(6), DirStats(1, 2, 3))
    assert raw.hget("dirDataLength", 6) == b"1"
    assert raw.hget("dirUsedSpace", 6) == b"2"
    assert raw.hget("dirUsedInodes", 6) == b"3"
    engine.reset_dir_stats()
    assert engine.dir_stats(Inode(6)) is None


def test_directory_quotas(engine: RedisEngine, raw: redis.Redis) -> None:
    engine.set_dir_quota(Inode(5), Quota(1 << 30, 10, 4096, 1))
    assert raw.hgetall("dirQuota") == {b"5": bytes.fromhex("0000000040000000000000000000000a")}
    engine.add_dir_quotas({Inode(5): (4096, 1), Inode(6): (1, 1)})
    assert raw.hgetall("dirQuotaUsedSpace") == {b"5": b"8192"}
    assert raw.hgetall("dirQuotaUsedInodes") == {b"5": b"2"}
    assert engine.dir_quotas() == {5: Quota(1 << 30, 10, 8192, 2)}
    engine.set_dir_quota(Inode(5), None)
    assert raw.exists("dirQuota", "dirQuotaUsedSpace", "dirQuotaUsedInodes") == 0


def test_user_and_group_usage(engine: RedisEngine, raw: redis.Redis) -> None:
    engine.add_user_group_usage({1000: (4096, 1)}, {100: (-4096, -1)})
    engine.add_user_group_usage({1000: (4096, 1)}, {})
    assert raw.hgetall("userQuota") == {b"1000": b"\xff" * 16}
    assert raw.hgetall("groupQuotaUsedSpace") == {b"100": b"-4096"}
    users, groups = engine.user_group_quotas()
    assert users == {1000: Quota(-1, -1, 8192, 2)}
    assert groups == {100: Quota(-1, -1, -4096, -1)}


def test_acl_rules_are_shared(
    engine: RedisEngine, raw: redis.Redis, connect: Callable[[], RedisEngine]
) -> None:
    rule = AclRule(6, 0, 7, 0, ((1001, 7),), ())
    assert engine.transact(lambda tx: tx.save_acl(rule))[0] == 1
    assert raw.hgetall("acl") == {
        b"1": bytes.fromhex("000600000007000000000001000003e9000700000000")
    }
    assert raw.get("aclMaxId") == b"1"
    other = connect()
    assert other.transact(lambda tx: tx.save_acl(rule))[0] == 1
    assert other.transact(lambda tx: tx.save_acl(AclRule(7, 5, 0xFFFF, 0)))[0] == 2
    assert engine.read(lambda tx: tx.acl(2)) == AclRule(7, 5, 0xFFFF, 0)
    assert engine.read(lambda tx: tx.acl(3)) is None


def test_lookup_of_numbers_beyond_a_double(engine: RedisEngine, raw: redis.Redis) -> None:
    for ino in (TRASH + 1, (1 << 53) + 1, 999_999_999, 1_000_000_000, (1 << 63) + 12345, 2):
        attr = Attr(Kind.DIR, 0o555, mtime_ns=NOW_NS, nlink=2, length=ino % 1000)

        def body(tx: Tx, ino: int = ino, attr: Attr = attr) -> None:
            tx.make_inode(Inode(ino), attr)
            tx.set_entry(ROOT, b"n%d" % ino, Entry(Inode(ino), Kind.DIR))

        engine.transact(body)
        assert engine.lookup(ROOT, b"n%d" % ino) == (Entry(Inode(ino), Kind.DIR), attr)
    raw.delete("i2")
    assert engine.lookup(ROOT, b"n2") == (Entry(Inode(2), Kind.DIR), None)


def test_listing_has_each_name_once(engine: RedisEngine, raw: redis.Redis) -> None:
    names = {b"name-%d" % number for number in range(9000)}
    raw.hset("d1", mapping={name: bytes.fromhex("010000000000000007") for name in names})
    raw.set("i7", raw.get("i1"))
    pages = list(engine.list_dir(ROOT, with_attrs=True))
    found = [entry.name for page in pages for entry in page]
    assert len(pages) > 1
    assert sorted(found) == sorted(names)
    assert all(entry.attr is not None for page in pages for entry in page)
    assert list(engine.list_dir(Inode(55), with_attrs=True)) == []


def test_listing_tells_entries_without_an_inode(engine: RedisEngine, raw: redis.Redis) -> None:
    raw.hset("d1", "lost", bytes.fromhex("010000000000000007"))
    ((entry,),) = engine.list_dir(ROOT, with_attrs=True)
    assert (entry.name, entry.ino, entry.kind, entry.attr) == (b"lost", 7, Kind.FILE, None)


def test_scans_see_what_they_are_for(engine: RedisEngine, raw: redis.Redis) -> None:
    run(engine, make(5, b"file"))
    piece = Slice(0, SliceId(1), 1, 0, 1)
    run(engine, lambda tx: tx.append(Inode(5), 2, piece))
    raw.set("info", "not an inode")
    raw.rpush("c5", "not a chunk")
    assert {ino for ino, _ in engine.scan_attrs()} == {1, 5}
    assert list(engine.scan_chunks()) == [(5, 2, (piece,))]
    assert set(engine.attrs([ROOT, Inode(5), Inode(6)])) == {1, 5}


def test_empty_database(connect: Callable[[], RedisEngine]) -> None:
    engine = connect()
    assert engine.is_empty_database()
    assert engine.load_format() is None
    engine.allocate_inodes(1)
    assert not engine.is_empty_database()
