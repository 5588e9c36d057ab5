from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from juicepy.vfs.options import VfsOptions
from juicepy.vfs.xattrs import Policy

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
