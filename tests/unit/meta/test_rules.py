"""POSIX decisions."""

from __future__ import annotations

import errno

import pytest

from juicepy.meta import rules
from juicepy.types import (
    APPEND,
    CHUNK_SIZE,
    IMMUTABLE,
    TRASH,
    AclRule,
    Attr,
    Cred,
    Inode,
    Kind,
    SetAttr,
)

ALICE = Cred(1001, 100, (200,))
BOB = Cred(1002, 100)
EVE = Cred(1003, 300)
ROOT_USER = Cred()


def directory(**fields: object) -> Attr:
    return Attr(Kind.DIR, 0o755, nlink=2, length=4096, parent=Inode(1)).with_(**fields)


def file(**fields: object) -> Attr:
    return Attr(Kind.FILE, 0o644, uid=1001, gid=100, parent=Inode(1)).with_(**fields)


def refused(code: int) -> pytest.RaisesExc[OSError]:
    return pytest.raises(OSError, check=lambda error: error.errno == code)


@pytest.mark.parametrize(
    ("mode", "cred", "want", "allowed"),
    [
        (0o400, ALICE, rules.READ, True),
        (0o400, BOB, rules.READ, False),
        (0o040, BOB, rules.READ, True),
        (0o040, ALICE, rules.READ, False),  # the owner's bits decide for the owner
        (0o004, EVE, rules.READ, True),
        (0o006, EVE, rules.READ | rules.WRITE, True),
        (0o000, ROOT_USER, rules.READ | rules.WRITE, True),
        (0o000, ROOT_USER, rules.EXEC, False),
        (0o001, ROOT_USER, rules.EXEC, True),
    ],
)
def test_mode_bits_decide_access(mode: int, cred: Cred, want: int, allowed: bool) -> None:
    if allowed:
        rules.check_access(file(mode=mode), cred, want)
    else:
        with refused(errno.EACCES):
            rules.check_access(file(mode=mode), cred, want)


def test_supplementary_group_counts() -> None:
    rules.check_access(file(uid=0, gid=200, mode=0o060), ALICE, rules.WRITE)


def test_acl_named_user_is_limited_by_mask() -> None:
    rule = AclRule(owner=7, group=0, mask=4, other=0, users=((1003, 7),))
    attr = file(mode=0o740)
    rules.check_access(attr, EVE, rules.READ, rule)
    with refused(errno.EACCES):
        rules.check_access(attr, EVE, rules.WRITE, rule)


@pytest.mark.parametrize("name", [b"", b"a/b", b"a\0b"])
def test_malformed_names_are_invalid(name: bytes) -> None:
    with refused(errno.EINVAL):
        rules.check_name(name)


def test_longest_name() -> None:
    rules.check_name(b"x" * 255)
    with refused(errno.ENAMETOOLONG):
        rules.check_name(b"x" * 256)


def test_nothing_is_added_in_the_trash() -> None:
    with refused(errno.ENOENT):
        rules.check_insert(Inode(TRASH + 1), directory())
    with refused(errno.ENOENT):
        rules.check_insert(Inode(7), directory(parent=Inode(TRASH + 1)))


def test_nothing_is_added_to_an_immutable_directory() -> None:
    with refused(errno.EPERM):
        rules.check_insert(Inode(1), directory(flags=IMMUTABLE))


def test_sticky_directory_protects_other_peoples_files() -> None:
    sticky = directory(mode=0o1777)
    rules.check_remove(Inode(1), sticky, file(), ALICE)
    rules.check_remove(Inode(1), sticky, file(), ROOT_USER)
    rules.check_remove(Inode(1), sticky.with_(uid=1002), file(), BOB)
    with refused(errno.EACCES):
        rules.check_remove(Inode(1), sticky, file(), BOB)


@pytest.mark.parametrize("flag", [IMMUTABLE, APPEND])
def test_flags_protect_a_file_even_from_root(flag: int) -> None:
    with refused(errno.EPERM):
        rules.check_remove(Inode(1), directory(), file(flags=flag), ROOT_USER)
    with refused(errno.EPERM):
        rules.check_resize(file(flags=flag), by_handle=True)
    with refused(errno.EPERM):
        rules.changed_attr(file(flags=flag), SetAttr(mode=0o600), ROOT_USER, 1)


def test_append_only_file_opens_for_appending() -> None:
    rules.check_write_open(file(flags=APPEND), appending=True, truncating=False)
    with refused(errno.EPERM):
        rules.check_write_open(file(flags=APPEND), appending=False, truncating=False)
    with refused(errno.EPERM):
        rules.check_write_open(file(flags=APPEND), appending=True, truncating=True)


@pytest.mark.parametrize(
    ("moved", "replaced", "is_empty", "code"),
    [
        (Kind.FILE, Kind.DIR, True, errno.EISDIR),
        (Kind.DIR, Kind.FILE, True, errno.ENOTDIR),
        (Kind.DIR, Kind.DIR, False, errno.ENOTEMPTY),
    ],
)
def test_what_cannot_be_replaced(moved: Kind, replaced: Kind, is_empty: bool, code: int) -> None:
    with refused(code):
        rules.check_replace(moved, replaced, is_empty=is_empty)


@pytest.mark.parametrize(
    "flags", [8, rules.NOREPLACE | rules.EXCHANGE, rules.WHITEOUT | rules.EXCHANGE]
)
def test_rename_flags_that_are_refused(flags: int) -> None:
    with refused(errno.EINVAL):
        rules.check_rename_flags(flags)


def test_new_file_takes_group_of_a_setgid_directory() -> None:
    parent = directory(mode=0o2775, gid=500)
    made, _ = rules.new_attr(
        Inode(1), parent, Kind.FILE, 0o666, ALICE, 1, umask=0o022, default=None
    )
    assert (made.gid, made.mode) == (500, 0o644)
    made, _ = rules.new_attr(Inode(1), parent, Kind.DIR, 0o777, ALICE, 1, umask=0o022, default=None)
    assert (made.gid, made.mode) == (500, 0o2755)


def test_stranger_to_the_group_loses_setgid_on_create() -> None:
    parent = directory(mode=0o2775, gid=500)
    made, _ = rules.new_attr(Inode(1), parent, Kind.FILE, 0o2775, ALICE, 1, umask=0, default=None)
    assert made.mode == 0o775


def test_default_acl_replaces_the_umask() -> None:
    default = AclRule(owner=7, group=5, mask=7, other=0, users=((1003, 6),))
    parent = directory(default_acl=3)
    made, rule = rules.new_attr(
        Inode(1), parent, Kind.DIR, 0o777, ALICE, 1, umask=0o077, default=default
    )
    assert made.mode == 0o770
    assert made.default_acl == 3
    assert rule == AclRule(owner=7, group=5, mask=7, other=0, users=((1003, 6),))


def test_chmod_by_a_stranger_is_refused() -> None:
    with refused(errno.EPERM):
        rules.changed_attr(file(), SetAttr(mode=0o777), BOB, 1)


def test_chmod_sets_ctime_even_without_a_change() -> None:
    old = file()
    new = rules.changed_attr(old, SetAttr(mode=old.mode), ALICE, 77)
    assert new.ctime_ns == 77


def test_chown_clears_set_user_id() -> None:
    new = rules.changed_attr(file(mode=0o6755), SetAttr(gid=200), ALICE, 1)
    assert (new.mode, new.gid) == (0o755, 200)


def test_chown_to_another_user_needs_root() -> None:
    with refused(errno.EPERM):
        rules.changed_attr(file(), SetAttr(uid=1002), ALICE, 1)
    assert rules.changed_attr(file(), SetAttr(uid=1002), ROOT_USER, 1).uid == 1002


def test_explicit_times_need_ownership() -> None:
    with refused(errno.EPERM):
        rules.changed_attr(file(), SetAttr(mtime_ns=5), BOB, 1)
    assert rules.changed_attr(file(), SetAttr(mtime_now=True), BOB, 9).mtime_ns == 9
    assert rules.needs_write_for_times(file(), SetAttr(mtime_now=True), BOB)


def test_only_root_sets_immutable() -> None:
    with refused(errno.EPERM):
        rules.changed_attr(file(), SetAttr(flags=IMMUTABLE), ALICE, 1)
    assert rules.changed_attr(file(), SetAttr(flags=IMMUTABLE), ROOT_USER, 1).flags == IMMUTABLE


def test_resize_within_a_chunk_is_one_hole() -> None:
    assert rules.resize_holes(100, 300, list) == [(0, rules.hole(100, 200), False)]
    assert rules.resize_holes(300, 100, list) == [(0, rules.hole(100, 200), False)]
    assert rules.resize_holes(100, 100, list) == []


def test_resize_over_chunks_follows_the_trace_of_the_spec() -> None:
    mib = 1 << 20
    assert rules.resize_holes(3, 200 * mib, list) == [
        (0, rules.hole(3, CHUNK_SIZE - 3), False),
        (1, rules.hole(0, CHUNK_SIZE), True),
        (2, rules.hole(0, CHUNK_SIZE), True),
        (3, rules.hole(0, 8 * mib), False),
    ]


def test_resize_of_a_huge_sparse_file_touches_only_its_chunks() -> None:
    pebi = 1 << 50
    holes = rules.resize_holes(10, pebi, lambda: [0, 7, 99])
    assert [index for index, _, _ in holes] == [0, 7, 99]
    punched = rules.range_holes(0, pebi, lambda: [3, 1 << 23])
    assert [index for index, _ in punched] == [3, 1 << 23]


def test_punched_range_is_split_at_chunk_borders() -> None:
    assert rules.range_holes(CHUNK_SIZE - 10, CHUNK_SIZE + 5, list) == [
        (0, rules.hole(CHUNK_SIZE - 10, 10)),
        (1, rules.hole(0, 5)),
    ]


@pytest.mark.parametrize(
    ("mode", "code"),
    [(0x8, errno.EOPNOTSUPP), (0x20, errno.EOPNOTSUPP), (0x2, errno.EOPNOTSUPP)],
)
def test_fallocate_modes_that_are_refused(mode: int, code: int) -> None:
    with refused(code):
        rules.check_fallocate(mode, 0, 1)


def test_trash_name_is_cut_at_255_bytes() -> None:
    assert rules.trash_name(Inode(10), Inode(12), b"w") == b"10-12-w"
    assert len(rules.trash_name(Inode(10), Inode(12), b"x" * 255)) == 255


@pytest.mark.parametrize(
    ("mode", "atime", "mtime", "expected"),
    [
        ("noatime", 0, 10, False),
        ("relatime", 5, 10, True),
        ("relatime", 15, 10, False),
        ("strictatime", 0, 0, True),
    ],
)
def test_when_reading_sets_atime(mode: str, atime: int, mtime: int, expected: bool) -> None:
    second = 10**9
    attr = file(atime_ns=atime * second, mtime_ns=mtime * second, ctime_ns=mtime * second)
    assert rules.wants_atime(attr, mode, 20 * second) is expected


@pytest.mark.parametrize(
    ("name", "code"),
    [
        (b"", errno.ERANGE),
        (b"user." + b"n" * 251, errno.ERANGE),
        (b"user.", errno.EINVAL),
        (b"unknown.name", errno.EOPNOTSUPP),
    ],
)
def test_names_of_attributes_that_are_refused(name: bytes, code: int) -> None:
    with refused(code):
        rules.check_xattr(name)
