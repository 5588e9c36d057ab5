"""How long the kernel may believe what it is told of names and attributes.

Where the database tells of changes (`meta.engine.Tracked`) that is long: what another client has
changed is dropped here and in the kernel. Where it does not, the timeouts of the mount bound how
old a thing may look. Opens always ask, so what was closed elsewhere before is in what they see.
"""

from __future__ import annotations

import logging
from typing import Protocol, runtime_checkable

from juicepy.errors import Refused
from juicepy.meta.client import MetaClient
from juicepy.meta.engine import Changed, Tracked, TrackingCounts
from juicepy.types import ROOT, Attr, Cred, Inode, Kind
from juicepy.vfs.options import VfsOptions

logger = logging.getLogger(__name__)

ON, OFF = "on", "off"  # else "auto"
UNTRACKED_S = 1.0  # at most, in a mount that tracks


@runtime_checkable
class Expirer(Protocol):
    """A `Notifier` that can make the kernel look a name up again, without taking it from who
    works in that directory.
    """

    def inval_inode(self, ino: Inode, offset: int = 0, length: int = 0) -> None: ...
    def expire_entry(self, parent: Inode, name: bytes) -> None: ...


class Believed:
    """Lookups and attributes for the kernel, with their timeouts."""

    def __init__(self, meta: MetaClient, options: VfsOptions) -> None:
        self._meta, self._options = meta, options
        self._tracked: Tracked | None = None
        self._notifier: Expirer | None = None
        # of what nobody would tell a change of
        self.plain_attr_s = options.attr_cache_s
        self.negative_s = options.negative_entry_cache_s
        self._plain_entry_s = options.entry_cache_s
        self._plain_dir_entry_s = options.dir_entry_cache_s

    def begin(self, notifier: object) -> None:
        """The mount answers. Refused if tracking was asked for and there is none."""
        options = self._options
        if options.cache_tracking == OFF or 0 in (options.attr_cache_s, options.entry_cache_s):
            return
        reason = "neither this database nor this kernel can"
        if isinstance(notifier, Expirer):
            self._notifier = notifier
            try:
                self._tracked = self._meta.track(self._tell)
            except OSError as error:
                reason = str(error)
        if self._tracked is not None:
            self._shorten()
            logger.info("what the kernel caches is kept true by the database's word of changes")
        elif options.cache_tracking == ON:
            raise Refused(f"--cache-tracking on: {reason}")
        else:
            logger.debug("no tracking: %s", reason)

    def _shorten(self) -> None:
        """Hours are for what is tracked. Not everything is: what changes all the time, listings."""
        self.plain_attr_s = min(self.plain_attr_s, UNTRACKED_S)
        self.negative_s = min(self.negative_s, UNTRACKED_S)
        self._plain_entry_s = min(self._plain_entry_s, UNTRACKED_S)
        self._plain_dir_entry_s = min(self._plain_dir_entry_s, UNTRACKED_S)

    @property
    def counts(self) -> TrackingCounts:
        return TrackingCounts() if self._tracked is None else self._tracked.counts

    def lookup(self, cred: Cred, parent: Inode, name: bytes) -> tuple[Inode, Attr]:
        return self._meta.lookup(cred, parent, name, believed=True)

    def getattr(self, ino: Inode) -> Attr:
        return self._meta.getattr(ino, believed=True)

    def forget(self, ino: Inode) -> None:
        """It was not what its name leads to."""
        if self._tracked is not None:
            self._tracked.forget(ino)

    def attr_s(self, ino: Inode) -> float:
        tracked, options = self._tracked, self._options
        if tracked is not None and tracked.holds_attr(self._meta.stored(ino)):
            return options.tracked_attr_s
        return self.plain_attr_s

    def entry_s(self, kind: Kind, parent: Inode | None = None, name: bytes = b"") -> float:
        """Of a name; without one of something new."""
        tracked, options, is_dir = self._tracked, self._options, kind is Kind.DIR
        if (
            tracked is not None
            and parent is not None
            and tracked.holds_name(self._meta.stored(parent), name)
        ):
            return options.tracked_dir_entry_s if is_dir else options.tracked_entry_s
        return self._plain_dir_entry_s if is_dir else self._plain_entry_s

    def _tell(self, changed: Changed) -> None:
        notifier = self._notifier
        assert notifier is not None
        for parent, name in changed.names:
            notifier.expire_entry(self._kernels(parent), name)
        for ino in changed.inodes:
            notifier.inval_inode(self._kernels(ino), -1)

    def _kernels(self, ino: Inode) -> Inode:
        return ROOT if ino == self._meta.root else ino
