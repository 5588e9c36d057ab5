"""The figures of a running mount, ours or that of JuiceFS, as its `.stats` tells them.

A line is `name value`; lines of one name are added. Rates are differences of two snapshots.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from juicepy.errors import Refused

PREFIX = "juicefs_"
CELL = 5  # characters: four digits and a unit
_UNITS = " KMGTPE"

Snapshot = Mapping[str, float]


def find(mount_point: str, name: str) -> str:
    """Path of a virtual file, like `stats`, of a mount. Refused where there is no mount."""
    path = os.path.realpath(mount_point)
    if os.path.isdir(path) and os.stat(path).st_ino == 1:
        for start in (".jfs.", "."):
            if os.path.exists(os.path.join(path, start + name)):
                return os.path.join(path, start + name)
    raise Refused(f"{mount_point} is not a JuiceFS mount point")


def snapshot(path: str) -> dict[str, float]:
    """The samples now, without the prefix of their names."""
    found: dict[str, float] = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            name, _, value = line.strip().rpartition(" ")
            try:
                number = float(value)
            except ValueError:
                continue  # a line that is no sample
            name = name.removeprefix(PREFIX)
            found[name] = found.get(name, 0.0) + number
    return found


@dataclass(frozen=True, slots=True)
class Column:
    """`show` makes a cell of two snapshots and the seconds between; shown from `verbosity` on."""

    title: str
    show: Callable[[Snapshot, Snapshot, float], str]
    verbosity: int = 0


def quantity(value: float) -> str:
    """Four digits and a unit of 1024: `4032K`."""
    step = 0
    while value >= 10000 and step < len(_UNITS) - 1:
        value /= 1024
        step += 1
    return f"{value:4.0f}{_UNITS[step]}"


def milliseconds(value: float) -> str:
    """Four characters as exact as they can be: `0.32`, `12.3`."""
    if value >= 1000:
        return quantity(value)
    return f"{value:.2f}"[:4].rstrip(".").rjust(4) + " "


def _difference(name: str) -> Callable[[Snapshot, Snapshot], float]:
    def found(before: Snapshot, now: Snapshot) -> float:
        return max(0.0, now.get(name, 0.0) - before.get(name, 0.0))

    return found


def _gauge(title: str, name: str, verbosity: int = 0) -> Column:
    return Column(title, lambda before, now, _: quantity(now.get(name, 0.0)), verbosity)


def _rate(title: str, name: str, verbosity: int = 0) -> Column:
    change = _difference(name)
    return Column(title, lambda old, new, took_s: quantity(change(old, new) / took_s), verbosity)


def _latency(histogram: str, verbosity: int = 0) -> Column:
    def show(before: Snapshot, now: Snapshot, _: float) -> str:
        count = _difference(f"{stem}_total{rest}")(before, now)
        total_s = _difference(f"{stem}_sum{rest}")(before, now)
        return milliseconds(total_s / count * 1000) if count else quantity(0)

    stem, _, rest = histogram.partition("*")
    return Column("lat", show, verbosity)


def _restarts() -> Column:
    def total(found: Snapshot) -> float:
        return sum(value for name, value in found.items() if name.startswith("transaction_restart"))

    return Column(
        "retry", lambda old, new, took_s: quantity((total(new) - total(old)) / took_s), verbosity=1
    )


def _cpu() -> Column:
    change = _difference("cpu_usage")
    return Column(
        "cpu", lambda old, new, took_s: f"{change(old, new) / took_s * 100:4.1f}%"[-CELL:]
    )


def _clock() -> Column:
    return Column("time", lambda *_: time.strftime("%m-%d %H:%M:%S"))


def _object(method: str, verbosity: int) -> list[Column]:
    requests = f"object_request_durations_histogram_seconds_{method}"
    short = method.lower()[:3]
    count = [
        _rate(f"{short}_c", f"{requests}_total", verbosity),
        _latency(f"{requests}*", verbosity),
    ]
    if method == "DELETE":
        return count
    return [_rate(short, f"object_request_data_bytes_{method}"), *count]


SECTIONS: dict[str, tuple[str, list[Column]]] = {
    "t": ("system", [_clock()]),
    "u": (
        "usage",
        [
            _cpu(),
            _gauge("mem", "memory"),
            _gauge("buf", "used_buffer_size_bytes"),
            _gauge("cache", "store_cache_size_bytes", 1),
        ],
    ),
    "f": (
        "fuse",
        [
            _rate("ops", "fuse_ops_durations_histogram_seconds_total"),
            _latency("fuse_ops_durations_histogram_seconds*"),
            _rate("read", "fuse_read_size_bytes_sum"),
            _rate("write", "fuse_written_size_bytes_sum"),
        ],
    ),
    "m": (
        "meta",
        [
            _rate("ops", "meta_ops_durations_histogram_seconds_total"),
            _latency("meta_ops_durations_histogram_seconds*"),
            _rate("txn", "transaction_durations_histogram_seconds_total", 1),
            _latency("transaction_durations_histogram_seconds*", 1),
            _restarts(),
        ],
    ),
    "c": (
        "blockcache",
        [_rate("read", "blockcache_hit_bytes"), _rate("write", "blockcache_write_bytes")],
    ),
    "o": ("object", [*_object("GET", 1), *_object("PUT", 1), *_object("DELETE", 1)]),
    "g": (
        "go",
        [_gauge("alloc", "go_memstats_alloc_bytes"), _gauge("sys", "go_memstats_sys_bytes")],
    ),
}


class Table:
    """Rows of the chosen sections. Refused for an unknown one."""

    def __init__(self, schema: str, verbosity: int) -> None:
        unknown = [each for each in schema if each not in SECTIONS]
        if unknown or not schema:
            raise Refused(f"--schema {schema!r} is not made of {', '.join(SECTIONS)}")
        self._sections = [
            (SECTIONS[each][0], [col for col in SECTIONS[each][1] if col.verbosity <= verbosity])
            for each in schema
        ]

    def header(self) -> list[str]:
        titles, names = [], []
        for title, columns in self._sections:
            cells = [_width(column) for column in columns]
            width = sum(cells) + len(cells) - 1
            titles.append(title.center(width, "-")[:width])
            names.append(" ".join(col.title.center(_width(col)) for col in columns))
        return [" ".join(titles), "|".join(names)]

    def row(self, before: Snapshot, now: Snapshot, took_s: float) -> str:
        return "|".join(
            " ".join(column.show(before, now, took_s) for column in columns)
            for _, columns in self._sections
        )


def _width(column: Column) -> int:
    return 14 if column.title == "time" else CELL
