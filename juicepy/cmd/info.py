"""`jfs info`: what a mount knows of a path or inode; also of a mount of JuiceFS."""

from __future__ import annotations

import os
from typing import Any

import click

from juicepy.cmd.options import Command, Option
from juicepy.errors import Refused
from juicepy.types import CHUNK_SIZE

_DEAD = "the mount is dead, its client is gone: mount there again"


@click.command(
    cls=Command,
    params=[
        click.Argument(["paths"], metavar="PATH/INODE", nargs=-1, required=True),
        Option(["--inode", "-i"], is_flag=True, help="Inodes instead of paths (from inside)."),
        Option(["--recursive", "-r"], is_flag=True, help="Sum up directories recursively."),
        Option(["--strict"], is_flag=True, help="Count exactly, without statistics."),
        Option(["--raw"], is_flag=True, help="Show slices instead of objects."),
    ],
)
def command(paths: tuple[str, ...], inode: bool, recursive: bool, strict: bool, raw: bool) -> int:
    """Show what a mount knows of a path or inode: size, paths, objects, locks."""
    from juicepy.cmd.progress import Counting
    from juicepy.fuse import mounts
    from juicepy.jobs import control

    failed = 0
    for path in paths:
        try:
            channel, ino = _target(path, is_inode=inode)
            with Counting("files", "bytes") as counting:
                found = control.info(
                    channel,
                    ino,
                    recursive=recursive,
                    raw=raw,
                    strict=strict,
                    progress=counting.update,
                )
        except OSError as error:
            failed += 1
            reason = _DEAD if mounts.is_dead(path) else error.strerror or error
            click.echo(f"jfs info: {path}: {reason}", err=True)
        else:
            click.echo(_shown(path, found))
    return 1 if failed else 0


def _target(path: str, *, is_inode: bool) -> tuple[str, int]:
    """(control file, inode) of an argument."""
    from juicepy.jobs import control

    if is_inode:
        if not path.isdigit():
            raise Refused("--inode wants a number")
        return control.find(os.getcwd()), int(path)
    real = os.path.realpath(path)
    ino = os.stat(real).st_ino
    return control.find(real if os.path.isdir(real) else os.path.dirname(real)), ino


def _shown(path: str, found: dict[str, Any]) -> str:
    summary, tier = found["Summary"], found.get("Tier") or {}
    lines = [
        f"{path} :",
        f"  inode: {found['Ino']}",
        f"  files: {summary['Files']}",
        f"   dirs: {summary['Dirs']}",
        f" length: {sized(summary['Length'])}",
        f"   size: {sized(summary['Size'])}",
    ]
    paths = found.get("Paths") or []
    if len(paths) == 1:
        lines.append(f"   path: {paths[0]}")
    elif paths:
        lines += ["  paths:", *(f"\t{each}" for each in paths)]
    if tier:
        told = f"{tier.get('ID', 0)}->{tier.get('StorageClass', '')} {tier.get('Tag', '')}"
        lines.append(f"   tier: {told}")
    if found.get("RestoreStatus"):
        lines.append(f"restore: {found['RestoreStatus']}")
    return "\n".join(lines + _tables(found))


def _tables(found: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    if found.get("Chunks"):
        rows = [[row[key] for key in _CHUNK] for row in found["Chunks"]]
        lines += [" chunks:", *table(["chunkIndex", "sliceId", "size", "offset", "length"], rows)]
    if found.get("Objects"):
        rows = [
            [row[key] for key in _OBJECT] + [pos]
            for row, pos in zip(found["Objects"], _positions(found["Objects"]), strict=True)
        ]
        titles = ["chunkIndex", "objectName", "size", "offset", "length", "pos"]
        lines += [" objects:", *table(titles, rows, left=1)]
    if found.get("FLocks"):
        rows = [[str(lock["Sid"]), lock["Owner"], lock["Type"]] for lock in found["FLocks"]]
        lines += [" flocks:", *table(["Sid", "Owner", "Type"], rows, left=0)]
    if found.get("PLocks"):
        rows = [[str(lock["Sid"]), *(lock[key] for key in _PLOCK)] for lock in found["PLocks"]]
        titles = ["Sid", "Owner", "Type", "Pid", "Start", "End"]
        lines += [" plocks:", *table(titles, rows, left=0)]
    return lines


_SIZES = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_CHUNK = ("ChunkIndex", "Id", "Size", "Off", "Len")
_OBJECT = ("ChunkIndex", "Key", "Size", "Off", "Len")
_PLOCK = ("Owner", "Type", "Pid", "Start", "End")


def _positions(objects: list[dict[str, Any]]) -> list[int]:
    """Where in the file each piece lies: pieces of a chunk follow each other from its start."""
    index, pos, found = -1, 0, []
    for piece in objects:
        if piece["ChunkIndex"] != index:
            index = piece["ChunkIndex"]
            pos = index * CHUNK_SIZE
        found.append(pos)
        pos += piece["Len"]
    return found


def sized(count: int) -> str:
    """Bytes for people and exactly: `8.58 MiB (9000006 Bytes)`."""
    if count < 1024:
        return f"{count} Bytes"
    power = min((count.bit_length() - 1) // 10, len(_SIZES))
    return f"{count / (1 << 10 * power):.2f} {_SIZES[power - 1]} ({count} Bytes)"


def table(titles: list[str], rows: list[list[Any]], left: int = -1) -> list[str]:
    """A table with ruled borders; titles are centred, cells to the right but in column `left`."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"

    def line(texts: list[str]) -> str:
        return "| " + " | ".join(texts) + " |"

    body = [
        line(
            [
                cell.ljust(width) if at == left else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
        )
        for row in cells
    ]
    head = line([_centred(title, width) for title, width in zip(titles, widths, strict=True)])
    return [rule, head, rule, *body, rule]


def _centred(text: str, width: int) -> str:
    """The odd blank goes to the left, as JuiceFS has it."""
    before = (width - len(text) + 1) // 2
    return " " * before + text + " " * (width - len(text) - before)
