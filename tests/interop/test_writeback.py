"""Write-back: what is acknowledged waits on the local disk, for either program to upload it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.programs import OURS, PEER, Program, discard
from tests.support.servers import new_meta_url
from tests.support.trees import assert_same_hashes, hashes
from tests.support.volumes import Volume, assert_sound, check_blocks, check_objects, new_volume
from tests.support.waiting import wait_for

__all__ = ["new_meta_url"]

LATER = ("--writeback", "--upload-delay", "1h")
NOW = ("--writeback",)


@pytest.fixture
def volume(new_meta_url: Callable[[str], str], tmp_path: Path) -> Volume:
    volume = new_volume(new_meta_url("redis"), tmp_path, "zstd")
    volume.format(OURS)
    return volume


def fill(top: Path) -> None:
    top.mkdir()
    chance = random.Random(3)
    for number in range(12):
        (top / f"f{number}").write_bytes(chance.randbytes(number * 1_000_000 // 2))


def waiting(cache: Path) -> list[Path]:
    return [path for path in cache.glob("*/rawstaging/**/*_*_*") if path.is_file()]


def objects(volume: Volume) -> list[Path]:
    return list(Path(volume.bucket).rglob("*_*_*"))


@pytest.mark.parametrize(
    ("writer", "uploader"), [(OURS, OURS), (OURS, PEER), (PEER, OURS)], ids=str
)
def test_what_one_program_staged_the_other_uploads(
    volume: Volume, writer: Program, uploader: Program
) -> None:
    """After a kill -9, and after a proper end."""
    cache = volume.cache()
    place = volume.place(writer)
    mount = writer.mount(volume.meta_url, place, cache_dir=cache, options=LATER)
    try:
        fill(mount.path / "d")
        expected = hashes(mount.path / "d")
        assert waiting(cache)
        assert objects(volume) == []
    finally:
        mount.kill()
        discard(mount)
    with writer.mounted(volume.meta_url, place, cache_dir=cache, options=LATER) as mount:
        (mount.path / "d" / "more").write_bytes(b"written after the crash")
        expected |= hashes(mount.path / "d")
    assert objects(volume) == []
    with uploader.mounted(
        volume.meta_url, volume.place(uploader), cache_dir=cache, options=NOW
    ) as mount:
        assert_same_hashes(hashes(mount.path / "d"), expected)
        wait_for(lambda: not waiting(cache), "all uploads")
    with volume.mounted(PEER, "--read-only") as far:
        assert_same_hashes(hashes(far.path / "d"), expected)
    check_blocks(volume)  # the statistics of directories suffer from a kill
    check_objects(volume)


@pytest.mark.parametrize("tool", [OURS, PEER], ids=str)
def test_umount_with_flush_waits_for_the_uploads(volume: Volume, tool: Program) -> None:
    cache = volume.cache()
    options = ("--writeback", "--upload-delay", "3s")
    mount = OURS.mount(volume.meta_url, volume.place(OURS), cache_dir=cache, options=options)
    try:
        fill(mount.path / "d")
        assert waiting(cache)
        tool.run("umount", "--flush", mount.path)
        assert waiting(cache) == []
    finally:
        discard(mount)
    assert_sound(volume)


def test_removed_files_leave_nothing_behind(volume: Volume) -> None:
    volume.format(OURS, "--trash-days", "0")
    cache = volume.cache()
    with OURS.mounted(volume.meta_url, volume.place(OURS), cache_dir=cache, options=LATER) as mount:
        fill(mount.path / "d")
        for path in (mount.path / "d").iterdir():
            path.unlink()
        wait_for(lambda: not waiting(cache), "the removal of the staged blocks")
    assert objects(volume) == []
    assert_sound(volume)
