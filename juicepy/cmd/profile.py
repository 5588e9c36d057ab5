"""`jfs profile`: which operations take the time, from the access log of a mount or a saved one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from juicepy.cmd.options import Command, Option
from juicepy.errors import Refused

if TYPE_CHECKING:
    from juicepy.jobs.profile import Filter, Operation, Profile

LIVE_LOGS = (".accesslog", ".jfs.accesslog")  # of a mount, which the path may also name


@click.command(
    cls=Command,
    params=[
        click.Argument(["source"], metavar="MOUNTPOINT/LOGFILE"),
        Option(["--uid", "-u"], default="", help="Only these users, separated by commas."),
        Option(["--gid", "-g"], default="", help="Only these groups."),
        Option(["--pid", "-p"], default="", help="Only these processes."),
        Option(["--interval"], type=float, default=2.0, help="Seconds of one table; 0: all."),
    ],
)
def command(source: str, uid: str, gid: str, pid: str, interval: float) -> None:
    """Sum up operations by name, the longest first: live of a mount, or of a saved access log."""
    from juicepy.jobs import figures
    from juicepy.jobs.profile import Filter, windows

    if not 0 <= interval < float("inf"):
        raise Refused(f"--interval {interval:g} is less than 0")
    chosen = Filter(_numbers("--uid", uid), _numbers("--gid", gid), _numbers("--pid", pid))
    live = os.path.basename(source) in LIVE_LOGS
    if os.path.isfile(source) and not (live and os.stat(source).st_ino >= 1 << 62):
        for end_s, took_s, profile in windows(_saved(source, chosen), interval):
            _show(profile, end_s, took_s)
        return
    if interval == 0:
        raise Refused("--interval 0 is for a saved log")
    place = os.path.dirname(os.path.abspath(source)) if live else source
    _follow(figures.find(place, "accesslog"), chosen, interval)


def _numbers(option: str, text: str) -> frozenset[int]:
    try:
        return frozenset(int(part) for part in text.split(",") if part)
    except ValueError:
        raise Refused(f"{option} {text!r} is not numbers separated by commas") from None


def _saved(path: str, chosen: Filter) -> Iterator[Operation]:
    from juicepy.jobs.profile import parse

    with open(path, "rb") as file:
        for line in file:
            operation = parse(line)
            if operation is not None and chosen.takes(operation):
                yield operation


def _follow(path: str, chosen: Filter, interval_s: float) -> None:
    """Read the log of a mount, which says `#` each second that nothing happens, for ever."""
    from juicepy.jobs.profile import Profile, parse

    profile, begin_s = Profile(), time.monotonic()
    with open(path, "rb", buffering=0) as file:
        rest = b""
        while data := file.read(1 << 20):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                operation = parse(line)
                if operation is not None and chosen.takes(operation):
                    profile.add(operation)
            took_s = time.monotonic() - begin_s
            if took_s >= interval_s:
                _show(profile, time.time(), took_s)
                profile.clear()
                begin_s = time.monotonic()


def _show(profile: Profile, end_s: float, took_s: float) -> None:
    if sys.stdout.isatty():
        click.clear()
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(end_s))
    click.secho(f"> profile of {took_s:.0f} s until {moment}", bold=True)
    click.echo(profile.text(took_s) + "\n")
