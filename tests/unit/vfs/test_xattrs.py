from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from juicepy.meta import acl
from juicepy.types import AclRule, SetAttr
from juicepy.vfs.options import VfsOptions
from juicepy.vfs.xattrs import Policy
from tests.unit.vfs.volumes import ME, create, new_volume, opened

ACL = b"system.posix_acl_access"
CAPABILITY = b"security.capability"


def code_of(work: Callable[[], object]) -> int:
    """The errno that `work` raises, 0 if it goes well."""
    try:
        work()
    except OSError as error:
        return error.errno or -1
    return 0


@pytest.mark.parametrize(
    ("enabled", "acl", "cap", "name", "reading", "writing"),
    [
        (False, False, False, b"user.a", errno.ENOSYS, errno.ENOSYS),
        (False, False, False, ACL, errno.ENOSYS, errno.ENOSYS),
        (False, False, False, CAPABILITY, errno.ENOSYS, errno.ENOSYS),
        (False, True, False, b"user.a", errno.EOPNOTSUPP, errno.EOPNOTSUPP),
        (False, True, False, ACL, 0, 0),
        (True, False, False, b"user.a", 0, 0),
        (True, False, False, ACL, errno.EOPNOTSUPP, errno.EOPNOTSUPP),
        (True, False, False, CAPABILITY, errno.ENODATA, errno.EOPNOTSUPP),
        (True, False, True, CAPABILITY, 0, 0),
        (True, True, False, ACL, 0, 0),
    ],
)
def test_names_pass_as_the_mount_was_told(
    enabled: bool, acl: bool, cap: bool, name: bytes, reading: int, writing: int
) -> None:
    policy = Policy(VfsOptions(enable_xattr=enabled, enable_cap=cap), has_acl=acl)
    assert code_of(lambda: policy.check_read(name)) == reading
    assert code_of(lambda: policy.check_write(name)) == writing


def test_hidden_names_are_not_listed() -> None:
    policy = Policy(VfsOptions(enable_xattr=True), has_acl=True)
    assert policy.shown([b"user.a", CAPABILITY, ACL]) == [b"user.a", ACL]
    only_acl = Policy(VfsOptions(), has_acl=True)
    assert only_acl.shown([b"user.a", ACL]) == [ACL]


def test_what_others_set_is_seen_when_attributes_are() -> None:
    url = new_volume()
    with (
        opened(url, enable_xattr=True, attr_cache_s=0.0) as vfs,
        opened(url, enable_xattr=True) as other,
    ):
        ino, _ = create(vfs, b"f")
        assert code_of(lambda: vfs.getxattr(ME, ino, b"user.a")) == errno.ENODATA
        other.setxattr(ME, ino, b"user.a", b"1", 0)
        assert vfs.getxattr(ME, ino, b"user.a") == b"1"
        assert vfs.listxattr(ME, ino) == [b"user.a"]


def test_attributes_are_asked_for_once_within_the_cache_time() -> None:
    url = new_volume()
    with (
        opened(url, enable_xattr=True, attr_cache_s=3600.0) as vfs,
        opened(url, enable_xattr=True) as other,
    ):
        ino, _ = create(vfs, b"f")
        vfs.setxattr(ME, ino, b"user.a", b"1", 0)
        assert code_of(lambda: vfs.getxattr(ME, ino, b"user.b")) == errno.ENODATA
        assert vfs.getxattr(ME, ino, b"user.a") == b"1"
        assert vfs.listxattr(ME, ino) == [b"user.a"]
        other.removexattr(ME, ino, b"user.a")
        other.setxattr(ME, ino, b"user.b", b"2", 0)
        assert vfs.getxattr(ME, ino, b"user.a") == b"1"
        assert vfs.listxattr(ME, ino) == [b"user.a"]
        assert code_of(lambda: vfs.getxattr(ME, ino, b"user.b")) == errno.ENODATA


def test_own_changes_of_attributes_are_seen_at_once() -> None:
    with opened(enable_xattr=True, attr_cache_s=3600.0) as vfs:
        ino, _ = create(vfs, b"f")
        assert code_of(lambda: vfs.getxattr(ME, ino, b"user.a")) == errno.ENODATA
        assert vfs.listxattr(ME, ino) == []
        for value in (b"1", b"2"):
            vfs.setxattr(ME, ino, b"user.a", value, 0)
            assert vfs.getxattr(ME, ino, b"user.a") == value
            assert vfs.listxattr(ME, ino) == [b"user.a"]
        vfs.removexattr(ME, ino, b"user.a")
        assert code_of(lambda: vfs.getxattr(ME, ino, b"user.a")) == errno.ENODATA
        assert vfs.listxattr(ME, ino) == []


def test_acls_follow_the_mode() -> None:
    with opened(new_volume(enable_acl=True), enable_xattr=True, attr_cache_s=3600.0) as vfs:
        ino, _ = create(vfs, b"f")
        rule = AclRule(6, 4, 4, 4, ((1000, 6),), ())
        vfs.setxattr(ME, ino, ACL, acl.to_xattr(rule), 0)
        assert vfs.getxattr(ME, ino, ACL) == acl.to_xattr(rule)
        vfs.setattr(ME, ino, SetAttr(mode=0o600), None, None)
        assert acl.from_xattr(vfs.getxattr(ME, ino, ACL)).mask == 0
