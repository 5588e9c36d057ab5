"""POSIX ACLs in the kernel's form, and what they decide."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from juicepy.meta import acl
from juicepy.types import AclRule, Attr, Cred, Kind

perms = st.integers(0, 7)
named = st.lists(st.tuples(st.integers(0, 1 << 31), perms), max_size=4).map(tuple)


@given(perms, perms, perms, perms, named, named)
def test_xattr_form_is_reversible(
    owner: int,
    group: int,
    mask: int,
    other: int,
    users: tuple[tuple[int, int], ...],
    groups: tuple[tuple[int, int], ...],
) -> None:
    rule = AclRule(owner, group, mask, other, users, groups)
    assert acl.from_xattr(acl.to_xattr(rule)) == rule


@pytest.mark.parametrize(
    "value",
    [
        b"\1",
        b"\1\0\0\0",
        b"\2\0\0\0\1\0\7",
        acl.to_xattr(AclRule(7, 7, 7, 7)) + b"\1\0\7\0\xff\xff\xff\xff",
        b"\2\0\0\0" + b"\2\0\7\0\1\0\0\0",
    ],
)
def test_malformed_xattr_is_invalid(value: bytes) -> None:
    with pytest.raises(OSError, check=lambda error: error.errno == errno.EINVAL):
        acl.from_xattr(value)


def test_chmod_sets_the_mask_where_there_is_one() -> None:
    rule = AclRule(7, 5, 7, 0, ((1, 7),))
    assert acl.chmodded(rule, 0o640) == AclRule(6, 5, 4, 0, ((1, 7),))
    assert acl.chmodded(AclRule(7, 5), 0o640) == AclRule(6, 4, 0xFFFF, 0)


def test_minimal_rule_is_mode_bits() -> None:
    rule = AclRule(6, 4, 0xFFFF, 0)
    assert acl.is_minimal(rule)
    assert acl.mode_of(rule, 0o1777) == 0o1640


def test_one_matching_group_must_grant_all() -> None:
    attr = Attr(Kind.FILE, 0o070, uid=1, gid=10)
    rule = AclRule(0, 4, 7, 7, (), ((20, 2),))
    both = Cred(5, 10, (20,))
    assert acl.allows(attr, rule, both, 4)
    assert acl.allows(attr, rule, both, 2)
    assert not acl.allows(attr, rule, both, 6)
    assert acl.allows(attr, rule, Cred(5, 99), 7)
