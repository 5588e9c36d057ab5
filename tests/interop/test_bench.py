"""The benchmarks run, and what they measured becomes a page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*words: object) -> str:
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_both_clients_are_measured_and_put_into_a_table(tmp_path: Path) -> None:
    json, page = tmp_path / "bench.json", tmp_path / "page.md"
    page.write_text("before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nafter\n")
    words = ["--meta", "sqlite", "--only", "random,directory", "--scale", "0.02", "--rounds", "1"]
    told = run("bench/beside.py", *words, "--dir", tmp_path, "--json", json)
    assert "sqlite, file: random reads: 4 KiB, 8 threads" in told
    run("bench/tables.py", json, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("<!-- figures: end -->\nafter\n")
    assert "old" not in text
    assert "| directory | names | " in text
    assert "<svg" in (tmp_path / "page.svg").read_text()
