"""Making and changing volumes, on engines and stores in memory."""

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from juicepy.errors import NotFormatted, ObjectNotFound, Refused
from juicepy.jobs import volume as volumes
from juicepy.meta.client import open_meta
from juicepy.meta.engine import MetaEngine
from juicepy.meta.registry import open_engine
from juicepy.object.registry import open_storage
from juicepy.object.storage import ObjectStorage
from juicepy.types import ROOT, TRASH, Buffer, Cred, Kind
from juicepy.volume import Format

PLAIN = Format(
    name="vol",
    uuid="7f043beb-78c4-49a6-8b91-c2bbc581a19a",
    storage="mem",
    encrypt_algo="aes256gcm-rsa",
    trash_days=1,
    meta_version=1,
    min_client_version="1.1.0-A",
    dir_stats=True,
)


@pytest.fixture
def engine() -> Iterator[MetaEngine]:
    opened = open_engine(f"mem://{uuid.uuid4()}")
    yield opened
    opened.close()


@pytest.fixture
def storage() -> ObjectStorage:
    return open_storage(PLAIN.with_(bucket=str(uuid.uuid4())))


def test_new_volume_has_root_trash_and_uuid(engine: MetaEngine, storage: ObjectStorage) -> None:
    volumes.create(engine, storage, PLAIN)
    assert volumes.stored(engine) == PLAIN
    root, trash = engine.attr(ROOT), engine.attr(TRASH)
    assert root is not None
    assert trash is not None
    assert (root.kind, root.mode, root.nlink, root.length) == (Kind.DIR, 0o777, 2, 4096)
    assert trash.mode == 0o555
    assert bytes(storage.get("juicefs_uuid")).decode() == PLAIN.uuid


def test_volume_without_trash_has_no_trash_until_it_is_wanted(
    engine: MetaEngine, storage: ObjectStorage
) -> None:
    volume = PLAIN.with_(trash_days=0)
    volumes.create(engine, storage, volume)
    assert engine.attr(TRASH) is None
    volumes.update(engine, volume, PLAIN)
    assert engine.attr(TRASH) is not None


def test_secrets_are_stored_encrypted(engine: MetaEngine, storage: ObjectStorage) -> None:
    volumes.create(engine, storage, PLAIN.with_(secret_key="hush"))
    raw = engine.load_format()
    assert raw is not None
    assert b"hush" not in raw
    found = volumes.stored(engine)
    assert found is not None
    assert found.decrypted().secret_key == "hush"


def test_empty_database_is_not_formatted(engine: MetaEngine) -> None:
    assert volumes.stored(engine) is None
    with pytest.raises(NotFormatted, match="mem://x"):
        volumes.formatted(engine, "mem://x")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": "Vol"}, "NAME"),
        ({"name": "vo"}, "NAME"),
        ({"name": "-vol"}, "NAME"),
        ({"name": "v" * 64}, "NAME"),
        ({"block_size": 32}, "--block-size"),
        ({"block_size": 32768}, "--block-size"),
        ({"block_size": 5120}, "--block-size"),
        ({"compression": "gzip"}, "--compress"),
        ({"encrypt_algo": "rot13"}, "--encrypt-algo"),
        ({"shards": 257, "bucket": "b%d"}, "--shards"),
        ({"shards": 2, "bucket": "b"}, "--bucket"),
        ({"trash_days": -1}, "--trash-days"),
        ({"inodes": -1}, "--inodes"),
    ],
)
def test_settings_that_make_no_volume_are_refused(change: dict[str, object], named: str) -> None:
    volumes.check_new(PLAIN)
    with pytest.raises(Refused, match=named):
        volumes.check_new(PLAIN.with_(**change))


@pytest.mark.parametrize("size", [64, 4096, 16384])
def test_block_sizes_in_range(size: int) -> None:
    volumes.check_new(PLAIN.with_(block_size=size))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"block_size": 1024},
        {"compression": "lz4"},
        {"shards": 2},
        {"hash_prefix": True},
    ],
)
def test_what_blocks_depend_on_cannot_change(change: dict[str, object]) -> None:
    with pytest.raises(Refused, match="cannot change"):
        volumes.check_update(PLAIN, PLAIN.with_(**change))


def test_acl_cannot_be_switched_off() -> None:
    volumes.check_update(PLAIN, PLAIN.with_(enable_acl=True))
    with pytest.raises(Refused, match="--enable-acl"):
        volumes.check_update(PLAIN.with_(enable_acl=True), PLAIN)


def test_features_raise_the_least_client_version() -> None:
    assert volumes.requirements(PLAIN).min_client_version == "1.1.0-A"
    acl = PLAIN.with_(enable_acl=True)
    assert volumes.requirements(acl).min_client_version == "1.2.0-A"


def test_store_that_works_is_left_as_it_was(storage: ObjectStorage) -> None:
    volumes.check_storage(storage)
    volumes.check_empty(storage)
    assert list(storage.list_from("")) == []


class Forgetful:
    """A store that returns other bytes than it got."""

    def __init__(self, inner: ObjectStorage) -> None:
        self.inner = inner

    def put(self, key: str, data: Buffer) -> None:
        self.inner.put(key, b"other")

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


def test_store_that_returns_other_bytes_is_refused(storage: ObjectStorage) -> None:
    with pytest.raises(Refused, match="other bytes"):
        volumes.check_storage(Forgetful(storage))  # type: ignore[arg-type]


def test_prefix_with_objects_is_refused(storage: ObjectStorage) -> None:
    storage.put("testing/left", b"x")
    volumes.check_empty(storage)
    storage.put("chunks/0/0/1_0_1", b"x")
    with pytest.raises(Refused, match="not empty"):
        volumes.check_empty(storage)


class FullEngine:
    def init(self, *args: object) -> None:
        raise OSError(28, "No space left on device")


def test_uuid_is_taken_back_if_the_database_fails(storage: ObjectStorage) -> None:
    with pytest.raises(OSError, match="No space"):
        volumes.create(FullEngine(), storage, PLAIN)  # type: ignore[arg-type]
    with pytest.raises(ObjectNotFound):
        storage.get("juicefs_uuid")


def test_usage_of_owners_is_counted_when_their_quotas_are_switched_on(
    engine: MetaEngine, storage: ObjectStorage
) -> None:
    volumes.create(engine, storage, PLAIN)
    client = open_meta(engine)
    client.mkdir(Cred(), ROOT, b"d", 0o777, 0)
    for name in (b"a", b"b"):
        client.mknod(Cred(7, 8), ROOT, name, Kind.FILE, 0o644, 0)
    client.unlink(Cred(7, 8), ROOT, b"b")  # still counts while it is in the trash
    volumes.update(engine, PLAIN, PLAIN.with_(user_group_quota=True))
    users, groups = engine.user_group_quotas()
    used = {owner: (quota.used_space, quota.used_inodes) for owner, quota in users.items()}
    assert used == {0: (4096, 1), 7: (8192, 2)}
    assert set(groups) == {0, 8}
    volumes.update(engine, PLAIN, PLAIN.with_(user_group_quota=True))
    assert engine.user_group_quotas()[0] == users


def test_changes_are_told_apart() -> None:
    new = replace(PLAIN, capacity=1 << 30, secret_key="x")
    names = [name for name, _, _ in volumes.shown_changes(PLAIN, new)]
    assert names == ["secret_key", "capacity"]
