"""Names that the kernel still believes in, though another client has removed or replaced them.

With the trash on, the file such a name had can still be opened, and would show its old content
where a new file has taken the name. An OPEN tells only the inode, so a file in the trash is refused
at first (ESTALE): the kernel then looks the whole path up again and opens what it finds. It gets
the file if that path led through the trash, or if no name led to it (a descriptor of a process,
opened anew by way of /proc), in which case the same thread asks for it once more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from juicepy.concurrency import Lock
from juicepy.types import TRASH, Attr, Cred, Inode

_REMEMBERED = 10_000


class StaleNames:
    """Thread-safe. What it forgets is asked for again."""

    def __init__(self) -> None:
        self._lock = Lock("stale_names")  # guards both
        self._in_trash: OrderedDict[Hashable, None] = OrderedDict()
        self._refused: OrderedDict[Hashable, None] = OrderedDict()

    def found(self, ino: Inode) -> None:
        """A lookup in a directory of the trash has led to the inode."""
        with self._lock:
            _remember(self._in_trash, ino)

    def is_hidden(self, ino: Inode, attr: Attr) -> bool:
        """Whether the inode is in the trash, and no lookup there has led to it."""
        return attr.parent > TRASH and ino not in self._in_trash

    def is_doubtful(self, cred: Cred, ino: Inode, attr: Attr) -> bool:
        """Whether to refuse the open of this inode, for the kernel to look again."""
        if not self.is_hidden(ino, attr):
            return False
        with self._lock:
            if (ino, cred.pid) in self._refused:
                del self._refused[ino, cred.pid]
                return False
            _remember(self._refused, (ino, cred.pid))
            return True


def _remember(where: OrderedDict[Hashable, None], what: Hashable) -> None:
    where[what] = None
    where.move_to_end(what)
    if len(where) > _REMEMBERED:
        where.popitem(last=False)
