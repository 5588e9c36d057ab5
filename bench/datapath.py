#!/usr/bin/env python3
"""Reads and writes through the VFS, without kernel: metadata and blocks are in memory."""

from __future__ import annotations

import argparse
import os
import random
import time
import uuid
from collections.abc import Callable

from juicepy.meta.registry import open_engine
from juicepy.types import ROOT, Attr, Cred, Kind
from juicepy.vfs.open import VfsOptions, open_vfs
from juicepy.volume import Format

MIB = 1 << 20
ME = Cred()


def new_volume() -> str:
    url = f"mem://{uuid.uuid4()}"
    setting = Format(name="bench", uuid=str(uuid.uuid4()), storage="mem", meta_version=1)
    root = Attr(Kind.DIR, 0o777, nlink=2, length=4096, parent=ROOT)
    open_engine(url).init(setting.to_json(), root, None)
    return url


def report(what: str, unit: int, count: int, work: Callable[[int], object]) -> None:
    begin = time.perf_counter()
    for number in range(count):
        work(number)
    took_s = time.perf_counter() - begin
    print(f"{what:22} {unit * count / took_s / MIB:9.0f} MiB/s  {count / took_s:9.0f} op/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128, help="MiB of the file")
    size = parser.parse_args().size * MIB
    data = memoryview(os.urandom(MIB))
    with open_vfs(new_volume(), VfsOptions(no_bgjob=True)) as vfs:
        found, opened = vfs.create(ME, ROOT, b"file", 0o644, 0, os.O_RDWR)
        ino, fh = found.ino, opened.fh
        for unit in (MIB, 128 << 10):
            piece = data[:unit]
            report(
                f"write {unit >> 10} KiB",
                unit,
                size // unit,
                lambda n, u=unit, p=piece: vfs.write(ME, ino, fh, n * u, p, 0),
            )
            vfs.fsync(ME, ino, fh, False)
        for unit in (MIB, 128 << 10):
            report(
                f"read {unit >> 10} KiB",
                unit,
                size // unit,
                lambda n, u=unit: vfs.read(ME, ino, fh, n * u, u),
            )
        places = [random.randrange(size >> 12) << 12 for _ in range(20_000)]
        report(
            "random read 4 KiB",
            4096,
            len(places),
            lambda n: vfs.read(ME, ino, fh, places[n], 4096),
        )
        vfs.release(ME, ino, fh, 0)


if __name__ == "__main__":
    main()
