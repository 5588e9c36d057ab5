"""Keys, ciphers and the wrapper that encrypts."""

from __future__ import annotations

import errno

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from juicepy.errors import Refused
from juicepy.object.crypto import Cipher, load_private_key
from juicepy.object.encrypt import Encrypted
from juicepy.object.mem import MemoryStorage

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(form: PrivateFormat, passphrase: str = "") -> str:
    how: KeySerializationEncryption = NoEncryption()
    if passphrase:
        how = BestAvailableEncryption(passphrase.encode())
    return KEY.private_bytes(Encoding.PEM, form, how).decode()


PKCS1, PKCS8 = PrivateFormat.TraditionalOpenSSL, PrivateFormat.PKCS8


@pytest.mark.parametrize("form", [PKCS1, PKCS8])
@pytest.mark.parametrize("passphrase", ["", "s3cret pass"])
def test_every_form_of_pem_is_read(form: PrivateFormat, passphrase: str) -> None:
    text = pem(form, passphrase)
    assert load_private_key(text, passphrase).private_numbers() == KEY.private_numbers()


def test_legacy_encrypted_form_is_the_one_with_proc_type() -> None:
    assert "Proc-Type: 4,ENCRYPTED" in pem(PKCS1, "x1234")


def test_passphrase_for_a_plain_key_is_ignored() -> None:
    assert load_private_key(pem(PKCS8), "unused").key_size == 2048


@pytest.mark.parametrize("form", [PKCS1, PKCS8])
def test_missing_and_wrong_passphrases_are_told(form: PrivateFormat) -> None:
    with pytest.raises(Refused, match="needs its passphrase: set JFS_RSA_PASSPHRASE"):
        load_private_key(pem(form, "right"))
    with pytest.raises(Refused, match="JFS_RSA_PASSPHRASE does not open it") as caught:
        load_private_key(pem(form, "right"), "wrong one")
    assert "wrong one" not in str(caught.value)


def test_what_is_no_rsa_key_is_refused() -> None:
    curve = ec.generate_private_key(ec.SECP256R1())
    text = curve.private_bytes(Encoding.PEM, PKCS8, NoEncryption()).decode()
    with pytest.raises(Refused, match="no RSA key"):
        load_private_key(text)
    with pytest.raises(Refused, match="cannot read the private key"):
        load_private_key("hello")


@pytest.mark.parametrize("algorithm", ["", "aes256gcm-rsa", "chacha20-rsa"])
def test_object_has_the_shared_layout(algorithm: str) -> None:
    cipher = Cipher(KEY, algorithm)
    sealed = cipher.encrypt(b"hello")
    assert sealed[:3].hex() == "01000c"
    assert len(sealed) == 5 + 287
    assert cipher.decrypt(sealed) == b"hello"
    assert cipher.encrypt(b"hello")[259:] != sealed[259:]


def test_algorithms_are_not_mixed_up() -> None:
    with pytest.raises(ValueError):
        Cipher(KEY, "chacha20-rsa").decrypt(Cipher(KEY).encrypt(b"hello"))


@pytest.mark.parametrize("algorithm", ["sm4gcm", "rot13"])
def test_unknown_algorithm_is_refused(algorithm: str) -> None:
    with pytest.raises(Refused, match=algorithm):
        Cipher(KEY, algorithm)


def test_damage_anywhere_is_an_io_error() -> None:
    inner = MemoryStorage()
    storage = Encrypted(inner, Cipher(KEY))
    storage.put("key", b"hello world")
    stored = inner.get("key")
    damaged = [stored[:n] for n in (0, 2, 100, 260, 286, len(stored) - 1)]
    damaged += [
        stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :]
        for at in (0, 1, 2, 3, 100, 258, 259, 270, 271, 280, len(stored) - 1)
    ]
    damaged += [b"plain text that was never encrypted" * 20, Cipher(OTHER).encrypt(b"x")]
    for bad in damaged:
        inner.put("key", bad)
        with pytest.raises(OSError, match="decrypted") as caught:
            storage.get("key")
        assert caught.value.errno == errno.EIO


def test_ranges_are_of_the_plain_object() -> None:
    storage = Encrypted(MemoryStorage(), Cipher(KEY))
    storage.put("key", memoryview(b"0123456789"))
    assert storage.get("key", 2, 3) == b"234"
    assert storage.get("key", 7) == b"789"
    assert storage.get("key", 7, 100) == b"789"
    assert storage.get("key", 20, 5) == b""
