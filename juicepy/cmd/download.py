"""`jfs download`: copy a tree of a volume to a local directory, without a mount."""

from __future__ import annotations

from typing import Any

import click

from juicepy.cmd import transfer


@click.command(cls=transfer.RulesCommand, params=transfer.options("download"))
def command(source: str, target: str, **given: Any) -> int:
    """Copy what is at SRC, META-URL:/path or a path in a mount, to the local path DST.

    The content of a directory comes into DST. A run that was cut short goes on where it was;
    files with the same size and time of change are skipped.
    """
    return transfer.run(source, target, downloads=True, given=given)
