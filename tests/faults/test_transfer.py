"""Transfers that are cut short: nothing is half under its name, and the next run goes on."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.programs import OURS
from tests.support.trees import assert_same_hashes, hashes
from tests.support.volumes import Volume, check_blocks, new_volume

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
        while not is_begun():  # looks more often than `wait_for`: what is left takes a moment only
            assert command.poll() is None, "it ended before it could be cut short"
            time.sleep(0.005)
        command.send_signal(number)
        return command.wait(30)
    finally:
        command.kill()
        command.wait()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)]
)
def test_download_cut_short_goes_on(
    volume: Volume, source: Path, tmp_path: Path, number: int, code: int
) -> None:
    place, target = f"{volume.meta_url}:/d", tmp_path / "target"
    OURS.run("upload", source, place)

    def is_begun() -> bool:
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            return any(path.read_bytes().count(b"\n") > 1 for path in target.glob("*.done"))
        return False

    words: list[str | Path] = ["download", "--threads", "1", place, target]
    assert _cut(words, number, is_begun) == code
    assert not (target / "large").exists()
    again = OURS.run("download", place, target)
    assert _copied(again.stdout) <= LARGE - (64 << 20) + 20 * 3000
    assert_same_hashes(hashes(target), hashes(source))


@contextlib.contextmanager
def _tmpfs(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def test_download_to_a_disk_without_room_goes_on(volume: Volume, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(12):
        (source / str(number)).write_bytes(bytes([number]) * (300 << 10))
    place = f"{volume.meta_url}:/d"
    OURS.run("upload", source, place)
    with _tmpfs(tmp_path / "small", "2m") as target:
        failed = OURS.run("download", place, target / "d", check=False)
        assert failed.code == 1
        assert failed.stderr.count("\n") == 1
        assert "No space left" in failed.stderr
        mode = ["mount", "-o", "remount,ro", target]
        subprocess.run(mode, check=True)
        failed = OURS.run("download", place, target / "d", check=False)
        assert failed.code == 1
        assert "Read-only" in failed.stderr
        subprocess.run(["mount", "-o", "remount,rw,size=20m", target], check=True)
        OURS.run("download", place, target / "d")
        assert_same_hashes(hashes(target / "d"), hashes(source))


def test_a_file_that_changes_while_it_is_listed_is_copied_as_it_is_then(
    volume: Volume, tmp_path: Path
) -> None:
    """Pages of short files are looked at ahead; what has changed by then is opened anew."""
    place = f"{volume.meta_url}:/d"
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for number in range(50):
        (source / str(number)).write_bytes(b"old" * number)
    OURS.run("upload", source, place)
    for number in range(0, 50, 3):
        (source / str(number)).write_bytes(b"newer" * (number + 1))
    OURS.run("upload", source, place)
    OURS.run("download", place, target)
    assert_same_hashes(hashes(target), hashes(source))
    again = OURS.run("download", "--checksum", place, target)
    assert "50 skipped" in again.stdout


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
