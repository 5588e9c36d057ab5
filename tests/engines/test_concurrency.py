"""16 threads in 4 processes change the same few directories: afterwards everything agrees."""

from __future__ import annotations

import subprocess
import sys

import pytest

from juicepy.meta.client import SUPERUSER
from juicepy.meta.registry import open_engine
from juicepy.types import ROOT
from tests.support.meta import format_engine, scan, session

PROCESSES = 4
SECONDS = 4


@pytest.mark.parametrize("trash_days", [0, 1])
def test_storm_of_names_leaves_a_consistent_tree(engine_url: str, trash_days: int) -> None:
    engine = open_engine(engine_url)
    format_engine(engine, trash_days=trash_days)
    with session(engine) as client:
        for name in (b"a", b"b", b"c"):
            client.mkdir(SUPERUSER, ROOT, name, 0o777, 0)
    command = [sys.executable, "-m", "tests.support.storm", engine_url]
    storms = [
        subprocess.Popen(
            [*command, str(seed), str(SECONDS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for seed in range(PROCESSES)
    ]
    told = [storm.communicate(timeout=120)[0] for storm in storms]
    assert [storm.returncode for storm in storms] == [0] * PROCESSES, "".join(told)
    assert "".join(told) == ""
    assert scan(engine).faults == []
    engine.close()
