"""Making a volume and changing its settings: what `format` and `config` do, without a command line.

| state a crash leaves                       | who repairs it                                   |
|--------------------------------------------|--------------------------------------------------|
| a `testing/` object                        | the next `format` or `config` ignores it         |
| `juicefs_uuid` stored, database not        | `format` again, after the object was removed     |
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import string
import time
from dataclasses import replace
from typing import Any

from juicepy.errors import NotFormatted, ObjectNotFound, Refused
from juicepy.meta.engine import MetaEngine, Quota
from juicepy.object.storage import ObjectStorage
from juicepy.types import ROOT, TRASH, Attr, Kind
from juicepy.volume import Format

logger = logging.getLogger(__name__)

Usage = dict[int, tuple[int, int]]  # owner -> (bytes, inodes)

UUID_KEY = "juicefs_uuid"
MIN_BLOCK_KIB = 64
MAX_BLOCK_KIB = 16 << 10
MAX_SHARDS = 256
COMPRESSIONS = ("none", "lz4", "zstd")
ENCRYPT_ALGOS = ("aes256gcm-rsa", "chacha20-rsa")
CHANGELOG_AGE_S = 7200

# what blocks already written depend on: (attribute, words for it)
_FIXED = (
    ("name", "name"),
    ("block_size", "block size"),
    ("compression", "compression"),
    ("shards", "shards"),
    ("hash_prefix", "hash prefix"),
    ("meta_version", "metadata version"),
)


def stored(engine: MetaEngine) -> Format | None:
    """The volume in the database, None where there is none."""
    raw = engine.load_format()
    return None if raw is None else Format.from_json(raw)


def formatted(engine: MetaEngine, where: str) -> Format:
    """The volume in the database; NotFormatted where there is none."""
    found = stored(engine)
    if found is None:
        raise NotFormatted(where)
    return found


def check_new(volume: Format) -> None:
    """Refused, with the option named, where the settings make no volume."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", volume.name):
        raise Refused(
            f"NAME {volume.name!r} is invalid: 3 to 63 lower-case letters, digits and -, "
            "with a letter or digit at both ends"
        )
    size = volume.block_size
    if not MIN_BLOCK_KIB <= size <= MAX_BLOCK_KIB or size & (size - 1):
        raise Refused(f"--block-size {size}K is out of range: a power of two from 64K to 16M")
    if volume.compression not in COMPRESSIONS:
        known = ", ".join(COMPRESSIONS)
        raise Refused(f"--compress {volume.compression!r} is not supported (known: {known})")
    if volume.encrypt_algo not in ENCRYPT_ALGOS:
        known = ", ".join(ENCRYPT_ALGOS)
        raise Refused(f"--encrypt-algo {volume.encrypt_algo!r} is not supported (known: {known})")
    if not 0 <= volume.shards <= MAX_SHARDS:
        raise Refused(f"--shards {volume.shards} is out of range: 0 to {MAX_SHARDS}")
    if volume.shards > 1 and "%d" not in volume.bucket:
        raise Refused("--shards needs a --bucket with %d in it, for the number of the shard")
    if volume.trash_days < 0:
        raise Refused(f"--trash-days {volume.trash_days} is negative")
    if volume.inodes < 0:
        raise Refused(f"--inodes {volume.inodes} is negative")


def check_update(old: Format, new: Format) -> None:
    """Refused where a change would make data that is there unreadable."""
    for name, words in _FIXED:
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            raise Refused(f"cannot change the {words} of the volume from {before} to {after}")
    if old.enable_acl and not new.enable_acl:
        raise Refused("--enable-acl: ACLs cannot be switched off again")


def check_storage(storage: ObjectStorage) -> None:
    """Writes, reads and removes a small object. Raises what the store raises, or EIO."""
    alphabet = string.ascii_letters + string.digits
    key = "testing/" + "".join(secrets.choice(alphabet) for _ in range(10))
    data = os.urandom(100)
    storage.put(key, data)
    if bytes(storage.get(key)) != data:
        raise Refused(f"{storage} returns other bytes than were stored")
    storage.delete(key)
    storage.delete("testing/")


def check_bucket(storage: ObjectStorage) -> None:
    """Refused where the store answers that there is no such bucket; other trouble may pass."""
    try:
        next(iter(storage.list_from(UUID_KEY)), None)
    except OSError as error:
        if "bucket does not exist" in str(error):
            raise Refused(f"the bucket of {storage} does not exist") from error
        logger.warning("%s: %s", storage, error)


def check_empty(storage: ObjectStorage) -> None:
    """Refused if there are objects under the volume's prefix, as another volume would have."""
    for found in storage.list_from(""):
        if not found.key.startswith("testing"):
            raise Refused(
                f"{storage} is not empty (there is {found.key!r}): clean it up, or choose another "
                "NAME or --bucket"
            )


def create(engine: MetaEngine, storage: ObjectStorage, volume: Format) -> None:
    """Store the setting, the root, and the volume's UUID in the object store."""
    try:
        storage.put(UUID_KEY, volume.uuid.encode())
        store(engine, volume)
    except OSError:
        _forget_uuid(storage, volume)
        raise


def store(engine: MetaEngine, volume: Format) -> None:
    """Store the setting; the roots of tree and trash too where they are absent."""
    now_ns = time.time_ns() // 1000 * 1000
    root = Attr(
        Kind.DIR,
        0o777,
        nlink=2,
        length=4096,
        parent=ROOT,
        atime_ns=now_ns,
        mtime_ns=now_ns,
        ctime_ns=now_ns,
    )
    trash = replace(root, mode=0o555) if volume.trash_days > 0 else None
    engine.init(volume.encrypted_secrets().to_json(), root, trash)


def update(engine: MetaEngine, old: Format, new: Format) -> None:
    """Store changed settings. What was not kept up to date while it was off is made anew."""
    if new.dir_stats and not old.dir_stats:
        engine.reset_dir_stats()
    store(engine, new)
    if new.user_group_quota and not old.user_group_quota:
        count_owners(engine)


def count_owners(engine: MetaEngine) -> None:
    """Set the usage of every user and group to what the inodes tell (spec 13, 14)."""
    used: tuple[Usage, Usage] = ({}, {})
    for ino, attr in engine.scan_attrs():
        if ino in (ROOT, TRASH) or (ino > TRASH and attr.is_dir):
            continue
        for owners, owner in zip(used, (attr.uid, attr.gid), strict=True):
            space, inodes = owners.get(owner, (0, 0))
            owners[owner] = space + attr.space, inodes + 1
    users, groups = (
        _differences(stored, counted)
        for stored, counted in zip(engine.user_group_quotas(), used, strict=True)
    )
    engine.add_user_group_usage(users, groups)


def _differences(stored: dict[int, Quota], counted: Usage) -> Usage:
    """What to add to the stored usage of each owner."""
    found = {}
    for owner in stored.keys() | counted.keys():
        space, inodes = counted.get(owner, (0, 0))
        quota = stored.get(owner, Quota())
        found[owner] = space - quota.used_space, inodes - quota.used_inodes
    return found


def requirements(volume: Format) -> Format:
    """The volume with the least client version that its features need."""
    if volume.enable_acl:
        volume = volume.requiring("1.2.0-A")
    if volume.ranger_rest_url or volume.ranger_service:
        volume = volume.requiring("1.3.0-A")
    if volume.kerb_conf or len(volume.tiers) > 1:
        volume = volume.requiring("1.4.0-A")
    return volume


def usage(engine: MetaEngine) -> tuple[int, int]:
    """(bytes, inodes) used."""
    return max(0, engine.counter("usedSpace")), max(0, engine.counter("totalInodes"))


def shown_changes(old: Format, new: Format) -> list[tuple[str, Any, Any]]:
    """(attribute, old value, new value) of what differs."""
    names = [name for name in old.__dataclass_fields__ if name not in ("unknown", "key_encrypted")]
    pairs = ((name, getattr(old, name), getattr(new, name)) for name in names)
    return [pair for pair in pairs if pair[1] != pair[2]]


def _forget_uuid(storage: ObjectStorage, volume: Format) -> None:
    """Take back the UUID of a volume that could not be made."""
    try:
        if bytes(storage.get(UUID_KEY)) == volume.uuid.encode():
            storage.delete(UUID_KEY)
    except ObjectNotFound:
        return
    except OSError as error:
        logger.warning("cannot remove %s from %s: %s", UUID_KEY, storage, error)
