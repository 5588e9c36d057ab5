"""The cache on disks: sharing of files, limits, damage, failing directories."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

import pytest

from juicepy.cache import health, keeper
from juicepy.cache.disk import DiskCache
from juicepy.cache.disks import DiskCaches, expand, open_cache
from juicepy.cache.health import FAILURES
from juicepy.cache.memory import MemoryCache, NoCache
from juicepy.cache.options import CacheOptions
from juicepy.chunk.layout import Layout
from juicepy.errors import Refused
from juicepy.types import BlockKey, SliceId

NAMES = Layout(4 << 20)
VOLUME = "ababa8f6-eef8-4d88-a4c7-2878049d359e"


def block(number: int, size: int = 1000) -> BlockKey:
    return BlockKey(SliceId(number), 0, size)


def content(number: int, size: int = 1000) -> bytes:
    return bytes([number % 256]) * size


def wait_for(claim: Callable[[], object], timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.01)


@contextmanager
def opened(path: Path, **changes: object) -> Iterator[DiskCache]:
    options = CacheOptions(dirs=str(path), free_space=0.0, **changes)  # type: ignore[arg-type]
    with closing(open_cache(options, VOLUME, NAMES)) as cache:
        yield cast(DiskCache, cache)


def fill(cache: DiskCache, *numbers: int, size: int = 1000) -> None:
    for number in numbers:
        cache.store(block(number, size), content(number, size))
    assert cache.wait_stored()


def file_of(path: Path, number: int, size: int = 1000) -> Path:
    return path / VOLUME / "raw" / NAMES.object_key(block(number, size))


def test_blocks_are_files_named_as_their_objects(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        assert cache.load(block(1)) is None
        fill(cache, 1)
        assert file_of(tmp_path, 1).read_bytes()[:1000] == content(1)
        assert file_of(tmp_path, 1).stat().st_size == 1004
        assert file_of(tmp_path, 1).stat().st_mode & 0o777 == 0o600
        assert bytes(cache.load(block(1), 10, 5) or b"") == content(1, 5)
        assert cache.contains(block(1))
        assert cache.stats() == (1, 1000 + 4096)
    lock = (tmp_path / VOLUME / ".lock").read_text()
    assert len(lock) == 36
    with opened(tmp_path) as cache:
        assert cache.ident == lock
        assert bytes(cache.load(block(1)) or b"") == content(1)
        wait_for(lambda: cache.stats() == (1, 1000 + 4096))


def test_block_is_served_while_it_waits_to_be_written(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        for number in range(50):
            cache.store(block(number), content(number))
            assert bytes(cache.load(block(number), 7, 3) or b"") == content(number, 3)


def test_blocks_that_others_wrote_are_found(tmp_path: Path) -> None:
    with opened(tmp_path) as cache, opened(tmp_path) as other:
        fill(cache, 1)
        assert other.contains(block(1))
        assert bytes(other.load(block(1)) or b"") == content(1)
        assert other.stats()[0] == 1


def test_damaged_block_is_dropped_and_a_miss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as cache:
        fill(cache, 1, 2)
        for number, damage in ((1, b"?" + content(1)[1:]), (2, b"short")):
            with open(file_of(tmp_path, number), "r+b") as file:
                file.write(damage)
                file.truncate(max(len(damage) + 4, 9))
            assert cache.load(block(number)) is None
            assert not file_of(tmp_path, number).exists()
            assert cache.load(block(number)) is None
        assert cache.stats() == (0, 0)
        assert "is dropped" in caplog.text
        fill(cache, 1)
        assert bytes(cache.load(block(1)) or b"") == content(1)


def test_discarded_block_is_gone_even_while_it_is_written(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        for number in range(30):
            cache.store(block(number), content(number))
            cache.discard(block(number))
            assert cache.load(block(number)) is None
        fill(cache, 100)
        assert [path.name for path in (tmp_path / VOLUME / "raw").rglob("*_*")] == ["100_0_1000"]
        assert cache.stats()[0] == 1


@pytest.mark.parametrize("eviction", ["lru", "2-random"])
def test_full_cache_is_cleaned_up(tmp_path: Path, eviction: str) -> None:
    with opened(tmp_path, size=20 * 5096, eviction=eviction) as cache:
        fill(cache, *range(40))

        def is_settled() -> bool:  # the cleaner may be at work while we count
            blocks, size = cache.stats()
            stored = len(list((tmp_path / VOLUME / "raw").rglob("*_*")))
            return 10 <= blocks <= 20 and size == blocks * 5096 and stored == blocks

        wait_for(is_settled)


def test_lru_keeps_what_was_read(tmp_path: Path) -> None:
    with opened(tmp_path, items=20, eviction="lru") as cache:
        fill(cache, *range(20))
        time.sleep(0.01)  # ages are told apart by the millisecond
        assert cache.load(block(0)) is not None
        fill(cache, 20)
        cache.keeper.keep()
        assert cache.contains(block(0))
        assert not cache.contains(block(1))


def test_without_eviction_a_full_cache_takes_no_more(tmp_path: Path) -> None:
    with opened(tmp_path, size=5 * 5096, eviction="none") as cache:
        fill(cache, 1, 2, 3, 4, 5, 6)
        cache.keeper.keep()
        held = cache.stats()
        fill(cache, 7)
        assert cache.stats() == held
        assert cache.contains(block(1))
        assert not cache.contains(block(7))


def test_staged_blocks_are_never_evicted(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        fill(cache, 1, 2, 3)
    os.link(file_of(tmp_path, 2), tmp_path / "staged")
    with opened(tmp_path, items=1) as cache:
        wait_for(lambda: cache.counts.evicts == 2)
        assert cache.contains(block(2))
        assert cache.stats()[0] == 1


def test_blocks_not_read_for_long_expire(tmp_path: Path) -> None:
    with opened(tmp_path, expire_s=1.0) as cache:
        fill(cache, 1)
        wait_for(lambda: not cache.contains(block(1)))


def test_lack_of_free_space_empties_the_cache_and_nothing_breaks(tmp_path: Path) -> None:
    options = CacheOptions(dirs=str(tmp_path), free_space=1.0)
    with closing(open_cache(options, VOLUME, NAMES)) as cache:
        cache.store(block(1), content(1))
        wait_for(lambda: cache.stats() == (0, 0))
        cache.load(block(1))


def test_garbage_of_killed_clients_is_removed_by_the_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "LATE_SCAN_S", 0.0)
    with opened(tmp_path) as cache:
        fill(cache, 1)
    old = file_of(tmp_path, 2).with_suffix(".tmp")
    new = file_of(tmp_path, 3).with_suffix(".tmp")
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    with opened(tmp_path) as cache:
        wait_for(lambda: cache.stats()[0] == 1)
        wait_for(lambda: not old.exists())
        assert new.exists()


def test_wiped_directory_is_made_again(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        ident = cache.ident
        fill(cache, 1)
        shutil.rmtree(tmp_path / VOLUME)
        cache.keeper.round()
        assert (tmp_path / VOLUME / ".lock").read_text() == ident
        assert not cache.is_down
        fill(cache, 1)
        assert bytes(cache.load(block(1)) or b"") == content(1)


def test_failing_disk_is_given_up_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as cache:
        wait_for(lambda: (tmp_path / VOLUME / "raw").exists())
        shutil.rmtree(tmp_path / VOLUME / "raw")
        (tmp_path / VOLUME / "raw").write_bytes(b"")  # ENOTDIR from now on
        for number in range(FAILURES + 2):
            cache.load(block(number))
        assert cache.is_down
        cache.store(block(1), content(1))
        assert cache.load(block(1)) is None
    assert caplog.text.count("is out of use") == 1


def test_many_threads_read_store_and_discard(tmp_path: Path) -> None:
    wrong: list[int] = []
    with opened(tmp_path, items=50, eviction="2-random") as cache:

        def work(seed: int) -> None:
            for step in range(300):
                number = (seed * 31 + step * 17) % 100
                data = cache.load(block(number), 100, 100)
                if data is None:
                    cache.store(block(number), content(number))
                elif bytes(data) != content(number, 100):
                    wrong.append(number)
                if step % 50 == 0:
                    cache.discard(block(number))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not wrong
        assert cache.wait_stored()

        def is_in_line() -> bool:  # its own keeper is at work, too
            cache.keeper.keep()
            cache.keeper.scan()
            blocks, size = cache.stats()
            files = list((tmp_path / VOLUME / "raw").rglob("*_*"))
            return size == blocks * 5096 and blocks == len(files) <= 50

        wait_for(is_in_line)


# -- several directories


def test_directories_share_the_blocks(tmp_path: Path) -> None:
    options = CacheOptions(dirs=f"{tmp_path}/b:{tmp_path}/a:{tmp_path}/c", free_space=0.0)
    with closing(open_cache(options, VOLUME, NAMES)) as cache:
        assert isinstance(cache, DiskCaches)
        for number in range(60):
            cache.store(block(number), content(number))
        wait_for(lambda: cache.stats()[0] == 60)
        for number in range(60):
            assert bytes(cache.load(block(number)) or b"") == content(number)
        counts = [len(list((tmp_path / name / VOLUME).rglob("*_*"))) for name in "abc"]
        assert sum(counts) == 60
        assert min(counts) > 5


def test_failed_directory_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "FIRST_PAUSE_S", 3600.0)
    options = CacheOptions(dirs=f"{tmp_path}/a:{tmp_path}/b", free_space=0.0)
    with closing(open_cache(options, VOLUME, NAMES)) as cache:
        assert isinstance(cache, DiskCaches)
        lost = cache.disk(block(1))
        assert lost is not None
        lost.health.take_out("as the test says")
        other = cache.disk(block(1))
        assert other is not None
        assert other is not lost
        cache.store(block(1), content(1))
        assert other.wait_stored()
        assert bytes(cache.load(block(1)) or b"") == content(1)
        other.health.take_out("as the test says")
        assert cache.disk(block(1)) is None
        assert cache.load(block(2)) is None
        cache.store(block(2), content(2))
        cache.discard(block(2))


def test_settings_choose_the_cache(tmp_path: Path) -> None:
    assert isinstance(open_cache(CacheOptions(size=0), VOLUME, NAMES), NoCache)
    assert isinstance(open_cache(CacheOptions(dirs="memory"), VOLUME, NAMES), MemoryCache)
    for bad in (CacheOptions(checksum="some"), CacheOptions(eviction="fifo")):
        with pytest.raises(Refused):
            open_cache(bad, VOLUME, NAMES)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Refused, match="file"):
        open_cache(CacheOptions(dirs=f"{tmp_path}/ok:{tmp_path}/file"), VOLUME, NAMES)


def test_names_of_directories_are_expanded(tmp_path: Path) -> None:
    for name in ("d1", "d2", "e"):
        (tmp_path / name).mkdir()
    top = str(tmp_path)
    assert expand(f"{top}/b:{top}/a:{top}/a") == [f"{top}/a", f"{top}/b"]
    assert expand(f"{top}/b,{top}/a") == [f"{top}/a", f"{top}/b"]
    assert expand(f"{top}/d*/x/y") == [f"{top}/d1/x/y", f"{top}/d2/x/y"]
    with pytest.raises(Refused):
        expand(f"{top}/z*/x")
