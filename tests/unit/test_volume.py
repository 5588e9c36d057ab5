"""The setting of a volume: bytes as the real client writes them, secrets, version gates."""

import json
from dataclasses import replace

import pytest

from juicepy.errors import Refused
from juicepy.volume import Format, go_json, version_key

# three settings found in databases that juicefs 1.4.2 formatted
PLAIN = (
    b'{\n"Name": "vola",\n"UUID": "7f043beb-78c4-49a6-8b91-c2bbc581a19a",\n"Storage": "file",\n'
    b'"Tiers": {\n"0": {\n"ID": 0,\n"StorageClass": "",\n"Tag": ""\n}\n},\n"Bucket": "/data/b1/",\n'
    b'"BlockSize": 4096,\n"Compression": "none",\n"EncryptAlgo": "aes256gcm-rsa",\n'
    b'"UploadLimit": 100,\n"DownloadLimit": 50,\n"TrashDays": 1,\n"MetaVersion": 1,\n'
    b'"MinClientVersion": "1.1.0",\n"MaxClientVersion": "2.0",\n"EnableACL": false\n}'
)
WITH_SECRETS = (
    b'{\n"Name": "volb",\n"UUID": "c3b11728-2580-45b4-a72f-6b332804fa8e",\n"Storage": "file",\n'
    b'"Tiers": {\n"0": {\n"ID": 0,\n"StorageClass": "",\n"Tag": ""\n}\n},\n'
    b'"Bucket": "/data/s\\u003c\\u0026\\u003eh%d/",\n"AccessKey": "ak",\n'
    b'"SecretKey": "Q+ax4FXvrskdYwq+D7pAMdhTKC3fJk3GdwB90s3gCgAQwtY=",\n'
    b'"SessionToken": "Bg27UVTWKv02z1jp5FeZut4MPNgLXGvdskhZnrTa7w==",\n"BlockSize": 4096,\n'
    b'"Compression": "lz4",\n"Shards": 2,\n"HashPrefix": true,\n"Capacity": 10737418240,\n'
    b'"Inodes": 100,\n"EncryptAlgo": "aes256gcm-rsa",\n"KeyEncrypted": true,\n"TrashDays": 0,\n'
    b'"MetaVersion": 1,\n"MinClientVersion": "1.2.0-A",\n"DirStats": true,\n"EnableACL": true\n}'
)
WITH_CLASS = (
    b'{\n"Name": "volc",\n"UUID": "1ea7359f-8f17-4c6b-b45e-3018e5aa0800",\n"Storage": "file",\n'
    b'"StorageClass": "IA",\n"Tiers": {\n"0": {\n"ID": 0,\n"StorageClass": "IA",\n"Tag": ""\n}\n},'
    b'\n"Bucket": "/data/b3/",\n"BlockSize": 256,\n"Compression": "none",\n'
    b'"EncryptAlgo": "aes256gcm-rsa",\n"TrashDays": 1,\n"MetaVersion": 1,\n'
    b'"MinClientVersion": "1.1.0-A",\n"DirStats": true,\n"EnableACL": false\n}'
)


@pytest.mark.parametrize("stored", [PLAIN, WITH_SECRETS, WITH_CLASS])
def test_setting_is_written_byte_for_byte_as_it_was_read(stored: bytes) -> None:
    assert Format.from_json(stored).to_json() == stored


def test_fields_have_their_units() -> None:
    volume = Format.from_json(WITH_SECRETS)
    assert (volume.name, volume.shards, volume.hash_prefix) == ("volb", 2, True)
    assert volume.bucket == "/data/s<&>h%d/"
    assert volume.capacity == 10 << 30
    assert volume.block_size_bytes == 4 << 20
    assert volume.tiers[0].storage_class == ""
    assert Format.from_json(WITH_CLASS).tiers[0].storage_class == "IA"


def test_secrets_of_the_real_client_are_decrypted() -> None:
    volume = Format.from_json(WITH_SECRETS).decrypted()
    assert volume.secret_key == "se<cret"
    assert volume.session_token == "tok"
    assert not volume.key_encrypted
    assert volume.decrypted() is volume


@pytest.mark.parametrize("algorithm", ["aes256gcm-rsa", "sm4gcm"])
def test_secrets_are_stored_encrypted_and_come_back(algorithm: str) -> None:
    plain = replace(Format.from_json(PLAIN), secret_key="s3", encrypt_algo=algorithm)
    stored = plain.encrypted_secrets()
    assert stored.key_encrypted
    assert b"s3" not in stored.to_json()
    assert Format.from_json(stored.to_json()).decrypted() == plain
    assert stored.encrypted_secrets() is stored


def test_volume_without_secrets_is_not_marked_encrypted() -> None:
    volume = Format.from_json(PLAIN)
    assert volume.encrypted_secrets() is volume


def test_secret_that_a_dump_removed_stays_removed() -> None:
    volume = replace(Format.from_json(PLAIN), secret_key="removed")
    assert volume.encrypted_secrets().secret_key == "removed"
    assert volume.encrypted_secrets().decrypted().secret_key == "removed"
    assert volume.removed_secrets == ["SecretKey"]


def test_secret_of_another_volume_is_refused() -> None:
    volume = replace(Format.from_json(WITH_SECRETS), uuid="0" * 36)
    with pytest.raises(Refused, match="cannot decrypt"):
        volume.decrypted()


def test_secrets_are_neither_shown_nor_in_the_repr() -> None:
    volume = Format.from_json(WITH_SECRETS).decrypted()
    assert volume.shown()["SecretKey"] == "removed"
    assert "se<cret" not in repr(volume)
    assert "se<cret" not in json.dumps(volume.shown())


def test_unknown_fields_are_kept() -> None:
    stored = json.loads(PLAIN) | {"Novel": {"A": 1}}
    assert json.loads(Format.from_json(json.dumps(stored)).to_json()) == stored


@pytest.mark.parametrize("stored", [b"", b"[]", b"null", b"{"])
def test_what_is_no_setting_is_refused(stored: bytes) -> None:
    with pytest.raises(Refused, match="setting"):
        Format.from_json(stored)


def test_version_gates() -> None:
    volume = replace(Format.from_json(PLAIN), min_client_version="", max_client_version="")
    volume.check_client_version()
    replace(volume, min_client_version="1.4.0-A").check_client_version()
    for change in (
        {"min_client_version": "1.4.3-A"},
        {"max_client_version": "1.4.1"},
        {"meta_version": 2},
    ):
        with pytest.raises(Refused, match="vola"):
            volume.with_(**change).check_client_version()


def test_least_client_version_is_raised_never_lowered() -> None:
    volume = replace(Format.from_json(PLAIN), min_client_version="1.1.0-A")
    assert volume.requiring("1.2.0-A").min_client_version == "1.2.0-A"
    assert volume.requiring("1.0.0").min_client_version == "1.1.0-A"


def test_pre_releases_sort_before_the_release() -> None:
    assert version_key("1.2.0-A") < version_key("1.2.0-beta1") < version_key("1.2.0")
    assert version_key("1.2") == version_key("v1.2.0+build")
    with pytest.raises(Refused, match="not a version"):
        version_key("latest")


def test_json_escapes_what_go_escapes() -> None:
    assert go_json({"a": "<é\u2028>"}, 1) == '{\n "a": "\\u003cé\\u2028\\u003e"\n}'
