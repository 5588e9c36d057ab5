"""Responses that are late, cut off or damaged give right bytes or an error, never wrong bytes."""

from __future__ import annotations

import http.server
import os
import random
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from juicepy.cache.disks import open_cache
from juicepy.cache.options import CacheOptions
from juicepy.chunk.layout import Layout
from juicepy.chunk.store import BlockStore, StoreOptions
from juicepy.object.registry import create_storage
from juicepy.object.retry import Retrying
from juicepy.types import SliceId

BLOCK = 65536
SIZE = 24 * BLOCK
THREADS, READS = 32, 8
CONTENT = struct.pack(f"<{SIZE // 8}Q", *range(0, SIZE, 8))  # each 8 bytes tell their offset


class UnreliableBucket:
    """As much of S3 as a reader and a writer need. `faults` are the chances of what goes wrong.

    Damaged are only answers to requests for whole objects: no checksum covers a range.
    """

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}  # data, its checksum as the writer told it
        self.faults: dict[str, float] = {}
        self.seen: Counter[str] = Counter()
        self._chance = random.Random(7)
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"bucket": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/bucket"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def fault(self, *, is_whole: bool) -> str:
        with self._lock:
            left = self._chance.random()
            for name, share in self.faults.items():
                left -= share
                if left < 0 and (is_whole or name != "damaged"):
                    self.seen[name] += 1
                    return name
            return ""

    def damaged(self, data: bytes) -> bytes:
        at = self._chance.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self._chance.randrange(8)]) + data[at + 1 :]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(20)
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up is no failure here."""


class _Handler(http.server.BaseHTTPRequestHandler):
    bucket: UnreliableBucket
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.bucket.objects[self.path] = data, self.headers.get("x-amz-meta-crc32c", "")
        self._send(200, b"")

    def do_GET(self) -> None:
        data, checksum = self.bucket.objects[self.path]
        asked = (self.headers.get("Range") or "").removeprefix("bytes=")
        fault = self.bucket.fault(is_whole=not asked)
        headers = {"x-amz-meta-crc32c": checksum} if checksum else {}
        status, body = 200, data
        if asked:
            first, last = map(int, asked.split("-"))
            status, body = 206, data[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{first + len(body) - 1}/{len(data)}"
        if fault == "late":
            threading.Event().wait(0.05)
        elif fault == "refused":
            status, body = 503, b"<Error><Code>SlowDown</Code></Error>"
        elif fault == "damaged":
            body = self.bucket.damaged(body)
        self._send(status, body, headers, cut=fault == "cut")

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, *, cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("ETag", '"tag"')
        self.send_header("Last-Modified", "Mon, 02 Nov 2026 07:28:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection |= cut

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def bucket() -> Iterator[UnreliableBucket]:
    bucket = UnreliableBucket()
    yield bucket
    bucket.close()


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("cached", [True, False], ids=["cache", "no-cache"])
def test_readers_get_right_bytes_or_an_error(
    bucket: UnreliableBucket, tmp_path: Path, compression: str, cached: bool
) -> None:
    with ExitStack() as stack:
        storage = create_storage("s3", bucket.url, "key", "secret")
        stack.callback(storage.close)
        layout = Layout(BLOCK)
        options = CacheOptions(
            dirs=str(tmp_path), size=SIZE // 3 if cached else 0, free_space=0.001
        )
        cache = open_cache(options, "volume", layout)
        stack.callback(cache.close)
        patient = Retrying(storage, 2, pause=lambda seconds: None)
        small = StoreOptions(buffer_size=4 * BLOCK, max_downloads=16, io_retries=2)
        store = BlockStore(patient, cache, layout, compression, small)
        stack.callback(store.close)
        for block in layout.blocks(SliceId(1), SIZE):
            at = block.index * BLOCK
            store.put(block, CONTENT[at : at + block.size])
        bucket.faults = {"late": 0.05, "cut": 0.15, "damaged": 0.15, "refused": 0.1}
        outcomes: Counter[str] = Counter()
        lock = threading.Lock()

        def read(seed: int) -> None:
            chance = random.Random(seed)
            for _ in range(READS):
                length = chance.choice([8, 4096, BLOCK // 2, BLOCK, 3 * BLOCK])
                offset = chance.randrange(0, SIZE - length + 1, 8)
                try:
                    data = b"".join(store.read(SliceId(1), SIZE, offset, length))
                    outcome = "right" if data == CONTENT[offset : offset + length] else "wrong"
                except OSError:
                    outcome = "failed"
                with lock:
                    outcomes[outcome] += 1

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert outcomes["wrong"] == 0
    assert sum(outcomes.values()) == THREADS * READS
    assert outcomes["right"] > THREADS * READS // 2
    assert set(bucket.seen) == set(bucket.faults)


def test_cut_and_foreign_files_of_local_storage_are_errors(tmp_path: Path) -> None:
    """What a file system returns is believed; only its length is known."""
    with ExitStack() as stack:
        storage = create_storage("file", f"{tmp_path}/objects/")
        storage.create()
        layout = Layout(BLOCK)
        cache = open_cache(CacheOptions(size=0), "volume", layout)
        store = BlockStore(storage, cache, layout, "none", StoreOptions())
        stack.callback(store.close)
        block = layout.block(SliceId(1), BLOCK, 0)
        store.put(block, CONTENT[:BLOCK])
        os.truncate(tmp_path / "objects" / layout.object_key(block), BLOCK - 8)
        for offset, length in ((0, BLOCK), (BLOCK - 4096, 4096)):
            with pytest.raises(OSError, match="bytes"):
                store.read(SliceId(1), BLOCK, offset, length)
