"""`jfs download` and `jfs upload`, beside mounts of the real client."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.programs import OURS, PEER
from tests.support.trees import Tree, assert_same, describe, essence, plant
from tests.support.volumes import Volume, assert_sound, new_volume


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tree]:
    """A local tree with one of everything."""
    root = tmp_path_factory.mktemp("planted")
    plant(root)
    return root, essence(describe(root))


@pytest.fixture
def volume(new_meta_url: Callable[[str], str], tmp_path: Path) -> Volume:
    made = new_volume(new_meta_url("sqlite"), tmp_path / "volume")
    made.format(OURS)
    return made


def test_upload_is_read_by_the_peer_and_downloads_equal(
    volume: Volume, planted: tuple[Path, Tree], tmp_path: Path
) -> None:
    root, expected = planted
    place = f"{volume.meta_url}:/up/there"
    OURS.run("upload", root, place)
    with volume.mounted(PEER, "--read-only") as mount:
        assert_same(essence(describe(mount.path / "up/there")), expected, "the peer's mount")
    assert_sound(volume)
    OURS.run("download", place, tmp_path / "down")
    assert_same(essence(describe(tmp_path / "down")), expected, "what was downloaded")
    again = OURS.run("upload", "--checksum", root, place).stdout
    assert again.startswith("0 files, 0 bytes copied")
    assert " 0 failed" in again


def test_volume_of_the_peer_downloads_equal(volume: Volume, tmp_path: Path) -> None:
    """Overwritten data and holes too; by its URL, and through its mount."""
    with volume.mounted(PEER) as mount:
        top = mount.path / "d"
        (top / "empty").mkdir(parents=True)
        data = bytearray(random.Random(1).randbytes(9 << 20))
        (top / "large").write_bytes(data)
        with open(top / "large", "r+b") as file:
            file.seek(5_000_001)
            file.write(b"x" * 100_000)
            file.truncate(70 << 20)
        os.utime(top / "large", ns=(1, 1_700_000_000_123_456_000))
        expected = essence(describe(top))
        OURS.run("download", top, tmp_path / "by-mount")
    OURS.run("download", f"{volume.meta_url}:/d", tmp_path / "by-url")
    for found in (tmp_path / "by-mount", tmp_path / "by-url"):
        assert_same(essence(describe(found)), expected, found.name)
    assert (tmp_path / "by-url/large").stat().st_blocks * 512 < 12 << 20
