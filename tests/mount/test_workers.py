"""`jfs mount --read-only --workers N`: several processes serve one mount."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.programs import OURS, PEER, Mount, discard, is_mounted
from tests.support.volumes import Volume, new_volume
from tests.support.waiting import wait_for

FILES, ENTRIES = 20, 500
BIG = os.urandom(5 << 20)


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Volume:
    home = tmp_path_factory.mktemp("workers")
    made = new_volume(f"sqlite3://{home}/meta.db", home)
    made.format(OURS)
    with made.mounted(OURS) as mount:
        (mount.path / "d").mkdir()
        (mount.path / "many").mkdir()
        (mount.path / "big").write_bytes(BIG)
        for number in range(FILES):
            (mount.path / "d" / f"f{number}").write_bytes(content(number))
        for number in range(ENTRIES):
            (mount.path / "many" / f"a-rather-long-name-of-a-file-{number}").touch()
    return made


@pytest.fixture
def mount(volume: Volume) -> Iterator[Mount]:
    with volume.mounted(OURS, "--read-only", "--workers", "3", "--entry-cache", "0") as mount:
        yield mount


def content(number: int) -> bytes:
    return bytes([number]) * (10_000 + number)


def helpers(mount: Mount) -> list[int]:
    """The processes beside the one that mounted."""
    leader = json.loads((mount.path / ".config").read_text())["Pid"]
    found = Path(f"/proc/{leader}/task/{leader}/children").read_text().split()
    assert len(found) == 2
    return [int(pid) for pid in found]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_all_processes_serve_the_same(volume: Volume) -> None:
    with volume.mounted(OURS, "--read-only", "--workers", "3", "--entry-cache", "0") as mount:
        pids = helpers(mount)
        read_all(mount)
        assert json.loads(OURS.run("status", volume.meta_url).stdout)["Sessions"] == []
    assert not any(map(is_running, pids))


def read_all(mount: Mount) -> None:
    names = {f"a-rather-long-name-of-a-file-{number}" for number in range(ENTRIES)}

    def look(turn: int) -> None:
        number = turn % FILES
        assert (mount.path / "d" / f"f{number}").read_bytes() == content(number)
        with (mount.path / "big").open("rb") as file:
            file.seek(turn * 1000)
            assert file.read(3 << 20) == BIG[turn * 1000 :][: 3 << 20]
        if turn % 20 == 0:
            found = os.listdir(mount.path / "many")
            assert len(found) == ENTRIES
            assert set(found) == names

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(look, range(100)))

    def who_answers() -> bool:
        seen.add((mount.path / ".stats").read_text().partition("juicefs_uptime ")[2].split()[0])
        return len(seen) > 1

    seen: set[str] = set()
    wait_for(who_answers, "an answer of another process")
    with pytest.raises(OSError, match="Read-only"):
        (mount.path / "new").touch()


def test_tools_speak_with_any_of_them(mount: Mount) -> None:
    for _ in range(4):
        assert f"length: {len(BIG) >> 20}.00 MiB" in OURS.run("info", mount.path / "big").stdout
    assert f"{FILES} files cached" in OURS.run("warmup", mount.path / "d").stdout
    assert f"{FILES} files" in PEER.run("warmup", "--check", mount.path / "d").text
    with (mount.path / ".accesslog").open("rb", buffering=0) as log:
        assert log.read(1 << 16)


def test_a_dead_process_ends_the_mount(volume: Volume) -> None:
    mount = volume.mount(OURS, volume.place(OURS), "--read-only", "--workers", "3")
    try:
        first, second = helpers(mount)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: not is_mounted(mount.path), "the end of the mount")
        wait_for(lambda: not any(map(is_running, (second, *mount.pids))), "the other processes")
        assert "has ended: the mount is cut" in mount.log.read_text()
    finally:
        discard(mount)


def test_the_others_end_with_the_first(volume: Volume) -> None:
    mount = volume.mount(OURS, volume.place(OURS), "--read-only", "--workers", "3")
    try:
        pids = helpers(mount)
        mount.kill()
        wait_for(lambda: not any(map(is_running, pids)), "the end of the others")
        with pytest.raises(OSError, match=r"not connected|connection abort"):
            os.listdir(mount.path)
    finally:
        discard(mount)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--workers", "2"], "--workers 2 needs --read-only"),
        (["--workers", "0"], "--workers 0 is not between 1 and 64"),
        (["--workers", "2", "--read-only", "--fuse", "llfuse"], "does not go with --fuse llfuse"),
    ],
)
def test_what_does_not_go_is_refused(words: list[str], told: str, tmp_path: Path) -> None:
    done = OURS.run("mount", *words, f"sqlite3://{tmp_path}/m.db", tmp_path, check=False)
    assert (done.code, len(done.stderr.splitlines())) == (1, 1)
    assert told in done.stderr
