"""The contract of ObjectStorage, on every driver and on drivers with everything wrapped around."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from juicepy.errors import ObjectNotFound
from juicepy.object.registry import create_storage, open_storage
from juicepy.object.retry import Retrying
from juicepy.object.storage import ObjectStorage
from juicepy.object.target import DriverSettings
from tests.support.objects import (
    ACCESS_KEY,
    SECRET_KEY,
    AzureServer,
    S3Server,
    azure_server,
    google_server,
    s3_server,
)
from tests.support.waiting import wait_for

__all__ = ["azure_server", "google_server", "s3_server"]


@dataclass(frozen=True)
class Volume:
    """A StoredVolume."""

    storage: str
    bucket: str
    name: str = "vol"
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY
    session_token: str = ""
    shards: int = 0
    encrypt_key: str = ""
    encrypt_algo: str = ""
    storage_class: str = ""


@pytest.fixture(scope="module")
def pem() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    return key.private_bytes(*form).decode()


def _file(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStorage:
    return create_storage("file", f"{tmp_path}/objects/")


def _file_by_name(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStorage:
    return create_storage("file", f"{tmp_path}/objects/pre")


def _mem(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStorage:
    return create_storage("mem", "name")


def _s3(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStorage:
    server = request.getfixturevalue("s3_server")
    return create_storage("s3", server.new_bucket(), ACCESS_KEY, SECRET_KEY)


def _minio(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStorage:
    bucket = request.getfixturevalue("s3_server").new_bucket().removeprefix("http://")
    return create_storage("minio", bucket, ACCESS_KEY, SECRET_KEY)


def _wasb(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStorage:
    server = request.getfixturevalue("azure_server")
    settings = DriverSettings(connection_string=server.connection_string)
    return create_storage("wasb", server.new_bucket(), settings=settings)


def _gs(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStorage:
    server = request.getfixturevalue("google_server")
    return create_storage("gs", "gs://bucket", settings=DriverSettings(gs_endpoint=server.url))


def _file_wrapped(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStorage:
    pem = request.getfixturevalue("pem")
    volume = Volume("file", f"{tmp_path}/sh%d/", shards=3, encrypt_key=pem)
    return open_storage(volume, upload_limit=8000, download_limit=8000, observe=lambda *_: None)


def _s3_wrapped(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStorage:
    pem = request.getfixturevalue("pem")
    bucket = request.getfixturevalue("s3_server").new_bucket() + "-%d"
    algorithm = "chacha20-rsa"
    volume = Volume("s3", bucket, shards=2, encrypt_key=pem, encrypt_algo=algorithm)
    return open_storage(volume, observe=lambda *_: None)


STORAGES = [
    pytest.param(_file, id="file"),
    pytest.param(_file_by_name, id="file-by-name"),
    pytest.param(_mem, id="mem"),
    pytest.param(_s3, id="s3"),
    pytest.param(_minio, id="minio"),
    pytest.param(_wasb, id="wasb"),
    pytest.param(_gs, id="gs"),
    pytest.param(_file_wrapped, id="file-wrapped"),
    pytest.param(_s3_wrapped, id="s3-wrapped"),
]


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStorage]:
    with closing(request.param(request, tmp_path)) as opened:
        opened.create()
        yield opened


def test_what_is_put_is_got(storage: ObjectStorage) -> None:
    for data in (b"hello", b"", bytes(range(256)) * 5000):
        storage.put("chunks/0/0/1_0_5", data)
        got = storage.get("chunks/0/0/1_0_5")
        assert type(got) is bytes
        assert got == data


def test_any_buffer_can_be_put_and_reused_at_once(storage: ObjectStorage) -> None:
    reused = bytearray(b"first...")
    storage.put("a", memoryview(reused)[:5])
    reused[:] = b"second.."
    storage.put("b", reused)
    reused[:] = b"third..."
    assert (storage.get("a"), storage.get("b")) == (b"first", b"second..")


def test_ranges_are_cut_at_the_end_and_empty_beyond_it(storage: ObjectStorage) -> None:
    storage.put("ten", b"0123456789")
    assert storage.get("ten", 3, 4) == b"3456"
    assert storage.get("ten", 3) == b"3456789"
    assert storage.get("ten", 0, 4) == b"0123"
    assert storage.get("ten", 8, 10) == b"89"
    assert storage.get("ten", 0, 99) == b"0123456789"
    assert storage.get("ten", 10, 1) == storage.get("ten", 50) == storage.get("ten", 50, 5) == b""
    assert storage.get("ten", 2, 0) == b""
    storage.put("none", b"")
    assert storage.get("none", 0, 5) == storage.get("none", 1) == b""


def test_missing_object_is_told_from_every_other_failure(storage: ObjectStorage) -> None:
    storage.put("chunks/0/0/1_0_5", b"hello")
    for call in (
        lambda: storage.get("chunks/0/0/2_0_5"),
        lambda: storage.get("chunks/0/0/2_0_5", 2, 2),
        lambda: storage.head("nowhere/at/all"),
        lambda: storage.get("chunks/0/0/1_0_5/under"),
        lambda: storage.get("chunks/0"),
    ):
        with pytest.raises(ObjectNotFound) as caught:
            call()
        assert caught.value.errno == errno.ENOENT


def test_delete_of_an_absent_object_is_fine(storage: ObjectStorage) -> None:
    storage.put("testing/abc", b"x")
    for _ in range(2):
        storage.delete("testing/abc")
    storage.delete("never/was")
    storage.delete("testing/")
    with pytest.raises(ObjectNotFound):
        storage.get("testing/abc")
    assert list(storage.list_from("")) == []


def test_head_tells_size_and_time(storage: ObjectStorage) -> None:
    storage.put("some/object", b"x" * 1000)
    found = storage.head("some/object")
    listed = list(storage.list_from("some/"))
    assert found.key == "some/object"
    assert found.size in (1000, 1287)  # plain, encrypted
    assert 1_700_000_000 < found.mtime_ns / 1e9 < 4_000_000_000
    assert [(one.key, one.size) for one in listed] == [(found.key, found.size)]


def test_listing_is_in_key_order_from_where_it_is_asked(storage: ObjectStorage) -> None:
    keys = ["a", "a-b", "a.b/c", "a0", "chunks/0/0/10_0_1", "chunks/0/0/1_0_1", "chunks/1/2", "z"]
    keys = [f"d/{key}" for key in keys] + ["c", "e/f", "d.x", "d0"]
    for key in random.Random(7).sample(keys, len(keys)):
        storage.put(key, b"1")
    keys.sort()

    def listed(prefix: str, after: str = "") -> list[str]:
        return [found.key for found in storage.list_from(prefix, after)]

    assert listed("") == keys
    for prefix in ("d", "d/", "d/a", "d/chunks/0/0/1", "d/chunks", "d/z", "nothing", "e/f", "d/y"):
        assert listed(prefix) == [key for key in keys if key.startswith(prefix)], prefix
        for after in [*keys, "a", "d/b", "zz", prefix]:
            expected = [key for key in keys if key.startswith(prefix) and key > after]
            assert listed(prefix, after) == expected, (prefix, after)


def test_listing_survives_what_is_deleted_meanwhile(storage: ObjectStorage) -> None:
    for index in range(10):
        storage.put(f"many/{index}", b"1")
    for found in storage.list_from("many/"):
        storage.delete(found.key)
    assert list(storage.list_from("")) == []


def test_readers_see_whole_objects_while_they_are_replaced(storage: ObjectStorage) -> None:
    versions = [bytes([number]) * 300_000 for number in range(4)]
    storage.put("replaced", versions[0])
    stop = threading.Event()
    whole: list[bool] = []

    def read() -> None:
        patient = Retrying(storage, 20)  # moto answers 500 to some reads of what is replaced
        while not stop.is_set():
            whole.append(patient.get("replaced") in versions)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(30):
            storage.put("replaced", versions[number % 4])
        wait_for(lambda: len(whole) > 1, "reads of either version")
    finally:
        stop.set()
        for reader in readers:
            reader.join(60)
    assert all(whole)


def test_many_threads_put_and_get_in_new_folders(storage: ObjectStorage) -> None:
    failed: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for number in range(6):
                key = f"chunks/{number}/{number % 2}/{worker}_0_9"
                storage.put(key, key.encode())
                assert storage.get(key) == key.encode()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert len(list(storage.list_from("chunks/"))) == 48


def test_random_operations_agree_with_a_dictionary(storage: ObjectStorage) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    model: dict[str, bytes] = {}
    keys = [f"chunks/{a}/{b}_{a}_4096" for a in range(3) for b in range(4)]
    for _ in range(80):
        key = draw.choice(keys)
        action = draw.choice(["put", "put", "get", "get", "delete", "list"])
        if action == "put":
            model[key] = draw.randbytes(draw.choice([0, 1, 100, 70_000]))
            storage.put(key, model[key])
        elif action == "delete":
            model.pop(key, None)
            storage.delete(key)
        elif action == "list":
            assert [found.key for found in storage.list_from("chunks/")] == sorted(model)
        elif key in model:
            off, size = draw.randrange(200), draw.randrange(300)
            assert storage.get(key, off, size) == model[key][off : off + size]
            assert storage.get(key) == model[key]
        else:
            with pytest.raises(ObjectNotFound):
                storage.get(key)


def test_creating_what_exists_is_fine(storage: ObjectStorage) -> None:
    storage.put("kept", b"1")
    storage.create()
    assert storage.get("kept") == b"1"


def test_no_text_shows_a_secret(storage: ObjectStorage) -> None:
    with pytest.raises(OSError) as caught:
        storage.get("missing")
    for text in (str(storage), repr(storage), str(caught.value), repr(caught.value)):
        assert SECRET_KEY not in text
        assert "Eby8vdM02" not in text


def test_bucket_that_does_not_exist_is_no_missing_object(
    s3_server: S3Server, azure_server: AzureServer
) -> None:
    settings = DriverSettings(connection_string=azure_server.connection_string)
    for storage in (
        create_storage("s3", s3_server.new_bucket(), ACCESS_KEY, SECRET_KEY),
        create_storage("wasb", azure_server.new_bucket(), settings=settings),
    ):
        with pytest.raises(OSError, match="bucket does not exist") as put:
            storage.put("key", b"1")
        with pytest.raises(OSError, match="bucket does not exist") as got:
            storage.get("key")
        with pytest.raises(OSError, match="bucket does not exist") as listed:
            list(storage.list_from(""))
        assert {put.value.errno, got.value.errno, listed.value.errno} == {errno.EIO}
