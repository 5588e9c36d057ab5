"""What deletion and compaction leave to be cleaned: files, chunks, slices without references."""

from __future__ import annotations

from collections.abc import Iterator

from juicepy.meta.codec import decode_refs
from juicepy.meta.engine import DelayedSlices, DeletedFile
from juicepy.meta.redis.keys import Keys, ref_field, ref_of
from juicepy.meta.redis.link import Link
from juicepy.meta.redis.reads import pairs
from juicepy.meta.redis.scripts import COMMIT, pack
from juicepy.meta.tx import Ref
from juicepy.types import CHUNK_BITS, CHUNK_SIZE, Inode, SliceId

_PAGE = 1000
_BEYOND = 64  # chunks looked at behind the end, where lists of a truncated file may be left
_MANY_CHUNKS = 10_000


class Leftovers:
    def __init__(self, link: Link, keys: Keys) -> None:
        self._link, self._keys = link, keys

    def deleted_files(self, before_s: int, limit: int) -> list[DeletedFile]:
        flat = self._link.call(
            *("ZRANGEBYSCORE", self._keys.named("delfiles"), "-inf", f"({before_s}"),
            *("WITHSCORES", "LIMIT", 0, limit),
        )
        found = []
        for member, when in pairs(flat):
            parts = member.split(b":")
            if len(parts) == 2:  # older forms have more
                found.append(DeletedFile(Inode(int(parts[0])), int(parts[1]), int(float(when))))
        return found

    def chunk_indexes(self, ino: Inode, length: int) -> list[int]:
        count = (length + CHUNK_SIZE - 1) >> CHUNK_BITS
        if count > _MANY_CHUNKS:
            return sorted(self._scan_indexes(ino))
        found: list[int] = []
        begin, end = 0, count + _BEYOND
        while True:
            lengths = self._link.run(
                [("LLEN", self._keys.chunk(ino, index)) for index in range(begin, end)]
            )
            found += [index for index, one in enumerate(lengths, begin) if one]
            if not any(lengths[-_BEYOND:]):
                return found
            begin, end = end, end + _BEYOND

    def _scan_indexes(self, ino: Inode) -> set[int]:
        begin = self._keys.chunk(ino, 0)[:-1]
        return {
            int(key[len(begin) :])
            for page in scan_keys(self._link, begin + b"*")
            for key in page
            if key[len(begin) :].isdigit()
        }

    def unreferenced(self, limit: int) -> list[Ref]:
        """Also removes fields that say what an absent one does."""
        found: list[Ref] = []
        for page in self._counts():
            self._drop_zeros([ref for ref, stored in page if stored == 0])
            found += [ref for ref, stored in page if stored < 0]
            if len(found) >= limit:
                break
        return found[:limit]

    def forget_slice(self, ref: Ref) -> None:
        self._link.call("HDEL", self._keys.named("sliceRef"), ref_field(ref))

    def refs(self) -> Iterator[tuple[Ref, int]]:
        seen: set[Ref] = set()
        for page in self._counts():
            for ref, stored in page:
                if stored and ref not in seen:
                    seen.add(ref)
                    yield ref, stored + 1

    def delayed_slices(self, before_s: int, limit: int) -> list[DelayedSlices]:
        found: list[DelayedSlices] = []
        for page in scan_hash(self._link, self._keys.named("delSlices"), _PAGE):
            for field, raw in page:
                new, _, when = field.partition(b"_")
                if int(when) < before_s:
                    found.append(DelayedSlices(SliceId(int(new)), int(when), decode_refs(raw)))
            if len(found) >= limit:
                break
        return found[:limit]

    def _counts(self) -> Iterator[list[tuple[Ref, int]]]:
        for page in scan_hash(self._link, self._keys.named("sliceRef"), _PAGE):
            yield [(ref_of(field), int(stored)) for field, stored in page]

    def _drop_zeros(self, refs: list[Ref]) -> None:
        key = self._keys.named("sliceRef")
        for ref in refs:  # one call each: only this field must not have changed meanwhile
            one = ref_field(ref)
            program = pack((((2, key, b"0", one),), (), (("HDEL", key, one),), ()))
            self._link.script(COMMIT, key, program)


def scan_keys(link: Link, pattern: bytes) -> Iterator[list[bytes]]:
    """Pages of key names; a name may come twice."""
    cursor = b"0"
    while True:
        cursor, page = link.call("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE)
        yield page
        if cursor == b"0":
            return


def scan_hash(link: Link, key: bytes, count: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Pages of fields and values; a field may come twice. A small hash is one page."""
    cursor = b"0"
    while True:
        cursor, flat = link.call("HSCAN", key, cursor, "COUNT", count)
        yield pairs(flat)
        if cursor == b"0":
            return
