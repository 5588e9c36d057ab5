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


class Loading:
    """Shows files and bytes that are loaded, their rate, and the time left if the sum is known."""

    def __init__(self) -> None:
        self.is_live = sys.stderr.isatty()
        self._counting = Counting("files", "bytes")
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._total: int | None = None
        self._done, self._now = (0, 0), (0, 0)

    def __enter__(self) -> Loading:
        return self

    def expect(self, total: int) -> None:
        """So many bytes are to come."""
        self._total = total

    def begin_next(self) -> None:
        """The counts of the next request begin at zero."""
        self._done = self._done[0] + self._now[0], self._done[1] + self._now[1]
        self._now = 0, 0

    def update(self, files: int, size: int) -> None:
        """The counts of this request as they are now."""
        self._now = files, size
        files, size = self._done[0] + files, self._done[1] + size
        if self.is_live:
            self._show(files, size)
        else:
            self._counting.update(files, size)

    def _show(self, files: int, size: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(binary_units=True),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._progress.start()
            self._task = self._progress.add_task("", total=self._total)
        assert self._task is not None
        self._progress.update(self._task, completed=size, description=f"{files:,} files")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
