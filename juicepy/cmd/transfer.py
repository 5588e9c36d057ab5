"""What `jfs download` and `jfs upload` share: options, places, the run and what is told of it."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from juicepy.cmd.options import Command, Option, meta_url
from juicepy.cmd.volume_options import driver_settings, passphrase
from juicepy.cmd.warmup import mount_root
from juicepy.errors import Refused
from juicepy.types import Kind

if TYPE_CHECKING:
    from juicepy.jobs.matching import Rule
    from juicepy.jobs.transfer import Summary
    from juicepy.jobs.transfer_tree import Tree

_SHOWN_FAILURES = 10
_MAX_THREADS = 1024


class RulesCommand(Command):
    """A command whose --include and --exclude keep the order they were given in."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from juicepy.jobs.matching import Rule

        found: list[Rule] = []
        for word, following in zip(args, [*args[1:], ""], strict=True):
            if word == "--":
                break
            name, equals, value = word.partition("=")
            if name in ("--include", "--exclude"):
                found.append(Rule(name == "--include", value if equals else following))
        ctx.meta["rules"] = found
        return super().parse_args(ctx, args)


def options(action: str) -> list[click.Parameter]:
    return [
        click.Argument(["source"], metavar="SRC"),
        click.Argument(["target"], metavar="DST"),
        Option(
            ["--threads", "-p"],
            type=int,
            default=4 * (os.cpu_count() or 1),
            help=f"Files and blocks to {action} at once.",
        ),
        Option(["--io-retries"], type=int, default=7, help="Repetitions of a failed request."),
        Option(["--checksum"], is_flag=True, help="Compare contents, also of what is there."),
        Option(["--include"], multiple=True, help="Do not exclude what matches this pattern."),
        Option(["--exclude"], multiple=True, help="Leave out what matches this pattern."),
    ]


@dataclass(frozen=True, slots=True)
class VolumePlace:
    """`META-URL:/path`."""

    url: str
    path: str


def run(source: str, target: str, *, downloads: bool, given: dict[str, Any]) -> int:
    """Copy; the exit code."""
    from juicepy.jobs.transfer_local import LocalTree

    threads, retries = given["threads"], given["io_retries"]
    if not 1 <= threads <= _MAX_THREADS:
        raise Refused(f"--threads {threads} is not between 1 and {_MAX_THREADS}")
    if retries < 0:
        raise Refused(f"--io-retries {retries} is less than 0")
    there = source if downloads else target
    place, local = volume_place(there), target if downloads else source
    if volume_place(local) is not None:
        raise Refused(f"{'DST' if downloads else 'SRC'} is a volume: it must be a local path")
    if place is None and mount_root(_existing(there)) is None:
        raise Refused(f"{there} is neither META-URL:/path nor inside a JuiceFS mount")
    with _tree(there, place, downloads, threads, retries) as far:
        _check_apart(far, local, place, there, downloads=downloads)
        if downloads:
            os.makedirs(os.path.dirname(os.path.realpath(local)), exist_ok=True)
        near = LocalTree(os.path.realpath(local))
        if downloads:
            return _transfer(far, near, source, given, target)
        return _transfer(near, far, source, given, target)


def _transfer(
    source: Tree, target: Tree, source_name: str, given: dict[str, Any], target_name: str
) -> int:
    """Run it between trees that are open."""
    from juicepy.cmd.progress import Loading
    from juicepy.jobs.matching import Matcher
    from juicepy.jobs.transfer import Options, Transfer

    top, there = source.find(b""), target.find(b"")
    if top is None:
        raise Refused(f"{source_name}: No such file or directory", errno.ENOENT)
    if there is not None and top.kind is Kind.DIR and there.kind is not Kind.DIR:
        raise Refused(f"{target_name} is not a directory, but {source_name} is", errno.ENOTDIR)
    if there is not None and there.kind is Kind.DIR and top.kind is not Kind.DIR:
        target = target.below(os.fsencode(os.path.basename(source_name.rstrip("/"))))
    failures = _Failures()
    chosen = Options(given["threads"], given["checksum"], Matcher(_rules(given)))
    begin_s = time.monotonic()
    with Loading() as loading:
        transfer = Transfer(source, target, chosen, failures.add, loading.update)
        try:
            summary = transfer.run()
        except OSError as error:
            text = f"{target_name}: {error.strerror}: run it again to go on from here"
            raise OSError(error.errno, text) from error
    failures.show()
    click.echo(_shown(summary, time.monotonic() - begin_s))
    return 1 if summary.failed else 0


def _shown(summary: Summary, took_s: float) -> str:
    rate = summary.size * 8 / 1e9 / max(took_s, 1e-9)
    return (
        f"{summary.files:,} files, {summary.size:,} bytes copied, {summary.skipped:,} skipped, "
        f"{summary.failed:,} failed, in {took_s:.1f} s ({rate:.2f} Gbit/s)"
    )


class _Failures:
    """The first failures, one line each, and how many more there are."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, path: bytes, error: OSError) -> None:
        self._count += 1
        if self._count <= _SHOWN_FAILURES:
            reason = error.strerror or str(error)
            click.echo(f"{os.fsdecode(path)!r}: {reason}", err=True)

    def show(self) -> None:
        if self._count > _SHOWN_FAILURES:
            click.echo(f"{self._count - _SHOWN_FAILURES} more failures", err=True)


# ---------------------------------------------------------------- places
def volume_place(text: str) -> VolumePlace | None:
    """What `META-URL:/path` names, None for a local path. Without a path it is the root."""
    scheme, found, rest = text.partition("://")
    if not found or "/" in scheme:
        return None
    at = rest.find(":/", 1)
    if at < 0:
        return VolumePlace(text, "/")
    return VolumePlace(f"{scheme}://{rest[:at]}", os.path.normpath("/" + rest[at + 1 :].strip("/")))


@contextmanager
def _tree(
    text: str, place: VolumePlace | None, downloads: bool, threads: int, retries: int
) -> Iterator[Tree]:
    """The side of the volume: itself, or through a mount, whose `.config` tells no META-URL."""
    from juicepy.jobs.transfer_local import LocalTree
    from juicepy.jobs.transfer_volume import open_tree

    if place is None:
        yield LocalTree(os.path.realpath(text))
        return
    with open_tree(
        meta_url(place.url),
        os.fsencode(place.path),
        read_only=downloads,
        threads=threads,
        io_retries=retries,
        passphrase=passphrase(),
        drivers=driver_settings(),
    ) as tree:
        yield tree


def _existing(path: str) -> str:
    """The directory nearest to `path` that there is."""
    found = os.path.realpath(path)
    while not os.path.isdir(found):
        found = os.path.dirname(found)
    return found


def _check_apart(
    far: Tree, local: str, place: VolumePlace | None, text: str, *, downloads: bool
) -> None:
    """Refused if the target lies inside the source, which would grow without end."""
    from juicepy.jobs.transfer_volume import VolumeTree

    near = os.path.realpath(local)
    other: str | None = os.path.realpath(text)
    if place is not None:
        assert isinstance(far, VolumeTree)
        near, other = _inside(near, far.meta.format.uuid) or "", place.path
        if not near:
            return
    source, target = (other, near) if downloads else (near, other)
    if f"{target}/".startswith(f"{source}".rstrip("/") + "/"):
        raise Refused("DST lies inside SRC" if target != source else "SRC and DST are the same")


def _inside(path: str, uuid: str) -> str | None:
    """The path on the volume of one that lies in a mount of it."""
    root = mount_root(_existing(path))
    if root is None:
        return None
    for name in (".config", ".jfs.config"):
        try:
            with open(os.path.join(root, name), "rb") as file:
                config = json.load(file)
        except FileNotFoundError:
            continue
        if config["Format"]["UUID"] != uuid:
            return None
        below = "/" + config.get("Meta", {}).get("Subdir", "").strip("/")
        return os.path.normpath(os.path.join(below, os.path.relpath(path, root)))
    return None


def _rules(given: dict[str, Any]) -> Sequence[Rule]:
    """In the order of the command line; those of the environment: what is included first."""
    from juicepy.jobs.matching import Rule

    found: list[Rule] = click.get_current_context().meta["rules"]
    if found:
        return found
    includes = [Rule(True, pattern) for pattern in given["include"]]
    return includes + [Rule(False, pattern) for pattern in given["exclude"]]
