"""Keys and ciphers of encrypted objects, in the format shared with JuiceFS.

| bytes | meaning |
|---|---|
| 2 | K, length of the wrapped key, big-endian |
| 1 | N, length of the nonce (12) |
| K | the object's own data key, wrapped by the volume's RSA key (OAEP, SHA-256, label `keys`) |
| N | nonce |
| rest | ciphertext and its 16-byte tag, no associated data |

The setting EncryptAlgo is `aes256gcm-rsa` (also when empty) or `chacha20-rsa`; both take 32-byte
data keys. `sm4gcm` needs SM2, which `cryptography` does not have, and is refused.
"""

from __future__ import annotations

import os
import struct

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from juicepy.errors import Refused
from juicepy.types import Buffer

_HEADER = struct.Struct(">HB")
_KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
_PADDING = OAEP(mgf=MGF1(SHA256()), algorithm=SHA256(), label=b"keys")  # stored: never change

CIPHERS: dict[str, type[AESGCM] | type[ChaCha20Poly1305]] = {
    "": AESGCM,
    "aes256gcm-rsa": AESGCM,
    "chacha20-rsa": ChaCha20Poly1305,
}


def load_private_key(pem: str, passphrase: str = "") -> RSAPrivateKey:
    """The RSA key in `pem`: PKCS#1 or PKCS#8, plain, encrypted, or encrypted the legacy way.

    A passphrase for a key that needs none is ignored. Refused says what is wrong with either.
    """
    text = pem.encode()
    encrypted = b"ENCRYPTED" in text
    if encrypted and not passphrase:
        raise Refused("the private key needs its passphrase: set JFS_RSA_PASSPHRASE")
    try:
        key = load_pem_private_key(text, passphrase.encode() if encrypted else None)
    except UnsupportedAlgorithm as error:
        raise Refused("the private key is of a kind that is not supported; use RSA") from error
    except (ValueError, TypeError) as error:
        what = "JFS_RSA_PASSPHRASE does not open it, or it" if encrypted else "it"
        raise Refused(f"cannot read the private key: {what} is no PEM of an RSA key") from error
    if not isinstance(key, RSAPrivateKey):
        raise Refused("the private key is no RSA key")
    return key


class Cipher:
    """Encrypts and decrypts objects with one RSA key. Thread-safe."""

    def __init__(self, key: RSAPrivateKey, algorithm: str = "") -> None:
        if algorithm not in CIPHERS:
            raise Refused(
                f"encryption {algorithm!r} is not supported; use aes256gcm-rsa or chacha20-rsa"
            )
        self._cipher = CIPHERS[algorithm]
        self._private, self._public = key, key.public_key()

    def encrypt(self, data: Buffer) -> bytes:
        data_key, nonce = os.urandom(_KEY_BYTES), os.urandom(_NONCE_BYTES)
        wrapped = self._public.encrypt(data_key, _PADDING)
        sealed = self._cipher(data_key).encrypt(nonce, data, None)
        return b"".join((_HEADER.pack(len(wrapped), len(nonce)), wrapped, nonce, sealed))

    def decrypt(self, data: Buffer) -> bytes:
        """The plain bytes; ValueError if `data` was not encrypted with this key, or is damaged."""
        view = memoryview(data)
        if len(view) < _HEADER.size:
            raise ValueError("too short")
        key_bytes, nonce_bytes = _HEADER.unpack_from(view)
        nonce_at = _HEADER.size + key_bytes
        sealed_at = nonce_at + nonce_bytes
        if nonce_bytes != _NONCE_BYTES or len(view) < sealed_at + _TAG_BYTES:
            raise ValueError("not an encrypted object")
        data_key = self._private.decrypt(bytes(view[_HEADER.size : nonce_at]), _PADDING)
        try:
            return self._cipher(data_key).decrypt(view[nonce_at:sealed_at], view[sealed_at:], None)
        except InvalidTag as error:
            raise ValueError("the tag does not match") from error
