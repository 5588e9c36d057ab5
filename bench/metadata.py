#!/usr/bin/env python3
"""Operations of MetaClient per second, without kernel and data.

python bench/metadata.py redis://127.0.0.1:6379/5     an empty database: a volume is made in it
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from juicepy.meta.client import SUPERUSER, MetaClient, open_meta
from juicepy.meta.registry import open_engine
from juicepy.types import ROOT, Attr, Inode, Kind, SetAttr
from juicepy.volume import Format

Step = Callable[[MetaClient, Inode, bytes], object]

STEPS: dict[str, Step] = {
    "create": lambda client, top, name: client.mknod(SUPERUSER, top, name, Kind.FILE, 0o644, 0o022),
    "lookup": lambda client, top, name: client.lookup(SUPERUSER, top, name),
    "chmod": lambda client, top, name: client.setattr(
        SUPERUSER, client.lookup(SUPERUSER, top, name)[0], SetAttr(mode=0o600)
    ),
    "rename": lambda client, top, name: client.rename(SUPERUSER, top, name, top, name + b".new"),
    "unlink": lambda client, top, name: client.unlink(SUPERUSER, top, name + b".new"),
}


def new_volume(url: str) -> MetaClient:
    engine = open_engine(url)
    if not engine.is_empty_database():
        raise SystemExit("the database is not empty")
    setting = Format(name="bench", uuid=str(uuid.uuid4()), dir_stats=True, meta_version=1)
    engine.init(setting.to_json(), Attr(Kind.DIR, 0o777, nlink=2, length=4096, parent=ROOT), None)
    return open_meta(engine)


def timed(client: MetaClient, step: Step, tops: list[Inode], count: int) -> float:
    """Operations per second of one thread per directory."""

    def work(top: Inode) -> None:
        for number in range(count):
            step(client, top, b"file%d" % number)

    begin = time.perf_counter()
    with ThreadPoolExecutor(len(tops)) as pool:
        list(pool.map(work, tops))
    return count * len(tops) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--count", type=int, default=1000, help="operations of each thread")
    given = parser.parse_args()
    client = new_volume(given.url)
    client.start_session()
    try:
        for threads in (1, 8):
            tops = [
                client.mkdir(SUPERUSER, ROOT, b"%d-%d" % (threads, number), 0o755, 0)[0]
                for number in range(threads)
            ]
            for name, step in STEPS.items():
                rate = timed(client, step, tops, given.count)
                print(f"{threads} threads  {name:8} {rate:9.0f} op/s")
    finally:
        client.close_session()
        client.engine.close()


if __name__ == "__main__":
    main()
