"""`jfs debug profile`: where a running mount spends CPU and memory."""

from __future__ import annotations

import click

from juicepy.cmd.options import Command, Option
from juicepy.errors import Refused


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Look into a running mount."""


@command.command(
    cls=Command,
    params=[
        click.Argument(["mount_point"], metavar="MOUNTPOINT"),
        Option(["--heap"], is_flag=True, help="Memory, not CPU: what is allocated meanwhile."),
        Option(["--seconds"], type=float, default=5.0, help="How long to watch."),
        Option(["--rate"], type=int, default=100, help="Samples of the CPU in a second."),
        Option(["--count", "-c"], type=int, default=20, help="Lines to show."),
        Option(["--out"], default="", help="Also a file of all samples: .svg, .json, .txt."),
    ],
)
def profile(mount_point: str, heap: bool, seconds: float, rate: int, count: int, out: str) -> None:
    """Show which functions of the mount at MOUNTPOINT take the CPU, or which lines the memory.

    CPU: needs py-spy (pip install py-spy) and the right to trace the process. The mount goes on
    meanwhile. Memory: needs nothing; the mount is slower meanwhile.
    """
    from juicepy.jobs import debug

    for name, value, most in (("seconds", seconds, 3600), ("rate", rate, 1000)):
        if not 0 < value <= most:
            raise Refused(f"--{name} {value:g} is not between 0 and {most}")
    if not 0 < count <= 1000:
        raise Refused(f"--count {count} is not between 1 and 1000")
    if heap and out:
        raise Refused("--out is of the CPU, it does not go with --heap")
    pid = debug.pid_of(mount_point)
    if heap:
        click.echo(debug.heap(mount_point, seconds, count))
        return
    found = debug.cpu(pid, seconds, rate, out)
    total = sum(own for _, own, _ in found)
    click.echo(f"{total} samples of process {pid}")
    click.echo(f"{'in it':>8}{'or below':>10}  function")
    for name, own, below in found[:count]:
        click.echo(f"{own / total:8.1%}{below / total:10.1%}  {name}")
