"""`jfs warmup`: bring files into the cache of the mount they are on; also on a mount of JuiceFS."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import click

from juicepy.cmd.info import sized
from juicepy.cmd.options import Command, Option, describe
from juicepy.errors import Refused

if TYPE_CHECKING:
    from juicepy.cmd.progress import Loading

logger = logging.getLogger(__name__)

WARM, EVICT, CHECK = 0, 1, 2
_DONE = {WARM: "cached", EVICT: "evicted", CHECK: "checked"}
_PATHS_OF_A_REQUEST = 10_000
_SHOWN_ERRORS = 10
_PAUSE_S = 0.5  # before the first repetition; twice as long before each further one


@dataclass(frozen=True, slots=True)
class _Task:
    """What is to be done, on every mount."""

    action: int
    threads: int
    is_background: bool
    retries: int


@dataclass(slots=True)
class _Work:
    """The paths on one mount, as given and as seen from its root."""

    paths: list[str] = field(default_factory=list)
    inside: list[bytes] = field(default_factory=list)


@click.command(
    cls=Command,
    params=[
        click.Argument(["paths"], metavar="[PATH ...]", nargs=-1),
        Option(["--file", "-f"], default="", help="A file that lists paths, one on a line."),
        Option(["--threads", "-p"], type=int, default=50, help="Blocks at once."),
        Option(["--background", "-b"], is_flag=True, help="Leave the work to the mount."),
        Option(["--evict"], is_flag=True, help="Drop the blocks from the cache."),
        Option(["--check"], is_flag=True, help="Tell how much is cached, and where."),
        Option(["--io-retries"], type=int, default=2, help="Repetitions of what has failed."),
    ],
)
def command(
    paths: tuple[str, ...],
    file: str,
    threads: int,
    background: bool,
    evict: bool,
    check: bool,
    io_retries: int,
) -> int:
    """Bring the files at PATH, or below it, into the cache of their mount."""
    if evict and check:
        raise Refused("--evict and --check exclude each other")
    if not 1 <= threads <= 0xFFFF:
        raise Refused(f"--threads {threads} is not between 1 and 65535")
    if io_retries < 0:
        raise Refused(f"--io-retries {io_retries} is less than 0")
    action = EVICT if evict else CHECK if check else WARM
    wanted = [*paths, *(_listed(file) if file else ())]
    if not wanted:
        raise Refused("no PATH is given")
    by_mount, failed = _sorted_out(wanted)
    task = _Task(action, threads, background, io_retries)
    for root, work in by_mount.items():
        failed += _warm(root, work, task)
    return 1 if failed else 0


def _listed(path: str) -> list[str]:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return [line.rstrip("\n") for line in file if line.strip()]


# ---------------------------------------------------------------- where the paths are
def _sorted_out(paths: Sequence[str]) -> tuple[dict[str, _Work], int]:
    """(the work by root of the mount, how many paths there are not)."""
    by_mount: defaultdict[str, _Work] = defaultdict(_Work)
    failed = 0
    for path in paths:
        try:
            root, inside = _place(path)
        except Refused:
            raise
        except OSError as error:
            failed += 1
            if failed <= _SHOWN_ERRORS:
                click.echo(f"jfs warmup: {describe(error)}", err=True)
            continue
        by_mount[root].paths.append(path)
        by_mount[root].inside.append(inside)
    if failed > _SHOWN_ERRORS:
        click.echo(f"jfs warmup: {failed} of {len(paths)} paths do not exist", err=True)
    return by_mount, failed


def _place(path: str) -> tuple[str, bytes]:
    """(root of the mount, path below it with a leading slash). Refused outside of mounts."""
    directory, name = os.path.split(os.path.abspath(path))
    real = os.path.join(_real(directory), name)
    if not name or os.path.islink(real):
        real = os.path.realpath(real)
    if not os.path.exists(real):
        raise FileNotFoundError(2, os.strerror(2), path)
    root = mount_root(real if os.path.isdir(real) else os.path.dirname(real))
    if root is None:
        raise Refused(f"{path} is not inside a JuiceFS mount")
    return root, os.fsencode("/" + os.path.relpath(real, root) if real != root else "/")


@lru_cache(10_000)
def _real(directory: str) -> str:
    return os.path.realpath(directory)


@lru_cache(10_000)
def mount_root(directory: str) -> str | None:
    """The root of the mount that the directory is in."""
    root = directory
    while os.stat(root).st_ino != 1:
        parent = os.path.dirname(root)
        if parent == root or os.stat(parent).st_dev != os.stat(root).st_dev:
            return None
        root = parent
    return root


# ---------------------------------------------------------------- one mount
def _warm(root: str, work: _Work, task: _Task) -> int:
    """Have the mount at `root` do it; the number of what could not be done."""
    from juicepy.cmd.progress import Loading
    from juicepy.jobs import control

    channel, begin_s = control.find(root), time.monotonic()
    total: Counter[str] = Counter()
    places: Counter[str] = Counter()
    with Loading() as loading:
        if loading.is_live and not task.is_background:
            loading.expect(_size(channel, work.paths))
        for paths in _batches(work.inside, _PATHS_OF_A_REQUEST):
            found = _ask(channel, paths, task, loading)
            places.update(found.pop("Locations", None) or {})
            total.update({name: found.get(name, 0) for name in found})
            loading.begin_next()
        if task.is_background:
            click.echo(f"{root}: {len(work.inside)} paths are left to the mount")
            return 0
        if task.action == WARM and _keeps_names(root):
            _look_up(work.paths, task.threads)
    _tell(root, total, places, task.action, time.monotonic() - begin_s)
    return total["FailedPaths"] + (total["MissBytes"] if task.action == WARM else 0)


def _ask(channel: str, paths: list[bytes], task: _Task, loading: Loading) -> dict[str, Any]:
    """Ask the mount, and ask again as long as some blocks fail; those there are passed over."""
    from juicepy.jobs import control

    pause_s, first = _PAUSE_S, None
    for left in range(task.retries, -1, -1):
        found = control.fill_cache(
            channel,
            paths,
            task.threads,
            task.action,
            background=task.is_background,
            progress=loading.update,
        )
        if first is not None and "CachedBytes" in found:  # before the first time
            found["CachedBytes"] = first
        first = found.get("CachedBytes")
        if task.action != WARM or not found.get("MissBytes") or not left:
            break
        logger.warning("%s are not cached: again in %.1f s", sized(found["MissBytes"]), pause_s)
        time.sleep(pause_s)
        pause_s *= 2
    return found


def _size(channel: str, paths: Sequence[str]) -> int:
    """Bytes of all files at the paths or below."""
    from juicepy.jobs import control

    size = 0
    for path in paths:
        found = os.stat(path)
        if os.path.isdir(path):
            told = control.info(channel, found.st_ino, recursive=True, raw=False, strict=False)
            size += told["Summary"]["Length"]
        else:
            size += found.st_size
    return size


def _batches(paths: list[bytes], size: int) -> Iterator[list[bytes]]:
    for at in range(0, len(paths), size):
        yield paths[at : at + size]


def _keeps_names(root: str) -> bool:
    """Whether the kernel keeps names long enough for a look at all of them to be of use."""
    from juicepy.jobs import control

    return control.setting(root, "EntryTimeout", 0) >= 10 * 10**9


def _look_up(paths: Sequence[str], threads: int) -> None:
    """Have the kernel know the names and attributes of all."""
    from concurrent.futures import ThreadPoolExecutor

    def look(directory: str) -> list[str]:
        with os.scandir(directory) as entries:
            found = [(entry.path, entry.stat(follow_symlinks=False)) for entry in entries]
        os.stat(directory)  # after a listing the kernel asks for the time of access anew
        return [path for path, status in found if (status.st_mode & 0o170000) == 0o040000]

    with ThreadPoolExecutor(min(threads, 16)) as pool:
        level = [path for path in paths if os.path.isdir(path)]
        while level:
            level = [path for found in pool.map(look, level) for path in found]


def _tell(root: str, total: Counter[str], places: Counter[str], action: int, took_s: float) -> None:
    files, size, missed = total["FileCount"], total["TotalBytes"], total["MissBytes"]
    if total["FailedPaths"]:
        click.echo(f"jfs warmup: {total['FailedPaths']} paths could not be read", err=True)
    if action == CHECK:
        have = size - missed
        share = have / size * 100 if size else 100.0
        text = f"{sized(have)} of {sized(size)} ({share:.1f}%) are cached"
        click.echo(f"{root}: {files} files checked, {text}, {sized(missed)} are missing")
        for place, part in sorted(places.items()):
            click.echo(f"  {place}: {sized(part)} ({part / size * 100 if size else 0:.1f}%)")
        return
    text = f"{root}: {files} files {_DONE[action]}, {sized(size)} in {took_s:.1f} s"
    if action == WARM:
        rate = f", {sized(int(size / took_s))}/s" if took_s > 0 else ""
        here = f", {sized(total['CachedBytes'])} were there" if "CachedBytes" in total else ""
        text += f"{rate}{here}, {sized(missed)} failed"
    click.echo(text)
    if action == WARM and missed:
        click.echo(f"jfs warmup: {sized(missed)} could not be cached", err=True)
