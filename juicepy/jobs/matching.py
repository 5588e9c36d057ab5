"""Which paths of a tree are meant: `--include` and `--exclude`, as `juicefs sync` takes them.

A rule is matched against the end of a path, at a slash; one that begins with `/` against all of it.
One that ends with `/` means directories only, `/***` a directory with all that is below.

| in a pattern | matches                                  |
|--------------|------------------------------------------|
| `*`          | any characters but `/`                   |
| `**`         | any characters                           |
| `?`          | one character but `/`                    |
| `[a-z]`      | one of these; `[^a-z]` none of these     |
| `\\x`         | x itself, if there is a wildcard besides |

The first rule that matches a name decides about it, and names that no rule matches are taken. What
is below a directory that is not taken is not looked at.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

_WILDCARDS = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Rule:
    """`--include PATTERN`, or `--exclude PATTERN`."""

    includes: bool
    pattern: str


class Matcher:
    """Rules in the order they were given. One that is no pattern is a WARNING and matches nothing,
    as in JuiceFS.
    """

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._rules: list[tuple[bool, re.Pattern[str], re.Pattern[str]]] = []
        for rule in rules:
            try:
                files, directories = _expressions(rule.pattern)
            except ValueError as error:
                logger.warning("%s", error)
                continue
            self._rules.append((rule.includes, files, directories))

    def takes(self, path: str, *, is_dir: bool) -> bool:
        """Whether a path is meant, relative to the top, if the directories above it are."""
        for includes, files, directories in self._rules:
            if (directories if is_dir else files).fullmatch(path):
                return includes
        return True


_NOTHING = r"(?!)"


def _expressions(pattern: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What matches the paths of files, and of directories."""
    start = "" if pattern.startswith("/") else r"(?:.*/)?"
    body = pattern.removeprefix("/")
    if body.endswith("/***"):
        above = start + _translated(body.removesuffix("/***"))
        files, directories = f"{above}/.*", f"{above}(?:/.*)?"
    elif body.endswith("/"):
        files, directories = _NOTHING, start + _translated(body.removesuffix("/"))
    else:
        files = directories = start + _translated(body)
    return re.compile(files, re.DOTALL), re.compile(directories, re.DOTALL)


def _translated(pattern: str) -> str:
    """A regular expression. ValueError if a class or an escape does not end."""
    if not pattern:
        return _NOTHING
    if not _WILDCARDS.search(pattern):
        return re.escape(pattern)
    found, at = [], 0
    while at < len(pattern):
        char = pattern[at]
        if char == "*":
            stars = len(pattern) - at - len(pattern[at:].lstrip("*"))
            found.append(".*" if stars > 1 else "[^/]*")
            at += stars
        elif char == "?":
            found.append("[^/]")
            at += 1
        elif char == "[":
            text, at = _class(pattern, at + 1)
            found.append(text)
        else:
            char, at = _char(pattern, at)
            found.append(re.escape(char))
    return "".join(found)


def _class(pattern: str, at: int) -> tuple[str, int]:
    """The class whose inside begins at `at`, and where it ends."""
    is_negated = pattern[at : at + 1] == "^"
    at += is_negated
    ranges: list[str] = []
    while pattern[at : at + 1] != "]" or not ranges:
        if pattern[at : at + 1] in ("", "-", "]"):
            raise ValueError(f"{pattern!r} is no pattern: the class in it does not end")
        low, at = _char(pattern, at)
        high = low
        if pattern[at : at + 1] == "-":
            if pattern[at + 1 : at + 2] in ("", "-", "]"):
                raise ValueError(f"{pattern!r} is no pattern: a range in it does not end")
            high, at = _char(pattern, at + 1)
        if low <= high:
            ranges.append(f"{re.escape(low)}-{re.escape(high)}")
    return f"[{'^' if is_negated else ''}{''.join(ranges)}]", at + 1


def _char(pattern: str, at: int) -> tuple[str, int]:
    if pattern[at] == "\\":
        at += 1
        if at == len(pattern):
            raise ValueError(f"{pattern!r} is no pattern: it ends with a backslash")
    return pattern[at], at + 1
