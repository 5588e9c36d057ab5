"""A set of names in little room: a listing keeps all names that it has given."""

from __future__ import annotations

_BUCKETS = 1 << 13


class NameSet:
    """Each bucket is one string of names, each between two NULs, which no name contains.

    100,000 names take 2 MiB; a set of bytes takes 9.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, bytes] = {}

    def add(self, name: bytes) -> bool:
        """Whether it is new."""
        number = hash(name) % _BUCKETS
        bucket = self._buckets.get(number, b"\0")
        if b"\0%b\0" % name in bucket:
            return False
        self._buckets[number] = b"%b%b\0" % (bucket, name)
        return True
