"""Which driver a volume has, and what is wrapped around it.

A driver is imported when its kind is asked for, so that a command that needs none loads none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from juicepy.errors import Refused
from juicepy.object.limit import Limited, TokenBucket
from juicepy.object.metered import Metered, Observe
from juicepy.object.prefix import Prefixed
from juicepy.object.retry import Retrying
from juicepy.object.shard import Sharded
from juicepy.object.storage import ObjectStorage
from juicepy.object.target import DriverSettings, Target

_MBIT = 1_000_000 / 8


class StoredVolume(Protocol):
    """What is needed of a volume's setting (`juicepy.volume.Format`), secrets in the clear."""

    @property
    def name(self) -> str: ...
    @property
    def storage(self) -> str: ...
    @property
    def bucket(self) -> str: ...
    @property
    def access_key(self) -> str: ...
    @property
    def secret_key(self) -> str: ...
    @property
    def session_token(self) -> str: ...
    @property
    def shards(self) -> int: ...
    @property
    def encrypt_key(self) -> str: ...
    @property
    def encrypt_algo(self) -> str: ...
    @property
    def storage_class(self) -> str: ...


def _file(target: Target) -> ObjectStorage:
    from juicepy.object.file import open_file

    return open_file(target)


def _mem(target: Target) -> ObjectStorage:
    from juicepy.object.mem import open_mem

    return open_mem(target)


def _s3(target: Target) -> ObjectStorage:
    from juicepy.object.s3 import open_s3

    return open_s3(target)


def _azure(target: Target) -> ObjectStorage:
    from juicepy.object.azure import open_azure

    return open_azure(target)


def _gs(target: Target) -> ObjectStorage:
    from juicepy.object.gs import open_gs

    return open_gs(target)


DRIVERS: dict[str, Callable[[Target], ObjectStorage]] = {
    "file": _file,
    "mem": _mem,
    "s3": _s3,
    "minio": _s3,
    "wasb": _azure,
    "gs": _gs,
}


def create_storage(
    kind: str,
    bucket: str,
    access_key: str = "",
    secret_key: str = "",
    session_token: str = "",
    settings: DriverSettings | None = None,
) -> ObjectStorage:
    """One driver, bare. Connects to nothing; Refused names what is wrong with the arguments."""
    driver = DRIVERS.get(kind)
    if driver is None:
        raise Refused(f"--storage {kind} is not supported; it can be {', '.join(DRIVERS)}")
    target = Target(kind, bucket, access_key, secret_key, session_token)
    return driver(replace(target, settings=settings) if settings else target)


def open_storage(
    volume: StoredVolume,
    *,
    passphrase: str = "",
    io_retries: int = 10,
    get_timeout_s: float = 60.0,
    put_timeout_s: float = 60.0,
    upload_limit: float = 0,
    download_limit: float = 0,
    observe: Observe | None = None,
    settings: DriverSettings | None = None,
) -> ObjectStorage:
    """The storage of `volume` with all wrappers; limits are in Mbit/s, 0 is none.

    From the outside in, as a put goes:
    - Encrypted: outside of Retrying, for a repetition sends the same ciphertext again;
    - Retrying: sees every failure of the network below, and repeats the waiting for bandwidth,
      as a repetition uses it again;
    - Limited: outside of Metered, whose times are the store's and not our own waiting;
    - Metered: every attempt counts as a request;
    - Prefixed: outside of Sharded, which hashes the key with the volume's name;
    - Sharded: chooses the driver.
    """
    settings = replace(
        settings or DriverSettings(),
        get_timeout_s=get_timeout_s,
        put_timeout_s=put_timeout_s,
        storage_class=volume.storage_class,
    )
    storage: ObjectStorage = Prefixed(_drivers(volume, settings), f"{volume.name}/")
    if observe is not None:
        storage = Metered(storage, observe)
    if upload_limit or download_limit:
        upload, download = TokenBucket(upload_limit * _MBIT), TokenBucket(download_limit * _MBIT)
        storage = Limited(storage, upload, download)
    storage = Retrying(storage, io_retries)
    if volume.encrypt_key:
        storage = _encrypted(storage, volume, passphrase)
    return storage


def _drivers(volume: StoredVolume, settings: DriverSettings) -> ObjectStorage:
    """The driver, or as many as the volume has shards, whose number replaces `%d`."""

    def driver(bucket: str) -> ObjectStorage:
        keys = volume.access_key, volume.secret_key, volume.session_token
        return create_storage(volume.storage, bucket, *keys, settings)

    if volume.shards <= 1:
        return driver(volume.bucket)
    if "%d" not in volume.bucket:
        raise Refused(f"--bucket: no %d for the number of the shard in {volume.bucket!r}")
    return Sharded([driver(volume.bucket.replace("%d", str(n))) for n in range(volume.shards)])


def _encrypted(inner: ObjectStorage, volume: StoredVolume, passphrase: str) -> ObjectStorage:
    from juicepy.object.crypto import Cipher, load_private_key
    from juicepy.object.encrypt import Encrypted

    if volume.encrypt_algo == "sm4gcm":
        raise Refused("this volume is encrypted with sm4gcm (SM2), which jfs does not support")
    key = load_private_key(volume.encrypt_key, passphrase)
    return Encrypted(inner, Cipher(key, volume.encrypt_algo))
