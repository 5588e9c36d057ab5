"""Progress of long work: a live line by rich on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PLAIN_EVERY_S = 5.0


class Counting:
    """Shows two counts that grow, on stderr. What is done at once shows nothing."""

    def __init__(self, first: str, second: str) -> None:
        self._words = first, second
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._told_s = time.monotonic()

    def __enter__(self) -> Counting:
        return self

    def update(self, first: int, second: int) -> None:
        """The counts as they are now."""
        text = f"{first:,} {self._words[0]}, {second:,} {self._words[1]}"
        if sys.stderr.isatty():
            self._show(text)
        elif time.monotonic() - self._told_s > _PLAIN_EVERY_S:
            self._told_s = time.monotonic()
            click.echo(text, err=True)

    def _show(self, text: str) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        if self._progress is None:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.start()
            self._task = self._progress.add_task(text, total=None)
        assert self._task is not None
        self._progress.update(self._task, description=text)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
