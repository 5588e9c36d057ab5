"""Objects of the real client through our storage, and ours through the real client.

The real client serves the volume over WebDAV, so that its cache can be emptied between the two
directions; each case is a driver or a way of encrypting.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from juicepy.object.registry import open_storage
from juicepy.object.storage import ObjectStorage
from juicepy.object.target import DriverSettings
from juicepy.volume import Format
from tests.support.objects import ACCESS_KEY, SECRET_KEY, azure_server, s3_server
from tests.support.programs import PEER
from tests.support.sql_servers import free_port
from tests.support.waiting import wait_for

__all__ = ["azure_server", "s3_server"]

PASSPHRASE = "a s3cret: phrase"
SIZE = (1 << 20) + 12345  # two blocks


@dataclass(frozen=True)
class Case:
    """Flags of `format`, its environment and our settings."""

    flags: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    settings: DriverSettings = field(default_factory=DriverSettings)

    @property
    def passphrase(self) -> str:
        return self.env.get("JFS_RSA_PASSPHRASE", "")


def _pem(home: Path, form: PrivateFormat, passphrase: str) -> str:
    how: KeySerializationEncryption = NoEncryption()
    if passphrase:
        how = BestAvailableEncryption(passphrase.encode())
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    path = home / "key.pem"
    path.write_bytes(key.private_bytes(Encoding.PEM, form, how))
    return str(path)


def _encrypted(form: PrivateFormat, algorithm: str, passphrase: str) -> Callable[..., Case]:
    def make(request: pytest.FixtureRequest, home: Path) -> Case:
        key = _pem(home, form, passphrase)
        flags = ["--storage", "file", "--bucket", f"{home}/objects/"]
        flags += ["--encrypt-rsa-key", key, "--encrypt-algo", algorithm]
        return Case(flags, {"JFS_RSA_PASSPHRASE": passphrase} if passphrase else {})

    return make


def _sharded(request: pytest.FixtureRequest, home: Path) -> Case:
    return Case(["--storage", "file", "--bucket", f"{home}/sh%d/", "--shards", "3"])


def _s3(kind: str) -> Callable[..., Case]:
    def make(request: pytest.FixtureRequest, home: Path) -> Case:
        bucket = request.getfixturevalue("s3_server").made_bucket()
        keys = ["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]
        return Case(["--storage", kind, "--bucket", bucket, *keys])

    return make


def _wasb(request: pytest.FixtureRequest, home: Path) -> Case:
    server = request.getfixturevalue("azure_server")
    return Case(
        ["--storage", "wasb", "--bucket", server.new_bucket()],
        {"AZURE_STORAGE_CONNECTION_STRING": server.connection_string},
        DriverSettings(connection_string=server.connection_string),
    )


PKCS1, PKCS8 = PrivateFormat.TraditionalOpenSSL, PrivateFormat.PKCS8
CASES = [
    pytest.param(_encrypted(PKCS1, "aes256gcm-rsa", ""), id="aes-pkcs1"),
    pytest.param(_encrypted(PKCS1, "chacha20-rsa", PASSPHRASE), id="chacha-legacy-pem"),
    pytest.param(_encrypted(PKCS8, "aes256gcm-rsa", ""), id="aes-pkcs8"),
    pytest.param(_sharded, id="sharded"),
    pytest.param(_s3("s3"), id="s3"),
    pytest.param(_s3("minio"), id="minio"),
    pytest.param(_wasb, id="wasb"),
]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    made: Case = request.param(request, tmp_path)
    return made


@contextlib.contextmanager
def _served(case: Case, home: Path) -> Iterator[str]:
    """The URL at which the real client serves the volume, with nothing cached."""
    port = free_port()
    words = ["webdav", f"sqlite3://{home}/meta.db", f"127.0.0.1:{port}", "--cache-size", "0"]
    words += [
        "--no-usage-report",
        "--no-bgjob",
        "--log",
        f"{home}/webdav.log",
        "--backup-meta",
        "0",
    ]
    with (home / "webdav.out").open("ab") as log:
        process = subprocess.Popen(
            [str(PEER.executable), *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **case.env},
        )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, "juicefs webdav ended"
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(f"{url}/", timeout=5).close()
        return True

    try:
        wait_for(answers, f"juicefs webdav, see {home}/webdav.out")
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)


def _setting(home: Path) -> Format:
    with closing(sqlite3.connect(home / "meta.db")) as database:
        (raw,) = database.execute("select value from jfs_setting where name='format'").fetchone()
    return Format.from_json(raw).decrypted()


def _opened(case: Case, home: Path) -> ObjectStorage:
    return open_storage(_setting(home), passphrase=case.passphrase, settings=case.settings)


def test_objects_are_read_by_both(case: Case, tmp_path: Path) -> None:
    PEER.run(
        *("format", f"sqlite3://{tmp_path}/meta.db", "vol", "--block-size", "1024"),
        *("--no-update", *case.flags),
        env=case.env,
        timeout_s=120,
    )
    data = os.urandom(SIZE)
    with _served(case, tmp_path) as url:
        request = urllib.request.Request(f"{url}/file", data=data, method="PUT")
        urllib.request.urlopen(request, timeout=60).close()
    with closing(_opened(case, tmp_path)) as storage:
        assert storage.get("juicefs_uuid").decode() == _setting(tmp_path).uuid
        first, second = sorted(found.key for found in storage.list_from("chunks/"))
        assert storage.get(first) + storage.get(second) == data
        assert storage.get(first, 4096, 100) == data[4096:4196]
        # another content shows that the real client reads ours, and not something kept
        ours = os.urandom(SIZE)
        storage.delete(first)
        storage.put(first, ours[: 1 << 20])
        storage.put(second, ours[1 << 20 :])
    with _served(case, tmp_path) as url, urllib.request.urlopen(f"{url}/file") as answer:
        assert answer.read() == ours
