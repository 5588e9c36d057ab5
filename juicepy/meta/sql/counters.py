"""Counters of a volume: ids in batches, times of jobs, and the usage that is stored now and then.

Every transaction of a volume changes usedSpace and totalInodes; stored at once, all would queue up
for these two rows. So each client gathers its share and adds it about once a second.
"""

from __future__ import annotations

from juicepy.concurrency import Lock
from juicepy.meta.sql.database import Database, Link, Unsure
from juicepy.meta.sql.statements import Statements

SPACE, INODES = "usedSpace", "totalInodes"
_INITIAL = {"nextInode": 2, "nextChunk": 1}  # others begin with 0


class Counters:
    def __init__(self, database: Database, statements: Statements) -> None:
        self._database, self._s = database, statements
        self._lock = Lock("usage")  # guards _gathered
        self._gathered = {SPACE: 0, INODES: 0}
        self._flushing = Lock("usage flush")  # what is gathered is in the row or not, never both

    def gather(self, space: int, inodes: int) -> None:
        if space or inodes:
            with self._lock:
                self._gathered[SPACE] += space
                self._gathered[INODES] += inodes

    def value(self, name: str) -> int:
        if name not in self._gathered:
            return self._stored(name)
        with self._flushing:
            return self._stored(name) + self._gathered[name]

    def _stored(self, name: str) -> int:
        rows = self._database.rows(self._s.counter, {"w_name": name})
        return int(rows[0][0]) if rows else 0

    def flush(self) -> None:
        """Add what is gathered. It is kept for the next time if that certainly failed."""
        with self._flushing:
            with self._lock:
                deltas = {name: delta for name, delta in self._gathered.items() if delta}
            if not deltas:
                return

            def add(link: Link) -> None:
                link.begin()
                for name, delta in sorted(deltas.items()):
                    self._add(link, name, delta)

            try:
                self._database.write(add)
            except Unsure:  # counting it twice would be as wrong as not at all
                self._subtract(deltas)
                raise
            self._subtract(deltas)

    def _subtract(self, deltas: dict[str, int]) -> None:
        with self._lock:
            for name, delta in deltas.items():
                self._gathered[name] -= delta

    def add(self, name: str, delta: int) -> int:
        """The new value."""

        def work(link: Link) -> int:
            link.begin()
            self._add(link, name, delta)
            return int(link.rows(self._s.counter, {"w_name": name})[0][0])

        return self._database.write(work, repeatable=True)  # at worst some numbers stay unused

    def _add(self, link: Link, name: str, delta: int) -> None:
        if not link.change(self._s.add_counter, {"w_name": name, "add_value": delta}):
            value = _INITIAL.get(name, 0) + delta
            link.change(self._s.insert_counter, {"name": name, "value": value})

    def allocate(self, name: str, count: int) -> range:
        """`count` numbers of a counter that holds the next free one."""
        end = self.add(name, count)
        return range(end - count, end)

    def set_if_small(self, name: str, value: int, diff: int) -> bool:
        def work(link: Link) -> bool:
            link.begin()
            rows = link.rows(self._s.counter_locked, {"w_name": name})
            old = rows[0][0] if rows else 0
            if old > value - diff:
                return False
            if rows:
                link.change(self._s.set_counter, {"w_name": name, "value": value})
            else:
                link.change(self._s.insert_counter, {"name": name, "value": value})
            return True

        return self._database.write(work)
