"""A pool of connections to one database, and the rule when work on it is run again.

No exception of a driver leaves this module. Work fails with OSError: EIO that names the database,
ENOSPC, EROFS, or EINVAL for a value that does not fit its column.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import Pool, PoolProxiedConnection, QueuePool

from juicepy.errors import Refused
from juicepy.meta.sql.dialects import Dialect, Fault
from juicepy.meta.sql.statements import Family, Statement
from juicepy.meta.sql.url import SqlUrl

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_TRIES = 50
POOL_TIMEOUT_S = 120.0  # for a connection, where the URL limits their number
BATCH = 512  # parameters of one IN list, at most

_ERRNO = {
    Fault.VALUE: errno.EINVAL,
    Fault.FULL: errno.ENOSPC,
    Fault.READ_ONLY: errno.EROFS,
}
_writers: dict[str, threading.Lock] = {}  # path of an SQLite file -> the right to write to it


class Conflict(Exception):
    """What was read is no longer so: run the work again."""


class DriverError(Exception):
    """An exception of the driver, with what it means."""

    def __init__(self, fault: Fault, cause: Exception) -> None:
        super().__init__(fault, cause)
        self.fault = fault
        self.text = " ".join(str(cause).split())


class OutcomeUnknown(Exception):
    """The connection broke at a COMMIT, which may or may not have happened."""


class Unsure(OSError):
    """EIO: nobody knows whether the work was done, and twice would be once too often."""


class Link:
    """One connection, used by one thread at a time. Raises DriverError."""

    __slots__ = ("_cursor", "_dialect", "in_transaction", "pooled")

    def __init__(self, pooled: PoolProxiedConnection, dialect: Dialect) -> None:
        self.pooled = pooled
        self.in_transaction = False
        self._dialect = dialect
        self._cursor: Any = dialect.cursor(pooled.dbapi_connection)

    def rows(self, statement: Statement, values: Mapping[str, Any] = {}) -> list[Any]:
        try:
            self._cursor.execute(statement.sql, statement.bind(values))
            found: list[Any] = self._cursor.fetchall()
        except self._dialect.errors as error:
            raise DriverError(self._dialect.fault(error), error) from error
        return found

    def rows_in(
        self,
        family: Family,
        items: Sequence[Any],
        values: Mapping[str, Any] = {},
    ) -> list[Any]:
        """The rows of a statement with an IN list."""
        found: list[Any] = []
        for begin in range(0, len(items), BATCH):
            statement, binds = family.of(items[begin : begin + BATCH])
            found += self.rows(statement, {**values, **binds})
        return found

    def change(self, statement: Statement, values: Mapping[str, Any]) -> int:
        """The number of rows that the statement found or made."""
        try:
            self._cursor.execute(statement.sql, statement.bind(values))
        except self._dialect.errors as error:
            raise DriverError(self._dialect.fault(error), error) from error
        count: int = self._cursor.rowcount
        return count

    def change_all(self, statement: Statement, many: Sequence[Mapping[str, Any]]) -> int:
        """`change` for each; the sum of the rows."""
        if len(many) == 1:
            return self.change(statement, many[0])
        if not many:
            return 0
        try:
            self._cursor.executemany(statement.sql, [statement.bind(values) for values in many])
        except self._dialect.errors as error:
            raise DriverError(self._dialect.fault(error), error) from error
        count: int = self._cursor.rowcount
        return count

    def change_in(
        self,
        family: Family,
        items: Sequence[Any],
        values: Mapping[str, Any] = {},
    ) -> int:
        count = 0
        for begin in range(0, len(items), BATCH):
            statement, binds = family.of(items[begin : begin + BATCH])
            count += self.change(statement, {**values, **binds})
        return count

    def insert(self, statement: Statement, values: Mapping[str, Any]) -> int:
        """Insert a row whose id the database gives; that id."""
        if self._dialect.has_returning:
            return int(self.rows(statement, values)[0][0])
        self.change(statement, values)
        return int(self._cursor.lastrowid)

    def begin(self) -> None:
        if not self.in_transaction:
            self._command(self._dialect.begin)
            self.in_transaction = True

    def commit(self) -> None:
        if self.in_transaction:
            try:
                self._command("COMMIT")
            except DriverError as error:
                if error.fault is Fault.LOST:
                    raise OutcomeUnknown(error.text) from error
                raise
            self.in_transaction = False

    def rollback(self) -> None:
        if self.in_transaction:
            self._command("ROLLBACK")
            self.in_transaction = False

    def _command(self, sql: str) -> None:
        try:
            self._cursor.execute(sql)
        except self._dialect.errors as error:
            raise DriverError(self._dialect.fault(error), error) from error


class Database:
    """Runs work on connections of a pool, again and again where that helps."""

    def __init__(self, url: SqlUrl, dialect: Dialect, mend: Callable[[], None]) -> None:
        """`mend` is called once when a table or column turns out to be missing."""
        self.url, self.dialect = url, dialect
        self._mend: Callable[[], None] | None = mend
        self._passwords = list(url.passwords)
        self._pool: Pool = self._new_pool()
        self._answered = False  # a server that never did is most likely a wrong URL
        path = os.path.realpath(url.database) if dialect.is_local else ""
        self._writer = _writers.setdefault(path, threading.Lock()) if path else None

    def close(self) -> None:
        self._pool.dispose()

    def read(self, work: Callable[[Link], T]) -> T:
        """Statements of their own, without a transaction around them."""
        return self._repeat(work, None, repeatable=True)

    def rows(self, statement: Statement, values: Mapping[str, Any] = {}) -> list[Any]:
        """Of one statement."""
        return self.read(lambda link: link.rows(statement, values))

    def write(self, work: Callable[[Link], T], *, repeatable: bool = False) -> T:
        """All of `work` or nothing. On servers `work` opens the transaction, by `link.begin()`.

        If the connection breaks at the commit this is EIO, unless the work is `repeatable`:
        done twice it is as good as done once.
        """
        writer = self._writer
        if writer is None:
            return self._repeat(work, None, repeatable=repeatable)

        def begun(link: Link) -> T:
            link.begin()
            return work(link)

        return self._repeat(begun, writer, repeatable=repeatable)

    # -- the loop
    def _repeat(
        self, work: Callable[[Link], T], writer: threading.Lock | None, *, repeatable: bool
    ) -> T:
        last = ""
        for attempt in range(MAX_TRIES):
            if attempt:
                time.sleep(attempt * attempt * random.uniform(0.0004, 0.001))
            try:
                if writer is None:
                    return self._once(work)
                with writer:
                    return self._once(work)
            except Conflict as error:
                last = f"conflict: {error}"
            except OutcomeUnknown as error:
                self._renew()
                last = f"connection lost at the commit: {error}"
                if not repeatable:
                    raise Unsure(errno.EIO, f"{self.url.where}: {last}") from error
            except DriverError as error:
                last = error.text
                self._judge(error)
            if attempt in (10, 25, 40):
                logger.warning("%s: attempt %d failed: %s", self.url.where, attempt + 1, last)
        raise OSError(errno.EIO, f"{self.url.where}: gave up after {MAX_TRIES} tries: {last}")

    def _judge(self, error: DriverError) -> None:
        """Return if it helps to try again, raise if not."""
        if error.fault is Fault.LOST and self._answered:
            self._renew()
        elif error.fault is Fault.SCHEMA and self._mend:
            mend, self._mend = self._mend, None
            mend()
        elif error.fault is not Fault.BUSY:
            raise OSError(_ERRNO.get(error.fault, errno.EIO), f"{self.url.where}: {error.text}")

    def _once(self, work: Callable[[Link], T]) -> T:
        link = self._take()
        try:
            result = work(link)
            if link.in_transaction:
                link.commit()
        except BaseException as error:
            self._abandon(link, error)
            raise
        link.pooled.close()
        return result

    def _take(self) -> Link:
        try:
            pooled = self._pool.connect()
        except Refused:  # a bad option of the URL
            raise
        except PoolTimeout as error:  # max_open_conns are in use, and stay so
            raise DriverError(Fault.OTHER, error) from error
        except self.dialect.errors as error:
            raise DriverError(self.dialect.fault(error), error) from error
        self._answered = True
        return Link(pooled, self.dialect)

    def _abandon(self, link: Link, error: BaseException) -> None:
        """Roll back and keep the connection, or throw it away if its state is not known."""
        known = isinstance(error, (Conflict, OSError)) or (
            isinstance(error, DriverError) and error.fault is not Fault.LOST
        )
        if known:
            try:
                link.rollback()
            except DriverError:
                known = False
        if known:
            link.pooled.close()
        else:
            link.pooled.invalidate()

    # -- connections
    def _new_pool(self) -> Pool:
        url = self.url
        keep = url.max_idle or max(8, 2 * (os.cpu_count() or 1))
        if url.max_open:
            keep = min(keep, url.max_open)
        return QueuePool(
            self.connect,
            pool_size=keep,
            max_overflow=url.max_open - keep if url.max_open else -1,
            timeout=POOL_TIMEOUT_S,
            recycle=url.max_life_s or -1,
            use_lifo=True,
            reset_on_return=None,
        )

    def _renew(self) -> None:
        """The server was away: connections made before are as dead as the one that failed."""
        old, self._pool = self._pool, self._new_pool()
        old.dispose()

    def connect(self) -> Any:
        """A password may be meant percent-encoded or not: the other reading is tried, too."""
        while True:
            try:
                return self.dialect.connect(self.url, self._passwords[0])
            except self.dialect.errors as error:
                if len(self._passwords) < 2 or self.dialect.fault(error) is not Fault.REFUSED:
                    raise
                self._passwords = self._passwords[1:]
