"""A bucket reached through `obstore` (Rust): what S3, Azure Blob and Google Storage share.

obstore releases the GIL and returns buffers of its own, so an answer that comes late can reach
nothing of ours; for the same reason what is uploaded is always an immutable `bytes`. It makes one
attempt per call (retries are `Retrying`'s) within the time-out that its client is built with; a
time-out covers connecting, sending and the whole answer. Its threads do not survive fork(): a
process that forks opens its storage afterwards.

A checksum is kept where the format has one (S3 family): user metadata `crc32c`, the decimal CRC-32C
of the stored bytes, written by every put and compared by every get of a whole object that has it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import google_crc32c
import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from juicepy.object.failure import Transient, begins_beyond_end, http_error
from juicepy.object.storage import ObjectInfo
from juicepy.object.target import DriverSettings
from juicepy.types import Buffer

if TYPE_CHECKING:
    from obstore import Attributes, ObjectMeta
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

NO_RETRY: RetryConfig = {"max_retries": 0}
_ERRORS = (BaseError, OSError, ValueError)
_WHOLE = 1 << 40  # one chunk, however large the object
_PAGE = 1000
_CONNECT_TIMEOUT_S = 10.0


class CloudStorage:
    """ObjectStorage over a pair of obstore clients that differ in their time-out only."""

    def __init__(
        self,
        label: str,
        clients: tuple[ObjectStore, ObjectStore],
        make_bucket: Callable[[], None],
        *,
        checksum: bool = False,
        storage_class: str = "",
    ) -> None:
        self._label = label
        self._reader, self._writer = clients
        self._make_bucket = make_bucket
        self._checksum = checksum
        self._attributes: Attributes = {"Content-Type": "application/octet-stream"}
        if storage_class:
            self._attributes["Storage-Class"] = storage_class

    def __str__(self) -> str:
        return self._label

    def get(self, key: str, off: int = 0, size: int | None = None) -> bytes:
        if size is not None and size <= 0:
            return b""
        try:
            if off == 0 and size is None:
                return self._get_whole(key)
            if size is None:
                result = obstore.get(self._reader, key, options={"range": {"offset": off}})
                return b"".join(result.stream(_WHOLE))
            result = obstore.get(self._reader, key, options={"range": (off, off + size)})
            return b"".join(result.stream(_WHOLE))
        except _ERRORS as error:
            if begins_beyond_end(str(error)):
                return b""
            raise _translated(error, key) from None

    def _get_whole(self, key: str) -> bytes:
        result = obstore.get(self._reader, key)
        stored = result.attributes.get("crc32c") if self._checksum else None
        data = b"".join(result.stream(_WHOLE))
        if stored is not None and stored != str(google_crc32c.value(data)):
            raise Transient(errno.EIO, "the object does not match its checksum", key)
        return data

    def put(self, key: str, data: Buffer) -> None:
        _check_name(key)
        payload = data if type(data) is bytes else bytes(data)
        attributes = self._attributes
        if self._checksum:
            attributes = {**attributes, "crc32c": str(google_crc32c.value(payload))}
        try:
            obstore.put(self._writer, key, payload, attributes=attributes, use_multipart=False)
        except _ERRORS as error:
            raise _translated(error, key) from None

    def delete(self, key: str) -> None:
        if key.endswith("/"):
            return  # names a directory: put() makes none, so there is none
        try:
            obstore.delete(self._reader, key)
        except FileNotFoundError:
            return
        except _ERRORS as error:
            raise _translated(error, key) from None

    def head(self, key: str) -> ObjectInfo:
        try:
            return _record(obstore.head(self._reader, key))
        except _ERRORS as error:
            raise _translated(error, key) from None

    def list_from(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """obstore lists whole path segments and follows the order of the store, that of keys."""
        folder = prefix.rpartition("/")[0]
        offset = max(after, prefix[:-1]) or None
        try:
            for page in obstore.list(self._reader, folder or None, offset=offset, chunk_size=_PAGE):
                for meta in page:
                    key = meta["path"]
                    if key.startswith(prefix):
                        if key > after:
                            yield _record(meta)
                    elif key > prefix:
                        return
        except _ERRORS as error:
            raise _translated(error, prefix) from None

    def create(self) -> None:
        self._make_bucket()

    def close(self) -> None:
        """Connections are closed with the clients, when the last reference to them goes."""


def client_pair(
    make: Callable[[ClientConfig], ObjectStore], settings: DriverSettings, **options: Any
) -> tuple[ObjectStore, ObjectStore]:
    """Clients for reading and for writing, each with its time-out; one for both if they agree."""

    def client(timeout_s: float) -> ObjectStore:
        config: ClientConfig = {
            "timeout": timedelta(seconds=timeout_s),
            "connect_timeout": timedelta(seconds=min(timeout_s, _CONNECT_TIMEOUT_S)),
            **options,  # type: ignore[typeddict-item]  # keys of ClientConfig, checked by obstore
        }
        return make(config)

    reader = client(settings.get_timeout_s)
    if settings.get_timeout_s == settings.put_timeout_s:
        return reader, reader
    return reader, client(settings.put_timeout_s)


def _record(meta: ObjectMeta) -> ObjectInfo:
    mtime_ns = int(meta["last_modified"].timestamp() * 1000) * 1_000_000  # stores keep ms at most
    return ObjectInfo(meta["path"], meta["size"], mtime_ns)


def _check_name(key: str) -> None:
    if not key or key.startswith("/") or key.endswith("/"):
        raise OSError(errno.EIO, "an object cannot have this name", key)


def _translated(error: Exception, key: str) -> OSError:
    if isinstance(error, Transient):
        return error
    return http_error(
        str(error),
        key,
        missing=isinstance(error, FileNotFoundError),
        denied=isinstance(error, (PermissionDeniedError, UnauthenticatedError)),
    )
