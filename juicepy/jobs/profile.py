"""Where time goes: operations of an access log, summed up by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

# 2026.11.30 02:33:15.172994 [uid:0,gid:0,pid:17391] mkdir (1,al): ... - OK <0.000433>
_LINE = re.compile(
    rb"(\d{4}\.\d\d\.\d\d \d\d:\d\d:\d\d\.\d{6}) "
    rb"\[uid:(\d+),gid:(\d+),pid:(\d+)\] (\w+) .*<(\d+\.\d+)>\s*"
)


@dataclass(frozen=True, slots=True)
class Operation:
    """`at_s` in Unix seconds, as the clock of the machine reads here."""

    at_s: float
    uid: int
    gid: int
    pid: int
    name: str
    took_s: float


def parse(line: bytes) -> Operation | None:
    """None for what is no operation: the sign of life `#`, a line cut short."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    moment = datetime.strptime(found[1].decode(), "%Y.%m.%d %H:%M:%S.%f")
    uid, gid, pid = (int(found[n]) for n in (2, 3, 4))
    return Operation(moment.timestamp(), uid, gid, pid, found[5].decode(), float(found[6]))


@dataclass(frozen=True, slots=True)
class Filter:
    """Which callers count; an empty set stands for all."""

    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()
    pids: frozenset[int] = frozenset()

    def takes(self, operation: Operation) -> bool:
        return (
            (not self.uids or operation.uid in self.uids)
            and (not self.gids or operation.gid in self.gids)
            and (not self.pids or operation.pid in self.pids)
        )


class Profile:
    """Count and time of each operation since `clear`."""

    def __init__(self) -> None:
        self._times: dict[str, tuple[int, float]] = {}

    def add(self, operation: Operation) -> None:
        count, total_s = self._times.get(operation.name, (0, 0.0))
        self._times[operation.name] = count + 1, total_s + operation.took_s

    def clear(self) -> None:
        self._times.clear()

    def rows(self, elapsed_s: float) -> Iterator[tuple[str, int, float, float, float]]:
        """(name, count, mean us, total us, % of the elapsed time), the longest first."""
        order = sorted(self._times.items(), key=lambda item: item[1][1], reverse=True)
        for name, (count, total_s) in order:
            share = total_s / elapsed_s * 100 if elapsed_s > 0 else 0.0
            yield name, count, total_s / count * 1e6, total_s * 1e6, share

    def text(self, elapsed_s: float) -> str:
        titles = ("Operation", "Count", "Average(us)", "Total(us)", "Percent(%)")
        lines = ["{:<14}{:>11}{:>16}{:>19}{:>15}".format(*titles)]
        for name, count, mean_us, total_us, share in self.rows(elapsed_s):
            lines.append(f"{name:<14}{count:>11}{mean_us:>16.0f}{total_us:>19.0f}{share:>15.1f}")
        return "\n".join(lines)


def windows(
    operations: Iterable[Operation], interval_s: float
) -> Iterator[tuple[float, float, Profile]]:
    """(end, seconds, profile) of each stretch of a saved log; all in one if `interval_s` is 0."""
    profile, first_s, last_s = Profile(), 0.0, 0.0
    for operation in operations:
        first_s = first_s or operation.at_s
        while interval_s and operation.at_s >= first_s + interval_s:
            yield first_s + interval_s, interval_s, profile
            profile, first_s = Profile(), first_s + interval_s
        profile.add(operation)
        last_s = max(last_s, operation.at_s)
    yield last_s, last_s - first_s, profile
