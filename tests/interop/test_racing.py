"""Two machines change the same directories at once; afterwards nothing is lost and all counts."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from juicepy.meta.registry import open_engine
from tests.support.meta import scan
from tests.support.programs import OURS, PEER, Program
from tests.support.racing import race
from tests.support.volumes import Volume, assert_sound, check_blocks, check_objects, new_volume
from tests.support.waiting import wait_for

PROCESSES = 4  # on each mount
DIRECTORIES = 3
NAMES = 12
SECONDS = float(os.environ.get("JFS_RACING_SECONDS", "6"))
LONG_SECONDS = max(10.0, SECONDS)
# what may happen to whom a name is snatched away from
SNATCHED = {
    errno.ENOENT,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ESTALE,
    errno.EINVAL,  # a directory moved below itself
    errno.ELOOP,
}
# of JuiceFS: EPERM for what has come into the trash, EBADF for an open file that has just gone
OF_THE_PEER = {errno.EPERM, errno.EBADF}


@pytest.mark.parametrize("trash_days", ["0", "1"])
@pytest.mark.parametrize(
    ("engine", "seconds"),
    [
        ("redis", SECONDS),
        pytest.param("sqlite", SECONDS, marks=pytest.mark.long),
        pytest.param("redis", LONG_SECONDS, marks=pytest.mark.long),
        pytest.param("mariadb", LONG_SECONDS, marks=pytest.mark.long),
        pytest.param("postgres", LONG_SECONDS, marks=pytest.mark.long),
    ],
)
def test_two_mounts_race_in_the_same_directories(
    engine: str,
    seconds: float,
    trash_days: str,
    new_meta_url: Callable[[str], str],
    tmp_path: Path,
) -> None:
    volume = new_volume(new_meta_url(engine), tmp_path, flags=("--trash-days", trash_days))
    _race(volume, (OURS, OURS), seconds)
    _scan(volume, statistics=True)
    assert_sound(volume)


@pytest.mark.parametrize(
    ("engine", "trash_days", "seconds"),
    [
        ("redis", "0", SECONDS),
        *(
            pytest.param(engine, trash_days, LONG_SECONDS, marks=pytest.mark.long)
            for engine, trash_days in (("redis", "1"), ("sqlite", "0"))
        ),
    ],
)
def test_a_mount_of_each_program_races_in_the_same_directories(
    engine: str,
    trash_days: str,
    seconds: float,
    new_meta_url: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """All but what JuiceFS alone miscounts, see docs/compatibility: statistics, trashed links."""
    volume = new_volume(new_meta_url(engine), tmp_path, flags=("--trash-days", trash_days))
    _race(volume, (OURS, PEER), seconds, links=trash_days == "0")
    _scan(volume, statistics=False)
    check_blocks(volume)
    check_objects(volume)


def _race(
    volume: Volume, programs: tuple[Program, Program], seconds: float, *, links: bool = True
) -> None:
    """Afterwards all that must survive has, and both mounts show the same."""
    volume.format(OURS)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    with volume.mounted(programs[0]) as one, volume.mounted(programs[1]) as two:
        roots = (one.path, two.path)
        for root in roots:  # see test_together.py: what two real clients count twice
            (root / "first").touch()
            (root / "first").unlink()
        for number in range(DIRECTORIES):
            (one.path / f"d{number}").mkdir()
        wait_for((two.path / f"d{DIRECTORIES - 1}").is_dir, "the directories")
        jobs = []
        for number in range(2 * PROCESSES):
            side = number % 2
            allowed = SNATCHED | (OF_THE_PEER if programs[side] is PEER else set())
            jobs.append((_work, (str(roots[side]), seed, number, seconds, links, allowed)))
        done = race(jobs, seconds + 60)
        kept = [name for names in done for name in names]
        for root in roots:
            wait_for(lambda root=root: _agree(root, kept), "what was written to be there")  # type: ignore[misc]
        trees = [wait_for(lambda root=root: _tree(root), "a tree") for root in roots]  # type: ignore[misc]
        assert trees[0] == trees[1]


def _scan(volume: Volume, *, statistics: bool) -> None:
    engine = open_engine(volume.meta_url)
    try:
        faults = scan(engine, statistics=statistics).faults
        assert not faults, "\n".join(faults)
    finally:
        engine.close()


def _work(
    root: str, seed: int, worker: int, seconds: float, links: bool, allowed: set[int]
) -> list[list[str]]:
    """Mixed operations on names that all workers use, and files of my own that must survive.

    What survives, as [path, digest].
    """
    chance = random.Random(seed + worker)
    actions = [action for action in ACTIONS if links or action is not _link]
    until, kept, count = time.monotonic() + seconds, [], 0
    while time.monotonic() < until:
        path, other = (
            f"{root}/d{chance.randrange(DIRECTORIES)}/{chance.choice('fx')}{chance.randrange(NAMES)}"
            for _ in range(2)
        )
        action = chance.choice(actions)
        try:
            action(path, other, chance)
        except OSError as error:
            if error.errno not in allowed:
                error.add_note(f"{action.__name__} {path} {other}")
                raise
        count += 1
        if count % 20 == 0:
            kept.append(_keep(root, f"w{worker}-{count}", chance))
    return kept


def _keep(root: str, name: str, chance: random.Random) -> list[str]:
    """A file of a name that nobody else uses, made by way of others' directories."""
    where = f"d{chance.randrange(DIRECTORIES)}/{name}"
    data = chance.randbytes(chance.randrange(100, 50_000))
    temporary = f"{root}/d{chance.randrange(DIRECTORIES)}/{name}.new"
    Path(temporary).write_bytes(data)
    os.rename(temporary, f"{root}/{where}")
    return [where, hashlib.sha256(data).hexdigest()]


def _write(path: str, other: str, chance: random.Random) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(chance.randbytes(chance.choice((10, 5000, 100_000))))


def _append(path: str, other: str, chance: random.Random) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(chance.randbytes(1000))


def _truncate(path: str, other: str, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(20_000))


def _read(path: str, other: str, chance: random.Random) -> None:
    with open(path, "rb", buffering=0) as file:
        file.read(200_000)


def _rename(path: str, other: str, chance: random.Random) -> None:
    os.rename(path, other)


def _link(path: str, other: str, chance: random.Random) -> None:
    with contextlib.suppress(PermissionError):  # of a directory
        os.link(path, other)


def _symlink(path: str, other: str, chance: random.Random) -> None:
    os.symlink(os.path.basename(path), other)


def _mkdir(path: str, other: str, chance: random.Random) -> None:
    os.mkdir(path)


def _inside(path: str, other: str, chance: random.Random) -> None:
    with open(f"{path}/{chance.randrange(3)}", "wb") as file:
        file.write(b"inside")


def _empty(path: str, other: str, chance: random.Random) -> None:
    for name in os.listdir(path):
        os.unlink(f"{path}/{name}")
    os.rmdir(path)


def _unlink(path: str, other: str, chance: random.Random) -> None:
    os.unlink(path)


def _rmdir(path: str, other: str, chance: random.Random) -> None:
    os.rmdir(path)


def _attributes(path: str, other: str, chance: random.Random) -> None:
    os.chmod(path, 0o600 | chance.randrange(0o77))
    os.setxattr(path, b"user.key", chance.randbytes(10))


ACTIONS: list[Callable[[str, str, random.Random], None]] = [
    *(_write, _write, _append, _truncate, _read, _rename, _rename, _rename, _link, _link),
    *(_symlink, _mkdir, _inside, _inside, _empty, _unlink, _unlink, _rmdir, _attributes),
]


def _agree(root: Path, kept: list[list[str]]) -> bool:
    for where, digest in kept:
        assert hashlib.sha256((root / where).read_bytes()).hexdigest() == digest, where
    return True


def _tree(root: Path) -> dict[str, tuple[int, int, int]]:
    """Mode, links and size of everything below, but of the trash and control files."""
    found = {}
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if name != ".trash"]
        for name in (*names, *(name for name in files if name[0] != ".")):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            size = 0 if os.path.isdir(path) else status.st_size
            found[os.path.relpath(path, root)] = (status.st_mode, status.st_nlink, size)
    return found
