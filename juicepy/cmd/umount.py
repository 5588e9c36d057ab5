"""`jfs umount`: take a mount down, after all it holds is stored."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import click

from juicepy.cmd.options import Command, Option
from juicepy.cmd.progress import Counting
from juicepy.errors import Refused

_EXIT_TIMEOUT_S = 60.0
_POLL_S = 0.02


@click.command(
    cls=Command,
    params=[
        click.Argument(["mount_point"], metavar="MOUNTPOINT"),
        Option(["--force", "-f"], is_flag=True, help="Also where the mount is in use."),
        Option(["--flush"], is_flag=True, help="Wait until all staged blocks are uploaded."),
    ],
)
def command(mount_point: str, force: bool, flush: bool) -> None:
    """Unmount the volume mounted on MOUNTPOINT; returns when its process has ended."""
    from juicepy.fuse import mounts

    path = os.path.abspath(mount_point)
    found = mounts.find_mount(path)
    if found is None:
        raise Refused(f"{path} is not mounted", errno.EINVAL)
    if not found.is_fuse:
        raise Refused(f"{path} is no JuiceFS mount but {found.fstype}", errno.EINVAL)
    # who forces does not ask the mount: it may be frozen
    config = {} if (force and not flush) or mounts.is_dead(path) else _config(path)
    if flush:
        wait_staged(config)
    try:
        mounts.unmount(path, lazy=force)
    except OSError as error:
        if error.errno == errno.EBUSY:
            text = f"{path} is in use (--force detaches it all the same)"
            raise Refused(text, errno.EBUSY) from error
        raise
    if not force:
        _wait_ended(int(config.get("Pid", 0)), path)


def _config(path: str) -> dict[str, Any]:
    """What the mount tells of itself; empty where this user may not read it."""
    for name in (".jfs.config", ".config"):
        try:
            found: dict[str, Any] = json.loads(Path(path, name).read_bytes())
            return found
        except (OSError, ValueError):
            continue
    return {}


def wait_staged(config: dict[str, Any]) -> None:
    """Wait until no staged block is left in the cache directories of the mount."""
    chunk = config.get("Chunk", {})
    if not chunk.get("Writeback"):
        return
    dirs = [Path(path, "rawstaging") for path in chunk.get("CacheDir", "").split(":")]
    with Counting("blocks staged", "bytes") as counting:
        while True:
            sizes = [size for path in dirs for size in _sizes(path)]
            counting.update(len(sizes), sum(sizes))
            if not sizes:
                return
            time.sleep(0.5)


def _sizes(path: Path) -> list[int]:
    found = []
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                found.append(os.stat(os.path.join(directory, name)).st_size)
            except FileNotFoundError:
                continue  # uploaded in this moment
    return found


def _wait_ended(pid: int, path: str) -> None:
    """Wait for the mount process, which stores the last statistics and ends its session."""
    deadline_s = time.monotonic() + _EXIT_TIMEOUT_S
    while pid and is_running(pid):
        if time.monotonic() > deadline_s:
            text = f"{path} is unmounted, but its process {pid} has not ended yet"
            click.echo(f"jfs umount: {text}", err=True)
            return
        time.sleep(_POLL_S)


def is_running(pid: int) -> bool:
    """Is there a process of that number that has not ended (a zombie has)?"""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
