"""`jfs status`: settings, sessions and statistics of a volume, as JSON."""

from __future__ import annotations

from contextlib import closing

import click

from juicepy import urls
from juicepy.cmd.options import META_URL, Command, Option, meta_url
from juicepy.types import SessionId
from juicepy.volume import go_json


@click.command(
    cls=Command,
    params=[
        META_URL,
        Option(["--session", "-s"], type=int, default=0, help="Show what this session holds."),
        Option(["--more", "-m"], is_flag=True, help="Count also what waits for deletion."),
    ],
)
def command(session: int, more: bool, **given: str) -> None:
    """Show settings, sessions and statistics of a volume, as JSON.

    Read-only sessions are not listed: they do not register.
    """
    from juicepy.jobs import report, volume
    from juicepy.meta.registry import open_engine

    url = meta_url(given["meta_url"])
    with closing(open_engine(url)) as engine:
        found = volume.formatted(engine, urls.parse(url).where)
        if session:
            shown = report.session(engine, SessionId(session))
        else:
            shown = report.status(engine, found, more=more)
        click.echo(go_json(shown, 2))
