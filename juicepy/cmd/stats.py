"""`jfs stats`: the figures of a mount, line by line; also of a mount of JuiceFS."""

from __future__ import annotations

import sys
import time

import click

from juicepy.cmd.options import Command, Option
from juicepy.errors import Refused

_HEADER_EVERY = 20  # rows


@click.command(
    cls=Command,
    params=[
        click.Argument(["mount_point"], metavar="MOUNTPOINT"),
        Option(["--schema"], default="ufmco", help="Sections: t(ime) u f m c o g."),
        Option(["--interval"], type=float, default=1.0, help="Seconds between two lines."),
        Option(["--verbosity", "-l"], type=int, default=0, help="1 for more columns."),
        Option(["--count", "-c"], type=int, default=0, help="Lines to show; 0: until stopped."),
    ],
)
def command(mount_point: str, schema: str, interval: float, verbosity: int, count: int) -> None:
    """Show what a mount does: CPU and memory, FUSE, metadata, block cache, objects."""
    from juicepy.jobs import figures

    if not interval > 0:
        raise Refused(f"--interval {interval:g} is not more than 0")
    table = figures.Table(schema, verbosity)
    path = figures.find(mount_point, "stats")
    before = figures.snapshot(path)
    now, took_s, number = before, interval, 0
    while True:
        if number == 0 or (sys.stdout.isatty() and number % _HEADER_EVERY == 0):
            for line in table.header():
                click.secho(line, fg="blue", bold=True)
        click.echo(_coloured(table.row(before, now, took_s)))
        number += 1
        if number == count:
            return
        begin_s = time.monotonic()
        time.sleep(interval)
        before, now = now, figures.snapshot(path)
        took_s = time.monotonic() - begin_s


def _coloured(row: str) -> str:
    """Bars stand back, zeros too: what moves is seen. Plain where the output is no terminal."""
    if not sys.stdout.isatty():
        return row
    cells = row.split("|")
    return click.style("|", fg="blue").join(
        click.style(cell, dim=True) if not any(sign in "123456789" for sign in cell) else cell
        for cell in cells
    )
