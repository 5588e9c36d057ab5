"""Volumes without a mount: a MetaClient over any engine, and a full scan of what it stored."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from juicepy.meta.client import MetaClient, open_meta
from juicepy.meta.engine import MetaEngine
from juicepy.meta.service import MetaOptions
from juicepy.types import ROOT, TRASH, Attr, Inode, Kind
from juicepy.volume import Format


def format_engine(engine: MetaEngine, **settings: object) -> Format:
    """Store a volume's setting and roots in an empty engine."""
    given: dict[str, object] = {
        "name": "volume",
        "uuid": str(uuid.uuid4()),
        "trash_days": 0,
        "dir_stats": True,
        "meta_version": 1,
        "enable_acl": True,
    }
    volume = Format(**(given | settings))  # type: ignore[arg-type]
    root = Attr(Kind.DIR, 0o777, nlink=2, length=4096, parent=ROOT)
    trash = Attr(Kind.DIR, 0o555, nlink=2, length=4096, parent=ROOT)
    engine.init(volume.to_json(), root, trash if volume.trash_days else None)
    return volume


@contextmanager
def session(engine: MetaEngine, **options: object) -> Iterator[MetaClient]:
    """A client with a running session, closed at the end."""
    client = open_meta(engine, MetaOptions(**options))  # type: ignore[arg-type]
    client.start_session()
    try:
        yield client
    finally:
        client.close_session()


@dataclass
class Scan:
    """What a full scan finds wrong (`faults`) and the usage it counts."""

    space: int = 0
    inodes: int = 0
    faults: list[str] = field(default_factory=list)


def scan(engine: MetaEngine, *, statistics: bool = True) -> Scan:
    """Compare every record with every other: names, links, sub-directories, statistics, usage."""
    result = Scan()
    attrs = dict(engine.scan_attrs())
    names: Counter[Inode] = Counter()
    subdirs: Counter[Inode] = Counter()
    seen: set[Inode] = set()
    pending = [ino for ino in (ROOT, TRASH) if ino in attrs]
    sustained = {ino for s in engine.sessions() for ino in engine.sustained(s.sid)}
    while pending:
        directory = pending.pop()
        seen.add(directory)
        length = space = inodes = 0
        for page in engine.list_dir(directory, with_attrs=True):
            for entry in page:
                if entry.attr is None:
                    result.faults.append(f"{directory}/{entry.name!r}: no inode {entry.ino}")
                    continue
                names[entry.ino] += 1
                length += entry.attr.length if entry.attr.kind is Kind.FILE else 0
                space += entry.attr.space
                inodes += 1
                if entry.kind is Kind.DIR:
                    subdirs[directory] += 1
                    pending.append(entry.ino)
                    if entry.attr.parent != directory:
                        result.faults.append(f"{entry.ino}: parent is {entry.attr.parent}")
        if statistics:
            _check_stats(engine, directory, (length, space, inodes), result)
    for ino, attr in attrs.items():
        if ino in (ROOT, TRASH):
            if ino == ROOT and attr.nlink != 2 + subdirs[ino]:
                result.faults.append(f"root: nlink {attr.nlink}, {subdirs[ino]} sub-directories")
            continue
        result.space += attr.space
        result.inodes += 1
        if attr.is_dir:
            if ino not in seen:
                result.faults.append(f"directory {ino} has no name")
            expected = 2 + subdirs[ino]
        else:
            expected = names[ino]
            if expected == 0 and ino not in sustained:
                result.faults.append(f"inode {ino} has no name")
        if attr.nlink != expected and not (attr.is_dir and ino > TRASH):
            result.faults.append(f"inode {ino}: nlink {attr.nlink}, but {expected}")
        if attr.parent == 0:
            counts = engine.read(lambda tx, ino=ino: tx.parents(ino))  # type: ignore[misc]
            if sum(counts.values()) != names[ino]:
                result.faults.append(f"inode {ino}: parents {counts}, {names[ino]} names")
    if engine.counter("usedSpace") != result.space:
        result.faults.append(f"usedSpace {engine.counter('usedSpace')}, but {result.space}")
    if engine.counter("totalInodes") != result.inodes:
        result.faults.append(f"totalInodes {engine.counter('totalInodes')}, but {result.inodes}")
    return result


def _check_stats(
    engine: MetaEngine, ino: Inode, counted: tuple[int, int, int], result: Scan
) -> None:
    stats = engine.dir_stats(ino)
    if stats is not None and (stats.length, stats.space, stats.inodes) != counted:
        result.faults.append(f"statistics of {ino}: {stats}, counted {counted}")
