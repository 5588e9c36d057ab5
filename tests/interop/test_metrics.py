"""The metrics of both programs: dashboards are made of their names, types and labels."""

from __future__ import annotations

import json
import os
import re
import urllib.request
from pathlib import Path

import pytest

from tests.support.programs import OURS, PEER, Mount
from tests.support.volumes import new_volume

# what only a program in Go has; the figures of JuiceFS's dashboard and of `stats` are not among it
GO_RUNTIME = re.compile(r"juicefs_go_(?!goroutines|threads|memstats_alloc_bytes$|memstats_sys_)")


class Exposed:
    """The text at `/metrics` of a mount."""

    def __init__(self, mount: Mount) -> None:
        port = json.loads((mount.path / ".config").read_text())["Port"]
        with urllib.request.urlopen(f"http://{port['PrometheusAgent']}/metrics") as answer:
            text = answer.read().decode()
        self.types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        self.labels: dict[str, set[str]] = {}
        for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? ", text, re.MULTILINE):
            self.labels.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Exposed, Exposed]:
    home = tmp_path_factory.mktemp("metrics")
    volume = new_volume(f"sqlite3://{home}/meta.db", home)
    volume.format(OURS, "--trash-days", "0")
    found = []
    for program in (OURS, PEER):
        with volume.mounted(program, "--writeback") as mount:
            use(mount.path)
            found.append(Exposed(mount))
    return found[0], found[1]


def use(place: Path) -> None:
    """So that what has labels is there."""
    path = place / "f"
    path.write_bytes(os.urandom(5 << 20))
    path.read_bytes()
    path.unlink()


def test_types_are_the_same(both: tuple[Exposed, Exposed]) -> None:
    ours, theirs = both
    wanted = {name: kind for name, kind in theirs.types.items() if not GO_RUNTIME.match(name)}
    assert len(wanted) > 50
    assert {name: ours.types.get(name) for name in wanted} == wanted


def test_labels_are_the_same(both: tuple[Exposed, Exposed]) -> None:
    ours, theirs = both
    wanted = {name: labels for name, labels in theirs.labels.items() if not GO_RUNTIME.match(name)}
    assert {"vol_name", "mp", "method"} <= wanted["juicefs_fuse_ops_total"]
    assert {name: ours.labels.get(name) for name in wanted} == wanted


def test_stats_of_both_have_the_same_columns(tmp_path: Path) -> None:
    volume = new_volume(f"sqlite3://{tmp_path}/meta.db", tmp_path)
    volume.format(OURS)
    with volume.mounted(OURS) as mount:
        for verbosity in ("0", "1"):
            words = ("stats", mount.path, "--schema", "tufmcog", "-c", "1", "-l", verbosity)
            ours, theirs = OURS.run(*words).stdout, PEER.run(*words).stdout
            assert ours.splitlines()[:2] == theirs.splitlines()[:2]
            cells = ours.splitlines()[2].split("|")[-1].split()
            assert all(cell.endswith("M") for cell in cells), cells  # alloc, sys
