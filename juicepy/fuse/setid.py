"""Set-uid and set-gid bits, which changes of data or owner take away.

With HANDLE_KILLPRIV_V2 the kernel leaves this to us: it flags the requests whose caller may not
keep the bits (WRITE, OPEN with O_TRUNC, SETATTR of a size), and expects it of changes of owner.
Which of them go is decided in `meta/rules.py`.
"""

from __future__ import annotations

import stat
from dataclasses import replace

from juicepy.fuse import wire
from juicepy.fuse.kernel import KernelView
from juicepy.fuse.negotiate import Agreed
from juicepy.fuse.notify import KernelNotifier
from juicepy.meta import rules
from juicepy.types import KERNEL, Cred, Inode, SetAttr
from juicepy.vfs.api import Operations


class SetIdBits:
    """Drops the bits; asks for the mode only where the kernel may know of a file that has them."""

    def __init__(
        self, ops: Operations, agreed: Agreed, view: KernelView, notifier: KernelNotifier
    ) -> None:
        self._ops, self._view, self._notifier = ops, view, notifier
        self._is_ours = agreed.has(wire.HANDLE_KILLPRIV_V2)

    def drop(self, cred: Cred, ino: Inode) -> None:
        """`cred` changes the data and may not keep the bits."""
        if self._view.has_no_setid(ino):
            return
        attr, timeout_s = self._ops.getattr(KERNEL, ino, None)
        mode = rules.without_privileges(attr.mode, in_group=rules.belongs(cred, attr))
        if mode != attr.mode:
            self._set_mode(ino, mode)
        else:
            self._view.attr(ino, attr, timeout_s)  # remembers it

    def drop_for(self, cred: Cred, ino: Inode) -> None:
        """FALLOCATE and COPY_FILE_RANGE have no flag that tells it: only root keeps the bits."""
        if self._is_ours and not cred.is_root:
            self.drop(cred, ino)

    def dropped_by_chown(self, cred: Cred, ino: Inode, change: SetAttr) -> SetAttr:
        """`change`, a change of owner, with the mode that results."""
        if not self._is_ours or self._view.has_no_setid(ino):
            return change
        attr, _ = self._ops.getattr(cred, ino, None)
        mode = rules.without_privileges(attr.mode, in_group=rules.belongs(cred, attr))
        return change if attr.is_dir or mode == attr.mode else replace(change, mode=mode)

    def of_empty_chown(self, cred: Cred, ino: Inode) -> tuple[Cred, SetAttr]:
        """Who changes what by chown(-1, -1), which comes as a SETATTR of nothing.

        These bits, or only ctime, which everybody may. The same comes before a write by who may
        not keep the bits; so a stranger gets no error here, and nothing is done.
        """
        attr, _ = self._ops.getattr(KERNEL, ino, None)
        mode = rules.without_privileges(attr.mode, in_group=rules.belongs(cred, attr))
        if attr.is_dir or mode == attr.mode:
            return KERNEL, SetAttr(mode=attr.mode)
        return cred, SetAttr(mode=mode if cred.is_root or cred.uid == attr.uid else None)

    def drop_set_gid(self, ino: Inode) -> None:
        """An ACL was set by a caller outside the file's group."""
        attr, _ = self._ops.getattr(KERNEL, ino, None)
        if attr.mode & stat.S_ISGID:
            self._set_mode(ino, attr.mode & ~stat.S_ISGID)

    def _set_mode(self, ino: Inode, mode: int) -> None:
        attr, timeout_s = self._ops.setattr(KERNEL, ino, SetAttr(mode=mode), None, None)
        self._notifier.inval_attr_now(ino)
        self._view.attr(ino, attr, timeout_s)
