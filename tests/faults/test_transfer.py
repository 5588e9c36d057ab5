"""Transfers that are killed: nothing is half under its name, and the next run goes on."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.programs import OURS
from tests.support.trees import assert_same_hashes, hashes
from tests.support.volumes import Volume, check_blocks, new_volume
from tests.support.waiting import wait_for

LARGE = 192 << 20  # three chunks


@pytest.fixture
def volume(new_meta_url: Callable[[str], str], tmp_path: Path) -> Volume:
    made = new_volume(new_meta_url("sqlite"), tmp_path / "volume")
    made.format(OURS)
    return made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """One file of some chunks and a few small ones."""
    top = tmp_path / "source"
    (top / "small").mkdir(parents=True)
    chance = random.Random(7)
    block = chance.randbytes(1 << 20)
    with open(top / "large", "wb") as file:
        for number in range(LARGE >> 20):
            file.write(number.to_bytes(8, "big") + block[8:])
    for number in range(20):
        (top / "small" / str(number)).write_bytes(chance.randbytes(3000))
    return top


def _copied(text: str) -> int:
    """Bytes, from the summary."""
    return int(text.split(" files, ")[1].split(" bytes")[0].replace(",", ""))


def _cut(words: list[str | Path], number: int, is_begun: Callable[[], bool]) -> int:
    """Run until `is_begun`, then send the signal; the exit code."""
    command = subprocess.Popen(
        [OURS.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(is_begun, "the first chunk")
        assert command.poll() is None, "it ended before it could be cut short"
        command.send_signal(number)
        return command.wait(30)
    finally:
        command.kill()
        command.wait()


def test_download_killed_goes_on(volume: Volume, source: Path, tmp_path: Path) -> None:
    place, target = f"{volume.meta_url}:/d", tmp_path / "target"
    OURS.run("upload", source, place)

    def is_begun() -> bool:
        return any(path.read_bytes().count(b"\n") > 1 for path in target.glob("*.done"))

    words: list[str | Path] = ["download", "--threads", "1", place, target]
    assert _cut(words, signal.SIGKILL, is_begun) == -signal.SIGKILL
    assert not (target / "large").exists()
    again = OURS.run("download", place, target)
    assert _copied(again.stdout) <= LARGE - (64 << 20) + 20 * 3000
    assert_same_hashes(hashes(target), hashes(source))


def test_upload_killed_goes_on(volume: Volume, source: Path, tmp_path: Path) -> None:
    place, target = f"{volume.meta_url}:/d", tmp_path / "target"
    objects = Path(volume.bucket)

    def is_begun() -> bool:
        return sum(1 for _ in objects.rglob("*_4194304")) > 17

    words: list[str | Path] = ["upload", "--threads", "1", source, place]
    assert _cut(words, signal.SIGKILL, is_begun) == -signal.SIGKILL
    again = OURS.run("upload", source, place)
    assert _copied(again.stdout) <= LARGE - (64 << 20) + 20 * 3000
    check_blocks(volume)
    OURS.run("download", place, target)
    assert_same_hashes(hashes(target), hashes(source))
