"""The wrappers that are not about failures: prefix, shards, limits, metrics; and `ability`."""

from __future__ import annotations

import errno

import pytest

from juicepy.errors import ObjectNotFound
from juicepy.object.limit import Limited, TokenBucket
from juicepy.object.mem import MemoryStorage
from juicepy.object.metered import Metered
from juicepy.object.prefix import Prefixed
from juicepy.object.shard import Sharded, fnv1a
from juicepy.object.storage import ability
from tests.unit.object.faulty import Faulty


def test_prefix_is_added_and_taken_off() -> None:
    inner = MemoryStorage("bucket")
    storage = Prefixed(inner, "vol/")
    inner.put("volume/x", b"not ours")
    inner.put("vo", b"not ours")
    storage.put("a", b"1")
    storage.put("b", b"22")
    assert inner.get("vol/a") == b"1"
    assert storage.get("b", 1, 1) == b"2"
    assert [found.key for found in storage.list_from("")] == ["a", "b"]
    assert [found.key for found in storage.list_from("", "a")] == ["b"]
    assert storage.head("b").key == "b"
    assert str(storage) == "mem://bucket/vol/"
    with pytest.raises(ObjectNotFound) as caught:
        storage.get("missing")
    assert caught.value.filename == "vol/missing"


@pytest.mark.parametrize(
    ("text", "digest"), [(b"", 0x811C9DC5), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968)]
)
def test_fnv1a_gives_the_published_values(text: bytes, digest: int) -> None:
    assert fnv1a(text) == digest


def test_key_decides_the_shard_and_lists_are_merged() -> None:
    shards = [MemoryStorage(str(number)) for number in range(3)]
    storage = Sharded(shards)
    keys = [f"vol/chunks/0/0/{number}_0_4096" for number in range(30)]
    for key in keys:
        storage.put(key, key.encode())
    for key in keys:
        assert shards[fnv1a(key.encode()) % 3].get(key) == key.encode() == storage.get(key)
    assert all(list(shard.list_from("")) for shard in shards)
    assert [found.key for found in storage.list_from("vol/")] == sorted(keys)
    storage.delete(keys[0])
    assert len(list(storage.list_from("", sorted(keys)[10]))) == 19


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_limit_holds_on_average() -> None:
    clock = Clock()
    bucket = TokenBucket(1000, clock=clock, sleep=clock.sleep)
    for _ in range(50):
        bucket.take(100)
    assert 104.7 <= clock.now <= 105.1


def test_idle_time_is_not_saved_up() -> None:
    clock = Clock()
    bucket = TokenBucket(1000, clock=clock, sleep=clock.sleep)
    clock.now += 3600
    for _ in range(50):
        bucket.take(100)
    assert clock.now - 3700 >= 4.7


def test_no_limit_never_waits() -> None:
    def never(seconds: float) -> None:
        raise AssertionError(seconds)

    TokenBucket(0, sleep=never).take(1 << 40)


def test_each_direction_has_its_own_limit() -> None:
    clock = Clock()
    up = TokenBucket(1000, clock=clock, sleep=clock.sleep)
    storage = Limited(MemoryStorage(), up, TokenBucket(0))
    storage.put("key", bytes(5000))
    waited = clock.now
    assert waited >= 104.5
    storage.get("key")
    assert clock.now == waited


def test_every_request_is_observed() -> None:
    seen: list[tuple[str, int, int | None]] = []
    inner = Faulty()
    storage = Metered(
        inner,
        lambda method, s, size, error: seen.append((method, size, error.errno if error else None)),
    )
    storage.put("a", b"12345")
    storage.get("a", 1, 2)
    storage.head("a")
    assert [found.key for found in storage.list_from("")] == ["a"]
    storage.delete("a")
    inner.failures = [None, OSError(errno.EIO, "broken")]
    with pytest.raises(ObjectNotFound):
        storage.get("a")
    with pytest.raises(OSError, match="broken"):
        storage.put("a", b"1")
    assert seen == [
        ("PUT", 5, None),
        ("GET", 2, None),
        ("HEAD", 0, None),
        ("LIST", 0, None),
        ("DELETE", 0, None),
        ("GET", 0, errno.ENOENT),
        ("PUT", 0, errno.EIO),
    ]


def test_ability_looks_through_wrappers() -> None:
    inner = MemoryStorage()
    storage = Prefixed(Metered(inner, lambda *_: None), "vol/")
    assert ability(storage, MemoryStorage) is inner
    assert ability(storage, Sharded) is None
