"""Which reads of a file are sequential, and how far ahead to read for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from juicepy.concurrency import Lock

STREAMS = 64  # per file: the readers of a data loader, each in its own part
SLACK_BITS = 20  # requests of one stream come out of order by as much as the kernel reads ahead
SLACK = 1 << SLACK_BITS
SLACK_REQUESTS = 8  # but not by more than so many: small random reads lie near each other too
TRUSTED = 512 << 10  # bytes in near sequence that make a stream without an exact continuation


class Stream:
    """One sequential reader. Changed under the lock of its `Streams`."""

    __slots__ = ("ahead", "next", "total", "widest")

    def __init__(self, end: int, widest: int) -> None:
        self.next = end  # where the next read is expected
        self.ahead = end  # up to where blocks were asked for
        self.total = 0  # bytes read in sequence
        self.widest = widest  # that the window may become


class Streams:
    """The sequential readers of a file. Thread-safe.

    The window of a stream is what it has read in sequence so far, from one block up to
    `window_bytes`; it goes on growing up to `most_bytes` while the stream has to wait for blocks.
    A read that continues no stream starts one and reads nothing ahead.
    """

    def __init__(self, block_size: int, window_bytes: int, most_bytes: int = 0) -> None:
        self._block_size, self._window_bytes = block_size, window_bytes
        self._most_bytes = max(window_bytes, most_bytes)
        self._lock = Lock("streams")  # guards what follows
        self._streams: OrderedDict[Stream, None] = OrderedDict()  # the one used last is the last
        self._near: dict[int, list[Stream]] = {}  # by the MiB in which they are expected

    def note(self, offset: int, size: int) -> tuple[Stream, int, int] | None:
        """A read happens; the range [begin, end) to fetch ahead for its stream, if there is one."""
        end = offset + size
        with self._lock:
            stream = self._find_locked(offset, size)
            if stream is None:
                self._begin_locked(end)
                return None
            self._streams.move_to_end(stream)
            is_next = offset == stream.next
            if end > stream.next:
                self._move_locked(stream, end)
            stream.total += size
            if not is_next and stream.total < TRUSTED:
                return None
            window = min(max(self._block_size, stream.total), stream.widest)
            target = end + window
            # Asked for in steps of half a window: a request of the kernel costs us little else.
            if target - stream.ahead < window // 2:
                return None
            begin = max(stream.ahead, end)
            stream.ahead = target
            return stream, begin, target

    def stopped(self, stream: Stream, at: int) -> None:
        """There was no room for more than up to `at`: the rest is asked for again."""
        with self._lock:
            stream.ahead = min(stream.ahead, at)

    def waited(self, stream: Stream) -> None:
        """The stream has come to a block that is not here yet: its window is too small."""
        with self._lock:
            if stream.total >= stream.widest:
                stream.widest = min(2 * stream.widest, self._most_bytes)

    def _begin_locked(self, end: int) -> None:
        stream = Stream(end, self._window_bytes)
        self._streams[stream] = None
        self._near.setdefault(end >> SLACK_BITS, []).append(stream)
        if len(self._streams) > STREAMS:
            self._leave_locked(self._streams.popitem(last=False)[0])

    def _move_locked(self, stream: Stream, end: int) -> None:
        if stream.next >> SLACK_BITS != end >> SLACK_BITS:
            self._leave_locked(stream)
            self._near.setdefault(end >> SLACK_BITS, []).append(stream)
        stream.next = end

    def _leave_locked(self, stream: Stream) -> None:
        near = self._near[stream.next >> SLACK_BITS]
        near.remove(stream)
        if not near:
            del self._near[stream.next >> SLACK_BITS]

    def _find_locked(self, offset: int, size: int) -> Stream | None:
        """The stream that the read continues, or that it is nearest to within the slack."""
        best: Stream | None = None
        distance = min(SLACK, SLACK_REQUESTS * size)
        for stream in self._around_locked(offset >> SLACK_BITS):
            gap = abs(offset - stream.next)
            if gap == 0:
                return stream
            if gap < distance:
                best, distance = stream, gap
        return best

    def _around_locked(self, place: int) -> Iterator[Stream]:
        for near in (place, place - 1, place + 1):
            yield from self._near.get(near, ())
