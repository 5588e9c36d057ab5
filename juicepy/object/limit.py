"""Bandwidth limits for uploads and downloads, shared by all threads of a storage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from juicepy.concurrency import Lock
from juicepy.object.storage import ObjectInfo, ObjectStorage
from juicepy.types import Buffer

_BURST_S = 0.2  # how much unused time counts


class TokenBucket:
    """Lets `bytes_per_s` through on average; 0 is no limit.

    A transfer reserves the time it takes at that rate and waits until its turn comes, so large
    transfers pass whole and the wait of each is known when it begins.
    """

    def __init__(
        self,
        bytes_per_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock, self._sleep = clock, sleep
        self._lock = Lock("token_bucket")  # guards _free_at
        self._free_at = clock()

    def take(self, size: int) -> None:
        """Wait until `size` more bytes are within the limit."""
        if not self._bytes_per_s or not size:
            return
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now - _BURST_S) + size / self._bytes_per_s
            wait_s = self._free_at - now
        if wait_s > 0:
            self._sleep(wait_s)


class Limited:
    """`inner` with an upload bucket, asked before sending, and a download one, asked after."""

    def __init__(self, inner: ObjectStorage, upload: TokenBucket, download: TokenBucket) -> None:
        self.inner = inner
        self._upload, self._download = upload, download

    def __str__(self) -> str:
        return str(self.inner)

    def get(self, key: str, off: int = 0, size: int | None = None) -> bytes:
        data = self.inner.get(key, off, size)
        self._download.take(len(data))
        return data

    def put(self, key: str, data: Buffer) -> None:
        self._upload.take(len(data))
        self.inner.put(key, data)

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def head(self, key: str) -> ObjectInfo:
        return self.inner.head(key)

    def list_from(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list_from(prefix, after)

    def create(self) -> None:
        self.inner.create()

    def close(self) -> None:
        self.inner.close()
