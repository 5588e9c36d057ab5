"""CloudStorage over obstore's memory store."""

from __future__ import annotations

import errno

import pytest
from obstore.store import MemoryStore

from juicepy.object.cloud import CloudStorage
from juicepy.object.failure import Transient


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def storage(store: MemoryStore) -> CloudStorage:
    return CloudStorage("test://bucket/", (store, store), lambda: None, checksum=True)


def test_put_keeps_no_hold_on_the_callers_buffer(storage: CloudStorage) -> None:
    reused = bytearray(b"hello")
    storage.put("key", reused)
    reused[:] = b"HELLO"
    assert storage.get("key") == b"hello"


def test_checksum_travels_with_the_object(store: MemoryStore, storage: CloudStorage) -> None:
    storage.put("key", b"hello")
    assert store.get("key").attributes["crc32c"] == "2591144780"


def test_checksum_that_does_not_fit_fails_whole_reads_only(
    store: MemoryStore, storage: CloudStorage
) -> None:
    store.put("key", b"hello", attributes={"crc32c": "1"})
    with pytest.raises(Transient, match="checksum") as caught:
        storage.get("key")
    assert caught.value.errno == errno.EIO
    assert storage.get("key", 1, 2) == b"el"
    store.put("key", b"hello")
    assert storage.get("key") == b"hello"


@pytest.mark.parametrize("key", ["", "/rooted", "folder/", "a//b", "a/../b"])
def test_key_that_cannot_be_kept_is_refused(storage: CloudStorage, key: str) -> None:
    with pytest.raises(OSError) as caught:
        storage.put(key, b"1")
    assert caught.value.errno == errno.EIO


def test_keys_with_odd_characters_are_kept(storage: CloudStorage) -> None:
    keys = ["a b%20c", "ü/é", "q?a=b#c", "plus+&'\"<>", "dots.../x"]
    for key in keys:
        storage.put(key, key.encode())
        assert storage.get(key) == key.encode()
    assert [found.key for found in storage.list_from("")] == sorted(keys)
