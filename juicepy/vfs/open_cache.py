"""`--open-cache`: what an open has told of a file, used again by later opens for some seconds."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from juicepy.concurrency import Lock
from juicepy.types import Attr, Inode, Slice

Views = Mapping[int, list[Slice]]  # chunk -> what is seen of its slices


@dataclass(slots=True)
class _Known:
    attr: Attr
    until_s: float
    views: Views = field(default_factory=dict)


class OpenCache:
    """Attributes and chunks of files, as many as `limit` says (0: all). Thread-safe.

    What is known ends `keep_s` seconds after the metadata told it; with 0 nothing is kept.
    """

    def __init__(
        self, keep_s: float = 0.0, limit: int = 10000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keep_s, self._limit, self._clock = keep_s, limit, clock
        self._lock = Lock("open_cache")  # guards what follows
        self._known: OrderedDict[Inode, _Known] = OrderedDict()
        self.changes = 0  # how often something was forgotten

    @property
    def is_on(self) -> bool:
        return self._keep_s > 0

    def attr(self, ino: Inode) -> Attr | None:
        known = self._fresh(ino)
        return None if known is None else known.attr

    def views(self, ino: Inode, attr: Attr) -> Views:
        """What is known of the chunks of the file that `attr` tells of."""
        known = self._fresh(ino)
        return known.views if known is not None and _version(known.attr) == _version(attr) else {}

    def note(self, ino: Inode, attr: Attr, changes: int, views: Views | None = None) -> None:
        """The metadata was asked when `changes` was as given here, and told this.

        Views of before stay if the file has not changed.
        """
        if self._keep_s <= 0:
            return
        known = _Known(attr, self._clock() + self._keep_s, views or {})
        with self._lock:
            if changes != self.changes:  # it may be older than a change
                return
            before = self._known.get(ino)
            if views is None and before and _version(before.attr) == _version(attr):
                known.views = before.views
            self._known[ino] = known
            self._known.move_to_end(ino)
            if 0 < self._limit < len(self._known):
                self._known.popitem(last=False)

    def keep(self, ino: Inode, mtime_ns: int, length: int, views: Views) -> None:
        """Chunks that were read of a file, when its last handle is closed."""
        with self._lock:
            known = self._known.get(ino)
            if known is not None and _version(known.attr) == (mtime_ns, length):
                known.views = {**known.views, **views}

    def forget(self, ino: Inode) -> None:
        """The file was changed through here."""
        with self._lock:
            self.changes += 1
            self._known.pop(ino, None)

    def _fresh(self, ino: Inode) -> _Known | None:
        known = self._known.get(ino) if self._keep_s > 0 else None
        return known if known is not None and self._clock() < known.until_s else None


def _version(attr: Attr) -> tuple[int, int]:
    return attr.mtime_ns, attr.length
