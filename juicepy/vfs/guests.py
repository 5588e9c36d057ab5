"""Files that another process of the same mount has opened, and that are read here.

Nobody tells when such a handle is closed, so the ones not read for the longest time make room; a
read that comes after all opens the file anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from juicepy.concurrency import Lock
from juicepy.vfs.files import FileHandle

LIMIT = 1000


class Guests:
    """Handles by their numbers. Thread-safe."""

    def __init__(self, release: Callable[[FileHandle], None], limit: int = LIMIT) -> None:
        self._release, self._limit = release, limit
        self._lock = Lock("guests")  # guards _handles
        self._handles: OrderedDict[int, FileHandle] = OrderedDict()

    def get(self, fh: int, make: Callable[[], FileHandle]) -> FileHandle:
        """The handle, made if it is not known. Raises what `make` does."""
        with self._lock:
            found = self._handles.get(fh)
            if found is not None:
                self._handles.move_to_end(fh)
                return found
        made = make()
        with self._lock:
            found = self._handles.setdefault(fh, made)
            surplus = [made] if found is not made else []
            if len(self._handles) > self._limit:
                surplus.append(self._handles.popitem(last=False)[1])
        for handle in surplus:
            self._release(handle)
        return found

    def close(self) -> None:
        with self._lock:
            handles, self._handles = list(self._handles.values()), OrderedDict()
        for handle in handles:
            self._release(handle)
