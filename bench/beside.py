#!/usr/bin/env python3
"""`jfs` beside `juicefs`: both do the same, in turns, on volumes of their own.

Needs root, and what the tests need (scripts/install.sh test); servers are started on free ports.
The figure that counts is the ratio of rates, ours over the peer's, its median over the rounds.

    python bench/beside.py --json bench.json                       # Redis and local files
    python bench/beside.py --meta redis,sqlite,mariadb,postgres --storage file,s3 --json bench.json
    python bench/tables.py bench.json docs/performance.md          # tables and a plot
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.workloads import WORKLOADS, Workload
from tests.support.objects import ACCESS_KEY, SECRET_KEY, running_s3
from tests.support.programs import (
    OURS,
    PEER,
    Mount,
    Program,
    daemon_pids,
    is_mounted,
)
from tests.support.redis_servers import redis_server
from tests.support.sql_servers import mariadb_server, postgres_server

METAS = ("redis", "sqlite", "mariadb", "postgres")
STORAGES = ("file", "s3")


@dataclass
class Bench:
    """One program with its volume; a `Place` of the workloads while it is mounted."""

    program: Program
    url: str
    home: Path
    options: list[str]
    path: Path = field(init=False)
    pids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.path = self.home / "mnt"
        self.path.mkdir(parents=True)

    def mount(self) -> None:
        words = ["-d", "--log", self.home / "log", "--cache-dir", self.home / "cache"]
        words += [*self.program.mount_flags, *self.options, self.url, self.path]
        self.program.run("mount", *words)
        self.pids = daemon_pids(self.path)

    def unmount(self) -> None:
        if is_mounted(self.path):
            self.program.umount(Mount(self.program, self.path, self.home / "log", self.pids))

    def remount(self, *, keep_cache: bool) -> None:
        self.unmount()
        if not keep_cache:
            shutil.rmtree(self.home / "cache", ignore_errors=True)
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        self.mount()

    def resident_mib(self) -> float:
        return sum(map(_resident_kib, self.pids)) / 1024


def _resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


@contextlib.contextmanager
def urls(meta: str, home: Path) -> Iterator[Callable[[str], str]]:
    """What makes the URL of an empty database of that engine."""
    if meta == "sqlite":
        yield lambda name: f"sqlite3://{home}/{name}.db"
    elif meta == "redis":
        with redis_server() as server:
            yield lambda name: f"redis://127.0.0.1:{server.port}/{1 if name == 'jfs' else 2}"
    else:
        with mariadb_server() if meta == "mariadb" else postgres_server() as sql:
            yield lambda name: sql.database()


@contextlib.contextmanager
def stores(storage: str, home: Path) -> Iterator[Callable[[str], list[str]]]:
    """What makes the options of `format` for an empty object store."""
    if storage == "file":
        yield lambda name: ["--storage", "file", "--bucket", f"{home}/objects-{name}/"]
    else:
        with running_s3() as server:
            yield lambda name: [
                *("--storage", "s3", "--bucket", server.made_bucket()),
                *("--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY),
            ]


def measure(
    meta: str, storage: str, workloads: list[Workload], given: argparse.Namespace
) -> list[dict[str, object]]:
    """A row for each phase: the rates of both programs, one a round."""
    rows: dict[tuple[str, str], dict[str, object]] = {}
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=given.dir)))
        url_of, store_of = (
            stack.enter_context(urls(meta, home)),
            stack.enter_context(stores(storage, home)),
        )
        benches = []
        for program, options in ((OURS, given.ours_options), (PEER, given.peer_options)):
            name = program.name
            bench = Bench(program, url_of(name), home / name, shlex.split(options))
            program.run("format", *store_of(name), bench.url, f"bench-{name}")
            bench.mount()
            stack.callback(bench.unmount)
            benches.append(bench)
        for workload in workloads:
            for _ in range(given.rounds):
                for bench in benches:
                    for phase, amount, unit, took_s in workload.run(bench, given.scale):
                        _note(rows, workload.name, phase, unit, bench, amount / took_s)
                    _note(rows, workload.name, "memory", "MiB", bench, bench.resident_mib())
                    print(".", end="", flush=True, file=sys.stderr)
    return [{"meta": meta, "storage": storage, **row} for row in rows.values()]


def _note(
    rows: dict[tuple[str, str], dict[str, object]],
    workload: str,
    phase: str,
    unit: str,
    bench: Bench,
    rate: float,
) -> None:
    row = rows.setdefault(
        (workload, phase),
        {"workload": workload, "phase": phase, "unit": unit, "jfs": [], "juicefs": []},
    )
    rates = row[bench.program.name]
    assert isinstance(rates, list)
    rates.append(rate)


def machine() -> dict[str, str]:
    def first(*words: str) -> str:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")[
            0
        ]

    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "kernel": platform.release(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "jfs": first(str(OURS.executable), "version"),
        "juicefs": first(str(PEER.executable), "version"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--meta", default="redis", help=", ".join(METAS))
    parser.add_argument("--storage", default="file", help=", ".join(STORAGES))
    parser.add_argument("--only", default="", help="parts of names of workloads, by commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--ours-options", default="", help="of `jfs mount`")
    parser.add_argument("--peer-options", default="", help="of `juicefs mount`")
    parser.add_argument("--dir", default="/var/tmp", help="where all is kept meanwhile")
    parser.add_argument("--json", type=Path, help="write all rates there")
    given = parser.parse_args()
    wanted = [part for part in given.only.split(",") if part]
    chosen = [w for w in WORKLOADS if not wanted or any(part in w.name for part in wanted)]
    rows = []
    for meta in given.meta.split(","):
        for storage in given.storage.split(","):
            rows += measure(meta, storage, chosen, given)
    print(file=sys.stderr)
    for row in rows:
        ours, peer = (statistics.median(row[name]) for name in ("jfs", "juicefs"))  # type: ignore[arg-type]
        label = f"{row['meta']}, {row['storage']}: {row['workload']}: {row['phase']}"
        print(f"{label:66}{ours:11.1f}{peer:11.1f} {row['unit']:10}{ours / peer:6.2f}")
    if given.json is not None:
        command = shlex.join(["python", "bench/beside.py", *sys.argv[1:]])
        text = json.dumps({"machine": machine(), "command": command, "rows": rows}, indent=1)
        given.json.write_text(text)


if __name__ == "__main__":
    main()
