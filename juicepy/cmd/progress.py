"""Progress of long work: a live line by rich on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

_PLAIN_EVERY_S = 5.0


class _Line(ABC):
    """A live line on stderr, from the first time that it is shown to the end of the block."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    @abstractmethod
    def _columns(self) -> tuple[ProgressColumn, ...]:
        """What the line shows of the task."""

    def _show(self, text: str, *, total: int | None = None, completed: int | None = None) -> None:
        from rich.console import Console
        from rich.progress import Progress

        if self._progress is None:
            console = Console(stderr=True)
            self._progress = Progress(*self._columns(), console=console, transient=True)
            self._progress.start()
            self._task = self._progress.add_task(text, total=total)
        assert self._task is not None
        self._progress.update(self._task, completed=completed, description=text)


class Counting(_Line):
    """Shows two counts that grow, on stderr. What is done at once shows nothing."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self._words = first, second
        self._told_s = time.monotonic()

    def update(self, first: int, second: int) -> None:
        """The counts as they are now."""
        text = f"{first:,} {self._words[0]}, {second:,} {self._words[1]}"
        if sys.stderr.isatty():
            self._show(text)
        elif time.monotonic() - self._told_s > _PLAIN_EVERY_S:
            self._told_s = time.monotonic()
            click.echo(text, err=True)

    def _columns(self) -> tuple[ProgressColumn, ...]:
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        return SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()


class Loading(_Line):
    """Shows files and bytes that are loaded, their rate, and the time left if the sum is known."""

    def __init__(self) -> None:
        super().__init__()
        self.is_live = sys.stderr.isatty()
        self._counting = Counting("files", "bytes")
        self._total: int | None = None
        self._done, self._now = (0, 0), (0, 0)

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
            self._show(f"{files:,} files", total=self._total, completed=size)
        else:
            self._counting.update(files, size)

    def _columns(self) -> tuple[ProgressColumn, ...]:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        return (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
