"""The write path of a file: bytes become slices, slices become blocks, and then records.

A write goes to the end of an open slice of its chunk, or over its bytes that are not yet being
uploaded; else it starts a slice. A block is uploaded as soon as it is full. A slice is frozen at
the end of the chunk, after 5 s, when idle for 1 s, when newer ones crowd it out, and by `flush`.
Frozen slices whose blocks are stored are committed in the order they were started, over the whole
file: what the volume shows of a file after a failure is what was written up to some moment.

After a failed upload or commit nothing written and not yet committed is committed any more; the
next write or flush raises the error, once.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from juicepy.chunk.store import BlockStore
from juicepy.concurrency import Lock
from juicepy.types import CHUNK_BITS, CHUNK_SIZE, Attr, BlockKey, Inode, Slice, SliceId
from juicepy.vfs.buffers import WriteBuffers
from juicepy.vfs.pending import OpenSlice, Upload, as_oserror
from juicepy.vfs.tails import Tail

OPEN_SLICES = 8  # per chunk: enough for the streams of one file, few enough to search
PENDING_SLICES = 1000  # per file: more make the next fsync too long
REFUSALS = {errno.ENOENT, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPERM, errno.EROFS}
MAX_AGE_NS = 5_000_000_000
MAX_IDLE_NS = 1_000_000_000

Committed = Callable[[int, int, Attr], None]  # offset and length of a slice now visible, attr


class SliceSink(Protocol):
    """Where slices are committed: the part of the metadata client that a writer needs."""

    def new_slice(self) -> SliceId: ...

    @property
    def epoch(self) -> int: ...

    def write(
        self, ino: Inode, index: int, piece: Slice, mtime_ns: int, /, *, epoch: int
    ) -> Attr: ...


class FileWriter:
    """The writer of one inode, shared by its handles. Thread-safe.

    `committed` is called after each commit, before the data stops being dirty: a reader that is
    told there to look again never sees the time before the write. `lost` is called after data was
    given up, before the error is reported.
    """

    def __init__(
        self,
        meta: SliceSink,
        store: BlockStore,
        ino: Inode,
        buffers: WriteBuffers,
        committed: Committed | None = None,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.ino = ino
        self._meta, self._store, self._buffers = meta, store, buffers
        self._committed, self._lost = committed, lost
        self._block_size = store.block_size
        self._lock = Lock("file_writer")  # guards what follows
        self._pending: deque[OpenSlice] = deque()  # in order of creation
        self._open: dict[int, list[OpenSlice]] = {}  # per chunk, from the oldest open one on
        self._started = 0  # slices so far
        self._length = 0
        self._failures = 0  # so far; `_failure` is the one not yet reported
        self._failure: OSError | None = None
        self._last_failure: OSError | None = None
        self._turn = threading.Lock()  # whoever commits; held over uploads and commits

    # -- what a handle asks
    @property
    def length(self) -> int:
        """End of the last byte written and not yet committed; 0 if there is none."""
        return self._length

    def has_dirty(self, offset: int = 0, size: int | None = None) -> bool:
        """Whether bytes of the range are written and not yet committed."""
        if not self._pending:
            return False
        end = offset + size if size is not None else None
        with self._lock:
            return any(
                (end is None or piece.offset < end) and piece.offset + piece.length > offset
                for piece in self._pending
            )

    def write(self, offset: int, data: memoryview) -> None:
        """Take a copy of `data`. Raises what failed since the last write or flush.

        Waits while the mount has too much unwritten data.
        """
        if self._failure is not None:
            self._raise_failure()
        if len(self._pending) >= PENDING_SLICES:
            self.flush()
        failures, size = self._failures, len(data)
        self._buffers.take(size)
        done = grown = 0
        try:
            while done < size:
                rest = data[done:] if done else data
                taken, growth = self._write_some(offset + done, rest, failures)
                done += taken
                grown += growth
        finally:
            if grown < size:
                self._buffers.give_back(size - grown, uploaded=False)

    def flush(self) -> None:
        """Return when all that was written before is committed; raises what failed, once."""
        if self._failure is not None:
            self._raise_failure()
        if not self._pending:
            return
        failures = self._failures
        with self._lock:
            tails = [tail for piece in self._pending if (tail := self._freeze_locked(piece))]
            last = self._pending[-1] if self._pending else None
        for tail in tails[:-1]:
            tail.start()
        if tails:
            tails[-1].run()  # here: a small file costs no change of threads
        if last is not None:
            self._commit_through(last.number)
        if self._failures != failures:
            self._raise_failure(lost=True)

    def abandon(self, error: OSError) -> bool:
        """Give up what is not committed: it may not be any more. False if there was nothing.

        Only who is writing or flushing at this moment gets the error: the caller tells the others.
        """
        return self._give_up(error, kept=None, is_told=True)

    # -- what the buffers ask
    def advance(self, *, force: bool) -> bool:
        """Freeze old slices (`force`: all), commit what is ready. False: nothing is left."""
        if not self._pending:
            return False
        now_ns = time.time_ns()
        with self._lock:
            tails = [
                tail
                for piece in self._pending
                if (force or self._is_due(piece, now_ns)) and (tail := self._freeze_locked(piece))
            ]
        for tail in tails:
            tail.start()
        if self._turn.acquire(blocking=False):
            try:
                self._commit_ready()
            finally:
                self._turn.release()
        return bool(self._pending)

    # -- writing
    def _write_some(self, offset: int, data: memoryview, failures: int) -> tuple[int, int]:
        """Write what goes into one slice and one block: (bytes taken, bytes of growth).

        Raises if there were failures since `failures`: the first part of this write may be lost.
        """
        index, pos = offset >> CHUNK_BITS, offset & (CHUNK_SIZE - 1)
        size = min(len(data), CHUNK_SIZE - pos)
        spare: SliceId | None = None
        while True:
            if self._failures != failures:
                self._raise_failure(lost=True)
            with self._lock:
                if self._failures != failures:
                    continue
                piece = self._writable_locked(index, pos, size)
                if piece is None and spare is not None:
                    piece = self._begin_locked(spare, index, pos)
                if piece is not None:
                    before = piece.length
                    size, tails = self._fill_locked(piece, pos, data[:size])
                    growth = piece.length - before
                    break
            spare = self._meta.new_slice()  # may ask the engine, so not under the lock
        for tail in tails:
            tail.start()
        return size, growth

    def _writable_locked(self, index: int, pos: int, size: int) -> OpenSlice | None:
        """The newest open slice that can take the write with no newer one below it."""
        for piece in reversed(self._open.get(index, ())):
            end = piece.pos + piece.length
            if not piece.is_frozen and piece.pos + piece.sealed <= pos <= end:
                return piece
            if piece.pos < pos + size and pos < end:
                return None
        return None

    def _begin_locked(self, slice_id: SliceId, index: int, pos: int) -> OpenSlice:
        self._started += 1
        tail = Tail(self._buffers.room)
        piece = OpenSlice(self._started, slice_id, index, pos, time.time_ns(), tail)
        is_first = not self._pending
        self._pending.append(piece)
        self._open.setdefault(index, []).append(piece)
        if is_first:
            self._buffers.note_dirty(self)
        return piece

    def _fill_locked(
        self, piece: OpenSlice, pos: int, data: memoryview
    ) -> tuple[int, list[Upload]]:
        """Put `data` at `pos` as far as the block goes: (bytes taken, uploads to start)."""
        at = pos - piece.pos - piece.sealed
        room = self._block_size - at
        if len(data) > room:
            data = data[:room]
        tail = piece.tail
        tail.put(at, data)
        piece.mtime_ns = time.time_ns()
        end = (piece.index << CHUNK_BITS) + pos + len(data)
        self._length = max(self._length, end)
        uploads: list[Upload | None] = []
        if len(tail) == self._block_size:
            uploads.append(self._seal_locked(piece))
        if piece.pos + piece.length == CHUNK_SIZE:
            uploads.append(self._freeze_locked(piece))
        opened = self._open.get(piece.index)
        if opened is not None and len(opened) > OPEN_SLICES:
            uploads.append(self._freeze_locked(opened[0]))
        return len(data), [upload for upload in uploads if upload is not None]

    def _is_due(self, piece: OpenSlice, now_ns: int) -> bool:
        if piece.is_frozen:
            return False
        return now_ns - piece.started_ns > MAX_AGE_NS or now_ns - piece.mtime_ns > MAX_IDLE_NS

    def _freeze_locked(self, piece: OpenSlice) -> Upload | None:
        """Take no more into the slice; the upload of its last, short block, if there is one."""
        if piece.is_frozen:
            return None
        upload = self._seal_locked(piece) if piece.tail else None
        piece.is_frozen = True
        opened = self._open[piece.index]
        while opened and opened[0].is_frozen:
            del opened[0]
        if not opened:
            del self._open[piece.index]
        return upload

    def _seal_locked(self, piece: OpenSlice) -> Upload:
        """Hand the tail over: from now on nobody changes these bytes."""
        block = BlockKey(piece.id, piece.sealed // self._block_size, len(piece.tail))
        upload = Upload(self._store, self._buffers, block, piece.tail)
        piece.uploads.append(upload.done)
        piece.sealed += block.size
        piece.tail = Tail(self._buffers.room)
        return upload

    # -- committing
    def _commit_through(self, number: int) -> None:
        """Wait for uploads and commit in order, up to slice `number`, all of them frozen."""
        with self._turn:  # only its holder takes slices away
            while self._pending and self._pending[0].number <= number:
                if not self._commit(self._pending[0]):
                    return

    def _commit_ready(self) -> None:
        """Commit from the front what is frozen and uploaded, without waiting."""
        while True:
            with self._lock:
                piece = self._pending[0] if self._pending else None
                if piece is None or not piece.is_frozen:
                    return
                if not all(upload.done() for upload in piece.uploads):
                    return
            if not self._commit(piece):
                return

    def _commit(self, piece: OpenSlice) -> bool:
        """Store the record of the frozen front slice; False after a failure. Holds the turn."""
        epoch = self._meta.epoch  # first: what is given up with its session is seen below, or there
        is_tried, failures = False, self._failures
        try:
            for upload in piece.uploads:
                upload.result()  # ends: the object layer has timeouts and bounded retries
            if self._failures != failures:
                raise OSError(errno.EIO, "given up meanwhile")
            is_tried = True
            record = Slice(piece.pos, piece.id, piece.length, 0, piece.length)
            attr = self._meta.write(self.ino, piece.index, record, piece.mtime_ns, epoch=epoch)
        except Exception as problem:
            error = as_oserror(problem)
            may_be_stored = is_tried and error.errno not in REFUSALS
            if self._failures != failures:  # it was abandoned with all but its blocks
                if not may_be_stored:
                    self._remove_when_landed(piece)
                return False
            self._give_up(error, kept=piece if may_be_stored else None)
            return False
        if self._committed is not None:
            self._committed(piece.offset, piece.length, attr)
        with self._lock:
            if self._failures == failures:
                self._pending.popleft()
            if not self._pending:
                self._length = 0
        return True

    # -- failing
    def _give_up(self, error: OSError, kept: OpenSlice | None, *, is_told: bool = False) -> bool:
        """Drop all that is not committed; keep the error for the next write or flush.

        `is_told`: those need not be told. The blocks of `kept`, whose commit may have come
        through, stay; the others are removed. False if there was nothing to drop.
        """
        with self._lock:
            dropped = list(self._pending)
            if not dropped and is_told:
                return False
            if is_told and self._turn.locked():
                kept = dropped[0]  # somebody is committing it, and sees to its blocks
            tails = sum(len(piece.tail) for piece in dropped)
            self._pending.clear()
            self._open.clear()
            self._length = 0
            self._failures += 1
            self._last_failure = error
            self._failure = None if is_told else error
            for piece in dropped:
                piece.is_frozen = True
                piece.tail.release()
        if tails:
            self._buffers.give_back(tails, uploaded=False)
        for piece in dropped:
            if piece is not kept and piece.sealed:
                self._remove_when_landed(piece)
        self._lost()
        return True

    def _remove_when_landed(self, piece: OpenSlice) -> None:
        """Delete the blocks of a dropped slice after the last of its uploads has ended."""
        left = len(piece.uploads)
        lock = threading.Lock()

        def landed(_: Future[None]) -> None:
            nonlocal left
            with lock:
                left -= 1
                is_last = left == 0
            if is_last:
                self._store.discard(piece.id, piece.sealed)

        for upload in piece.uploads:
            upload.add_done_callback(landed)

    def _raise_failure(self, *, lost: bool = False) -> None:
        """Report the failure; if another call did already, only a caller whose data is `lost`."""
        with self._lock:
            error, self._failure = self._failure, None
            if error is None and lost:
                error = self._last_failure
        if error is not None:
            raise OSError(error.errno, error.strerror, error.filename) from error
