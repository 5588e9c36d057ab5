"""Transfers that are killed, and those whose disk or store fails: nothing is half, all goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.faulty import FaultyStore
from tests.support.objects import ACCESS_KEY, SECRET_KEY, S3Server
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


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)]
)
def test_download_cut_short_goes_on(
    volume: Volume, source: Path, tmp_path: Path, number: int, code: int
) -> None:
    place, target = f"{volume.meta_url}:/d", tmp_path / "target"
    OURS.run("upload", source, place)

    def is_begun() -> bool:
        return any(path.read_bytes().count(b"\n") > 1 for path in target.glob("*.done"))

    assert _cut(["download", "--threads", "1", place, target], number, is_begun) == code
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


@pytest.fixture
def store(s3_server: S3Server) -> Iterator[FaultyStore]:
    faulty = FaultyStore(s3_server.url)
    yield faulty
    faulty.close()


def test_store_that_fails_now_and_then(
    store: FaultyStore,
    s3_server: S3Server,
    new_meta_url: Callable[[str], str],
    source: Path,
    tmp_path: Path,
) -> None:
    os.truncate(source / "large", 9 << 20)
    bucket = s3_server.new_bucket().replace(s3_server.url, store.url)
    keys = ("--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY)
    url = new_meta_url("sqlite")
    volume = new_volume(url, tmp_path / "s3", storage="s3", bucket=bucket, flags=keys)
    volume.format(OURS)
    place, target = f"{url}:/d", tmp_path / "target"
    store.every = 4
    OURS.run("upload", source, place)
    OURS.run("download", "--checksum", place, target)
    assert store.failed > 5
    assert_same_hashes(hashes(target), hashes(source))
    store.every, store.failing = 0, frozenset({"GET"})
    failed = OURS.run("download", "--io-retries", "0", place, tmp_path / "none", check=False)
    assert failed.code == 1
    assert "21 failed" in failed.stdout
    assert hashes(tmp_path / "none").keys().isdisjoint(hashes(source))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "none", disk], check=True)
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_full_and_read_only_disk(volume: Volume, source: Path, small_disk: Path) -> None:
    place, target = f"{volume.meta_url}:/d", small_disk / "target"
    OURS.run("upload", source, place)
    full = OURS.run("download", place, target, check=False)
    assert full.code == 1
    assert full.stdout == ""
    assert full.stderr.count("\n") == 1
    assert "No space left on device" in full.stderr
    assert not (target / "large").exists()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    refused = OURS.run("download", place, target, check=False)
    assert refused.code == 1
    assert refused.stderr.count("\n") == 1
    assert "Read-only file system" in refused.stderr
    subprocess.run(["mount", "-o", "remount,rw,size=400m", small_disk], check=True)
    OURS.run("download", place, target)
    assert_same_hashes(hashes(target), hashes(source))
