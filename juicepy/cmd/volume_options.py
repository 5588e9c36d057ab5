"""Options of `format` and `config` that are settings of the volume, and what they set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from juicepy import log
from juicepy.cmd.options import Option, Rate, Size
from juicepy.errors import Refused
from juicepy.volume import Format, Tier

if TYPE_CHECKING:
    from juicepy.object.storage import ObjectStorage
    from juicepy.object.target import DriverSettings

DATA_STORAGE = "DATA STORAGE"
MANAGEMENT = "MANAGEMENT"

# option -> attribute of the volume, where the value is stored as it is
_PLAIN = {
    "storage": "storage",
    "access_key": "access_key",
    "secret_key": "secret_key",
    "session_token": "session_token",
    "storage_class": "storage_class",
    "block_size": "block_size",
    "compress": "compression",
    "encrypt_algo": "encrypt_algo",
    "hash_prefix": "hash_prefix",
    "shards": "shards",
    "capacity": "capacity",
    "inodes": "inodes",
    "trash_days": "trash_days",
    "enable_acl": "enable_acl",
    "upload_limit": "upload_limit",
    "download_limit": "download_limit",
    "min_client_version": "min_client_version",
    "max_client_version": "max_client_version",
    "dir_stats": "dir_stats",
    "user_group_quota": "user_group_quota",
    "changelog": "change_log",
    "changelog_max_lines": "change_log_max_lines",
}


def storage_options() -> list[click.Parameter]:
    def option(*names: str, **given: Any) -> Option:
        return Option([*names], section=DATA_STORAGE, **given)

    return [
        option("--storage", default="file", help="Object store: file, s3, minio, wasb, gs, mem."),
        option("--bucket", default=default_bucket(), help="Bucket URL or directory of the data."),
        option("--access-key", default="", envvar="ACCESS_KEY", help="Access key."),
        option("--secret-key", default="", envvar="SECRET_KEY", help="Secret key."),
        option("--session-token", default="", help="Session token of temporary keys."),
        option("--storage-class", default="", help="Default storage class."),
        option("--tag", default="", help="Tag of uploaded objects, as in key=value."),
    ]


def management_options() -> list[click.Parameter]:
    def option(*names: str, **given: Any) -> Option:
        return Option([*names], section=MANAGEMENT, **given)

    return [
        option("--capacity", type=Size("G"), default=0, help="Limit of space in GiB; 0: none."),
        option("--inodes", type=int, default=0, help="Limit of the number of inodes; 0: none."),
        option("--trash-days", type=int, default=1, help="Days to keep removed files; 0: none."),
        option("--enable-acl", is_flag=True, help="POSIX ACLs; cannot be switched off again."),
    ]


def limit_options() -> list[click.Parameter]:
    return [
        Option([f"--{way}-limit"], section=DATA_STORAGE, type=Rate(), default=0, help=text)
        for way, text in (
            ("upload", "Limit of a client's uploads in Mbps; 0: none."),
            ("download", "Limit of a client's downloads in Mbps; 0: none."),
        )
    ]


def default_bucket() -> str:
    return "/var/jfs" if os.geteuid() == 0 else str(Path.home() / ".juicefs" / "local")


def with_options(volume: Format, given: Mapping[str, Any], explicit: set[str]) -> Format:
    """The volume, whose secrets are plain, with the settings of the options in `explicit`."""
    changes = {_PLAIN[name]: given[name] for name in explicit if name in _PLAIN}
    if "bucket" in explicit or "storage" in explicit:
        storage = changes.get("storage", volume.storage)
        bucket = given["bucket"] if "bucket" in explicit else volume.bucket
        changes["bucket"] = bucket_of(storage, bucket)
    tier_changes = {"storage_class", "tag"} & explicit
    if tier_changes:
        number = given.get("tier", 0)
        old = volume.tiers.get(number, Tier())
        tier = Tier(
            given["storage_class"] if "storage_class" in explicit else old.storage_class,
            checked_tag(given["tag"]) if "tag" in explicit else old.tag,
        )
        changes["tiers"] = volume.tiers | {number: tier}
        if number:
            changes.pop("storage_class", None)
    return volume.with_(**changes)


def bucket_of(storage: str, bucket: str) -> str:
    """The bucket as it is stored: of local files an absolute path with a slash at its end."""
    if storage == "file":
        return os.path.abspath(bucket).rstrip("/") + "/"
    return bucket.rstrip("/")


def checked_tag(tag: str) -> str:
    if tag and "=" not in tag:
        raise Refused(f"--tag {tag!r} is not of the form key=value")
    return tag


def read_key(path: str) -> str:
    """The PEM text at `path`. Refused if it is no private key, or the passphrase does not fit."""
    from juicepy.object.crypto import load_private_key

    try:
        pem = Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a PEM file"
        raise Refused(f"--encrypt-rsa-key {path}: {reason}") from error
    try:
        load_private_key(pem, passphrase())
    except OSError as error:
        raise Refused(f"--encrypt-rsa-key {path}: {error.strerror or error}") from error
    return pem


def passphrase() -> str:
    """Of the private key, from the environment."""
    return os.environ.get("JFS_RSA_PASSPHRASE", "")


def driver_settings() -> DriverSettings:
    """What the environment tells of regions, endpoints and connections."""
    from juicepy.object.target import DriverSettings

    return DriverSettings.from_env(os.environ)


@contextmanager
def volume_storage(volume: Format) -> Iterator[ObjectStorage]:
    """The object store of the volume, with its prefix and encryption; errors name the bucket."""
    from juicepy.object.registry import open_storage

    plain = volume.decrypted()
    log.redactor.hide(plain.secret_key, plain.session_token)
    storage = open_storage(plain, passphrase=passphrase(), io_retries=2, settings=driver_settings())
    with closing(storage):
        yield storage
