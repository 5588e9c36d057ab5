"""The commands of `.control` (spec: mount surface, 3): rmr, info, warm-up, clone, summary, compact.

Each takes who asks, the body of the request and a `Job` for its progress, and returns the response.
All integers are big-endian. Trailing fields that an older tool does not send have defaults.
"""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from juicepy.chunk import overlay
from juicepy.chunk.store import BlockStore
from juicepy.errors import posix_error
from juicepy.meta.client import MetaClient
from juicepy.meta.codec import decode_plocks
from juicepy.types import CHUNK_BITS, CHUNK_SIZE, Attr, Cred, Inode, Kind, LockKind, Slice
from juicepy.vfs import heap
from juicepy.vfs.control import Command, Job, data_response
from juicepy.vfs.warmup import WarmUp, cut

RMR, LEGACY_INFO, FILL_CACHE, INFO, CLONE, SUMMARY, COMPACT = range(1002, 1009)

OK = b"\0"
_LOCK_NAMES = {LockKind.READ: "R", LockKind.WRITE: "W", LockKind.UNLOCK: "U"}
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Body:
    """Reads the fields of a request one after the other; struct.error where one is missing."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, kind: str, default: int | None = None) -> int:
        """An integer of struct's `kind`; `default` if the body has ended."""
        if default is not None and self._at >= len(self._data):
            return default
        value: int = struct.unpack_from(">" + kind, self._data, self._at)[0]
        self._at += struct.calcsize(kind)
        return value

    def text(self, size: int) -> bytes:
        text = self._data[self._at : self._at + size]
        if len(text) < size:
            raise struct.error("the text is shorter than its length")
        self._at += size
        return text


class Progress:
    """Turns running totals into what a `Job` counts."""

    def __init__(self, job: Job) -> None:
        self._job, self._told = job, (0, 0)

    def __call__(self, first: int, second: int = 0) -> None:
        before, self._told = self._told, (first, second)
        self._job.add(first - before[0], second - before[1])


@dataclass(frozen=True, slots=True)
class Commands:
    """What the commands work on. `forget(parent, name)`: the kernel is to drop this entry."""

    meta: MetaClient
    store: BlockStore
    warm_up: WarmUp
    forget: Callable[[Inode, bytes], None]

    def table(self) -> dict[int, Command]:
        return {
            RMR: self.rmr,
            LEGACY_INFO: self.legacy_info,
            FILL_CACHE: self.fill_cache,
            INFO: self.info,
            CLONE: self.clone,
            SUMMARY: self.summary,
            COMPACT: self.compact,
            heap.HEAP: heap.profile,
        }

    def rmr(self, cred: Cred, data: bytes, job: Job) -> bytes:
        body = Body(data)
        parent = Inode(body.take("Q"))
        name = body.text(body.take("B"))
        flags, threads = body.take("B", 0), body.take("B", 50)
        skip_trash = bool(flags & 1)
        progress = Progress(job)
        removed = self.meta.remove_tree(
            cred, parent, name, skip_trash=skip_trash, threads=threads or 1, progress=progress
        )
        progress(removed)
        self.forget(parent, name)
        return OK

    def legacy_info(self, cred: Cred, data: bytes, job: Job) -> bytes:
        body = Body(data)
        ino, recursive, raw = Inode(body.take("Q")), body.take("B", 1), body.take("B", 0)
        try:
            text = _legacy_text(self._info(ino, bool(recursive), bool(raw), True, None))
        except OSError as error:
            text = _reason(error)
        told = text.encode()
        return struct.pack(">I", len(told)) + told

    def info(self, cred: Cred, data: bytes, job: Job) -> bytes:
        body = Body(data)
        ino, recursive, raw = Inode(body.take("Q")), body.take("B", 1), body.take("B", 0)
        strict = bool(body.take("B", 0))
        try:
            told = self._info(ino, bool(recursive), bool(raw), strict, Progress(job))
        except OSError as error:
            told = _no_info(ino, _reason(error))
        return _json(told)

    def fill_cache(self, cred: Cred, data: bytes, job: Job) -> bytes:
        body = Body(data)
        paths = body.text(body.take("I")).split(b"\n")
        threads, background, action = body.take("H", 50), body.take("B", 0), body.take("B", 0)
        return _json(self.warm_up.run(cred, paths, action, threads, bool(background), job))

    def clone(self, cred: Cred, data: bytes, job: Job) -> bytes:
        """EINVAL ("the mount is too old") while the metadata client cannot clone."""
        clone = getattr(self.meta, "clone", None)
        if clone is None:
            raise posix_error(errno.EINVAL)
        body = Body(data)
        source, source_parent = Inode(body.take("Q")), Inode(body.take("Q"))
        parent, name = Inode(body.take("Q")), body.text(body.take("B"))
        umask, mode, threads = body.take("H", 0o22), body.take("B", 0), body.take("B", 4)
        options = {"source_parent": source_parent, "umask": umask, "threads": threads or 1}
        clone(cred, source, parent, name, mode=mode, progress=Progress(job), **options)
        return OK

    def summary(self, cred: Cred, data: bytes, job: Job) -> bytes:
        body = Body(data)
        ino, depth, top = Inode(body.take("Q")), body.take("B", 3), body.take("B", 10)
        strict = bool(body.take("B", 0))
        shown = {"Inode": self._stored(ino), "Path": "", "Type": int(Kind.DIR)}
        try:
            attr = self.meta.getattr(ino)
            node = self._tree(ino, attr, "", depth, top, strict, job)
        except OSError as error:
            nothing = {"Size": 0, "Files": 0, "Dirs": 0}
            return _json({"Errno": error.errno or errno.EIO, "Tree": shown | nothing})
        return _json({"Errno": 0, "Tree": node | shown})

    def compact(self, cred: Cred, data: bytes, job: Job) -> bytes:
        body = Body(data)
        ino = Inode(body.take("Q"))
        threads = body.take("H", 10)
        self.warm_up.each_chunk(ino, threads, job, self.meta.compact)
        return OK

    # -- private
    def _stored(self, ino: Inode) -> Inode:
        return self.meta.root if ino == 1 else ino

    def _info(
        self,
        ino: Inode,
        recursive: bool,
        raw: bool,
        strict: bool,
        progress: Callable[[int, int], None] | None,
    ) -> dict[str, Any]:
        attr = self.meta.getattr(ino)
        usage = self.meta.summary(ino, recursive=recursive, strict=strict, progress=progress)
        told = _no_info(self._stored(ino), "") | {"Failed": False}
        told["Summary"] = {
            "Length": usage.length,
            "Size": usage.space,
            "Files": usage.files,
            "Dirs": usage.dirs,
        }
        paths = self.meta.paths(ino)
        told["Paths"] = [path.decode("utf-8", "replace") for path in paths]
        told["PLocks"], told["FLocks"] = self._locks(ino)
        tier = self.meta.format.tiers.get(attr.tier)
        told["Tier"] = {"ID": attr.tier, "StorageClass": "", "Tag": tier.tag if tier else ""}
        if attr.kind is Kind.FILE:
            if raw:
                told["Chunks"] = self._chunks(ino, attr)
            else:
                told["Objects"] = self._objects(ino, attr)
                told["Tier"]["StorageClass"] = (tier.storage_class if tier else "") + "actual()"
        return told

    def _chunks(self, ino: Inode, attr: Attr) -> list[dict[str, int]]:
        return [
            {
                "ChunkIndex": index,
                "Id": piece.id,
                "Size": piece.size,
                "Off": piece.off,
                "Len": piece.length,
            }
            for index in _indexes(attr)
            for piece in self._view(ino, index)
        ]

    def _objects(self, ino: Inode, attr: Attr) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        layout, volume = self.store.layout, self.meta.format.name
        for index in _indexes(attr):
            for piece in self._view(ino, index):
                if not piece.id:
                    told.append(_object(index, "", piece.size, 0, piece.length))
                    continue
                for block, off, length in cut(layout, piece):
                    key = f"{volume}/{layout.object_key(block)}"
                    told.append(_object(index, key, block.size, off, length))
        return told

    def _view(self, ino: Inode, index: int) -> list[Slice]:
        """What is seen of a chunk; JuiceFS tells the length of a hole at the start as its size."""
        slices = self.meta.slices(ino, index)
        view = overlay.build(slices)
        if view and not view[0].id and min(piece.pos for piece in slices) > 0:
            view[0] = replace(view[0], size=view[0].length)
        return view

    def _locks(self, ino: Inode) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        engine, stored = self.meta.engine, self._stored(ino)
        posix = engine.read(lambda tx: tx.locks(stored, posix=True))
        flocks = engine.read(lambda tx: tx.locks(stored, posix=False))
        return (
            [
                {
                    "Sid": sid,
                    "Owner": owner,
                    "Type": _LOCK_NAMES[lock.kind],
                    "Pid": lock.pid,
                    "Start": lock.start,
                    "End": lock.end,
                }
                for (sid, owner), value in posix.items()
                for lock in decode_plocks(value)
            ],
            [
                {"Sid": sid, "Owner": owner, "Type": value.decode()}
                for (sid, owner), value in flocks.items()
            ],
        )

    def _tree(
        self, ino: Inode, attr: Attr, path: str, depth: int, top: int, strict: bool, job: Job
    ) -> dict[str, Any]:
        """Usage of a name, of a directory with its biggest children down to `depth`."""
        node: dict[str, Any] = {"Inode": ino, "Path": path, "Type": int(attr.kind)}
        if not attr.is_dir or depth == 0:
            usage = self.meta.summary(ino, strict=strict, progress=Progress(job))
            if not attr.is_dir:
                job.add(1, usage.space)
            return node | {"Size": usage.space, "Files": usage.files, "Dirs": usage.dirs}
        job.add(1, attr.space)
        children = []
        for page in self.meta.engine.list_dir(self._stored(ino), with_attrs=True):
            for entry in page:
                if entry.attr is not None:
                    below = _joined(path, entry.name)
                    children.append(
                        self._tree(entry.ino, entry.attr, below, depth - 1, top, strict, job)
                    )
        node["Size"] = attr.space + sum(child["Size"] for child in children)
        node["Files"] = sum(child["Files"] for child in children)
        node["Dirs"] = 1 + sum(child["Dirs"] for child in children)
        children.sort(key=lambda child: -int(child["Size"]))
        if len(children) > top:
            children[top:] = [_rest(path, children[top:])]
        return node | ({"Children": children} if children else {})


def _object(index: int, key: str, size: int, off: int, length: int) -> dict[str, Any]:
    return {"ChunkIndex": index, "Key": key, "Size": size, "Off": off, "Len": length}


def _indexes(attr: Attr) -> range:
    return range((attr.length + CHUNK_SIZE - 1) >> CHUNK_BITS)


def _joined(path: str, name: bytes) -> str:
    return (path + "/" if path else "") + name.decode("utf-8", "replace")


def _rest(path: str, children: list[dict[str, Any]]) -> dict[str, Any]:
    """One item for the children that are not shown."""
    totals = {key: sum(child[key] for child in children) for key in ("Size", "Files", "Dirs")}
    return {"Inode": 0, "Path": _joined(path, b"..."), "Type": int(Kind.FILE)} | totals


def _json(told: Any) -> bytes:
    return data_response(json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode())


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _no_info(ino: Inode, reason: str) -> dict[str, Any]:
    """An answer in which nothing is known yet, in the order of the fields."""
    return {
        "Ino": ino,
        "Failed": True,
        "Reason": reason,
        "Summary": {"Length": 0, "Size": 0, "Files": 0, "Dirs": 0},
        "Paths": None,
        "Chunks": None,
        "Objects": None,
        "PLocks": None,
        "FLocks": None,
        "Tier": {"ID": 0, "StorageClass": "", "Tag": ""},
        "RestoreStatus": "",
    }


def _legacy_text(told: dict[str, Any]) -> str:
    summary = told["Summary"]
    lines = [
        f"  inode: {told['Ino']}",
        f"  files: {summary['Files']}",
        f"   dirs: {summary['Dirs']}",
        f" length: {_sized(summary['Length'])}",
        f"   size: {_sized(summary['Size'])}",
    ]
    lines += [f"   path: {path}" for path in told["Paths"]]
    for title, fields in (
        ("chunks", ("ChunkIndex", "Id", "Size", "Off", "Len")),
        ("objects", ("ChunkIndex", "Key", "Size", "Off", "Len")),
    ):
        rows = told[title.capitalize()]
        if rows:
            lines.append(f" {title}:" if title == "chunks" else f"{title}:")
            for row in rows:
                index, *rest = (str(row[name]) for name in fields)
                lines.append("\t" + "\t".join((f"{index}:", *rest)))
    return "\n".join(lines) + "\n"


def _sized(size: int) -> str:
    if size < 1024:
        return f"{size} Bytes"
    power = min((size.bit_length() - 1) // 10, len(_UNITS))
    return f"{size / 1024**power:.2f} {_UNITS[power - 1]} ({size} Bytes)"
