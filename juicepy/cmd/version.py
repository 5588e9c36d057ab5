"""`jfs version`."""

from __future__ import annotations

import click

import juicepy
from juicepy.cmd.options import Command
from juicepy.volume import COMPATIBLE_VERSION


@click.command(cls=Command, help="Show version.")
def command() -> None:
    click.echo(f"jfs version {juicepy.__version__} (JuiceFS {COMPATIBLE_VERSION} formats)")
