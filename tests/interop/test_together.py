"""Both programs have one volume mounted at once: they take turns, and they race."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.support.programs import OURS, PEER
from tests.support.racing import race
from tests.support.trees import Tree, assert_same, describe, plant
from tests.support.volumes import Volume, assert_sound, new_volume
from tests.support.waiting import wait_for

RACE_TIMEOUT_S = 60.0
WORKERS = ("ours-1", "peer-1", "ours-2", "peer-2")


@dataclass(frozen=True)
class Pair:
    """The same directory through both mounts."""

    volume: Volume
    ours: Path
    peer: Path

    def of(self, worker: str) -> Path:
        return self.ours if worker.startswith("ours") else self.peer

    def turns(self) -> tuple[tuple[Path, Path], tuple[Path, Path]]:
        """(who acts, who looks), both ways."""
        return (self.ours, self.peer), (self.peer, self.ours)


@pytest.fixture(
    scope="module",
    params=[
        "redis",
        "sqlite",
        pytest.param("mariadb", marks=pytest.mark.long),
        pytest.param("postgres", marks=pytest.mark.long),
    ],
)
def roots(
    request: pytest.FixtureRequest,
    new_meta_url: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    """A volume mounted by both. After the tests the real client's checks find nothing wrong."""
    volume = new_volume(new_meta_url(request.param), tmp_path_factory.mktemp(request.param))
    volume.format(OURS)
    with volume.mounted(OURS) as ours:
        # The first change of the root begins its statistics, and the first removal of an hour makes
        # a directory in the trash. Real clients that do either at the same time count it twice.
        (ours.path / "first").touch()
        (ours.path / "first").unlink()
    with volume.mounted(OURS) as ours, volume.mounted(PEER) as peer:
        yield Pair(volume, ours.path, peer.path)
    assert_sound(volume)


@pytest.fixture
def pair(roots: Pair, request: pytest.FixtureRequest) -> Pair:
    """A directory for one test."""
    name = request.function.__name__
    (roots.ours / name).mkdir()
    wait_for((roots.peer / name).is_dir, f"{name} to be seen by the peer")
    return Pair(roots.volume, roots.ours / name, roots.peer / name)


def test_each_reads_what_the_other_has_closed(pair: Pair) -> None:
    chance = random.Random(3)
    for number in range(12):
        writer, reader = pair.turns()[number % 2]
        data = chance.randbytes(chance.choice((0, 1, 4096, 100_000, 5_000_000)))
        (writer / "file").write_bytes(data)
        assert (reader / "file").read_bytes() == data, f"turn {number}"
        (writer / f"new-{number}").write_bytes(data[:10])
        wait_for(partial(_reads, reader / f"new-{number}", data[:10]), "a new file")


def test_each_sees_a_file_resized_by_the_other_at_once(pair: Pair) -> None:
    """At the next open, though the attributes seen a moment ago may be cached for a second."""
    chance = random.Random(4)
    expected = b""
    for number in range(24):
        writer, reader = pair.turns()[number % 2]
        path = writer / "file"
        if number % 3 == 0:
            expected = chance.randbytes(chance.randrange(200_000))
            path.write_bytes(expected)
        elif number % 3 == 1:
            piece = chance.randbytes(chance.randrange(1, 10_000))
            with path.open("ab", buffering=0) as file:
                file.write(piece)
            expected += piece
        else:
            size = chance.randrange(len(expected) * 2)
            os.truncate(path, size)
            expected = expected[:size].ljust(size, b"\0")
        with (reader / "file").open("rb", buffering=0) as file:
            assert file.read() == expected, f"turn {number}"
            assert os.fstat(file.fileno()).st_size == len(expected), f"turn {number}"


def test_changes_of_names_and_attributes_arrive(pair: Pair) -> None:
    for number, (actor, looker) in enumerate(pair.turns()):
        a, b = actor / f"d{number}", looker / f"d{number}"
        a.mkdir()
        (a / "old").write_text("old")
        (a / "new").write_text("new")
        wait_for(partial(_reads, b / "old", b"old"), "both files")
        os.rename(a / "new", a / "old")
        wait_for(partial(_reads, b / "old", b"new"), "the file that was renamed over")
        wait_for(partial(_lists, b, {"old"}), "the listing without the old name")
        os.chmod(a / "old", 0o4711)
        os.utime(a / "old", ns=(1, 987_654_321_123_456_789))
        os.setxattr(a / "old", "user.key", b"value")
        os.link(a / "old", a / "second")
        wait_for(partial(_has_attributes, b / "old"), "mode, time, links and xattr")
        os.unlink(a / "old")
        os.unlink(a / "second")
        os.rmdir(a)
        wait_for(partial(_lists, looker, set()), "the directory to be gone")


def test_whole_tree_looks_the_same_through_both(pair: Pair) -> None:
    for number, (actor, looker) in enumerate(pair.turns()):
        (actor / f"tree{number}").mkdir()
        plant(actor / f"tree{number}")
        tree = describe(actor / f"tree{number}")
        wait_for(partial(_looks_like, looker / f"tree{number}", tree), "equal trees")


def test_exclusive_creates_have_one_winner(pair: Pair) -> None:
    won = race(
        [(_create_all, (str(pair.of(worker)), worker)) for worker in WORKERS], RACE_TIMEOUT_S
    )
    wins = Counter(name for names in won for name in names)
    assert wins == Counter(f"shared-{number}" for number in range(40))
    expected = {f"{worker}-{number}" for worker in WORKERS for number in range(25)} | set(wins)
    _assert_listings(pair, expected)
    for worker, names in zip(WORKERS, won, strict=True):
        for name in names:
            assert (pair.ours / name).read_text() == (pair.peer / name).read_text() == worker


def test_files_renamed_over_are_whole(pair: Pair) -> None:
    counts = race(
        [(_rename_over, (str(pair.of(worker)), worker)) for worker in WORKERS], RACE_TIMEOUT_S
    )
    assert counts == [40] * len(WORKERS)
    _assert_listings(pair, {f"target-{number}" for number in range(5)})
    for number in range(5):
        seen = [_read_signed(root / f"target-{number}") for root in (pair.ours, pair.peer)]
        assert seen[0] == seen[1]


def test_appends_under_flock_are_all_kept(pair: Pair) -> None:
    (pair.ours / "lock").touch()
    (pair.peer / "log").touch()
    race([(_append_locked, (str(pair.of(worker)), worker)) for worker in WORKERS], RACE_TIMEOUT_S)
    expected = Counter(f"{worker} {number}" for worker in WORKERS for number in range(20))
    for root in (pair.ours, pair.peer):
        lines = (root / "log").read_text().splitlines()
        assert Counter(lines) == expected
        for worker in WORKERS:
            mine = [line for line in lines if line.startswith(worker)]
            assert mine == [f"{worker} {number}" for number in range(20)]


def test_counter_under_posix_lock_loses_no_update(pair: Pair) -> None:
    (pair.ours / "counter").write_bytes(b"%08d" % 0)
    (pair.peer / "lock").touch()
    race([(_count_locked, (str(pair.of(worker)),)) for worker in WORKERS], RACE_TIMEOUT_S)
    for root in (pair.ours, pair.peer):
        assert (root / "counter").read_bytes() == b"%08d" % (20 * len(WORKERS))


def test_locks_of_one_are_seen_by_the_other(pair: Pair) -> None:
    (pair.ours / "file").write_bytes(b"0123456789")
    for holder, other in pair.turns():
        with (holder / "file").open("r+b") as mine, (other / "file").open("r+b") as theirs:
            fcntl.flock(mine, fcntl.LOCK_EX)
            with pytest.raises(OSError) as error:
                fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert error.value.errno == errno.EWOULDBLOCK
            fcntl.flock(mine, fcntl.LOCK_SH)
            fcntl.flock(theirs, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(theirs, fcntl.LOCK_UN)
            fcntl.flock(mine, fcntl.LOCK_UN)
            fcntl.lockf(mine, fcntl.LOCK_EX, 4, 2)
            fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB, 2, 0)
            with pytest.raises(OSError) as error:
                fcntl.lockf(theirs, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 5)
            assert error.value.errno in (errno.EAGAIN, errno.EACCES)
            fcntl.lockf(mine, fcntl.LOCK_UN, 4, 2)
            fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 5)


def _create_all(root: str, worker: str) -> list[str]:
    """Files of my own, and files that everybody tries to create; the names that I won."""
    won = []
    for number in range(40):
        if number < 25:
            Path(root, f"{worker}-{number}").write_text(worker)
        try:
            fd = os.open(f"{root}/shared-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            continue
        with open(fd, "w") as file:
            file.write(worker)
        won.append(f"shared-{number}")
    return won


def _rename_over(root: str, worker: str) -> int:
    """Replace the targets again and again with whole files, and read whole files from them."""
    chance = random.Random(worker)
    mine, done = Path(root, f".{worker}"), 0
    for number in range(40):
        data = chance.randbytes(chance.randrange(10, 60_000))
        mine.write_bytes(hashlib.sha256(data).digest() + data)
        target = Path(root, f"target-{number % 5}")
        os.rename(mine, target)
        done += 1
        try:
            _read_signed(target)
        except OSError as error:  # replaced between lookup and open or read by the other client
            if error.errno not in (errno.ENOENT, errno.ESTALE, errno.EIO, errno.EPERM):
                raise
    return done


def _read_signed(path: Path) -> bytes:
    """The content of a file that begins with the SHA-256 of the rest."""
    data = path.read_bytes()
    assert hashlib.sha256(data[32:]).digest() == data[:32], f"{path} is torn: {len(data)} bytes"
    return data


def _append_locked(root: str, worker: str) -> None:
    with open(f"{root}/lock", "r+b") as lock:
        for number in range(20):
            fcntl.flock(lock, fcntl.LOCK_EX)
            with open(f"{root}/log", "a") as file:
                file.write(f"{worker} {number}\n")
            fcntl.flock(lock, fcntl.LOCK_UN)


def _count_locked(root: str) -> None:
    """The lock has a file of its own: a close of any descriptor drops POSIX locks on its file."""
    with open(f"{root}/lock", "r+b") as lock:
        for _ in range(20):
            fcntl.lockf(lock, fcntl.LOCK_EX)
            with open(f"{root}/counter", "r+b", buffering=0) as file:
                value = int(file.read())
                file.seek(0)
                file.write(b"%08d" % (value + 1))
            fcntl.lockf(lock, fcntl.LOCK_UN)


def _assert_listings(pair: Pair, expected: set[str]) -> None:
    for root in (pair.ours, pair.peer):
        wait_for(partial(_lists, root, expected), f"the listing of {root}")


def _reads(path: Path, data: bytes) -> bool:
    return path.read_bytes() == data


def _lists(path: Path, names: set[str]) -> bool:
    return sorted(os.listdir(path)) == sorted(names)


def _has_attributes(path: Path) -> bool:
    info = os.stat(path)
    found = (info.st_mode & 0o7777, info.st_mtime_ns, info.st_nlink, os.getxattr(path, "user.key"))
    return found == (0o4711, 987_654_321_123_456_789, 2, b"value")


def _looks_like(path: Path, tree: Tree) -> bool:
    assert_same(describe(path), tree)
    return True
