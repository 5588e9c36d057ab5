"""Metadata of a volume as JSON, as `juicefs load` reads it (dump.md, section 1).

Written as it is read: in memory are the names of the directories on the way down and one page of
entries with their xattrs, ACLs and slices. Names, link targets and xattr values are escaped: bytes
of invalid UTF-8, characters up to the blank, `%`, `"` and `\\` become `%XX`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from errno import ENOENT
from typing import IO, Any

from juicepy.errors import posix_error
from juicepy.meta.engine import MetaEngine
from juicepy.meta.tx import Tx
from juicepy.types import CHUNK_BITS, ROOT, TRASH, AclRule, Attr, DirEntry, Inode, Kind, Slice
from juicepy.volume import REMOVED, Format

_PAGE = 500
_MANY_CHUNKS = 64
_FUTURE_S = 10 * 365 * 86400
_ALL = 1 << 31

_KINDS = {
    Kind.FILE: "regular",
    Kind.DIR: "directory",
    Kind.SYMLINK: "symlink",
    Kind.FIFO: "fifo",
    Kind.BLOCK: "blockdev",
    Kind.CHAR: "chardev",
    Kind.SOCKET: "socket",
}
# (name in the dump, counter); Redis counts the last id used, a dump the next one
_COUNTERS = (
    ("usedSpace", "usedSpace", 0),
    ("usedInodes", "totalInodes", 0),
    ("nextInodes", "nextInode", 1),
    ("nextChunk", "nextChunk", 1),
    ("nextSession", "nextSession", 0),
    ("nextTrash", "nextTrash", 0),
)


@dataclass(frozen=True, slots=True)
class Details:
    """What an entry has besides its attributes."""

    target: bytes | None
    xattrs: tuple[tuple[bytes, bytes], ...]
    access_acl: AclRule | None
    default_acl: AclRule | None
    chunks: tuple[tuple[int, tuple[Slice, ...]], ...]


def dump(
    engine: MetaEngine,
    volume: Format,
    out: IO[str],
    *,
    skip_trash: bool = False,
    keep_secrets: bool = False,
    progress: Callable[[int], None] = lambda count: None,
) -> int:
    """Write the whole volume; the number of entries written. `progress(entries so far)`."""
    writer = _Writer(engine, out, progress)
    out.write("{\n")
    for name, value in _head(engine, _setting(volume, keep_secrets)):
        out.write(f'  "{name}": {_indented(value)},\n')
    writer.tree("FSTree", ROOT)
    trash = None if skip_trash else engine.attr(TRASH)
    if trash is not None:
        out.write(",\n")
        writer.tree("Trash", TRASH)
    out.write("\n}\n")
    return writer.count


def _setting(volume: Format, keep_secrets: bool) -> dict[str, Any]:
    """The setting; SecretKey and SessionToken are left out unless asked for, EncryptKey is not."""
    if not keep_secrets:
        names = [name for name in ("secret_key", "session_token") if getattr(volume, name)]
        volume = volume.with_(**dict.fromkeys(names, REMOVED))
    return volume.shown(secrets=True)


def _head(engine: MetaEngine, setting: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What stands before the tree."""
    yield "Setting", setting
    last_used = engine.scheme == "redis"
    yield (
        "Counters",
        {
            name: engine.counter(counter) + (offset if last_used else 0)
            for name, counter, offset in _COUNTERS
        },
    )
    held = ((each.sid, engine.sustained(each.sid)) for each in engine.sessions())
    yield "Sustained", [{"sid": sid, "inodes": inodes} for sid, inodes in held if inodes]
    deleted = engine.deleted_files(int(time.time()) + _FUTURE_S, _ALL)
    yield (
        "DelFiles",
        [{"inode": each.ino, "length": each.length, "expire": each.deleted_s} for each in deleted],
    )
    users, groups = engine.user_group_quotas()
    for name, quotas in (
        ("Quotas", dict(engine.dir_quotas())),
        ("UserQuotas", users),
        ("GroupQuotas", groups),
    ):
        shown = {
            str(owner): {"maxSpace": quota.max_space, "maxInodes": quota.max_inodes}
            for owner, quota in quotas.items()
            if (quota.max_space, quota.max_inodes) != (-1, -1)
        }
        if shown:
            yield name, shown


def _indented(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n  ")


Child = tuple[DirEntry, Attr, Details]


@dataclass(slots=True)
class _Level:
    """A directory that is being written: what is left of it, how deep it stands."""

    children: Iterator[Child]
    depth: int
    separator: str = "\n"


class _Writer:
    """Writes trees, without recursion: they may be deeper than the stack."""

    def __init__(self, engine: MetaEngine, out: IO[str], progress: Callable[[int], None]) -> None:
        self._engine, self._out, self._progress = engine, out, progress
        self.count = 0

    def tree(self, title: str, top: Inode) -> None:
        """`"title": {...}` with all that is below `top`; no newline at the end."""
        attr = self._engine.attr(top)
        if attr is None:
            raise posix_error(ENOENT, f"inode {top}")
        self._open(title, top, attr, self._details([(top, attr)])[0], 1)
        levels = [_Level(self._children(top), 1)]
        while levels:
            level = levels[-1]
            child = next(level.children, None)
            space = "  " * level.depth
            if child is None:
                self._out.write(f"\n{space}  }}\n{space}}}")
                levels.pop()
                continue
            entry, attr, details = child
            self._out.write(level.separator)
            level.separator = ",\n"
            depth = level.depth + 2
            self._open(escaped(entry.name), entry.ino, attr, details, depth)
            if attr.is_dir:
                levels.append(_Level(self._children(entry.ino), depth))
            else:
                self._out.write(f"\n{'  ' * depth}}}")

    def _open(self, title: str, ino: Inode, attr: Attr, details: Details, depth: int) -> None:
        """An entry up to its end, a directory up to its first child."""
        space = "  " * depth
        lines = list(_fields(ino, attr, details, space))
        self._out.write(f'{space}"{title}": {{\n')
        self._out.write(",\n".join(f"{space}  {line}" for line in lines))
        if attr.is_dir:
            self._out.write(f',\n{space}  "entries": {{')
        self.count += 1

    def _children(self, ino: Inode) -> Iterator[Child]:
        """In the order of their names; those that vanish meanwhile are left out."""
        entries = [entry for page in self._engine.list_dir(ino, with_attrs=False) for entry in page]
        entries.sort(key=lambda entry: entry.name)
        for start in range(0, len(entries), _PAGE):
            yield from self._page(entries[start : start + _PAGE])
            self._progress(self.count)

    def _page(self, entries: list[DirEntry]) -> Iterator[Child]:
        attrs = self._engine.attrs(entry.ino for entry in entries)
        there = [entry for entry in entries if entry.ino in attrs]
        found = self._details([(entry.ino, attrs[entry.ino]) for entry in there])
        for entry, details in zip(there, found, strict=True):
            yield entry, attrs[entry.ino], details

    def _details(self, nodes: list[tuple[Inode, Attr]]) -> list[Details]:
        """Of all `nodes`, in few exchanges with the engine."""
        chunks = {ino: self._indexes(ino, attr) for ino, attr in nodes if attr.kind is Kind.FILE}
        return self._engine.read(lambda tx: _read_details(tx, nodes, chunks))

    def _indexes(self, ino: Inode, attr: Attr) -> list[int]:
        count = (attr.length + (1 << CHUNK_BITS) - 1) >> CHUNK_BITS
        if count <= _MANY_CHUNKS:
            return list(range(count))
        return sorted(self._engine.chunk_indexes(ino, attr.length))


def _read_details(
    tx: Tx, nodes: list[tuple[Inode, Attr]], chunks: dict[Inode, list[int]]
) -> list[Details]:
    tx.fetch(
        *(("xattrs", ino) for ino, _ in nodes),
        *(("link", ino) for ino, attr in nodes if attr.kind is Kind.SYMLINK),
        *(("chunk", ino, index) for ino, indexes in chunks.items() for index in indexes),
        *{("acl", acl) for _, attr in nodes for acl in (attr.access_acl, attr.default_acl) if acl},
    )
    tx.fetch(*(("xattr", ino, name) for ino, _ in nodes for name in tx.xattr_names(ino)))
    return [_node_details(tx, ino, attr, chunks.get(ino, [])) for ino, attr in nodes]


def _node_details(tx: Tx, ino: Inode, attr: Attr, indexes: list[int]) -> Details:
    xattrs = ((name, tx.xattr(ino, name)) for name in sorted(tx.xattr_names(ino)))
    chunks = ((index, tx.slices(ino, index)) for index in indexes)
    return Details(
        target=tx.link_target(ino) if attr.kind is Kind.SYMLINK else None,
        xattrs=tuple((name, value) for name, value in xattrs if value is not None),
        access_acl=tx.acl(attr.access_acl) if attr.access_acl else None,
        default_acl=tx.acl(attr.default_acl) if attr.default_acl else None,
        chunks=tuple((index, slices) for index, slices in chunks if slices),
    )


def _fields(ino: Inode, attr: Attr, details: Details, space: str) -> Iterator[str]:
    """The fields of an entry, one a line, `entries` excepted."""
    yield f'"attr": {_compact(_attr(ino, attr))}'
    if details.target is not None:
        yield f'"symlink": "{escaped(details.target)}"'
    if details.xattrs:
        items = ",".join(
            f'{{"name":{json.dumps(name.decode(errors="replace"), ensure_ascii=False)},'
            f'"value":"{escaped(value)}"}}'
            for name, value in details.xattrs
        )
        yield f'"xattrs": [{items}]'
    if details.access_acl is not None:
        yield f'"posix_acl_access": {_compact(_acl(details.access_acl))}'
    if details.default_acl is not None:
        yield f'"posix_acl_default": {_compact(_acl(details.default_acl))}'
    if details.chunks:
        lines = [
            _compact({"index": index, "slices": [_slice(each) for each in slices]})
            for index, slices in details.chunks
        ]
        if len(lines) == 1:
            yield f'"chunks": [{lines[0]}]'
        else:
            between = f",\n{space}    "
            yield f'"chunks": [\n{space}    {between.join(lines)}\n{space}  ]'


def _attr(ino: Inode, attr: Attr) -> dict[str, Any]:
    """What is optional is left out where it is 0."""

    def some(**values: int) -> dict[str, int]:
        return {name: value for name, value in values.items() if value}

    second = 10**9
    return {
        "inode": ino,
        **some(flags=attr.flags),
        "type": _KINDS[attr.kind],
        "mode": attr.mode,
        "uid": attr.uid,
        "gid": attr.gid,
        "atime": attr.atime_ns // second,
        "mtime": attr.mtime_ns // second,
        "ctime": attr.ctime_ns // second,
        **some(
            atimensec=attr.atime_ns % second,
            mtimensec=attr.mtime_ns % second,
            ctimensec=attr.ctime_ns % second,
        ),
        "nlink": attr.nlink,
        "length": attr.length if attr.kind is Kind.FILE else 0,
        **some(rdev=attr.rdev, tier=attr.tier),
    }


def _acl(rule: AclRule) -> dict[str, Any]:
    def named(pairs: tuple[tuple[int, int], ...]) -> list[dict[str, int]] | None:
        return [{"id": number, "perm": perm} for number, perm in pairs] or None

    return {
        "owner": rule.owner,
        "group": rule.group,
        "other": rule.other,
        "mask": rule.mask,
        "users": named(rule.users),
        "groups": named(rule.groups),
    }


def _slice(piece: Slice) -> dict[str, int]:
    return {
        "id": piece.id,
        **({"pos": piece.pos} if piece.pos else {}),
        "size": piece.size,
        **({"off": piece.off} if piece.off else {}),
        "len": piece.length,
    }


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


_ESCAPES = {code: f"%{code:02X}" for code in (*range(33), *map(ord, '%"\\'))} | {
    0xDC00 + byte: f"%{byte:02X}" for byte in range(0x80, 0x100)
}


def escaped(raw: bytes) -> str:
    """Bytes as text for a dump, see the module."""
    return raw.decode(errors="surrogateescape").translate(_ESCAPES)
