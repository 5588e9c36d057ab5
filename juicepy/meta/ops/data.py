"""Transactions on a file's content: writes, truncate, fallocate, copies, ends of chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from errno import EFBIG, EINVAL, ENOENT, EPERM

from juicepy.errors import posix_error
from juicepy.meta import rules
from juicepy.meta.effects import Effects
from juicepy.meta.engine import DelayedSlices
from juicepy.meta.ops.common import allow, holders, need
from juicepy.meta.tx import Ref, Tx
from juicepy.types import (
    APPEND,
    CHUNK_BITS,
    CHUNK_SIZE,
    IMMUTABLE,
    MAX_FILE_SIZE,
    Attr,
    Cred,
    Inode,
    Kind,
    Slice,
    aligned,
)


def _resized(tx: Tx, ino: Inode, old: Attr, new: Attr) -> Effects:
    """Store `new`, with the accounting of its change of length."""
    effects = Effects()
    tx.set_attr(ino, new)
    length, space = new.length - old.length, aligned(new.length) - aligned(old.length)
    if length == 0:
        return effects
    if old.nlink > 0:
        for parent, count in holders(tx, ino, old).items():
            effects.dir_stats(parent, length * count, space * count, 0)
            if not rules.is_trash(parent):
                effects.quota(parent, space * count, 0)
    if space:
        tx.use(space=space)
        effects.owner(old, space, 0)
    return effects


def write(
    tx: Tx, ino: Inode, index: int, piece: Slice, mtime_ns: int, now_ns: int, strip: bool
) -> tuple[Attr, Effects]:
    """Append an uploaded slice. ENOENT if the file is gone, EPERM if it is no regular file.

    `strip` takes set-user-id and set-group-id away, as a write by an unprivileged user does.
    """
    attr = need(tx, ino)
    if attr.kind is not Kind.FILE:
        raise posix_error(EPERM)
    end = (index << CHUNK_BITS) + piece.pos + piece.length
    mode = rules.without_privileges(attr.mode) if strip else attr.mode
    new = attr.with_(length=max(attr.length, end), mtime_ns=mtime_ns, ctime_ns=now_ns, mode=mode)
    tx.append(ino, index, piece)
    tx.made_slice((piece.id, piece.size))
    return new, _resized(tx, ino, attr, new)


ChunkIndexes = Callable[[], Iterable[int]]  # chunks of the file that have a list


def truncate(
    tx: Tx,
    ino: Inode,
    length: int,
    cred: Cred,
    now_ns: int,
    *,
    by_handle: bool,
    existing: ChunkIndexes,
) -> tuple[Attr, Effects]:
    """Set the length; both ways a hole is recorded (spec 7.2). EINVAL, EFBIG, EPERM, EACCES."""
    if length < 0:
        raise posix_error(EINVAL)
    if length > MAX_FILE_SIZE:
        raise posix_error(EFBIG)
    attr = need(tx, ino)
    rules.check_resize(attr, by_handle=by_handle)
    if not by_handle:
        allow(tx, attr, cred, rules.WRITE)
    is_in = rules.belongs(cred, attr)
    mode = attr.mode if cred.is_root else rules.without_privileges(attr.mode, in_group=is_in)
    new = attr.with_(length=length, mtime_ns=now_ns, ctime_ns=now_ns, mode=mode)
    for index, piece, only_existing in rules.resize_holes(attr.length, length, existing):
        tx.append(ino, index, piece, only_existing=only_existing)
    return new, _resized(tx, ino, attr, new)


def fallocate(
    tx: Tx,
    ino: Inode,
    mode: int,
    offset: int,
    length: int,
    now_ns: int,
    *,
    strip: bool,
    existing: ChunkIndexes,
) -> tuple[Attr, Effects]:
    """Extend, punch or zero a range (spec 7.2). EOPNOTSUPP, EINVAL, EFBIG, EPERM."""
    rules.check_fallocate(mode, offset, length)
    end = offset + length
    if end > MAX_FILE_SIZE:
        raise posix_error(EFBIG)
    attr = need(tx, ino)
    rules.check_resize(attr, by_handle=True)
    grown = attr.length if mode & rules.FALLOC_KEEP_SIZE else max(attr.length, end)
    bits = rules.without_privileges(attr.mode) if strip else attr.mode
    new = attr.with_(length=grown, mtime_ns=now_ns, ctime_ns=now_ns, mode=bits)
    if rules.punches(mode):
        for index, piece in rules.range_holes(offset, min(end, attr.length), existing):
            tx.append(ino, index, piece, only_existing=True)
    return new, _resized(tx, ino, attr, new)


@dataclass(frozen=True, slots=True)
class Copy:
    """`length` bytes of `source` from `offset` on, to `offset_out` of `target`."""

    source: Inode
    offset: int
    target: Inode
    offset_out: int
    length: int


def copy_file_range(tx: Tx, copy: Copy, now_ns: int) -> tuple[int, Attr, Effects]:
    """Share slices instead of copying bytes. EINVAL for overlapping ranges of one file."""
    tx.fetch(("attr", copy.source), ("attr", copy.target))
    source, target = need(tx, copy.source), need(tx, copy.target)
    for attr in (source, target):
        if attr.kind is not Kind.FILE:
            raise posix_error(EINVAL)
    if target.flags & (IMMUTABLE | APPEND):
        raise posix_error(EPERM)
    length = max(0, min(copy.length, source.length - copy.offset))
    if copy.source == copy.target and abs(copy.offset - copy.offset_out) < length:
        raise posix_error(EINVAL)
    if copy.offset_out + length > MAX_FILE_SIZE:
        raise posix_error(EFBIG)
    if length == 0:
        return 0, target, Effects()
    _share(tx, copy, length)
    end = copy.offset_out + length
    new = target.with_(length=max(target.length, end), mtime_ns=now_ns, ctime_ns=now_ns)
    return length, new, _resized(tx, copy.target, target, new)


def _share(tx: Tx, copy: Copy, length: int) -> None:
    """Append to the target what the source shows, old records first so that later ones win."""
    first, last = copy.offset >> CHUNK_BITS, (copy.offset + length - 1) >> CHUNK_BITS
    tx.fetch(*(("chunk", copy.source, index) for index in range(first, last + 1)))
    for index in range(first, last + 1):
        base = index << CHUNK_BITS
        begin = max(copy.offset, base) - base
        end = min(copy.offset + length, base + CHUNK_SIZE) - base
        shift = copy.offset_out - copy.offset + base  # position in the chunk -> target offset
        pieces = [rules.hole(begin, end - begin)]
        pieces += [
            cut for piece in tx.slices(copy.source, index) if (cut := _clip(piece, begin, end))
        ]
        for piece in pieces:
            _append_at(tx, copy.target, shift + piece.pos, piece)


def _clip(piece: Slice, begin: int, end: int) -> Slice | None:
    """The part of a record inside [begin, end) of its chunk."""
    left, right = max(piece.pos, begin), min(piece.pos + piece.length, end)
    if left >= right:
        return None
    off = piece.off + (left - piece.pos) if piece.id else 0
    return Slice(left, piece.id, piece.size, off, right - left)


def _append_at(tx: Tx, ino: Inode, offset: int, piece: Slice) -> None:
    """Append the record so that it begins at file `offset`, split at the chunk border."""
    done = 0
    while done < piece.length:
        index, pos = (offset + done) >> CHUNK_BITS, (offset + done) % CHUNK_SIZE
        length = min(piece.length - done, CHUNK_SIZE - pos)
        off = piece.off + done if piece.id else 0
        tx.append(ino, index, Slice(pos, piece.id, piece.size, off, length))
        if piece.id:
            tx.count_ref((piece.id, piece.size), 1)
        done += length


# ---------------------------------------------------------------- compaction and deletion
def compact(
    tx: Tx,
    ino: Inode,
    index: int,
    prefix: tuple[Slice, ...],
    kept: int,
    merged: Slice,
    delay_s: int | None,
) -> None:
    """Replace `prefix[kept:]`, the oldest records, by `merged` (spec 7.4).

    `delay_s` is the present in unix seconds if the old slices stay while the trash keeps them;
    None releases them now. Conflict (the engine tries again, in vain) if the prefix changed, so
    the caller compares first and gives up: ENOENT.
    """
    if tx.slices(ino, index)[: len(prefix)] != prefix:
        raise posix_error(ENOENT, "slices changed")
    tx.replace_slices(ino, index, prefix, (*prefix[:kept], merged))
    if merged.id:
        tx.made_slice((merged.id, merged.size))
    old = tuple((piece.id, piece.size) for piece in prefix[kept:] if piece.id)
    if delay_s is not None and old:
        tx.delay_slices(merged.id, delay_s, old)
    elif delay_s is None:
        release(tx, old)


def release(tx: Tx, refs: tuple[Ref, ...]) -> None:
    for ref in refs:
        tx.count_ref(ref, -1)


def delete_chunk(tx: Tx, ino: Inode, index: int) -> None:
    """Drop a chunk of a deleted file and the references it holds."""
    release(tx, tuple((p.id, p.size) for p in tx.drop_chunk(ino, index) if p.id))


def release_delayed(tx: Tx, delayed: DelayedSlices) -> None:
    """The trash keeps the replaced slices no longer. ENOENT if another client was first."""
    tx.drop_delayed(delayed.new, delayed.deleted_s)
    release(tx, delayed.refs)
