"""What the kernel may keep for hours is true all the same (`--cache-tracking`)."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from tests.support.programs import OURS, PEER, Mount
from tests.support.volumes import Volume, new_volume
from tests.support.waiting import wait_for

HOURS = (
    "--cache-tracking",
    "on",
    "--attr-cache",
    "10h",
    "--entry-cache",
    "10h",
    "--dir-entry-cache",
    "10h",
)
SOON_S = 5.0  # it takes milliseconds; the kernel would take hours


@dataclass(frozen=True)
class Both:
    volume: Volume
    looker: Mount
    actors: dict[str, Mount]


@pytest.fixture(scope="module")
def both(
    new_meta_url: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    volume = new_volume(new_meta_url("redis"), tmp_path_factory.mktemp("tracking"))
    volume.format(OURS)
    with contextlib.ExitStack() as stack:
        looker = stack.enter_context(volume.mounted(OURS, *HOURS))
        actors = {
            program.name: stack.enter_context(volume.mounted(program)) for program in (OURS, PEER)
        }
        yield Both(volume, looker, actors)


@pytest.fixture(params=["jfs", "juicefs"])
def pair(request: pytest.FixtureRequest, both: Both) -> tuple[Path, Path]:
    """One directory as who changes it sees it, and who looks."""
    made = both.actors[request.param].path / request.node.name
    made.mkdir()
    return made, both.looker.path / request.node.name


def requests_of(mount: Mount) -> dict[str, int]:
    text = (mount.path / ".stats").read_text()
    found = re.findall(
        r"^juicefs_fuse_ops_durations_histogram_seconds_total_(\w+) (\d+)", text, re.M
    )
    return {name: int(count) for name, count in found if name in ("lookup", "getattr")}


def until_kept(mount: Mount, look: Callable[[], object]) -> None:
    """Look until the kernel asks no more."""

    def is_silent() -> bool:
        before = requests_of(mount)
        for _ in range(3):
            look()
        return requests_of(mount) == before

    wait_for(is_silent, "silence")


def soon(condition: Callable[[], bool], what: str) -> None:
    wait_for(condition, what, timeout_s=SOON_S)


def test_kernel_answers_by_itself(pair: tuple[Path, Path], both: Both) -> None:
    made, seen = pair
    for number in range(20):
        (made / f"f{number}").write_bytes(b"x")

    def look() -> None:
        for number in range(20):
            (seen / f"f{number}").stat()

    until_kept(both.looker, look)


def test_changes_are_seen_soon(pair: tuple[Path, Path], both: Both) -> None:
    made, seen = pair
    (made / "file").write_bytes(b"old")
    (made / "dir").mkdir()
    until_kept(both.looker, lambda: (os.stat(seen / "file"), os.stat(seen / "dir")))
    for turn in range(10):
        os.chmod(made / "file", 0o600 + turn)
        soon(lambda t=turn: (seen / "file").stat().st_mode & 0o777 == 0o600 + t, "the mode")  # type: ignore[misc]
        (made / "file").write_bytes(b"x" * turn)
        soon(lambda t=turn: (seen / "file").stat().st_size == t, "the size")  # type: ignore[misc]
    until_kept(both.looker, lambda: (os.stat(seen / "file"), os.stat(seen / "dir")))
    (made / "file").unlink()
    (made / "dir").rmdir()
    soon(lambda: not (seen / "file").exists(), "the end of the file")
    soon(lambda: not (seen / "dir").exists(), "the end of the directory")
    (made / "dir").write_bytes(b"a file now")
    soon((seen / "dir").is_file, "the other kind")


def test_replaced_file_is_never_missing(pair: tuple[Path, Path], both: Both) -> None:
    made, seen = pair
    (made / "file").write_bytes(b"0")
    until_kept(both.looker, lambda: os.stat(seen / "file"))
    for turn in range(1, 30):
        (made / "new").write_bytes(b"%d" % turn)
        (made / "new").rename(made / "file")
        last = (seen / "file").read_bytes()
        assert int(last) <= turn
        soon(lambda t=turn: (seen / "file").read_bytes() == b"%d" % t, f"content {turn}")  # type: ignore[misc]


def test_other_names_do_not_disturb_who_works_in_a_directory(
    pair: tuple[Path, Path], both: Both
) -> None:
    made, seen = pair
    (made / "work").mkdir()
    until_kept(both.looker, lambda: os.stat(seen / "work"))
    code = "import os, sys; os.chdir(sys.argv[1]); print(flush=True); input(); print(os.getcwd())"
    words = [sys.executable, "-c", code, seen / "work"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        (made / "other").write_bytes(b"")
        soon((seen / "other").exists, "the other name")
        out, _ = worker.communicate("\n", timeout=30)
    assert out.strip() == str(seen / "work")


def test_lost_word_of_the_server_drops_what_the_kernel_keeps(both: Both) -> None:
    made, seen = both.actors["juicefs"].path / "lost", both.looker.path / "lost"
    made.write_bytes(b"old")
    until_kept(both.looker, seen.stat)
    with contextlib.closing(redis.Redis.from_url(both.volume.meta_url)) as client:
        for turn in range(3):
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            os.chmod(made, 0o640 + turn)
            soon(lambda t=turn: seen.stat().st_mode & 0o777 == 0o640 + t, "the mode")  # type: ignore[misc]


def test_times_that_are_not_given_are_long_only_where_changes_are_told(
    tmp_path: Path, new_meta_url: Callable[[str], str]
) -> None:
    for engine, tracking in (("redis", "auto"), ("redis", "off"), ("sqlite", "auto")):
        volume = new_volume(new_meta_url(engine), tmp_path / f"{engine}-{tracking}")
        volume.format(OURS)
        with volume.mounted(OURS, "--cache-tracking", tracking) as mount:
            told = "kept true" in mount.log.read_text()
            assert told == (engine == "redis" and tracking == "auto")


def test_tracking_that_cannot_be_is_refused(
    tmp_path: Path, new_meta_url: Callable[[str], str]
) -> None:
    volume = new_volume(new_meta_url("sqlite"), tmp_path / "v")
    volume.format(OURS)
    path = tmp_path / "mnt"
    path.mkdir()
    words = [
        "mount",
        "-d",
        "--log",
        tmp_path / "log",
        "--cache-dir",
        "memory",
        volume.meta_url,
        path,
    ]
    for mode, text in (("on", "--cache-tracking on"), ("never", "'never' is not one of")):
        done = OURS.run(*words, "--cache-tracking", mode, check=False)
        assert done.code == 1
        assert text in done.stderr
        assert not os.path.ismount(path)
