"""`jfs format`: make a volume."""

from __future__ import annotations

import logging
import os
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from juicepy import log, urls
from juicepy.cmd.options import META_URL, Command, Option, Size, given_options, meta_url
from juicepy.cmd.volume_options import (
    bucket_of,
    checked_tag,
    default_bucket,
    management_options,
    read_key,
    storage_options,
    volume_storage,
    with_options,
)
from juicepy.errors import ObjectNotFound, Refused
from juicepy.volume import META_VERSION, Format, Tier, go_json

if TYPE_CHECKING:
    from juicepy.object.storage import ObjectStorage

logger = logging.getLogger(__name__)

DATA_FORMAT = "DATA FORMAT"
LEAST_CLIENT = "1.1.0-A"


def _format_options() -> list[click.Parameter]:
    def option(*names: str, **given: Any) -> Option:
        return Option([*names], section=DATA_FORMAT, **given)

    return [
        option("--block-size", type=Size("K"), default="4M", help="Size of a block, in KiB."),
        option("--compress", default="none", help="Compression: none, lz4, zstd."),
        option("--encrypt-rsa-key", default="", help="File of an RSA private key (PEM)."),
        option("--encrypt-algo", default="aes256gcm-rsa", help="Or chacha20-rsa."),
        option("--hash-prefix", is_flag=True, help="Begin object names with a hash."),
        option("--shards", type=int, default=0, help="Number of buckets to spread blocks over."),
    ]


@click.command(
    cls=Command,
    params=[
        META_URL,
        click.Argument(["name"], metavar="NAME"),
        Option(["--force"], is_flag=True, help="Overwrite an existing format."),
        Option(["--no-update"], is_flag=True, help="Leave an existing volume as it is."),
        *storage_options(),
        *_format_options(),
        *management_options(),
    ],
)
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Make a volume: META-URL is its metadata engine, NAME the prefix of its objects.

    Of an existing volume the given settings are changed, as far as its data allows.
    """
    from juicepy.jobs import volume as volumes
    from juicepy.meta.registry import open_engine

    explicit = given_options(ctx)
    given["block_size"] = _kib(given["block_size"])
    url = meta_url(given["meta_url"])
    logger.debug("Meta address: %s", urls.redact(url))
    wanted = _wanted(given)
    volumes.check_new(wanted)
    with closing(open_engine(url)) as engine:
        old = volumes.stored(engine)
        if old is not None and given["no_update"]:
            return
        if old is None:
            if not engine.is_empty_database():
                logger.warning("there is other data in %s", urls.parse(url).where)
            new = _with_key(wanted, given)
            with volume_storage(new) as storage:
                _prepare(storage, new)
                volumes.create(engine, storage, new)
        else:
            new = _updated(old, wanted, given, explicit)
            with volume_storage(new) as storage:
                _try(storage, new)
                volumes.update(engine, old, new)
        logger.info("Volume is formatted as %s", go_json(new.shown(), 2))


def _kib(size: int) -> int:
    if size % 1024:
        raise Refused(f"--block-size {size} is no whole number of KiB")
    return size // 1024


def _wanted(given: dict[str, Any]) -> Format:
    """The volume that the options ask for, defaults included."""
    from juicepy.jobs.volume import requirements

    log.redactor.hide(given["secret_key"], given["session_token"])
    bucket = given["bucket"]
    if given["storage"] != "file" and bucket == default_bucket():
        raise Refused(f"--bucket is needed for --storage {given['storage']}")
    tag = checked_tag(given["tag"]) if given["storage"] != "file" else ""
    volume = Format(
        name=given["name"],
        uuid=str(uuid.uuid4()),
        storage=given["storage"],
        storage_class=given["storage_class"],
        tiers={0: Tier(given["storage_class"], tag)},
        bucket=bucket_of(given["storage"], bucket),
        access_key=given["access_key"],
        secret_key=given["secret_key"],
        session_token=given["session_token"],
        block_size=given["block_size"],
        compression=given["compress"],
        shards=given["shards"],
        hash_prefix=given["hash_prefix"],
        capacity=given["capacity"],
        inodes=given["inodes"],
        encrypt_algo=given["encrypt_algo"],
        trash_days=given["trash_days"],
        meta_version=META_VERSION,
        min_client_version=LEAST_CLIENT,
        dir_stats=True,
        enable_acl=given["enable_acl"],
    )
    return requirements(volume)


def _with_key(volume: Format, given: dict[str, Any]) -> Format:
    if not given["encrypt_rsa_key"]:
        return volume
    return volume.with_(encrypt_key=read_key(given["encrypt_rsa_key"]))


def _updated(old: Format, wanted: Format, given: dict[str, Any], explicit: set[str]) -> Format:
    """The existing volume with what the options change; the name must be the same."""
    from juicepy.jobs import volume as volumes

    if given["force"]:
        return _with_key(wanted, given).with_(uuid=old.uuid)
    if given["encrypt_rsa_key"] and not old.encrypt_key:
        raise Refused("--encrypt-rsa-key: the data of the volume is not encrypted")
    if given["name"] != old.name:
        raise Refused(
            f"NAME {given['name']!r}: the database holds the volume {old.name!r} already "
            f"(cannot update volume name from {old.name} to {given['name']})"
        )
    new = with_options(old.decrypted(), given, explicit)
    volumes.check_update(old, new)
    volumes.check_new(new)
    return volumes.requirements(new)


def _prepare(storage: ObjectStorage, volume: Format) -> None:
    """Make the bucket, see that it works and that nobody else's objects are in it."""
    from juicepy.jobs import volume as volumes

    try:
        storage.create()
    except OSError as error:
        absent = isinstance(error, ObjectNotFound)
        text = "cannot be made" if absent else error.strerror or error
        raise Refused(f"--bucket {volume.bucket}: {text}") from error
    _try(storage, volume)
    if not os.environ.get("JFS_NO_CHECK_OBJECT_STORAGE"):
        volumes.check_empty(storage)


def _try(storage: ObjectStorage, volume: Format) -> None:
    from juicepy.jobs import volume as volumes

    logger.debug("Data use %s", storage)
    if os.environ.get("JFS_NO_CHECK_OBJECT_STORAGE"):
        return
    try:
        volumes.check_storage(storage)
    except OSError as error:
        text = error.strerror or str(error)
        raise Refused(f"--bucket {volume.bucket}: {storage} is not usable: {text}") from error
