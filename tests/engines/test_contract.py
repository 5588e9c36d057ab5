"""What every MetaEngine promises: records, transactions, listings, counters, leftovers."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import pytest

from juicepy.meta.engine import DelayedSlices, DeletedFile, DirStats, MetaEngine, Quota
from juicepy.meta.registry import open_engine
from juicepy.meta.tx import Committed, Tx
from juicepy.types import (
    ROOT,
    TRASH,
    AclRule,
    Attr,
    DirEntry,
    Entry,
    Inode,
    Kind,
    SessionId,
    Slice,
    SliceId,
)
from tests.support.engines import Place

T = TypeVar("T")

SETTING = b'{\n"Name": "volume"\n}'
TIME_NS = 1_796_005_909_235_313_463
DIR = Attr(Kind.DIR, 0o755, nlink=2, length=4096, parent=ROOT)
FILE = Attr(Kind.FILE, 0o644, parent=ROOT)


@pytest.fixture
def volume(engine: MetaEngine) -> MetaEngine:
    """An engine with an empty volume."""
    engine.init(SETTING, DIR, DIR.with_(mode=0o555))
    return engine


@pytest.fixture
def other(volume: MetaEngine, place: Place) -> MetaEngine:
    """A second client of the same volume."""
    return place.open()


def do(engine: MetaEngine, body: Callable[[Tx], object]) -> Committed:
    return engine.transact(body)[1]


def need(value: T | None) -> T:
    """What a body expects to be there. A guess of the engine may be wrong, so it is an OSError."""
    if value is None:
        raise FileNotFoundError(errno.ENOENT, "not there")
    return value


def add_file(
    engine: MetaEngine, name: bytes, attr: Attr = FILE, parent: Inode = ROOT, ino: int = 0
) -> Inode:
    made = Inode(ino or engine.allocate_inodes(1)[0])

    def body(tx: Tx) -> None:
        tx.fetch(("dir", parent), ("entry", parent, name))
        if tx.entry(parent, name):
            raise FileExistsError(errno.EEXIST, "name")
        tx.make_inode(made, attr)
        tx.set_entry(parent, name, Entry(made, attr.kind))
        tx.touch(parent, nlink=1 if attr.is_dir else 0, time_ns=TIME_NS)

    engine.transact(body)
    return made


def piece(number: int, length: int = 10) -> Slice:
    return Slice(number * 100, SliceId(number), length, 0, length)


def names(engine: MetaEngine, ino: Inode = ROOT, *, with_attrs: bool = False) -> list[DirEntry]:
    return [entry for page in engine.list_dir(ino, with_attrs=with_attrs) for entry in page]


# -- life
def test_fresh_database_holds_no_volume(engine: MetaEngine) -> None:
    assert engine.load_format() is None
    assert engine.is_empty_database()


def test_init_stores_setting_and_roots(volume: MetaEngine) -> None:
    assert volume.load_format() == SETTING
    assert not volume.is_empty_database()
    assert volume.attr(ROOT) == DIR
    assert volume.attr(TRASH) == DIR.with_(mode=0o555)


def test_second_init_changes_the_setting_only(volume: MetaEngine, other: MetaEngine) -> None:
    add_file(volume, b"f")
    first = volume.allocate_inodes(1)[0]
    other.init(b'{"Name": "new"}', DIR.with_(mode=0o700), None)
    assert volume.load_format() == b'{"Name": "new"}'
    assert volume.attr(ROOT) == DIR.with_(mtime_ns=TIME_NS, ctime_ns=TIME_NS)
    assert volume.allocate_inodes(1)[0] > first


# -- inodes
@pytest.mark.parametrize("kind", list(Kind))
def test_attr_keeps_every_field(volume: MetaEngine, other: MetaEngine, kind: Kind) -> None:
    attr = Attr(
        kind,
        0o7751,
        uid=2**31 - 1,
        gid=77,
        atime_ns=TIME_NS,
        mtime_ns=-1,
        ctime_ns=999,
        nlink=3,
        length=1 << 57,
        rdev=0x0010052C,
        parent=Inode((1 << 60) + 1),
        flags=35,
        access_acl=5,
        default_acl=6,
        tier=3,
    )
    do(volume, lambda tx: tx.make_inode(Inode(9), attr))
    assert other.attr(Inode(9)) == attr
    assert other.read(lambda tx: tx.attr(Inode(9))) == attr
    assert other.transact(lambda tx: tx.attr(Inode(9)))[0] == attr
    plain = Attr(kind, 0o600, mtime_ns=1)
    do(other, lambda tx: (tx.attr(Inode(9)), tx.set_attr(Inode(9), plain)))
    assert volume.attr(Inode(9)) == plain


def test_absent_inodes_are_none(volume: MetaEngine) -> None:
    ino = add_file(volume, b"f")
    assert volume.attr(Inode(12345)) is None
    assert volume.attrs([ROOT, Inode(12345), ino]) == {
        ROOT: volume.attr(ROOT),
        ino: FILE,
    }
    assert volume.attrs([]) == {}
    assert volume.read(lambda tx: tx.attr(Inode(12345))) is None
    assert volume.read(lambda tx: tx.directory(Inode(12345))) is None


def test_attrs_of_many_inodes(volume: MetaEngine) -> None:
    inodes = [Inode(ino) for ino in range(10, 1510)]

    def body(tx: Tx) -> None:
        for ino in inodes:
            tx.make_inode(ino, FILE.with_(length=ino))

    do(volume, body)
    found = volume.attrs(inodes)
    assert {ino: attr.length for ino, attr in found.items()} == {ino: ino for ino in inodes}


def test_dropped_inode_takes_its_records_along(volume: MetaEngine) -> None:
    ino = add_file(volume, b"l", FILE.with_(kind=Kind.SYMLINK))
    do(volume, lambda tx: (tx.set_link(ino, b"target"), tx.set_xattr(ino, b"user.a", b"1")))
    do(volume, lambda tx: (tx.attr(ino), tx.drop_inode(ino), tx.drop_link(ino)))
    assert volume.attr(ino) is None
    assert volume.read(lambda tx: tx.link_target(ino)) is None
    assert volume.read(lambda tx: tx.xattr_names(ino)) == ()
    assert volume.lookup(ROOT, b"l") == (Entry(ino, Kind.SYMLINK), None)


def test_scan_tells_every_inode(volume: MetaEngine) -> None:
    made = {add_file(volume, b"f%d" % n) for n in range(5)}
    scanned = list(volume.scan_attrs())
    assert len(scanned) == 7
    assert {ino for ino, _ in scanned} == made | {ROOT, TRASH}
    assert dict(scanned)[ROOT] == volume.attr(ROOT)


# -- names
NAMES = [
    b"plain",
    b"Plain",
    b"with space ",
    b"with space",
    b"new\nline",
    b"\xff\xfe\x80",
    b"100%_\\'\"",
    "größe".encode(),
    b"n" * 255,
    b"\x01",
]


def test_names_are_bytes(volume: MetaEngine, other: MetaEngine) -> None:
    made = {name: add_file(volume, name) for name in NAMES}
    for name, ino in made.items():
        assert other.lookup(ROOT, name) == (Entry(ino, Kind.FILE), FILE)
        assert other.read(lambda tx, name=name: tx.entry(ROOT, name)) == Entry(ino, Kind.FILE)
    assert {entry.name: entry.ino for entry in names(other)} == made
    assert other.lookup(ROOT, b"PLAIN") is None


def test_entries_of_several_directories_are_fetched_at_once(volume: MetaEngine) -> None:
    sub = add_file(volume, b"d", DIR)
    ino, inner = add_file(volume, b"x"), add_file(volume, b"x", parent=sub)

    def body(tx: Tx) -> tuple[object, ...]:
        keys = [("entry", ROOT, b"x"), ("entry", sub, b"x"), ("entry", sub, b"y")]
        tx.fetch(("dir", ROOT), ("dir", sub), *keys, ("attr", ino), ("empty", ino))
        found = tuple(tx.entry(*key[1:]) for key in keys)
        return (*found, tx.directory(sub), tx.attr(ino), tx.is_empty(ino), tx.is_empty(sub))

    expected = (Entry(ino, Kind.FILE), Entry(inner, Kind.FILE), None)
    expected += (DIR.with_(mtime_ns=TIME_NS, ctime_ns=TIME_NS), FILE, True, False)
    assert volume.transact(body)[0] == expected
    assert volume.read(body) == expected


def test_entry_is_replaced_moved_and_dropped(volume: MetaEngine, other: MetaEngine) -> None:
    a, b = add_file(volume, b"a"), add_file(volume, b"b")

    def rename_over(tx: Tx) -> None:
        tx.fetch(("entry", ROOT, b"a"), ("entry", ROOT, b"b"))
        moved = need(tx.entry(ROOT, b"a"))
        need(tx.entry(ROOT, b"b"))
        tx.drop_entry(ROOT, b"a")
        tx.set_entry(ROOT, b"b", moved)

    do(volume, rename_over)
    assert [(entry.name, entry.ino) for entry in names(other)] == [(b"b", a)]
    do(other, lambda tx: (tx.entry(ROOT, b"b"), tx.drop_entry(ROOT, b"b")))
    assert volume.lookup(ROOT, b"b") is None
    assert volume.read(lambda tx: tx.is_empty(ROOT))
    assert volume.attr(b) == FILE


def test_entries_are_exchanged(volume: MetaEngine) -> None:
    ino, sub = add_file(volume, b"f"), add_file(volume, b"d", DIR)

    def exchange(tx: Tx) -> None:
        first, second = need(tx.entry(ROOT, b"f")), need(tx.entry(ROOT, b"d"))
        tx.set_entry(ROOT, b"f", second)
        tx.set_entry(ROOT, b"d", first)

    do(volume, exchange)
    assert volume.lookup(ROOT, b"f") == (Entry(sub, Kind.DIR), volume.attr(sub))
    assert volume.lookup(ROOT, b"d") == (Entry(ino, Kind.FILE), FILE)


def test_entries_are_written_without_having_been_read(volume: MetaEngine) -> None:
    do(volume, lambda tx: tx.set_entry(ROOT, b"x", Entry(Inode(5), Kind.FILE)))
    do(volume, lambda tx: tx.set_entry(ROOT, b"x", Entry(Inode(6), Kind.DIR)))
    assert [(e.ino, e.kind) for e in names(volume)] == [(6, Kind.DIR)]
    do(volume, lambda tx: (tx.drop_entry(ROOT, b"x"), tx.drop_entry(ROOT, b"y")))
    assert names(volume) == []


def test_many_names_are_removed_in_one_transaction(volume: MetaEngine) -> None:
    wanted = [b"n%03d" % number for number in range(300)]

    def create(tx: Tx) -> None:
        for number, name in enumerate([*wanted, b"stays"]):
            ino = Inode(100 + number)
            tx.make_inode(ino, FILE)
            tx.set_entry(ROOT, name, Entry(ino, Kind.FILE))

    def remove(tx: Tx) -> None:
        tx.fetch(("dir", ROOT), *(("entry", ROOT, name) for name in wanted))
        entries = [need(tx.entry(ROOT, name)) for name in wanted]
        tx.fetch(*(("attr", entry.ino) for entry in entries))
        for name, entry in zip(wanted, entries, strict=True):
            need(tx.attr(entry.ino))
            tx.drop_entry(ROOT, name)
            tx.drop_inode(entry.ino)
            tx.delete_file(entry.ino, 0, 1)
        tx.touch(ROOT, time_ns=TIME_NS)

    do(volume, create)
    do(volume, remove)
    assert [entry.name for entry in names(volume)] == [b"stays"]
    assert {ino for ino, _ in volume.scan_attrs()} == {ROOT, TRASH, 400}
    assert len(volume.deleted_files(100, 1000)) == 300


def test_touch_changes_a_directory_relatively(volume: MetaEngine, other: MetaEngine) -> None:
    do(volume, lambda tx: tx.touch(ROOT, nlink=2))
    do(other, lambda tx: tx.touch(ROOT, nlink=-1, time_ns=TIME_NS))
    do(other, lambda tx: tx.touch(ROOT, time_ns=TIME_NS + 1))
    do(other, lambda tx: tx.touch(ROOT))
    expected = DIR.with_(nlink=3, mtime_ns=TIME_NS + 1, ctime_ns=TIME_NS + 1)
    assert volume.attr(ROOT) == expected


# -- listings
def test_listing_tells_each_name_once(volume: MetaEngine, other: MetaEngine) -> None:
    count = 10_500

    def create(first: int) -> Callable[[Tx], None]:
        def body(tx: Tx) -> None:
            for number in range(first, first + 1500):
                ino = Inode(1000 + number)
                tx.make_inode(ino, FILE.with_(length=number))
                tx.set_entry(ROOT, b"%d" % number, Entry(ino, Kind.FILE))

        return body

    for first in range(0, count, 1500):
        do(volume, create(first))
    expected = {b"%d" % number: 1000 + number for number in range(count)}
    assert Counter(entry.name for entry in names(other)) == dict.fromkeys(expected, 1)
    pages = 0
    seen: Counter[bytes] = Counter()
    for page in other.list_dir(ROOT, with_attrs=True):
        pages += 1
        assert 0 < len(page) <= 5000
        for entry in page:
            assert entry.attr is not None
            assert entry.attr.length == entry.ino - 1000 == int(entry.name)
            seen[entry.name] += 1
        if pages == 2:  # changes meanwhile touch nobody else
            do(volume, lambda tx: [tx.drop_entry(ROOT, b"%d" % n) for n in range(0, 2000, 2)])
            add_file(volume, b"zzz", FILE.with_(length=10_500), ino=11_500)
            do(volume, lambda tx: tx.drop_entry(ROOT, b"zzz"))
    assert pages > 2
    kept = [name for name in expected if int(name) >= 2000 or int(name) % 2]
    assert all(seen[name] == 1 for name in kept)
    assert max(seen.values()) == 1
    assert len(names(volume)) == count - 1000


def test_listing_without_attrs_has_none(volume: MetaEngine) -> None:
    ino, sub = add_file(volume, b"f"), add_file(volume, b"d", DIR)
    found = sorted(names(volume), key=lambda entry: entry.name)
    assert found == [DirEntry(b"d", sub, Kind.DIR), DirEntry(b"f", ino, Kind.FILE)]
    assert names(volume, sub) == []
    assert names(volume, Inode(999)) == []


def test_listing_of_a_name_whose_inode_is_missing(volume: MetaEngine) -> None:
    do(volume, lambda tx: tx.set_entry(ROOT, b"lost", Entry(Inode(77), Kind.FILE)))
    assert names(volume, with_attrs=True) == [DirEntry(b"lost", Inode(77), Kind.FILE, None)]
    assert volume.lookup(ROOT, b"lost") == (Entry(Inode(77), Kind.FILE), None)


# -- symlinks, xattrs, parents
def test_link_targets_are_bytes(volume: MetaEngine) -> None:
    target = b"\xff/" + b"t" * 4090
    do(volume, lambda tx: tx.set_link(Inode(5), target))
    assert volume.read(lambda tx: tx.link_target(Inode(5))) == target
    assert volume.transact(lambda tx: tx.link_target(Inode(6)))[0] is None
    do(volume, lambda tx: tx.drop_link(Inode(5)))
    assert volume.read(lambda tx: tx.link_target(Inode(5))) is None


def test_xattrs_are_set_replaced_and_dropped(volume: MetaEngine, other: MetaEngine) -> None:
    value = bytes(range(256)) * 200
    do(volume, lambda tx: (tx.set_xattr(ROOT, b"user.a", value), tx.set_xattr(ROOT, b"b", b"")))
    assert other.read(lambda tx: tx.xattr(ROOT, b"user.a")) == value
    assert other.read(lambda tx: tx.xattr(ROOT, b"b")) == b""
    assert other.read(lambda tx: tx.xattr(ROOT, b"c")) is None
    assert sorted(other.read(lambda tx: tx.xattr_names(ROOT))) == [b"b", b"user.a"]

    def change(tx: Tx) -> None:
        assert tx.xattr(ROOT, b"user.a") == value
        assert tx.xattr(ROOT, b"c") is None
        tx.set_xattr(ROOT, b"user.a", b"new")
        tx.set_xattr(ROOT, b"c", b"\0")
        tx.drop_xattr(ROOT, b"b")
        assert tx.xattr(ROOT, b"user.a") == b"new"

    do(other, change)
    assert volume.read(lambda tx: tx.xattr(ROOT, b"user.a")) == b"new"
    assert sorted(volume.read(lambda tx: tx.xattr_names(ROOT))) == [b"c", b"user.a"]
    do(volume, lambda tx: tx.set_xattr(ROOT, b"c", b"unread"))
    assert volume.read(lambda tx: tx.xattr(ROOT, b"c")) == b"unread"
    do(volume, lambda tx: tx.drop_xattrs(ROOT))
    assert volume.read(lambda tx: tx.xattr_names(ROOT)) == ()


def test_parents_of_a_hard_linked_file(volume: MetaEngine, other: MetaEngine) -> None:
    sub = add_file(volume, b"d", DIR)
    ino = add_file(volume, b"f")

    def link(parent: Inode, name: bytes) -> Callable[[Tx], None]:
        def body(tx: Tx) -> None:
            attr = need(tx.attr(ino))
            if attr.parent:
                tx.count_parent(ino, attr.parent, 1)
            tx.count_parent(ino, parent, 1)
            tx.set_attr(ino, attr.with_(parent=Inode(0), nlink=attr.nlink + 1))
            tx.set_entry(parent, name, Entry(ino, Kind.FILE))

        return body

    do(volume, link(sub, b"1"))
    do(other, link(sub, b"2"))
    assert volume.read(lambda tx: tx.parents(ino)) == {ROOT: 1, sub: 2}

    def unlink(tx: Tx) -> None:
        attr = need(tx.attr(ino))
        assert tx.parents(ino) == {ROOT: 1, sub: 2}
        tx.set_attr(ino, attr.with_(nlink=2))
        tx.count_parent(ino, ROOT, -1)
        tx.drop_entry(ROOT, b"f")
        assert tx.parents(ino) == {sub: 2}

    do(other, unlink)
    assert volume.read(lambda tx: tx.parents(ino)) == {sub: 2}
    assert volume.read(lambda tx: tx.parents(Inode(999))) == {}


# -- chunks and slices
def test_appends_tell_the_number_of_slices(volume: MetaEngine, other: MetaEngine) -> None:
    ino = Inode(5)
    assert do(volume, lambda tx: tx.append(ino, 0, piece(1))).chunks == {(ino, 0): 1}
    told = do(
        other, lambda tx: (tx.append(ino, 0, piece(2), piece(3)), tx.append(ino, 7, piece(4)))
    )
    assert told.chunks == {(ino, 0): 3, (ino, 7): 1}
    assert volume.slices(ino, 0) == (piece(1), piece(2), piece(3))
    assert volume.read(lambda tx: tx.slices(ino, 7)) == (piece(4),)
    assert volume.slices(ino, 1) == ()
    assert volume.chunk_indexes(ino, 8 << 26) == [0, 7]
    assert sorted(volume.scan_chunks()) == [(ino, 0, volume.slices(ino, 0)), (ino, 7, (piece(4),))]


def test_append_to_existing_lists_only(volume: MetaEngine) -> None:
    ino, hole = Inode(5), Slice(0, SliceId(0), 0, 0, 1 << 26)
    do(volume, lambda tx: tx.append(ino, 2, piece(1)))

    def body(tx: Tx) -> None:
        for index in range(20):
            tx.append(ino, index, hole, only_existing=True)

    assert do(volume, body).chunks == {(ino, 2): 2}
    assert volume.slices(ino, 2) == (piece(1), hole)
    assert volume.chunk_indexes(ino, 20 << 26) == [2]


def test_slice_records_keep_64_bits(volume: MetaEngine) -> None:
    big = Slice(2**26 - 1, SliceId(2**62 + 3), 2**26, 2**26 - 1, 1)
    do(volume, lambda tx: tx.append(Inode(5), 2**31 - 1, big))
    assert volume.slices(Inode(5), 2**31 - 1) == (big,)


def test_replace_keeps_what_was_appended_later(volume: MetaEngine, other: MetaEngine) -> None:
    ino = Inode(5)
    do(volume, lambda tx: tx.append(ino, 0, piece(1), piece(2)))
    seen = volume.slices(ino, 0)
    do(other, lambda tx: tx.append(ino, 0, piece(3)))
    do(volume, lambda tx: tx.replace_slices(ino, 0, seen, (piece(9),)))
    assert other.slices(ino, 0) == (piece(9), piece(3))


def test_replace_of_other_slices_is_a_conflict(engine_url: str) -> None:
    """Not on mem, which runs one transaction at a time."""
    volume = open_engine(engine_url)
    volume.init(SETTING, DIR, None)
    ino, runs = Inode(5), 0
    do(volume, lambda tx: tx.append(ino, 0, piece(1)))

    def body(tx: Tx) -> None:
        nonlocal runs
        runs += 1
        if runs > 1:
            raise OSError(errno.ENOENT, "changed")
        tx.replace_slices(ino, 0, (piece(2),), (piece(9),))

    with pytest.raises(FileNotFoundError):
        volume.transact(body)
    assert volume.slices(ino, 0) == (piece(1),)
    volume.close()


def test_drop_chunk_tells_what_it_held(volume: MetaEngine) -> None:
    ino = Inode(5)
    do(volume, lambda tx: tx.append(ino, 0, piece(1), piece(2)))
    held, _ = volume.transact(lambda tx: tx.drop_chunk(ino, 0))
    assert held == (piece(1), piece(2))
    assert volume.slices(ino, 0) == ()
    assert volume.chunk_indexes(ino, 1 << 26) == []
    assert volume.transact(lambda tx: tx.drop_chunk(ino, 0))[0] == ()


def test_references_are_counted(volume: MetaEngine, other: MetaEngine) -> None:
    a, b, c = (SliceId(1), 10), (SliceId(2), 20), (SliceId(3), 30)
    do(volume, lambda tx: [tx.made_slice(ref) for ref in (a, b, c)])
    assert do(volume, lambda tx: (tx.count_ref(a, 2), tx.count_ref(b, -1))).refs == {a: 3, b: 0}
    assert do(other, lambda tx: (tx.count_ref(a, -1), tx.count_ref(a, -1))).refs == {a: 1}
    assert other.unreferenced(10) == [b]
    counts = dict(volume.scan_refs())
    assert counts.get(a, 1) == counts.get(c, 1) == 1
    assert counts[b] == 0
    other.forget_slice(b)
    other.forget_slice(c)  # it is in use: stays
    assert volume.unreferenced(10) == []
    assert do(volume, lambda tx: tx.count_ref(c, -1)).refs == {c: 0}


def test_slice_without_a_record_has_one_reference(volume: MetaEngine) -> None:
    ref = (SliceId(8), 80)
    assert do(volume, lambda tx: tx.count_ref(ref, -1)).refs == {ref: 0}
    assert volume.unreferenced(10) == [ref]


def test_references_of_many_slices(volume: MetaEngine) -> None:
    refs = [(SliceId(100 + number), 10) for number in range(700)]
    do(volume, lambda tx: [tx.made_slice(ref) for ref in refs])
    told = do(volume, lambda tx: [tx.count_ref(ref, -1) for ref in refs])
    assert told.refs == dict.fromkeys(refs, 0)
    assert len(volume.unreferenced(5)) == 5
    assert sorted(volume.unreferenced(1000)) == refs


# -- leftovers
def test_deleted_files_wait_for_their_end(volume: MetaEngine, other: MetaEngine) -> None:
    do(volume, lambda tx: (tx.delete_file(Inode(5), 50, 1000), tx.delete_file(Inode(6), 60, 2000)))
    assert other.deleted_files(1500, 10) == [DeletedFile(Inode(5), 50, 1000)]
    assert len(other.deleted_files(3000, 10)) == 2
    assert len(other.deleted_files(3000, 1)) == 1
    do(other, lambda tx: tx.delete_done(Inode(5), 50))
    assert volume.deleted_files(3000, 10) == [DeletedFile(Inode(6), 60, 2000)]


def test_delayed_slices_are_dropped_by_one_client_only(
    volume: MetaEngine, other: MetaEngine
) -> None:
    refs = ((SliceId(1), 10), (SliceId(2), 20))
    do(volume, lambda tx: [tx.made_slice(ref) for ref in refs])
    do(volume, lambda tx: tx.delay_slices(SliceId(7), 1000, refs))
    assert other.delayed_slices(900, 10) == []
    assert other.delayed_slices(1100, 10) == [DelayedSlices(SliceId(7), 1000, refs)]

    def release(tx: Tx) -> None:
        tx.drop_delayed(SliceId(7), 1000)
        for ref in refs:
            tx.count_ref(ref, -1)

    assert do(other, release).refs == dict.fromkeys(refs, 0)
    assert volume.delayed_slices(1100, 10) == []
    with pytest.raises(FileNotFoundError):
        volume.transact(release)
    assert dict(volume.scan_refs()) == dict.fromkeys(refs, 0)


def test_sustained_inodes_belong_to_a_session(volume: MetaEngine, other: MetaEngine) -> None:
    sid = volume.new_session(1000, lambda sid: b"record %d" % sid)
    do(volume, lambda tx: (tx.sustain(sid, Inode(5), on=True), tx.sustain(sid, Inode(6), on=True)))
    do(volume, lambda tx: tx.sustain(sid, Inode(5), on=True))
    assert sorted(other.sustained(sid)) == [5, 6]
    assert other.sustained(SessionId(sid + 1)) == []
    do(other, lambda tx: tx.sustain(sid, Inode(5), on=False))
    assert volume.sustained(sid) == [6]


# -- sessions and locks
def test_sessions_are_recorded_refreshed_and_dropped(volume: MetaEngine, other: MetaEngine) -> None:
    first = volume.new_session(1000, lambda sid: b'{"sid": %d}' % sid)
    second = other.new_session(2000, lambda sid: b"2")
    assert second == first + 1 >= 2
    found = {one.sid: (one.expire_s, one.record) for one in volume.sessions()}
    assert found == {first: (1000, b'{"sid": %d}' % first), second: (2000, b"2")}
    assert other.refresh_session(second, 3000, b"2")
    assert other.refresh_session(second, 3000, b"2"), "within one second"
    other.drop_session(first)
    assert [(one.sid, one.expire_s) for one in volume.sessions()] == [(second, 3000)]
    assert not volume.refresh_session(first, 4000, b"back")
    assert {one.sid: one.record for one in other.sessions()} == {first: b"back", second: b"2"}


@pytest.mark.parametrize("posix", [False, True], ids=["flock", "posix"])
def test_locks_are_kept_by_owner(volume: MetaEngine, other: MetaEngine, posix: bool) -> None:
    ino = add_file(volume, b"f")
    old, new = (b"\1" * 24, b"\2" * 48) if posix else (b"R", b"W")
    mine, high, theirs = (SessionId(1), 7), (SessionId(1), 2**64 - 5), (SessionId(2), 7)
    for owner in (mine, high, theirs):
        do(volume, lambda tx, owner=owner: tx.set_lock(ino, owner, old, posix=posix))
    assert other.read(lambda tx: tx.locks(ino, posix=posix)) == dict.fromkeys(
        (mine, high, theirs), old
    )
    assert other.read(lambda tx: tx.locks(ino, posix=not posix)) == {}

    def change(tx: Tx) -> None:
        tx.fetch(("attr", ino), ("locks", ino, posix))
        assert len(tx.locks(ino, posix=posix)) == 3
        tx.set_lock(ino, mine, new, posix=posix)
        tx.set_lock(ino, theirs, None, posix=posix)

    do(other, change)
    held = {(where, kind, lock.sid, lock.owner, lock.value) for where, kind, lock in
            volume.session_locks(SessionId(1))}  # fmt: skip
    assert held == {(ino, posix, 1, 7, new), (ino, posix, 1, 2**64 - 5, old)}
    assert volume.session_locks(SessionId(2)) == []
    volume.release_locks(SessionId(1))
    assert other.read(lambda tx: tx.locks(ino, posix=posix)) == {}


# -- ACL rules
def test_equal_acl_rules_share_an_id(volume: MetaEngine, other: MetaEngine) -> None:
    plain = AclRule(owner=6, group=4, other=0)
    named = AclRule(6, 0, 7, 0, ((1001, 7), (2**32 - 2, 1)), ((5, 4),))
    first, _ = volume.transact(lambda tx: tx.save_acl(plain))
    second, _ = other.transact(lambda tx: tx.save_acl(named))
    assert 0 < first != second > 0
    assert other.transact(lambda tx: tx.save_acl(plain))[0] == first
    assert volume.transact(lambda tx: tx.save_acl(named))[0] == second
    assert volume.read(lambda tx: tx.acl(second)) == named
    assert other.transact(lambda tx: tx.acl(first))[0] == plain
    assert volume.read(lambda tx: tx.acl(9999)) is None


# -- usage, counters
def test_usage_of_a_client_counts_at_once_and_after_flush_for_all(
    volume: MetaEngine, other: MetaEngine
) -> None:
    do(volume, lambda tx: tx.use(space=8192, inodes=2))
    do(volume, lambda tx: tx.use(space=-4096, inodes=-1))
    do(other, lambda tx: tx.use(space=4096))
    assert volume.counter("totalInodes") == 1
    volume.flush()
    other.flush()
    volume.flush()
    for engine in (volume, other):
        assert engine.counter("usedSpace") == 8192
        assert engine.counter("totalInodes") == 1


def test_ids_are_given_once(volume: MetaEngine, other: MetaEngine) -> None:
    for allocate in ("allocate_inodes", "allocate_slices"):
        given: list[int] = []
        for engine in (volume, other, volume):
            batch = getattr(engine, allocate)(1000)
            assert 998 <= len(batch) <= 1000  # the first may lack ids that are never used
            given += batch
        assert len(set(given)) == len(given)
        assert min(given) >= (2 if allocate == "allocate_inodes" else 1)
        assert ROOT not in given or allocate == "allocate_slices"


def test_trash_numbers_count_from_one(volume: MetaEngine, other: MetaEngine) -> None:
    assert [volume.next_trash(), other.next_trash(), volume.next_trash()] == [1, 2, 3]
    assert volume.counter("nextTrash") == 3


def test_absent_counter_is_zero(volume: MetaEngine) -> None:
    assert volume.counter("lastCleanupTrash") == 0


def test_set_if_small_is_won_once(volume: MetaEngine, other: MetaEngine) -> None:
    assert volume.set_if_small("lastCleanupFiles", 1000, 100)
    assert not other.set_if_small("lastCleanupFiles", 1099, 100)
    assert other.set_if_small("lastCleanupFiles", 1100, 100)
    assert volume.counter("lastCleanupFiles") == 1100


# -- directory statistics and quotas
def test_directory_statistics(volume: MetaEngine, other: MetaEngine) -> None:
    a, b, c = Inode(5), Inode(6), Inode(7)
    do(volume, lambda tx: tx.make_stats(a))
    assert other.dir_stats(a) == DirStats(0, 0, 0)
    assert other.dir_stats(b) is None
    other.set_dir_stats(c, DirStats(1, 4096, 1))
    other.set_dir_stats(c, DirStats(2, 8192, 2))
    deltas = {a: DirStats(10, 4096, 1), b: DirStats(1, 1, 1), c: DirStats(0, -9000, 0)}
    assert sorted(volume.add_dir_stats(deltas)) == [b, c]
    assert other.dir_stats(a) == DirStats(10, 4096, 1)
    assert other.dir_stats(b) is None
    assert volume.add_dir_stats({}) == []
    do(other, lambda tx: tx.drop_directory_records(a))
    assert volume.dir_stats(a) is None
    volume.reset_dir_stats()
    assert other.dir_stats(c) is None


def test_directory_quotas(volume: MetaEngine, other: MetaEngine) -> None:
    quota = Quota(1 << 40, -1, 4096, 1)
    volume.set_dir_quota(Inode(5), quota)
    volume.set_dir_quota(Inode(6), Quota(0, 10))
    assert other.dir_quotas() == {5: quota, 6: Quota(0, 10)}
    other.add_dir_quotas({Inode(5): (4096, 1), Inode(6): (-1, -1)})
    other.add_dir_quotas({Inode(5): (4096, 1)})
    assert volume.dir_quotas() == {5: Quota(1 << 40, -1, 12288, 3), 6: Quota(0, 10, -1, -1)}
    volume.set_dir_quota(Inode(6), None)
    do(volume, lambda tx: tx.drop_directory_records(Inode(5)))
    assert other.dir_quotas() == {}


def test_user_and_group_usage(volume: MetaEngine, other: MetaEngine) -> None:
    volume.add_user_group_usage({0: (4096, 1), 1001: (8192, 2)}, {5: (4096, 1)})
    other.add_user_group_usage({1001: (-4096, -1)}, {})
    users, groups = volume.user_group_quotas()
    assert {uid: (q.used_space, q.used_inodes) for uid, q in users.items()} == {
        0: (4096, 1),
        1001: (4096, 1),
    }
    assert groups.keys() == {5}
    assert all(q.max_space <= 0 and q.max_inodes <= 0 for q in [*users.values(), *groups.values()])


# -- what a transaction is
def test_body_that_raises_stores_nothing(volume: MetaEngine) -> None:
    class Stop(Exception):
        pass

    def body(tx: Tx) -> None:
        tx.fetch(("attr", ROOT), ("entry", ROOT, b"x"))
        tx.make_inode(Inode(5), FILE)
        tx.set_entry(ROOT, b"x", Entry(Inode(5), Kind.FILE))
        tx.touch(ROOT, nlink=1)
        tx.use(space=4096, inodes=1)
        tx.save_acl(AclRule(owner=7, mask=1))
        raise Stop

    with pytest.raises(Stop):
        volume.transact(body)
    assert volume.attr(ROOT) == DIR
    assert volume.attr(Inode(5)) is None
    assert names(volume) == []
    assert volume.counter("usedSpace") == 0
    add_file(volume, b"x")  # and nothing stays locked


def test_posix_errors_of_a_body_pass_through(volume: MetaEngine) -> None:
    def body(tx: Tx) -> None:
        need(tx.attr(ROOT))
        raise FileExistsError(errno.EEXIST, "there", "x")

    for run in (volume.transact, volume.read):
        with pytest.raises(FileExistsError) as caught:
            run(body)
        assert caught.value.errno == errno.EEXIST


def test_transaction_sees_its_own_writes(volume: MetaEngine) -> None:
    def body(tx: Tx) -> None:
        assert tx.attr(Inode(5)) is None
        tx.make_inode(Inode(5), FILE)
        assert tx.attr(Inode(5)) == FILE
        tx.set_entry(ROOT, b"n", Entry(Inode(5), Kind.FILE))
        assert tx.entry(ROOT, b"n") == Entry(Inode(5), Kind.FILE)
        tx.drop_entry(ROOT, b"n")
        assert tx.entry(ROOT, b"n") is None

    do(volume, body)
    assert volume.attr(Inode(5)) == FILE
    assert names(volume) == []


def test_transaction_without_writes_returns_its_result(volume: MetaEngine) -> None:
    assert volume.transact(lambda tx: 42) == (42, Committed())
    assert volume.read(lambda tx: tx.directory(ROOT)) == DIR
