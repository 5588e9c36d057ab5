"""A process that creates, renames, links and removes names in shared directories with threads.

Run as `python -m tests.support.storm URL SEED SECONDS`: prints what went wrong, nothing if all is
well. Errors that a race between names explains are part of the game.
"""

from __future__ import annotations

import errno
import random
import sys
import threading
import time

from juicepy.meta import rules
from juicepy.meta.client import SUPERUSER, MetaClient
from juicepy.meta.registry import open_engine
from juicepy.types import ROOT, Inode, Kind, Slice
from tests.support.meta import session

THREADS = 4
EXPECTED = {
    errno.ENOENT,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EINVAL,
    errno.EPERM,
}


def storm(client: MetaClient, dirs: list[Inode], seed: int, until_s: float) -> int:
    """Random operations on a few names; the number that succeeded."""
    rng = random.Random(seed)
    done = 0
    while time.monotonic() < until_s:
        try:
            step(client, dirs, rng)
            done += 1
        except OSError as error:
            if error.errno not in EXPECTED:
                raise
    return done


def step(client: MetaClient, dirs: list[Inode], rng: random.Random) -> None:
    parent, other = rng.choice(dirs), rng.choice(dirs)
    name, name2 = (b"n%d" % rng.randrange(12) for _ in range(2))
    match rng.randrange(9):
        case 0 | 1:
            ino, _ = client.mknod(SUPERUSER, parent, name, Kind.FILE, 0o644, 0)
            size = rng.randrange(1, 20_000)
            client.write(ino, 0, Slice(0, client.new_slice(), size, 0, size), time.time_ns())
        case 2:
            client.mkdir(SUPERUSER, parent, name, 0o755, 0)
        case 3:
            client.unlink(SUPERUSER, parent, name)
        case 4:
            client.rmdir(SUPERUSER, parent, name)
        case 5 | 6:
            flags = rng.choice((0, 0, rules.NOREPLACE, rules.EXCHANGE))
            client.rename(SUPERUSER, parent, name, other, name2, flags)
        case 7:
            ino, _ = client.lookup(SUPERUSER, parent, name)
            client.link(SUPERUSER, ino, other, name2)
        case 8:
            ino, attr = client.lookup(SUPERUSER, parent, name)
            if attr.kind is Kind.FILE:
                client.truncate(SUPERUSER, ino, rng.randrange(30_000), by_handle=True)


def main() -> int:
    url, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    engine = open_engine(url)
    failures: list[BaseException] = []
    counts: list[int] = []

    def run(number: int) -> None:
        try:
            counts.append(storm(client, dirs, seed * 100 + number, until_s))
        except BaseException as error:
            failures.append(error)

    with session(engine, no_bgjob=True) as client:
        dirs = [client.lookup(SUPERUSER, ROOT, name)[0] for name in (b"a", b"b", b"c")]
        until_s = time.monotonic() + seconds
        threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    engine.close()
    for failure in failures:
        print(f"seed {seed}: {failure!r}")
    if not failures and sum(counts) < 5 * THREADS:
        print(f"seed {seed}: only {counts} operations succeeded")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
