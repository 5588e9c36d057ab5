"""Encryption of whole objects; the format stands in `crypto.py`."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from juicepy.object.crypto import Cipher
from juicepy.object.storage import ObjectInfo, ObjectStorage
from juicepy.types import Buffer


class Encrypted:
    """`inner` holding only ciphertext.

    A range is read by fetching the whole object. `head` and `list_from` tell stored sizes, which
    are larger than those of the plain objects (by 287 bytes with RSA-2048).
    """

    def __init__(self, inner: ObjectStorage, cipher: Cipher) -> None:
        self.inner = inner
        self._cipher = cipher

    def __str__(self) -> str:
        return f"{self.inner} (encrypted)"

    def get(self, key: str, off: int = 0, size: int | None = None) -> bytes:
        stored = self.inner.get(key)
        try:
            data = self._cipher.decrypt(stored)
        except ValueError as error:
            raise OSError(errno.EIO, f"the object cannot be decrypted: {error}", key) from error
        if off == 0 and (size is None or size >= len(data)):
            return data
        return data[off:] if size is None else data[off : off + max(size, 0)]

    def put(self, key: str, data: Buffer) -> None:
        self.inner.put(key, self._cipher.encrypt(data))

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
