"""Processes that write without pause and keep, elsewhere, a journal of what was acknowledged.

A line is journaled only after `fsync` or `close` has returned, and a name is journaled as going
before it is touched again. So whatever happens to the file system, `check_acknowledged` knows what
must be there: that, or something newer, and never a torn mix.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_until_error(root: str, journal: str, seed: str) -> str:
    """Write below `root` until the file system fails, which is what the caller arranges."""
    storm = _Storm(Path(root), Path(journal), seed)
    try:
        while True:
            storm.step()
    except OSError as error:
        return repr(error)


def write_until_told(root: str, journal: str, seed: str, stop: str) -> int:
    """Write below `root` until the file `stop` exists; after an error go on with new names.

    Returns how many errors there were.
    """
    storm, errors = _Storm(Path(root), Path(journal), seed), 0
    while not os.path.exists(stop):
        try:
            storm.step()
        except OSError:
            errors += 1
            storm.start_anew()
    return errors


def acknowledged(journal: Path) -> int:
    """How many lines there are by now."""
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def check_acknowledged(root: Path, journal: Path) -> int:
    """Every acknowledged file is intact; returns how many were looked at."""
    state: dict[str, dict[str, Any]] = {}
    for line in journal.read_text().splitlines():
        entry = json.loads(line)
        state[entry["name"]] = entry
    for name, entry in state.items():
        _CHECKS[entry["kind"]](root / name, entry)
    return len(state)


class _Storm:
    """Some of each: new files, an appended log, a target that is replaced, removed names."""

    def __init__(self, root: Path, journal: Path, seed: str) -> None:
        self._root, self._journal, self._seed = root, journal, seed
        self._chance = random.Random(seed)
        self._number = 0
        self._generation = 0
        self.start_anew()

    def start_anew(self) -> None:
        """Take a new log: how much of the old one's last append is there nobody knows."""
        self._number += 1
        self._log = f"log-{self._seed}-{self._number}"
        self._logged = hashlib.sha256()
        self._log_size = 0

    def step(self) -> None:
        self._number += 1
        self._chance.choice(
            (self._small, self._small, self._big, self._append, self._append, self._replace)
        )()
        if self._number % 7 == 0:
            self._remove()

    def _small(self) -> None:
        """Closed without fsync."""
        name = f"small-{self._seed}-{self._number}"
        data = self._chance.randbytes(self._chance.randrange(1, 20_000))
        with open(self._root / name, "wb", buffering=0) as file:
            file.write(data)
        self._note("file", name, sha=hashlib.sha256(data).hexdigest())

    def _big(self) -> None:
        """Synchronized while it is open, in two parts."""
        name = f"big-{self._seed}-{self._number}"
        data = self._chance.randbytes(self._chance.randrange(200_000, 1_500_000))
        with open(self._root / name, "wb", buffering=0) as file:
            _write_all(file.write, data[:150_000])
            os.fsync(file.fileno())
            self._note("prefix", name, size=150_000, sha=hashlib.sha256(data[:150_000]).hexdigest())
            _write_all(file.write, data[150_000:])
            os.fsync(file.fileno())
            self._note("file", name, sha=hashlib.sha256(data).hexdigest())

    def _append(self) -> None:
        """One more record of a log, which grows by fsync."""
        data = self._chance.randbytes(self._chance.randrange(1, 5_000))
        with open(self._root / self._log, "ab", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())
        self._logged.update(data)
        self._log_size += len(data)
        self._note("prefix", self._log, size=self._log_size, sha=self._logged.hexdigest())

    def _replace(self) -> None:
        """The way of editors and databases: write aside, synchronize, rename over."""
        self._generation += 1
        aside, target = self._root / f".aside-{self._seed}", f"target-{self._seed}"
        data = self._chance.randbytes(self._chance.randrange(1, 50_000))
        head = b"%016d" % self._generation
        with open(aside, "wb", buffering=0) as file:
            _write_all(file.write, hashlib.sha256(head + data).digest() + head + data)
            os.fsync(file.fileno())
        os.rename(aside, self._root / target)
        self._note("generation", target, least=self._generation)

    def _remove(self) -> None:
        """A file of the last steps, if it is a small one."""
        name = f"small-{self._seed}-{self._number - 3}"
        if (self._root / name).exists():
            self._note("gone", name)
            os.unlink(self._root / name)

    def _note(self, kind: str, name: str, **more: Any) -> None:
        with self._journal.open("a") as file:
            file.write(json.dumps({"kind": kind, "name": name, **more}) + "\n")


def _write_all(write: Callable[[memoryview], int | None], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[write(rest) or 0 :]


def _check_file(path: Path, entry: dict[str, Any]) -> None:
    data = path.read_bytes()
    assert hashlib.sha256(data).hexdigest() == entry["sha"], f"{path}: {len(data)} other bytes"


def _check_prefix(path: Path, entry: dict[str, Any]) -> None:
    data = path.read_bytes()
    assert len(data) >= entry["size"], f"{path}: {len(data)} of {entry['size']} bytes"
    found = hashlib.sha256(data[: entry["size"]]).hexdigest()
    assert found == entry["sha"], f"{path}: other bytes"


def _check_generation(path: Path, entry: dict[str, Any]) -> None:
    data = path.read_bytes()
    assert hashlib.sha256(data[32:]).digest() == data[:32], f"{path} is torn"
    assert int(data[32:48]) >= entry["least"], f"{path} is an old one"


def _check_gone(path: Path, entry: dict[str, Any]) -> None:
    """It was about to be removed: anything but an error."""
    if path.exists():
        path.read_bytes()


_CHECKS = {
    "file": _check_file,
    "prefix": _check_prefix,
    "generation": _check_generation,
    "gone": _check_gone,
}
