"""Which reads of a file are sequential, and how far ahead to read for them."""

from __future__ import annotations

from juicepy.concurrency import Lock

STREAMS = 8  # per file: several readers, or one that walks through several places
SLACK = 1 << 20  # requests of one stream come out of order by as much as the kernel reads ahead
TRUSTED = 512 << 10  # bytes in near sequence that make a stream without an exact continuation


class _Stream:
    __slots__ = ("ahead", "next", "total")

    def __init__(self, end: int) -> None:
        self.next = end  # where the next read is expected
        self.ahead = end  # up to where blocks were asked for
        self.total = 0  # bytes read in sequence


class Streams:
    """The sequential readers of a file. Thread-safe.

    The window of a stream is what it has read in sequence so far, from one block up to
    `window_bytes`. A read that continues no stream starts one and reads nothing ahead.
    """

    def __init__(self, block_size: int, window_bytes: int) -> None:
        self._block_size, self._window_bytes = block_size, window_bytes
        self._lock = Lock("streams")  # guards what follows
        self._streams: list[_Stream] = []  # the one used last is the last

    def note(self, offset: int, size: int) -> tuple[int, int] | None:
        """A read happens; the range [begin, end) to fetch ahead for it, if there is one."""
        end = offset + size
        with self._lock:
            stream = self._find_locked(offset)
            if stream is None:
                self._streams.append(_Stream(end))
                if len(self._streams) > STREAMS:
                    del self._streams[0]
                return None
            if stream is not self._streams[-1]:
                self._streams.remove(stream)
                self._streams.append(stream)
            is_next = offset == stream.next
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
        """The stream that the read continues, or that it is nearest to within the slack."""
        best: _Stream | None = None
        distance = SLACK
        for stream in reversed(self._streams):
            gap = offset - stream.next
            if gap == 0:
                return stream
            if -distance < gap < distance:
                best, distance = stream, abs(gap)
        return best
