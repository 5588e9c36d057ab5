"""Whole-file mode through the kernel, with passthrough and without: the same bytes always."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.programs import OURS, Mount
from tests.support.servers import new_meta_url
from tests.support.volumes import Volume, assert_sound, new_volume

__all__ = ["new_meta_url"]

MIB = 1 << 20
WHOLE = ("--open-mode", "whole", "--passthrough-age", "0s")


@pytest.fixture
def volume(new_meta_url: Callable[[str], str], tmp_path: Path) -> Volume:
    volume = new_volume(new_meta_url("redis"), tmp_path)
    volume.format(OURS)
    return volume


@pytest.fixture(params=["passthrough", "ourselves"])
def mount(request: pytest.FixtureRequest, volume: Volume) -> Iterator[Mount]:
    more = () if request.param == "passthrough" else ("--no-passthrough",)
    with volume.mounted(OURS, *WHOLE, *more) as mount:
        yield mount


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def settled(mount: Mount, name: str, data: bytes) -> Path:
    """A file that is closed, also for the kernel: its next open is the first."""
    path = mount.path / name
    path.write_bytes(data)
    with opened(path, os.O_RDWR) as fd:  # waits until nobody has it open
        os.fsync(fd)
    return path


def count(mount: Mount, name: str) -> float:
    lines = (mount.path / ".stats").read_text().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.split()[0] == name)


def local_files(volume: Volume) -> list[Path]:
    return sorted(volume.home.glob("cache*/*/whole/*"))


def pattern(size: int, seed: int = 0) -> bytes:
    return b"".join((seed + at).to_bytes(8, "big") for at in range(0, size, 8))[:size]


def test_the_kernel_reads_a_file_at_rest_without_us(volume: Volume) -> None:
    data = pattern(9 * MIB + 5)
    with volume.mounted(OURS, *WHOLE) as mount:
        path = settled(mount, "f", data)
        before = count(mount, "juicefs_fuse_ops_total_read")
        assert path.read_bytes() == data
        with opened(path, os.O_RDONLY) as fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
            assert mapped[5 * MIB : 5 * MIB + 9] == data[5 * MIB : 5 * MIB + 9]
        with opened(path, os.O_RDONLY | os.O_DIRECT) as fd:
            assert os.pread(fd, 4096, 0) == data[:4096]
        # `.stats` itself is read through us, so a few are ours
        assert count(mount, "juicefs_fuse_ops_total_read") - before < 8


def test_a_file_just_written_is_not_given_to_the_kernel(volume: Volume) -> None:
    with volume.mounted(OURS, "--open-mode", "whole") as mount:
        path = settled(mount, "f", b"fresh")
        with opened(path, os.O_RDONLY) as fd, opened(path, os.O_RDWR) as both:
            os.pwrite(both, b"F", 0)
            assert os.pread(fd, 9, 0) == b"Fresh"


def test_content_outlives_the_objects_and_the_mount(volume: Volume) -> None:
    data = pattern(5 * MIB)
    cache = volume.cache()
    options = {"cache_dir": cache, "options": WHOLE, "env": volume.env}
    with OURS.mounted(volume.meta_url, volume.place(OURS), **options) as mount:
        assert settled(mount, "f", data).read_bytes() == data
    shutil.rmtree(cache / next(iter(cache.iterdir())) / "raw")
    hidden = Path(volume.bucket).rename(volume.home / "hidden")
    Path(volume.bucket).mkdir()
    try:
        with OURS.mounted(volume.meta_url, volume.place(OURS), **options) as mount:
            assert (mount.path / "f").read_bytes() == data
    finally:
        shutil.rmtree(volume.bucket)
        hidden.rename(volume.bucket)


def test_who_reads_sees_every_change_at_once(mount: Mount) -> None:
    data = bytearray(pattern(9 * MIB))
    path = settled(mount, "f", bytes(data))
    with (
        opened(path, os.O_RDONLY) as reader,
        mmap.mmap(reader, 0, prot=mmap.PROT_READ) as mapped,
        opened(path, os.O_WRONLY) as writer,
    ):

        def check() -> None:
            with opened(path, os.O_RDONLY) as again:
                assert os.fstat(again).st_size == len(data)
                for fd in (reader, again):
                    assert os.pread(fd, len(data) + 1, 0) == data
            assert mapped[: min(len(mapped), len(data))] == data[: len(mapped)]

        os.pwrite(writer, b"new", 4 * MIB - 1)
        data[4 * MIB - 1 : 4 * MIB + 2] = b"new"
        check()
        os.fsync(writer)
        check()
        os.pwrite(writer, b"beyond", 9 * MIB + 100)
        data += bytes(100) + b"beyond"
        check()
        os.truncate(path, 6 * MIB)
        del data[6 * MIB :]
        check()
        os.ftruncate(writer, 7 * MIB)
        data += bytes(MIB)
        check()
        with opened(path, os.O_WRONLY) as target:
            assert os.copy_file_range(reader, target, 5000, 0, 100_000) == 5000
        data[100_000:105_000] = data[:5000]
        check()


def test_changes_of_another_client_are_seen_by_the_next_open(volume: Volume, mount: Mount) -> None:
    data = bytearray(pattern(9 * MIB))
    path = settled(mount, "f", bytes(data))
    with opened(path, os.O_RDONLY) as early, volume.mounted(OURS) as other:
        assert os.pread(early, 10, 0) == data[:10]
        with opened(other.path / "f", os.O_WRONLY) as writer:
            os.pwrite(writer, b"theirs", 5 * MIB)
            os.ftruncate(writer, 8 * MIB)
        data[5 * MIB : 5 * MIB + 6] = b"theirs"
        del data[8 * MIB :]
        assert path.read_bytes() == data
        (other.path / "g").write_bytes(b"replaced")
        os.rename(other.path / "g", other.path / "f")
        mount_sees = path.read_bytes()
        assert mount_sees in (data, b"replaced")  # the name, until the entry times out
        assert os.pread(early, len(data) + 1, 0) == data


def test_reading_and_writing_at_once_waits_for_the_kernels_readers(volume: Volume) -> None:
    with volume.mounted(OURS, *WHOLE) as mount:
        path = settled(mount, "f", b"content")
        with opened(path, os.O_RDONLY):
            with pytest.raises(OSError) as caught:
                os.open(path, os.O_RDWR)
            assert caught.value.errno == errno.ETXTBSY
        with opened(path, os.O_RDWR) as both, mmap.mmap(both, 0) as mapped:
            mapped[:3] = b"CON"
        assert path.read_bytes() == b"CONtent"


def test_the_least_recently_used_make_room(volume: Volume) -> None:
    size = 9 * MIB
    with volume.mounted(OURS, *WHOLE, "--cache-size", "30", "--free-space-ratio", "0") as mount:
        for seed in range(5):
            assert settled(mount, f"f{seed}", pattern(size, seed)).read_bytes() == pattern(
                size, seed
            )
            assert (mount.path / "f0").read_bytes() == pattern(size, 0)
        inodes = {int(path.name.split("_")[0]) for path in local_files(volume)}
        kept = {os.stat(mount.path / f"f{seed}").st_ino for seed in (0, 3, 4)}
        assert inodes == kept
        large = settled(mount, "large", pattern(40 * MIB))
        assert large.read_bytes() == pattern(40 * MIB)
        assert os.stat(large).st_ino not in {
            int(path.name.split("_")[0]) for path in local_files(volume)
        }
        blocks = sum(path.stat().st_size for path in volume.home.glob("cache*/*/raw/**/*_*"))
        assert blocks <= 30 * MIB


def test_short_files_may_be_left_to_the_block_cache(volume: Volume) -> None:
    with volume.mounted(OURS, *WHOLE, "--whole-file-min", "1") as mount:
        assert settled(mount, "short", b"x" * 1000).read_bytes() == b"x" * 1000
        assert local_files(volume) == []
        assert settled(mount, "long", b"y" * MIB).read_bytes() == b"y" * MIB
        assert len(local_files(volume)) == 1


def test_a_volume_used_so_is_sound(volume: Volume) -> None:
    with volume.mounted(OURS, *WHOLE) as mount:
        for number in range(20):
            data = pattern(number * 300_000, number)
            path = settled(mount, f"f{number}", data)
            with opened(path, os.O_RDONLY) as reader:
                os.truncate(path, number * 200_000)
                assert os.pread(reader, len(data) + 1, 0) == data[: number * 200_000]
    assert_sound(volume)


def test_memory_holds_no_whole_files(volume: Volume, tmp_path: Path) -> None:
    found = OURS.run(
        "mount", "--open-mode", "whole", "--cache-dir", "memory", volume.meta_url, tmp_path / "m",
        check=False,
    )  # fmt: skip
    assert found.code != 0
    assert "--open-mode whole needs a cache on disk" in found.stderr
