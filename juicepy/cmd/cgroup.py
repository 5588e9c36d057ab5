"""How much memory the control groups of this process leave it, and what buffers fit in there.

| version | file in the group's directory | limit                                      |
|---------|-------------------------------|--------------------------------------------|
| 1       | `memory.limit_in_bytes`       | bytes; a huge number is none               |
| 1       | `memory.stat`                 | the least above, also of groups not seen   |
| 2       | `memory.max`, `memory.high`   | bytes, or `max`                            |

A parent's limit holds for its children, so all groups from ours to the top of the mount count.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
from collections.abc import Iterator

logger = logging.getLogger(__name__)

BUFFERS = 300 << 20  # where no limit is in the way
LEAST_BUFFERS = 32 << 20
BESIDE = 200 << 20  # what a mount needs at most beside its buffers
NONE = 1 << 60  # more than any machine has: no limit

_NUMBERS = {
    "memory.limit_in_bytes": re.compile(r"(\d+)"),
    "memory.stat": re.compile(r"^hierarchical_memory_limit (\d+)", re.MULTILINE),
    "memory.max": re.compile(r"(\d+)"),
    "memory.high": re.compile(r"(\d+)"),
}


def default_buffers() -> int:
    """Bytes of buffers for a mount that nobody has told how many."""
    limit = memory_limit()
    return BUFFERS if limit is None else fitting(limit)


def warn_of(buffers: int) -> None:
    """Tell if the control group does not even allow the buffers."""
    limit = memory_limit()
    if limit is not None and buffers > limit:
        text = "--buffer-size %d MiB is more than the control group allows in all (%d MiB)"
        logger.warning(text, buffers >> 20, limit >> 20)


def fitting(limit: int) -> int:
    """The buffers of a mount that shall do with `limit` bytes in all."""
    return max(LEAST_BUFFERS, min(BUFFERS, limit // 2, limit - BESIDE))


def memory_limit(proc: str = "/proc/self") -> int | None:
    """The least limit of the process' groups in bytes; None if there is none."""
    groups = dict(_groups(os.path.join(proc, "cgroup")))
    limits = [
        limit
        for kind, root, mount_point in _mounts(os.path.join(proc, "mountinfo"))
        if kind in groups
        for directory in _upwards(mount_point, _inside(root, groups[kind]))
        for limit in _limits(directory)
    ]
    return min(limits, default=None)


def _groups(path: str) -> Iterator[tuple[str, str]]:
    """("cgroup" for version 1 or "cgroup2", path of the group)."""
    for line in _read(path).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if "memory" in controllers.split(","):
            yield "cgroup", group
        elif number == "0" and not controllers:
            yield "cgroup2", group


def _mounts(path: str) -> Iterator[tuple[str, str, str]]:
    """(kind, group that is mounted, where) of the hierarchies that may limit memory."""
    for line in _read(path).splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or len(kinds) < 3:
            continue
        is_first = kinds[0] == "cgroup" and "memory" in kinds[2].split(",")
        if is_first or kinds[0] == "cgroup2":
            yield kinds[0], _unescaped(fields[3]), _unescaped(fields[4])


def _inside(root: str, group: str) -> str:
    """The group as a path below the mount; the mount itself if it shows another part."""
    if group.startswith("/.."):
        return ""  # beyond the root of our namespace
    relative = posixpath.relpath(group, root)
    return "" if relative == "." or relative.startswith("..") else relative


def _upwards(mount_point: str, group: str) -> Iterator[str]:
    while group:
        yield os.path.join(mount_point, group)
        group = posixpath.dirname(group)
    yield mount_point


def _limits(directory: str) -> Iterator[int]:
    for name, number in _NUMBERS.items():
        match = number.search(_read(os.path.join(directory, name)))
        if match is not None and int(match[1]) < NONE:
            yield int(match[1])


def _read(path: str) -> str:
    """The file's text; empty where the kernel or a container does not show it."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        logger.debug("%s: %s", path, error)
        return ""


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
