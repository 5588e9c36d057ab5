"""Which reads of a file are sequential, and how far ahead to read for them."""

from __future__ import annotations

from juicepy.concurrency import Lock

STREAMS = 8  # per file: several readers, or one that walks through several places
SLACK = 1 << 20  # requests of one stream come out of order by as much as the kernel reads ahead
TRUSTED = 512 << 10  # bytes in near sequence that make a stream without an exact continuation


class _Stream:
    __slots__ = ("ahead", "next", "total", "used")

    def __init__(self, end: int, used: int) -> None:
        self.next = end  # where the next read is expected
        self.ahead = end  # up to where blocks were asked for
        self.total = 0  # bytes read in sequence
        self.used = used


class Streams:
    """The sequential readers of a file. Thread-safe.

    The window of a stream is what it has read in sequence so far, from one block up to
    `window_bytes`. A read that continues no stream starts one and reads nothing ahead.
    """

    def __init__(self, block_size: int, window_bytes: int) -> None:
        self._block_size, self._window_bytes = block_size, window_bytes
        self._lock = Lock("streams")  # guards what follows
        self._streams: list[_Stream] = []
        self._clock = 0

    def note(self, offset: int, size: int) -> tuple[int, int] | None:
        """A read happens; the range [begin, end) to fetch ahead for it, if there is one."""
        end = offset + size
        with self._lock:
            self._clock += 1
            stream = self._find_locked(offset)
            if stream is None:
                self._start_locked(end)
                return None
            is_next = offset == stream.next
            stream.used = self._clock
            stream.next = max(stream.next, end)
            stream.total += size
            if not is_next and stream.total < TRUSTED:
                return None
            window = min(max(self._block_size, stream.total), self._window_bytes)
            target = end + window
            # Asked for in steps of half a window: a request of the kernel costs us little else.
            if target - stream.ahead < window // 2:
                return None
            begin = max(stream.ahead, end)
            stream.ahead = target
            return begin, target

    def _find_locked(self, offset: int) -> _Stream | None:
        best: _Stream | None = None
        distance = SLACK
        for stream in self._streams:
            gap = abs(offset - stream.next)
            if gap < distance or gap == 0:
                best, distance = stream, gap
        return best

    def _start_locked(self, end: int) -> None:
        self._streams.append(_Stream(end, self._clock))
        if len(self._streams) > STREAMS:
            self._streams.remove(min(self._streams, key=lambda stream: stream.used))
