"""The setting of a volume ("format"): what every client of it must know, as JSON in the database.

Stored form (spec metadata.md, section 2): one field per line with no indent, the fields in the
order of `_FIELDS`; those marked optional are left out where they are zero or empty. Keys that are
not known here are kept and written last.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from dataclasses import dataclass, field, fields, replace
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from juicepy.errors import Refused

COMPATIBLE_VERSION = "1.4.2"  # the JuiceFS release whose formats this client speaks
META_VERSION = 1
REMOVED = "removed"  # stands for a secret in what is shown or dumped

_NONCE = 12
_TAG = 16


@dataclass(frozen=True, slots=True)
class Tier:
    """Where blocks of a storage tier go: class and tag of the object store."""

    storage_class: str = ""
    tag: str = ""


@dataclass(frozen=True)
class Format:
    """The settings of one volume. Block size in KiB, limits in Mbps, capacity in bytes (0: none).

    The secrets are as stored (`key_encrypted`) or plain: see `decrypted`, `encrypted_secrets`.
    """

    name: str = ""
    uuid: str = ""
    storage: str = "file"
    storage_class: str = ""
    tiers: dict[int, Tier] = field(default_factory=lambda: {0: Tier()})
    bucket: str = ""
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    block_size: int = 4096
    compression: str = "none"
    shards: int = 0
    hash_prefix: bool = False
    capacity: int = 0
    inodes: int = 0
    encrypt_key: str = field(default="", repr=False)
    encrypt_algo: str = ""
    key_encrypted: bool = False
    upload_limit: int = 0
    download_limit: int = 0
    trash_days: int = 0
    meta_version: int = 0
    min_client_version: str = ""
    max_client_version: str = ""
    dir_stats: bool = False
    user_group_quota: bool = False
    enable_acl: bool = False
    ranger_rest_url: str = ""
    ranger_service: str = ""
    change_log: bool = False
    change_log_max_age: int = 0
    change_log_max_lines: int = 0
    kerb_conf: str = field(default="", repr=False)
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, raw: bytes | str) -> Format:
        """The setting as a JuiceFS or juicepy client stored it. EINVAL for anything else."""
        try:
            given = json.loads(raw)
            values = {_BY_KEY[key]: value for key, value in given.items() if key in _BY_KEY}
        except (ValueError, AttributeError) as error:
            raise Refused("the setting of the volume is not JSON") from error
        values = {name: value for name, value in values.items() if value is not None}
        values["tiers"] = _tiers_from(values.get("tiers"), values.get("storage_class", ""))
        unknown = {key: value for key, value in given.items() if key not in _BY_KEY}
        return cls(**values, unknown=unknown)

    def to_json(self) -> bytes:
        """The bytes that are stored in the database."""
        return go_json(self.shown(secrets=True), indent=0).encode()

    def shown(self, *, secrets: bool = False) -> dict[str, Any]:
        """The fields under their stored names; secrets as `removed` unless asked for."""
        out: dict[str, Any] = {}
        for key, name, always in _FIELDS:
            value = getattr(self, name)
            if not always and not value:
                continue
            if name == "tiers":
                value = _tiers_shown(value)
            elif name in _SECRETS and value and not secrets:
                value = REMOVED
            out[key] = value
        return out | self.unknown

    @property
    def block_size_bytes(self) -> int:
        return self.block_size * 1024

    @property
    def removed_secrets(self) -> list[str]:
        """Stored names of secrets that a dump has stripped; `config` must set them again."""
        return [key for key, name, _ in _FIELDS if getattr(self, name) == REMOVED]

    def with_(self, **changes: Any) -> Format:
        return replace(self, **changes)

    def encrypted_secrets(self) -> Format:
        """As it is to be stored: secrets encrypted by a key made of the UUID (spec 2.2)."""
        plain = {name: getattr(self, name) for name in _SECRETS if getattr(self, name)}
        if self.key_encrypted or not plain:
            return self
        sealed: dict[str, Any] = {
            name: value if value == REMOVED else _seal(self, value) for name, value in plain.items()
        }
        return replace(self, key_encrypted=True, **sealed)

    def decrypted(self) -> Format:
        """With plain secrets, as the object store needs them."""
        if not self.key_encrypted:
            return self
        opened: dict[str, Any] = {
            name: value if value == REMOVED else _open(self, name, value)
            for name in _SECRETS
            if (value := getattr(self, name))
        }
        return replace(self, key_encrypted=False, **opened)

    def check_client_version(self) -> None:
        """Refused where this client is too old or too new for the volume."""
        if self.meta_version > META_VERSION:
            raise Refused(
                f"volume {self.name} has metadata version {self.meta_version}, newer than "
                f"{META_VERSION}: a newer client is needed"
            )
        ours = version_key(COMPATIBLE_VERSION)
        if self.min_client_version and ours < version_key(self.min_client_version):
            raise Refused(
                f"volume {self.name} wants clients from {self.min_client_version} on, this one is "
                f"{COMPATIBLE_VERSION}"
            )
        if self.max_client_version and ours > version_key(self.max_client_version):
            raise Refused(
                f"volume {self.name} wants clients up to {self.max_client_version}, this one is "
                f"{COMPATIBLE_VERSION}"
            )

    def requiring(self, version: str) -> Format:
        """With the least client version raised to `version`, never lowered."""
        if self.min_client_version and version_key(self.min_client_version) >= version_key(version):
            return self
        return replace(self, min_client_version=version)


# (stored name, attribute, written even if zero); stored in this order
_FIELDS: tuple[tuple[str, str, bool], ...] = (
    ("Name", "name", True),
    ("UUID", "uuid", True),
    ("Storage", "storage", True),
    ("StorageClass", "storage_class", False),
    ("Tiers", "tiers", True),
    ("Bucket", "bucket", True),
    ("AccessKey", "access_key", False),
    ("SecretKey", "secret_key", False),
    ("SessionToken", "session_token", False),
    ("BlockSize", "block_size", True),
    ("Compression", "compression", False),
    ("Shards", "shards", False),
    ("HashPrefix", "hash_prefix", False),
    ("Capacity", "capacity", False),
    ("Inodes", "inodes", False),
    ("EncryptKey", "encrypt_key", False),
    ("EncryptAlgo", "encrypt_algo", False),
    ("KeyEncrypted", "key_encrypted", False),
    ("UploadLimit", "upload_limit", False),
    ("DownloadLimit", "download_limit", False),
    ("TrashDays", "trash_days", True),
    ("MetaVersion", "meta_version", False),
    ("MinClientVersion", "min_client_version", False),
    ("MaxClientVersion", "max_client_version", False),
    ("DirStats", "dir_stats", False),
    ("UserGroupQuota", "user_group_quota", False),
    ("EnableACL", "enable_acl", True),
    ("RangerRestUrl", "ranger_rest_url", False),
    ("RangerService", "ranger_service", False),
    ("ChangeLog", "change_log", False),
    ("ChangeLogMaxAge", "change_log_max_age", False),
    ("ChangeLogMaxLines", "change_log_max_lines", False),
    ("KerbConf", "kerb_conf", False),
)
_BY_KEY = {key: name for key, name, _ in _FIELDS}
_SECRETS = ("secret_key", "session_token", "encrypt_key")
assert {name for _, name, _ in _FIELDS} | {"unknown"} == {item.name for item in fields(Format)}


def go_json(value: Any, indent: int) -> str:
    """JSON as Go writes it with indent: `<`, `>`, `&` escaped, no escape of other text."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _GO_ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_GO_ESCAPED = re.compile("[<>&\u2028\u2029]")


def _tiers_from(stored: Any, storage_class: str) -> dict[int, Tier]:
    if not stored:
        return {0: Tier(storage_class)}
    return {
        int(number): Tier(tier.get("StorageClass", ""), tier.get("Tag", ""))
        for number, tier in stored.items()
    }


def _tiers_shown(tiers: dict[int, Tier]) -> dict[str, Any]:
    return {
        str(number): {"ID": number, "StorageClass": tier.storage_class, "Tag": tier.tag}
        for number, tier in sorted(tiers.items())
    }


def version_key(text: str) -> tuple[int, int, int, bool, str]:
    """Orders versions: numbers first, then any pre-release before the release. EINVAL if unread."""
    match = re.fullmatch(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:-([^+]*))?(?:\+.*)?", text.strip())
    if match is None:
        raise Refused(f"not a version: {text!r}")
    major, minor, patch = (int(match[part] or 0) for part in (1, 2, 3))
    return major, minor, patch, match[4] is None, match[4] or ""


def _seal(volume: Format, text: str) -> str:
    nonce = os.urandom(_NONCE)
    encryptor = Cipher(_algorithm(volume), modes.GCM(nonce)).encryptor()
    sealed = encryptor.update(text.encode()) + encryptor.finalize()
    return base64.b64encode(nonce + sealed + encryptor.tag).decode()


def _open(volume: Format, name: str, text: str) -> str:
    try:
        raw = base64.b64decode(text, validate=True)
        nonce, sealed, tag = raw[:_NONCE], raw[_NONCE:-_TAG], raw[-_TAG:]
        decryptor = Cipher(_algorithm(volume), modes.GCM(nonce, tag)).decryptor()
        return (decryptor.update(sealed) + decryptor.finalize()).decode()
    except (ValueError, InvalidTag) as error:
        raise Refused(f"cannot decrypt the {name} of volume {volume.name}") from error


def _algorithm(volume: Format) -> algorithms.AES | algorithms.SM4:
    """The cipher of the secrets: the key is made of the UUID's 36 characters."""
    if volume.encrypt_algo == "sm4gcm":
        digest = hashes.Hash(hashes.SM3())
        digest.update(volume.uuid.encode() + b"\0\0\0\1")
        return algorithms.SM4(digest.finalize()[:16])
    return algorithms.AES(hashlib.md5(volume.uuid.encode(), usedforsecurity=False).digest())
