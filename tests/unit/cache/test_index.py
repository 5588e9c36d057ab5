"""The table of what a directory holds, against a dict; its saved form."""

from __future__ import annotations

import os
import random
import sys
import time
from contextlib import closing
from pathlib import Path

import msgpack
import pytest

from juicepy.cache.disks import open_cache
from juicepy.cache.index import LEAST_SLOTS, OVERHEAD, Index, block_of, size_of
from juicepy.cache.options import CacheOptions
from juicepy.types import BlockKey, SliceId
from tests.unit.cache.test_disk import NAMES, VOLUME, block, content, file_of, fill, opened

ENTRIES = int(os.environ.get("JFS_CACHE_ENTRIES", "30000"))
NOW_S = 1.8e9


def key(number: int, index: int = 0, size: int = 1000) -> BlockKey:
    return BlockKey(SliceId(number), index, size)


def blocks(index: Index) -> set[BlockKey]:
    return {block_of(entry) for entry in index.entries()}


def test_table_does_as_a_dict_does() -> None:
    chance = random.Random(5)
    index, model = Index(), dict[tuple[int, int], BlockKey]()
    for step in range(30_000):
        is_growing = step // 5000 % 2 == 0
        number, part = chance.randrange(1 << 54 if step % 7 == 0 else 3000), chance.randrange(3)
        each = key(number, part, chance.choice([1, 1000, 1 << 24]))
        if chance.random() < (0.8 if is_growing else 0.2):
            assert index.add(each, NOW_S) == ((number, part) not in model)
            model.setdefault((number, part), each)
        else:
            assert index.remove(each) == (model.pop((number, part), None) is not None)
        assert (each in index) == ((number, part) in model)
    assert blocks(index) == set(model.values())
    assert len(index) == len(model)
    assert index.cost == sum(each.size + OVERHEAD for each in model.values())
    for each in list(model.values()):
        assert index.remove(each)
    assert (len(index), index.cost, index.slots(), index.entries()) == (0, 0, LEAST_SLOTS, [])


def test_use_makes_younger_and_keeps_the_size() -> None:
    index = Index()
    for number in range(3):
        index.add(key(number, size=1 << 24), NOW_S + number)
    index.touch(key(0), NOW_S + 9)
    index.touch(key(77), NOW_S)
    found = sorted(index.entries())
    assert [block_of(entry).id for entry in found] == [1, 2, 0]
    assert {size_of(entry) for entry in found} == {1 << 24}
    assert len(index) == 3


@pytest.mark.parametrize("atime_s", [-1e9, 0.0, 1e12])
def test_any_clock_is_borne(atime_s: float) -> None:
    index = Index()
    assert index.add(key(1), atime_s)
    assert blocks(index) == {key(1)}


@pytest.mark.parametrize(
    "odd", [key(1 << 54), key(1, 1024), key(1, 0, (1 << 24) + 1), key(1, 0, 0)], ids=str
)
def test_numbers_that_no_volume_has_are_not_held(odd: BlockKey) -> None:
    index = Index()
    assert not index.add(odd, NOW_S)
    assert odd not in index
    assert not index.remove(odd)
    index.touch(odd, NOW_S)
    assert len(index) == 0


def saved(count: int) -> bytes:
    index = Index()
    for number in range(count):
        index.add(key(number + 1), NOW_S + number)
    return index.dump()


def test_saved_index_is_the_same() -> None:
    index = Index()
    index.load(saved(5000))
    assert blocks(index) == {key(number + 1) for number in range(5000)}
    assert index.cost == 5000 * (1000 + OVERHEAD)
    assert index.add(key(6000), NOW_S)
    assert index.remove(key(1))


@pytest.mark.parametrize("length", [0, 1, 10, 100, 9000, 16000])
def test_cut_index_is_refused(length: int) -> None:
    index = Index()
    with pytest.raises(ValueError, match=r"\S"):
        index.load(saved(100)[:length])
    assert len(index) == 0


def test_damaged_index_is_refused() -> None:
    data = saved(100)
    chance = random.Random(1)
    for _ in range(50):
        at = chance.randrange(len(data))
        bad = data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        with pytest.raises(ValueError, match=r"\S"):
            Index().load(bad)
    for foreign in (b"", b"[1, 2]", msgpack.packb({"a": 1}), msgpack.packb([1, "little"])):
        with pytest.raises(ValueError, match=r"\S"):
            Index().load(foreign)


def test_many_entries_take_little_memory_and_time() -> None:
    """JFS_CACHE_ENTRIES=1000000 -s shows the figures of docs/caching."""
    index = Index()
    for number in range(ENTRIES):
        index.add(key(number + 1, size=4 << 20), NOW_S + number)
    data = index.dump()
    per_entry = index.slots() * 16 / ENTRIES
    del index
    before, begun_s = _resident_bytes(), time.monotonic()
    loaded = Index()
    loaded.load(data)
    took_s, after = time.monotonic() - begun_s, _resident_bytes()
    print(f"{ENTRIES} entries: {took_s:.2f} s, {after - before} bytes, {len(data)} in the file")
    assert len(loaded) == ENTRIES
    assert per_entry <= 48
    assert len(data) <= ENTRIES * 48 + 100
    assert after - before <= ENTRIES * 60 + (8 << 20)
    assert took_s < 10


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# -- of a directory


def test_blocks_are_known_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path, scan_interval_s=-1.0) as cache:
        fill(cache, *range(1, 20))
    path = tmp_path / VOLUME / "index.msgpack"
    assert path.stat().st_mode & 0o777 == 0o600
    with opened(tmp_path) as cache:
        assert cache.stats() == (19, 19 * 5096)  # at once
        assert not path.exists()  # a crash leaves no old one
        file_of(tmp_path, 1).unlink()
        file_of(tmp_path, 2).write_bytes(b"of something else")
        assert [cache.load(block(number)) for number in (1, 2)] == [None, None]
        assert bytes(cache.load(block(3)) or b"") == content(3)
        fill(cache, 1)
        assert bytes(cache.load(block(1)) or b"") == content(1)
        assert cache.stats()[0] == 18


def test_scan_finds_what_changed_since_the_index(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        fill(cache, *range(1, 6))
    saved_index = (tmp_path / VOLUME / "index.msgpack").read_bytes()
    with opened(tmp_path) as cache:
        fill(cache, 7)
        file_of(tmp_path, 1).unlink()
    (tmp_path / VOLUME / "index.msgpack").write_bytes(saved_index)
    with opened(tmp_path) as cache:
        assert cache.stats()[0] == 5
        cache.keeper.scan()
        assert cache.stats()[0] == 5
        assert cache.contains(block(7))
        assert not cache.contains(block(1))


def test_useless_index_is_no_obstacle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as cache:
        fill(cache, 1)
    path = tmp_path / VOLUME / "index.msgpack"
    path.write_bytes(path.read_bytes()[:-7])
    with opened(tmp_path) as cache:
        cache.keeper.scan()
        assert cache.stats()[0] == 1
        assert bytes(cache.load(block(1)) or b"") == content(1)
    assert "is of no use" in caplog.text


def test_several_directories_have_an_index_each(tmp_path: Path) -> None:
    options = CacheOptions(dirs=f"{tmp_path}/a:{tmp_path}/b", free_space=0.0)
    with closing(open_cache(options, VOLUME, NAMES)) as cache:
        for number in range(1, 40):
            cache.store(block(number), content(number))
    assert len(list(tmp_path.glob("*/*/index.msgpack"))) == 2
    with closing(open_cache(options, VOLUME, NAMES)) as cache:
        assert cache.stats()[0] == 39
    assert (
        sys.byteorder == msgpack.unpackb(next(tmp_path.glob("a/*/index.msgpack")).read_bytes())[1]
    )
