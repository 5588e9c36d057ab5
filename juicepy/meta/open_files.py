"""Which inodes this session has open, and which of them have lost their last name."""

from __future__ import annotations

from collections.abc import Iterable

from juicepy.concurrency import Lock
from juicepy.types import Inode


class OpenFiles:
    """Counts of opens per inode. Thread-safe.

    `unlinked` and `closed` return the inodes that are now without name and handle: exactly one of
    the two does for each, however they race.
    """

    def __init__(self) -> None:
        self._lock = Lock("open_files")  # guards all
        self._opens: dict[Inode, int] = {}
        self._nameless: set[Inode] = set()
        self._linkable: set[Inode] = set()  # of _nameless: made so, and no name was given yet

    def opened(self, ino: Inode) -> None:
        with self._lock:
            self._opens[ino] = self._opens.get(ino, 0) + 1

    def closed(self, ino: Inode) -> bool:
        """One handle less; True if the inode has to be released now."""
        with self._lock:
            left = self._opens.get(ino, 0) - 1
            if left > 0:
                self._opens[ino] = left
                return False
            self._opens.pop(ino, None)
            self._linkable.discard(ino)
            if ino in self._nameless:
                self._nameless.discard(ino)
                return True
            return False

    def unlinked(self, inodes: Iterable[Inode]) -> list[Inode]:
        """These are sustained by now; those closed meanwhile are returned, to be released."""
        with self._lock:
            gone = []
            for ino in inodes:
                if ino in self._opens:
                    self._nameless.add(ino)
                else:
                    gone.append(ino)
            return gone

    def may_be_linked(self, ino: Inode) -> None:
        """The open file was made without a name, and may be given one."""
        with self._lock:
            self._linkable.add(ino)

    def is_linkable(self, ino: Inode) -> bool:
        return ino in self._linkable

    def linked(self, ino: Inode) -> None:
        """It has been given a name."""
        with self._lock:
            if ino in self._linkable:
                self._linkable.discard(ino)
                self._nameless.discard(ino)

    def nameless(self) -> set[Inode]:
        """Those that are open and have no name."""
        with self._lock:
            return set(self._nameless)

    def is_open(self, ino: Inode) -> bool:
        return ino in self._opens
