"""`jfs warmup`: bring files into the cache of the mount they are on; also on a mount of JuiceFS."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from typing import Any

import click

from juicepy.cmd.info import sized
from juicepy.cmd.options import Command, Option
from juicepy.errors import Refused

WARM, EVICT, CHECK = 0, 1, 2
_DONE = {WARM: "cached", EVICT: "evicted", CHECK: "checked"}


@click.command(
    cls=Command,
    params=[
        click.Argument(["paths"], metavar="[PATH ...]", nargs=-1),
        Option(["--file", "-f"], default="", help="A file that lists paths, one on a line."),
        Option(["--threads", "-p"], type=int, default=50, help="Blocks at once."),
        Option(["--background", "-b"], is_flag=True, help="Leave the work to the mount."),
        Option(["--evict"], is_flag=True, help="Drop the blocks from the cache."),
        Option(["--check"], is_flag=True, help="Tell how much is cached, and where."),
    ],
)
def command(
    paths: tuple[str, ...], file: str, threads: int, background: bool, evict: bool, check: bool
) -> int:
    """Bring the files at PATH, or below it, into the cache of their mount."""
    if evict and check:
        raise Refused("--evict and --check exclude each other")
    if not 1 <= threads <= 0xFFFF:
        raise Refused(f"--threads {threads} is not between 1 and 65535")
    action = EVICT if evict else CHECK if check else WARM
    wanted = [*paths, *(_listed(file) if file else ())]
    if not wanted:
        raise Refused("no PATH is given")
    by_mount: defaultdict[str, list[bytes]] = defaultdict(list)
    for path in wanted:
        root, inside = _place(path)
        by_mount[root].append(inside)
    is_whole = True
    for root, inside_paths in by_mount.items():
        is_whole &= _ask(root, inside_paths, threads, action, is_background=background)
    return 0 if is_whole else 1


def _listed(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return [line.rstrip("\n") for line in file if line.strip()]


def _place(path: str) -> tuple[str, bytes]:
    """(root of the mount, path below it with a leading slash). Refused outside of mounts."""
    real = os.path.realpath(path)
    if not os.path.exists(real):
        raise FileNotFoundError(2, os.strerror(2), path)
    root = real
    while os.stat(root).st_ino != 1:
        parent = os.path.dirname(root)
        if parent == root or os.stat(parent).st_dev != os.stat(root).st_dev:
            raise Refused(f"{path} is not inside a JuiceFS mount")
        root = parent
    return root, os.fsencode("/" + os.path.relpath(real, root) if real != root else "/")


def _ask(root: str, paths: list[bytes], threads: int, action: int, *, is_background: bool) -> bool:
    """Have the mount at `root` do it; False if something could not be cached."""
    from juicepy.cmd.progress import Counting
    from juicepy.jobs import control

    channel = control.find(root)
    begin_s = time.monotonic()
    with Counting("files", "bytes") as counting:
        found = control.fill_cache(
            channel, paths, threads, action, background=is_background, progress=counting.update
        )
    if is_background:
        click.echo(f"{root}: {len(paths)} paths are left to the mount")
        return True
    _tell(root, found, action, time.monotonic() - begin_s)
    return action != WARM or not found.get("MissBytes", 0)


def _tell(root: str, found: dict[str, Any], action: int, took_s: float) -> None:
    files, total = found["FileCount"], found["TotalBytes"]
    missed = found.get("MissBytes", 0)
    if action == CHECK:
        have = total - missed
        share = have / total * 100 if total else 100.0
        text = f"{sized(have)} of {sized(total)} ({share:.1f}%) are cached"
        click.echo(f"{root}: {files} files checked, {text}")
        for place, size in sorted((found.get("Locations") or {}).items()):
            click.echo(f"  {place}: {sized(size)} ({size / total * 100 if total else 0:.1f}%)")
        return
    rate = f", {sized(int(total / took_s))}/s" if took_s > 0 and action == WARM else ""
    click.echo(f"{root}: {files} files {_DONE[action]}, {sized(total)} in {took_s:.1f} s{rate}")
    if action == WARM and missed:
        click.echo(f"jfs warmup: {sized(missed)} could not be cached", err=True)
