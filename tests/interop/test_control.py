"""What the real client's tools see of our mount: the same as of their own, on the same volume."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.programs import OURS, PEER
from tests.support.volumes import Volume, new_volume
from tests.support.waiting import wait_for


@dataclass(frozen=True)
class Pair:
    volume: Volume
    ours: Path
    peer: Path

    def both(self, *command: str, below: str = "") -> tuple[str, str]:
        """What the real client's `command` prints of `below` in our mount, and in its own."""
        texts = []
        for place in (self.ours, self.peer):
            text = PEER.run(*command, place / below).text
            texts.append(plain(text.replace(str(place), "MOUNT")))
        return texts[0], texts[1]


def plain(text: str) -> str:
    """Without times, process ids, and colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return re.sub(r"^\S+ \S+ juicefs\[\d+\] ", "", text, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def pair(
    new_meta_url: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    volume = new_volume(new_meta_url("redis"), tmp_path_factory.mktemp("control"))
    volume.format(OURS, "--block-size", "1024", "--trash-days", "0")
    options = ("--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0")
    with volume.mounted(OURS, *options) as ours, volume.mounted(PEER, *options) as peer:
        plant(ours.path)
        yield Pair(volume, ours.path, peer.path)


def plant(place: Path) -> None:
    """A tree with files of several blocks, a sparse one, and one in several slices."""
    deep = place / "tree" / "y" / "z"
    deep.mkdir(parents=True)
    for number in range(1, 5):
        for parent in (place / "tree", place / "tree" / "y"):
            (parent / f"f{number}").write_bytes(os.urandom(10_000 * number))
    (place / "tree" / "big").write_bytes(os.urandom(2_500_000))
    with (place / "tree" / "sparse").open("wb") as file:
        file.seek(3 << 20)
        file.write(b"end")
    with (place / "tree" / "pieces").open("wb", buffering=0) as file:
        for _ in range(4):
            file.write(b"piece of a file\n")
            os.fsync(file.fileno())
    os.link(place / "tree" / "f1", place / "tree" / "same")


@pytest.mark.parametrize("name", ["tree", "tree/big", "tree/sparse", "tree/pieces", "tree/same"])
@pytest.mark.parametrize("flags", [("-r", "--strict"), ("--raw", "--strict")])
def test_info_tells_the_same(pair: Pair, name: str, flags: tuple[str, ...]) -> None:
    ours, peer = pair.both("info", *flags, below=name)
    assert ours == peer


def test_info_tells_who_holds_locks(pair: Pair) -> None:
    path = pair.ours / "tree" / "f2"
    with subprocess.Popen(["flock", "-x", path, "cat"], stdin=subprocess.PIPE) as holder:
        try:
            wait_for(lambda: "flocks" in PEER.run("info", path).text, "the lock")
            ours, peer = pair.both("info", below="tree/f2")
            assert ours == peer
        finally:
            holder.communicate(timeout=30)


def test_summary_tells_the_same(pair: Pair) -> None:
    for flags in ((), ("--depth", "1"), ("--entries", "2"), ("--csv",)):
        ours, peer = pair.both("summary", "--strict", *flags)
        assert ours == peer


def test_warm_up_fills_checks_and_drops(pair: Pair) -> None:
    counted = re.compile(r"(\d+) files")
    for flags, expected in (
        (("--evict",), "evict cache"),
        (("--check",), "0 B of 2.6 MiB (0.0%) cached"),
        ((), "warmup cache"),
        (("--check",), "2.6 MiB of 2.6 MiB (100.0%) cached"),
    ):
        ours, peer = pair.both("warmup", *flags, below="tree")
        assert expected in ours
        assert counted.findall(ours) == counted.findall(peer)


def test_compact_merges_slices(pair: Pair) -> None:
    def slices() -> int:
        return len(re.findall(r"^\| +0 \|", PEER.run("info", "--raw", path).text, re.MULTILINE))

    path = pair.ours / "tree" / "pieces"
    before = path.read_bytes()
    assert slices() == 4
    PEER.run("compact", pair.ours / "tree")
    assert slices() == 1
    assert (pair.peer / "tree" / "pieces").read_bytes() == before == path.read_bytes()


def test_rmr_removes_a_tree_that_the_kernel_knows(pair: Pair) -> None:
    top = pair.ours / "gone"
    for number in range(20):
        (top / f"d{number}").mkdir(parents=True)
        (top / f"d{number}" / "f").write_text("x")
    assert len(list(top.iterdir())) == 20
    PEER.run("rmr", top)
    assert not top.exists()
    assert not (pair.peer / "gone").exists()
    assert PEER.run("rmr", pair.ours / "absent", check=False).text.count("no such file") == 1


def test_stats_show_the_traffic(pair: Pair) -> None:
    with subprocess.Popen(
        [PEER.executable, "stats", pair.ours, "--interval", "1", "-l", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        lines = read_lines(process, 4, while_waiting=lambda: touch_all(pair.ours / "tree"))
    assert "usage" in lines[0]
    assert lines[1].split()[0] == "cpu"
    columns = [[part.split() for part in line.split("|")] for line in lines[2:]]
    assert any(int(row[1][0]) > 0 for row in columns), lines  # operations of fuse
    assert all(row[0][1].endswith("M") for row in columns), lines  # memory


def test_profile_shows_the_operations(pair: Pair) -> None:
    with subprocess.Popen(
        [PEER.executable, "profile", pair.ours, "--interval", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        lines = read_lines(process, 12, while_waiting=lambda: touch_all(pair.ours / "tree"))
    shown = {line.split()[0] for line in lines if line.split()}
    assert {"open", "flush", "release"} <= shown, lines


def touch_all(top: Path) -> None:
    for path in top.rglob("*"):
        if path.is_file():
            path.read_bytes()


def read_lines(
    process: subprocess.Popen[bytes], count: int, *, while_waiting: Callable[[], None]
) -> list[str]:
    """The first `count` lines of the running program, which is ended then."""
    lines: list[str] = []

    def collect() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(plain(line.decode()).rstrip())

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    deadline = time.monotonic() + 60
    try:
        while len(lines) < count and time.monotonic() < deadline:
            while_waiting()
            thread.join(0.1)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
        thread.join(10)
    assert len(lines) >= count, lines
    return lines
