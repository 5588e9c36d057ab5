#!/usr/bin/env python3
"""Each preset of `jfs mount` against default options, at the way of reading it is for.

Needs root. Default and preset take turns at a new mount each, with empty caches; what is told is
the median over the rounds of the time by default divided by the time with the preset.

    python bench/presets.py                          # SQLite and local files, about ten minutes
    python bench/presets.py --only random --rounds 5 -o "--open-mode whole"
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shlex
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from juicepy.cmd.presets import PRESETS

MIB = 1 << 20
LARGE = 512 * MIB
FILES, FOLDERS, SMALL = 3000, 30, 64 << 10
EPOCHS, THREADS, SEEKS = 3, 8, 20_000


def read_once(root: Path) -> None:
    read_part(root / "large", 0, LARGE)


def read_parts(root: Path) -> None:
    part = LARGE // 16
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: read_part(root / "large", n * part, part), range(16)))


def read_part(path: Path, offset: int, size: int) -> None:
    with path.open("rb", buffering=0) as file:
        for at in range(offset, offset + size, MIB):
            assert len(os.pread(file.fileno(), MIB, at)) == MIB


def read_epoch(root: Path) -> None:
    """List all, then read each file in an order of chance: a loader's epoch."""
    paths = [Path(entry) for folder in os.scandir(root / "small") for entry in os.scandir(folder)]
    random.Random(1).shuffle(paths)
    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(lambda path: len(path.read_bytes()), paths)) == FILES * SMALL


def read_epochs(root: Path) -> None:
    for _ in range(EPOCHS):
        read_epoch(root)
        drop_pages()  # a data set is larger than the memory


def seek(root: Path) -> None:
    chance = random.Random(2)
    places = [chance.randrange(LARGE // 4096) * 4096 for _ in range(SEEKS)]
    with (root / "large").open("rb", buffering=0) as file, ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda place: os.pread(file.fileno(), 4096, place), places))


WAYS: dict[str, Callable[[Path], None]] = {
    "seq-once": read_once,
    "seq-threads": read_parts,
    "small-once": read_epoch,
    "small-epochs": read_epochs,
    "random": seek,
}


def drop_pages() -> None:
    Path("/proc/sys/vm/drop_caches").write_text("1")


@contextlib.contextmanager
def mounted(url: str, home: Path, options: list[str]) -> Iterator[Path]:
    """A new mount with an empty cache."""
    place, cache = home / "mnt", home / "cache"
    place.mkdir(exist_ok=True)
    words = ["--log", str(home / "log"), "--cache-dir", str(cache), "--metrics", ""]
    words += ["--backup-meta", "0", *options, url, str(place)]
    run("mount", "-d", *words)
    try:
        yield place
    finally:
        run("umount", str(place))
        shutil.rmtree(cache, ignore_errors=True)


def run(*words: str) -> None:
    subprocess.run(["jfs", "-q", *words], check=True, stderr=subprocess.DEVNULL)


def fill(root: Path) -> None:
    with (root / "large").open("wb") as file:
        for _ in range(LARGE // MIB):
            file.write(os.urandom(MIB))
    for folder in range(FOLDERS):
        (root / "small" / str(folder)).mkdir(parents=True)

    def write(number: int) -> None:
        (root / "small" / str(number % FOLDERS) / str(number)).write_bytes(os.urandom(SMALL))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(write, range(FILES)))


def timed(url: str, home: Path, options: list[str], work: Callable[[Path], None]) -> float:
    with mounted(url, home, options) as root:
        drop_pages()
        begin_s = time.perf_counter()
        work(root)
        return time.perf_counter() - begin_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--meta", help="META-URL of an empty database; else SQLite")
    parser.add_argument("--storage", default="file")
    parser.add_argument("--bucket", help="else a local directory")
    parser.add_argument("--dir", help="where all is kept meanwhile")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(WAYS), help="presets, separated by commas")
    parser.add_argument("-o", default="", help="options of the mount with the preset")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as name:
        home = Path(name)
        url = given.meta or f"sqlite3://{home}/meta.db"
        bucket = given.bucket or f"{home}/objects"
        run("format", "--storage", given.storage, "--bucket", bucket, url, "presets")
        with mounted(url, home, []) as root:
            fill(root)
        print(f"{'preset':14}{'default s':>11}{'preset s':>11}{'times':>8}  set")
        for preset in given.only.split(","):
            chosen = ["--preset", preset, *shlex.split(given.o)]
            pairs = [
                (timed(url, home, [], WAYS[preset]), timed(url, home, chosen, WAYS[preset]))
                for _ in range(given.rounds)
            ]
            plain, with_preset = (statistics.median(times) for times in zip(*pairs, strict=True))
            ratio = statistics.median(a / b for a, b in pairs)
            values = " ".join(f"{key}={value}" for key, value in PRESETS[preset].values.items())
            print(f"{preset:14}{plain:11.2f}{with_preset:11.2f}{ratio:8.2f}  {values}", flush=True)


if __name__ == "__main__":
    main()
