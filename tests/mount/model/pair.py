"""A local directory and one under test, to which the same steps are done; any difference fails."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.mount.model.comparison import Tree, describe, differences
from tests.mount.model.operations import Side, Step

TOP = "top"  # steps are below it: a symlink to .. of it leads to what is compared all the same


class Difference(AssertionError):
    """With the steps that led to it."""

    def __init__(self, text: str, steps: list[Step], with_data: bool) -> None:
        super().__init__(text)
        self.steps, self.with_data = steps, with_data


@dataclass
class Bases:
    """Where examples get their directories; `second`: another mount of what is tested."""

    local: Path
    tested: Path
    second: Path | None = None
    numbers: Iterator[int] = field(default_factory=itertools.count)
    examples: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)  # by operation and errno


class Pair:
    """An example: new directories, and the steps that were done in them.

    `with_data`: read every file after each step. Without that, written data stays buffered
    for longer, which is another thing to test.
    """

    def __init__(self, bases: Bases, *, with_data: bool = True) -> None:
        self.bases, self.with_data = bases, with_data
        self.name = f"example{next(bases.numbers)}"
        self.local = Side(bases.local / self.name)
        self.tested = Side(bases.tested / self.name)
        self.steps: list[Step] = []
        self.is_failed = False
        for side in (self.local, self.tested):
            for path in (Path(side.root), Path(side.root, TOP)):
                path.mkdir()
                path.chmod(0o777)
        self.tree: Tree = describe(self.local.root, with_data=False)  # as it should be
        bases.examples += 1

    def do(self, *step: object) -> None:
        self.steps.append(step)
        expected, found = self.local.perform(step), self.tested.perform(step)
        outcome = expected if isinstance(expected, str) and expected.startswith("E") else "done"
        self.bases.outcomes[f"{step[1]} {outcome}"] += 1
        if found != expected:
            self._fail([f"it gives {found!r}, not {expected!r}"])
        self.compare(with_data=self.with_data)

    def compare(self, *, with_data: bool) -> None:
        """The trees, and what is open."""
        self.tree = describe(self.local.root, with_data=with_data)
        self._check(self.tested.root, with_data)
        for slot in self.local.handles:
            looks = [("fstat", slot)] + [("content", slot)] * with_data
            for operation, _ in looks:
                step = ("root", operation, slot)
                expected, found = self.local.perform(step), self.tested.perform(step)
                if found != expected:
                    self._fail([f"{operation} of slot {slot} gives {found!r}, not {expected!r}"])

    def finish(self) -> None:
        """All is closed and as it was, here and as another mount sees it; nothing is left."""
        try:
            if not self.is_failed:
                self.compare(with_data=True)
                self._close()
                self.compare(with_data=True)
                if self.bases.second is not None:
                    self._check(str(self.bases.second / self.name), with_data=True)
        finally:
            self._close()
            for side in (self.local, self.tested):
                shutil.rmtree(side.root)

    def _close(self) -> None:
        with contextlib.ExitStack() as stack:
            for side in (self.local, self.tested):
                stack.callback(side.close_all)

    def _check(self, root: str, with_data: bool) -> None:
        try:
            found = describe(root, with_data=with_data)
        except OSError as error:
            self._fail([f"looking at the tree: {error!r}"])
        if lines := differences(found, self.tree):
            self._fail([f"in {root}:", *lines])

    def _fail(self, lines: Iterable[str]) -> None:
        self.is_failed = True
        steps = "".join(f"    {step!r},\n" for step in self.steps)
        text = "\n".join(lines)
        raise Difference(
            f"{text}\nafter these steps (with_data={self.with_data}):\n{steps}",
            self.steps,
            self.with_data,
        )


def replay(bases: Bases, steps: Sequence[Step], *, with_data: bool) -> None:
    pair = Pair(bases, with_data=with_data)
    try:
        for step in steps:
            pair.do(*step)
    finally:
        pair.finish()


def reduced(bases: Bases, found: Difference) -> Difference:
    """A difference with no step that can be left out: steps are dropped in ever smaller groups."""
    group = len(found.steps) // 2
    while group:
        for begin in reversed(range(0, len(found.steps), group)):
            fewer = found.steps[:begin] + found.steps[begin + group :]
            try:
                replay(bases, fewer, with_data=found.with_data)
            except Difference as smaller:
                found = smaller
        group //= 2
    return found
