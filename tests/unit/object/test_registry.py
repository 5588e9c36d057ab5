"""Which driver is chosen and what is wrapped around it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from juicepy.errors import Refused
from juicepy.object.file import FileStorage
from juicepy.object.registry import create_storage, open_storage
from juicepy.object.storage import Wrapper
from juicepy.volume import Format


@dataclass(frozen=True)
class Volume:
    """A StoredVolume."""

    storage: str = "file"
    bucket: str = "/unused/"
    name: str = "vol"
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""
    shards: int = 0
    encrypt_key: str = ""
    encrypt_algo: str = "aes256gcm-rsa"
    storage_class: str = ""


def layers(storage: object) -> list[str]:
    names = [type(storage).__name__]
    while isinstance(storage, Wrapper):
        storage = storage.inner
        names.append(type(storage).__name__)
    return names


def test_plain_volume_has_a_prefix_and_repeats() -> None:
    storage = open_storage(Volume())
    assert layers(storage) == ["Retrying", "Prefixed", "FileStorage"]
    assert str(storage) == "file:///unused/vol/"


def test_wrappers_are_in_the_order_that_the_docstring_gives() -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    volume = Volume(shards=2, bucket="/unused/%d/", encrypt_key=pem)
    storage = open_storage(volume, upload_limit=10, observe=lambda *_: None)
    expected = ["Encrypted", "Retrying", "Limited", "Metered", "Prefixed", "Sharded"]
    assert layers(storage) == expected


def test_setting_of_a_volume_is_what_it_takes(tmp_path: Path) -> None:
    volume = Format(name="vol", storage="file", bucket=f"{tmp_path}/sh%d/", shards=4)
    storage = open_storage(volume)
    storage.create()
    storage.put("juicefs_uuid", b"id")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("juicefs_uuid")] == [
        f"sh{shard_of('vol/juicefs_uuid', 4)}/vol/juicefs_uuid"
    ]


def shard_of(key: str, count: int) -> int:
    digest = 0x811C9DC5
    for byte in key.encode():
        digest = ((digest ^ byte) * 0x01000193) % (1 << 32)
    return digest % count


def test_shards_need_a_place_for_their_number() -> None:
    with pytest.raises(Refused, match="%d"):
        open_storage(Volume(shards=2))


def test_unknown_kind_is_refused_with_what_there_is() -> None:
    with pytest.raises(Refused, match=r"--storage ftp .*file, mem, s3, minio, wasb, gs"):
        create_storage("ftp", "host")


def test_sm4_is_refused() -> None:
    with pytest.raises(Refused, match="sm4gcm"):
        open_storage(Volume(encrypt_key="pem", encrypt_algo="sm4gcm"))


def test_file_bucket_may_be_a_url() -> None:
    storage = create_storage("file", "file:///unused/")
    assert isinstance(storage, FileStorage)
    assert str(storage) == "file:///unused/"


def test_no_driver_is_imported_before_it_is_asked_for() -> None:
    script = (
        "import sys; import juicepy.object.registry;"
        "print([m for m in ('obstore', 'boto3', 'azure', 'cryptography') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
