"""The one place where requests to a store are repeated."""

from __future__ import annotations

import errno
import logging
import random
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from juicepy.object.failure import Transient
from juicepy.object.storage import ObjectInfo, ObjectStorage
from juicepy.types import Buffer

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_PASSING = {errno.ETIMEDOUT, errno.EAGAIN, errno.ESTALE}


class Retrying:
    """`inner`, each call made at most 1 + `retries` times.

    Repeated are only failures that may pass (`Transient`, ETIMEDOUT): never a missing object, a
    refused access or a bad request. The pause doubles from 0.1 s to 10 s, each drawn between half
    and all of that, so that clients that failed together do not return together. `close` ends the
    pauses: what waits fails with its last error.
    """

    def __init__(
        self,
        inner: ObjectStorage,
        retries: int,
        *,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self.inner = inner
        self._retries = max(0, retries)
        self._closed = threading.Event()
        self._pause = pause or self._closed.wait

    def __str__(self) -> str:
        return str(self.inner)

    def get(self, key: str, off: int = 0, size: int | None = None) -> bytes:
        return self._run(self.inner.get, key, off, size)

    def put(self, key: str, data: Buffer) -> None:
        self._run(self.inner.put, key, data)

    def delete(self, key: str) -> None:
        self._run(self.inner.delete, key)

    def head(self, key: str) -> ObjectInfo:
        return self._run(self.inner.head, key)

    def list_from(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """A listing that breaks goes on behind the last object it gave, counting anew."""
        failed = 0
        while True:
            try:
                for found in self.inner.list_from(prefix, after):
                    after, failed = found.key, 0
                    yield found
                return
            except OSError as error:
                failed += 1
                self._wait_or_raise(error, failed)

    def create(self) -> None:
        self._run(self.inner.create)

    def close(self) -> None:
        self._closed.set()
        self.inner.close()

    def _run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        failed = 0
        while True:
            try:
                return call(*args, **kwargs)
            except OSError as error:
                failed += 1
                self._wait_or_raise(error, failed)

    def _wait_or_raise(self, error: OSError, failed: int) -> None:
        """Return after a pause if attempt number `failed` + 1 is to be made."""
        passing = isinstance(error, Transient) or error.errno in _PASSING
        if not passing or failed > self._retries or self._closed.is_set():
            raise error
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(failed - 1, 10))
        logger.warning("attempt %d of %d: %s", failed, self._retries + 1, error)
        self._pause(random.uniform(pause_s / 2, pause_s))
