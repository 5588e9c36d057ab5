"""Which extended attributes a mount lets through, and what it knows of them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from juicepy.errors import posix_error
from juicepy.meta.client import MetaClient
from juicepy.types import Cred, Inode
from juicepy.vfs.options import VfsOptions
from juicepy.vfs.recent import Recent

_ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")
_CAPABILITY = b"security.capability"
_SELINUX = b"security.selinux"


LONGEST_S = 1.0  # nobody tells of their changes, however long the kernel may keep the rest


class Xattrs:
    """Extended attributes of files. The kernel keeps none, so they are kept here: as long as it
    keeps other attributes, at most `LONGEST_S`, but for ACLs, which change with those.
    """

    def __init__(self, meta: MetaClient, options: VfsOptions) -> None:
        self._meta = meta
        self._policy = Policy(options, has_acl=meta.format.enable_acl)
        keep_s = min(options.attr_cache_s, LONGEST_S)
        self._values: Recent[tuple[Inode, bytes], bytes | None] = Recent(keep_s)
        self._names: Recent[Inode, list[bytes]] = Recent(keep_s)

    def get(self, cred: Cred, ino: Inode, name: bytes) -> bytes:
        self._policy.check_read(name)
        if name in _ACLS:
            return self._meta.getxattr(cred, ino, name)
        value = self._values.get((ino, name), lambda: self._read(cred, ino, name))
        if value is None:
            raise posix_error(errno.ENODATA, name)
        return value

    def names(self, cred: Cred, ino: Inode) -> list[bytes]:
        self._policy.check_list()
        return self._names.get(ino, lambda: self._policy.shown(self._meta.listxattr(cred, ino)))

    def set(self, cred: Cred, ino: Inode, name: bytes, value: bytes, flags: int) -> None:
        self._policy.check_write(name)
        with self._changing(ino, name):
            self._meta.setxattr(cred, ino, name, value, flags)

    def remove(self, cred: Cred, ino: Inode, name: bytes) -> None:
        self._policy.check_write(name)
        with self._changing(ino, name):
            self._meta.removexattr(cred, ino, name)

    def _read(self, cred: Cred, ino: Inode, name: bytes) -> bytes | None:
        try:
            return self._meta.getxattr(cred, ino, name)
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise
            return None

    @contextmanager
    def _changing(self, ino: Inode, name: bytes) -> Iterator[None]:
        try:
            yield
        finally:  # also where it failed: it may have been stored all the same
            self._values.forget((ino, name))
            self._names.forget(ino)


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
