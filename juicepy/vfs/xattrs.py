"""Which extended attributes a mount lets through."""

from __future__ import annotations

import errno

from juicepy.errors import posix_error
from juicepy.vfs.options import VfsOptions

_ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
_CAPABILITY = b"security.capability"
_SELINUX = b"security.selinux"


class Policy:
    """Without `--enable-xattr` only ACLs pass, and those only on a volume that has them.

    ENOSYS tells the kernel not to ask again: else it would ask before every write.
    """

    def __init__(self, options: VfsOptions, *, has_acl: bool) -> None:
        self._enabled = options.enable_xattr
        self._has_acl = has_acl
        self._hidden = {
            name
            for name, shown in (
                (_CAPABILITY, options.enable_cap),
                (_SELINUX, options.enable_selinux),
            )
            if not shown
        }

    def check_read(self, name: bytes) -> None:
        if name in self._hidden and (self._enabled or self._has_acl):
            raise posix_error(errno.ENODATA, name)
        self._check(name)

    def check_write(self, name: bytes) -> None:
        if name in self._hidden and (self._enabled or self._has_acl):
            raise posix_error(errno.EOPNOTSUPP, name)
        self._check(name)

    def check_list(self) -> None:
        if not (self._enabled or self._has_acl):
            raise posix_error(errno.ENOSYS)

    def shown(self, names: list[bytes]) -> list[bytes]:
        return [
            name for name in names if name not in self._hidden and (self._enabled or name in _ACLS)
        ]

    def _check(self, name: bytes) -> None:
        if name in _ACLS:
            if not self._has_acl:
                raise posix_error(errno.EOPNOTSUPP if self._enabled else errno.ENOSYS, name)
        elif not self._enabled:
            raise posix_error(errno.EOPNOTSUPP if self._has_acl else errno.ENOSYS, name)
