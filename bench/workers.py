#!/usr/bin/env python3
"""What `jfs mount --read-only --workers N` gains: N processes beside one, in turns.

Needs root. 4 processes open and read small files, of which the kernel keeps no names; what is told
is the median over the rounds of the rate with N divided by that with one.

    python bench/workers.py --workers 2 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from presets import drop_pages, mounted, run

FILES, SIZE = 300, 20_000
READERS, READS = 4, 800
NOTHING_KEPT = ["--attr-cache", "0", "--entry-cache", "0"]


def read(folder: str, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(READS):
        path = Path(folder, str(chance.randrange(FILES)))
        assert len(path.read_bytes()) == SIZE


def rate(url: str, home: Path, workers: int) -> float:
    """Files in a second."""
    options = ["--read-only", "--workers", str(workers), "--no-passthrough", *NOTHING_KEPT]
    with mounted(url, home, options) as root, ProcessPoolExecutor(READERS) as pool:
        list(pool.map(read, [str(root / "small")] * READERS, range(READERS)))
        drop_pages()
        begin_s = time.perf_counter()
        list(pool.map(read, [str(root / "small")] * READERS, range(READERS)))
        return READERS * READS / (time.perf_counter() - begin_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        url = f"sqlite3://{home}/meta.db"
        run("format", "--bucket", f"{home}/objects", url, "workers")
        with mounted(url, home, []) as root:
            (root / "small").mkdir()
            for number in range(FILES):
                (root / "small" / str(number)).write_bytes(os.urandom(SIZE))
        pairs = [(rate(url, home, 1), rate(url, home, given.workers)) for _ in range(given.rounds)]
    ratios = [many / one for one, many in pairs]
    one, many = (statistics.median(rates) for rates in zip(*pairs, strict=True))
    print(f"1: {one:.0f} files/s, {given.workers}: {many:.0f} files/s")
    print(f"{statistics.median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
