"""What one machine sees of another's work, promise by promise (docs/semantics.md).

Two mounts of ours, and one of ours with one of JuiceFS both ways, with the caches of the kernel on
as they are by default. What is promised at once is asserted at once; what is promised after the
cache times is waited for.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.support.logs import follow_log, write_log
from tests.support.programs import OURS, PEER, Mount
from tests.support.racing import race
from tests.support.remote import Remote
from tests.support.volumes import new_volume
from tests.support.waiting import wait_for

RACE_TIMEOUT_S = 60.0
NAMES = 25
RECORDS = 400


@dataclass(frozen=True)
class Pair:
    """The same directory as two machines see it."""

    actor: Path
    looker: Path

    @property
    def ours_looks(self) -> bool:
        return self.looker.parent.name.endswith("jfs")


@pytest.fixture(scope="module")
def mounts(
    new_meta_url: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Mount]]:
    volume = new_volume(new_meta_url("redis"), tmp_path_factory.mktemp("promises"))
    volume.format(OURS)
    with contextlib.ExitStack() as stack:
        yield {
            "a": stack.enter_context(volume.mounted(OURS)),
            "b": stack.enter_context(volume.mounted(OURS)),
            "peer": stack.enter_context(volume.mounted(PEER)),
        }


@pytest.fixture(
    params=[("a", "b"), ("a", "peer"), ("peer", "a")], ids=["ours", "ours-peer", "peer-ours"]
)
def pair(request: pytest.FixtureRequest, mounts: dict[str, Mount]) -> Pair:
    actor, looker = (mounts[name].path / request.node.name for name in request.param)
    actor.mkdir()
    wait_for(looker.is_dir, f"{looker} to be seen")
    return Pair(actor, looker)


def _shows(path: Path, data: bytes) -> bool:
    return path.read_bytes() == data


# -- content
def test_what_is_closed_is_read_by_the_next_open(pair: Pair) -> None:
    chance = random.Random(5)
    path = pair.actor / "file"
    for turn in range(30):
        size = chance.choice((0, 1, 4096, 70_000, 300_000, 5_000_000 if turn < 4 else 10))
        data = chance.randbytes(size)
        if turn % 3 == 2 and path.stat().st_size:  # in place, as long as before
            data = chance.randbytes(path.stat().st_size)
            with path.open("r+b") as file:
                file.write(data)
        else:
            path.write_bytes(data)
        if turn == 0:
            wait_for((pair.looker / "file").exists, "the file")
        with (pair.looker / "file").open("rb", buffering=0) as file:
            assert os.fstat(file.fileno()).st_size == len(data), f"turn {turn}"
            assert file.readall() == data, f"turn {turn}"


def test_what_is_synced_is_read_by_the_next_open(pair: Pair) -> None:
    path = pair.looker / "file"
    with (pair.actor / "file").open("wb", buffering=0) as file:
        os.fsync(file.fileno())
        wait_for(path.exists, "the file")
        expected = b""
        for turn in range(20):
            piece = b"%d " % turn * (turn * 500 + 1)
            file.write(piece)
            expected += piece
            os.fsync(file.fileno())
            assert path.read_bytes() == expected, f"turn {turn}"


def test_shortened_file_is_short_in_the_next_open_and_mapping(pair: Pair) -> None:
    path, theirs = pair.actor / "file", pair.looker / "file"
    path.write_bytes(b"x" * 200_000)
    wait_for(partial(_shows, theirs, b"x" * 200_000), "the file")
    assert _mapped(theirs) == b"x" * 200_000
    for size, filled in ((150_000, 150_000), (5000, 5000), (9000, 5000), (100, 100)):
        os.truncate(path, size)
        expected = (b"x" * filled).ljust(size, b"\0")
        assert _mapped(theirs) == expected, size
        assert theirs.read_bytes() == expected, size


def _mapped(path: Path) -> bytes:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        return bytes(mapping)


def test_reader_of_a_log_sees_whole_records(pair: Pair) -> None:
    (pair.actor / "log").touch()
    wait_for((pair.looker / "log").exists, "the log")
    _, seen = race(
        [
            (write_log, (str(pair.actor / "log"), RECORDS)),
            (follow_log, (str(pair.looker / "log"), RECORDS)),
        ],
        RACE_TIMEOUT_S,
    )
    assert seen > 1, "the log was seen growing"


# -- names
def test_names_are_seen_when_the_cache_times_are_over(pair: Pair) -> None:
    """And at once by who made them. What the other had seen before is no hindrance."""
    mine, theirs = pair.actor, pair.looker
    assert not (theirs / "new").exists()
    (mine / "new").write_bytes(b"1")
    assert os.listdir(mine) == ["new"]
    wait_for((theirs / "new").exists, "a created name")
    os.rename(mine / "new", mine / "moved")
    assert os.listdir(mine) == ["moved"]
    assert not (mine / "new").exists()
    wait_for(lambda: not (theirs / "new").exists(), "the old name to be gone")
    wait_for(partial(_shows, theirs / "moved", b"1"), "the new name")
    (mine / "other").write_bytes(b"22")
    wait_for(partial(_shows, theirs / "other", b"22"), "a second file")
    os.rename(mine / "other", mine / "moved")
    assert (mine / "moved").read_bytes() == b"22"
    wait_for(partial(_shows, theirs / "moved", b"22"), "the replacement")
    wait_for(lambda: (theirs / "moved").stat().st_size == 2, "its attributes")
    os.unlink(mine / "moved")
    assert os.listdir(mine) == []
    wait_for(lambda: not (theirs / "moved").exists(), "the removal")
    wait_for(lambda: os.listdir(theirs) == [], "the listing")


@pytest.mark.parametrize("how", ["recreated", "replaced"])
def test_new_file_of_a_name_never_shows_the_old_content(pair: Pair, how: str) -> None:
    """Ours opens no file that has lost its name; JuiceFS does for the entry cache time."""
    mine, theirs = pair.actor / "file", pair.looker / "file"
    mine.write_bytes(b"content 0")
    wait_for(partial(_shows, theirs, b"content 0"), "the first file")
    for turn in range(1, 15 if pair.ours_looks else 4):
        if how == "recreated":
            mine.unlink()
            mine.write_bytes(b"content %d" % turn)
        else:
            (pair.actor / "new").write_bytes(b"content %d" % turn)
            os.rename(pair.actor / "new", mine)
        if pair.ours_looks:
            assert theirs.read_bytes() == b"content %d" % turn
        else:
            wait_for(partial(_shows, theirs, b"content %d" % turn), f"turn {turn}", timeout_s=30)


# -- races
def test_exclusive_operations_have_one_winner(pair: Pair) -> None:
    roots = [str(pair.actor), str(pair.looker)] * 2
    for number in range(NAMES):
        (pair.actor / f"source-{number}").touch()
    (pair.actor / "linked").touch()
    wait_for((pair.looker / "linked").exists, "the last source")
    won = race([(_win, (root, str(number))) for number, root in enumerate(roots)], RACE_TIMEOUT_S)
    wins = Counter(name for names in won for name in names)
    kinds = ("create", "mkdir", "link", "rename")
    assert wins == Counter(f"{kind}-{number}" for kind in kinds for number in range(NAMES))


def _win(root: str, worker: str) -> list[str]:
    """Try everything that only one can do; what I did."""
    attempts: dict[str, Callable[[str, int], object]] = {
        "create": lambda path, _: os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o644)),
        "mkdir": lambda path, _: os.mkdir(path),
        "link": lambda path, _: os.link(f"{root}/linked", path),
        "rename": lambda path, number: os.rename(f"{root}/source-{number}", path + "-" + worker),
    }
    won = []
    for number in range(NAMES):
        for kind, attempt in attempts.items():
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                attempt(f"{root}/{kind}-{number}", number)
                won.append(f"{kind}-{number}")
    return won


# -- locks
@pytest.mark.parametrize("lock", ["flock", "lockf"])
def test_appends_under_a_lock_are_all_there(mounts: dict[str, Mount], lock: str) -> None:
    """By descriptors that stay open: who gets the lock appends where the last holder ended."""
    roots = [mounts[name].path for name in ("a", "b")] * 2
    name = f"appends-{lock}"
    (roots[0] / name).touch()
    wait_for((roots[1] / name).exists, "the file")
    race(
        [(_append, (str(root / name), lock, number)) for number, root in enumerate(roots)],
        RACE_TIMEOUT_S,
    )
    expected = Counter(f"{worker} {number}" for worker in range(4) for number in range(NAMES))
    for root in roots[:2]:
        assert Counter((root / name).read_text().splitlines()) == expected


def _append(path: str, lock: str, worker: int) -> None:
    with open(path, "ab", buffering=0) as file:
        take = fcntl.flock if lock == "flock" else fcntl.lockf
        for number in range(NAMES):
            take(file, fcntl.LOCK_EX)
            file.write(b"%d %d\n" % (worker, number))
            take(file, fcntl.LOCK_UN)


def test_appends_under_a_lock_are_all_there_with_the_peer(pair: Pair) -> None:
    """Its descriptors are opened under the lock: it does not look for new data at other times."""
    roots = [pair.actor, pair.looker] * 2
    for name in ("lock", "log"):
        (pair.actor / name).touch()
        wait_for((pair.looker / name).exists, name)
    race([(_append_opened, (str(root), number)) for number, root in enumerate(roots)], 60)
    expected = Counter(f"{worker} {number}" for worker in range(4) for number in range(NAMES))
    for root in roots[:2]:
        assert Counter((root / "log").read_text().splitlines()) == expected


def _append_opened(root: str, worker: int) -> None:
    with open(f"{root}/lock", "r+b") as lock:
        for number in range(NAMES):
            fcntl.lockf(lock, fcntl.LOCK_EX)
            with open(f"{root}/log", "ab", buffering=0) as file:
                file.write(b"%d %d\n" % (worker, number))
            fcntl.lockf(lock, fcntl.LOCK_UN)


@pytest.mark.parametrize("lock", ["flock", "lockf"])
def test_data_written_under_a_lock_is_seen_by_the_next_holder(
    mounts: dict[str, Mount], lock: str
) -> None:
    """Though both keep the file open, have read it before and neither syncs nor closes it."""
    paths = [str(mounts[name].path / f"shared-{lock}") for name in ("a", "b")]
    Path(paths[0]).write_bytes(b"0" * 20_000)
    wait_for(lambda: Path(paths[1]).exists(), "the file")
    whole = () if lock == "flock" else (0, 0)
    with Remote() as one, Remote() as two:
        fds = [one.call("open", paths[0], os.O_RDWR), two.call("open", paths[1], os.O_RDWR)]
        for process, fd in zip((one, two), fds, strict=True):
            assert process.call("read", fd, 20_000, 0) == "0" * 20_000
        expected = "0" * 20_000
        for turn in range(20):
            (writer, mine), (reader, theirs) = ((one, fds[0]), (two, fds[1]))[:: 1 - turn % 2 * 2]
            writer.call(lock, mine, fcntl.LOCK_EX, *whole)
            assert writer.call("read", mine, 20_000, 0) == expected, f"turn {turn}"
            text = f"turn {turn} " * 50
            writer.call("pwrite", mine, text, turn * 700)
            expected = expected[: turn * 700] + text + expected[turn * 700 + len(text) :]
            writer.call(lock, mine, fcntl.LOCK_UN, *whole)
            reader.call(lock, theirs, fcntl.LOCK_SH, *whole)
            assert reader.call("read", theirs, 20_000, 0) == expected, f"turn {turn}"
            reader.call(lock, theirs, fcntl.LOCK_UN, *whole)
