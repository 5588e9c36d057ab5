"""kill -9 of the client in a storm of writes: what was acknowledged is there afterwards."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.programs import OURS, PEER, Mount, discard
from tests.support.racing import race
from tests.support.volumes import check_blocks, check_objects, new_volume
from tests.support.waiting import wait_for
from tests.support.writers import acknowledged, check_acknowledged, write_until_error

ROUNDS = 4
WRITERS = 3


@pytest.mark.parametrize("engine", ["redis", "sqlite"])
def test_acknowledged_files_survive_kills(
    engine: str, new_meta_url: Callable[[str], str], tmp_path: Path
) -> None:
    """The real client does not always mount over the dead mount; it needs an `umount` before."""
    chance = random.Random(engine)
    volume = new_volume(new_meta_url(engine), tmp_path)
    volume.format(OURS)
    with contextlib.ExitStack() as stack:
        place = tmp_path / "mnt"
        for number in range(ROUNDS):
            mount = volume.mount(OURS, place)
            stack.callback(discard, mount)
            directory = place / f"round{number}"
            directory.mkdir()
            journals = _journals(tmp_path, number)
            _kill_in_storm(mount, directory, journals, enough=chance.randrange(30, 90))
            mount = volume.mount(OURS, place)  # over the dead mount
            stack.callback(discard, mount)
            assert sum(check_acknowledged(directory, journal) for journal in journals) > 0
            mount.kill()
    check_blocks(volume)
    check_objects(volume, may_leak=True)
    with volume.mounted(PEER, "--read-only") as seen:
        for number in range(ROUNDS):
            for journal in _journals(tmp_path, number):
                check_acknowledged(seen.path / f"round{number}", journal)


def _journals(home: Path, number: int) -> list[Path]:
    return [home / f"journal-{number}-{writer}" for writer in range(WRITERS)]


def _kill_in_storm(mount: Mount, directory: Path, journals: list[Path], enough: int) -> None:
    """Have several processes write, and kill when `enough` steps have been acknowledged."""

    def kill() -> None:
        wait_for(lambda: sum(map(acknowledged, journals)) >= enough, f"{enough} steps")
        mount.kill()

    jobs = [(write_until_error, (str(directory), str(path), path.name)) for path in journals]
    race(jobs, timeout_s=60, meanwhile=kill)
