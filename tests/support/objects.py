"""Object stores for tests: an S3 server (moto), Azurite, and small HTTP servers of our own.

The servers that are processes start when first asked for and end with the test session.
"""

from __future__ import annotations

import contextlib
import http.server
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar
from urllib.parse import parse_qs
from xml.sax.saxutils import escape as xml_escape

import pytest

from juicepy.object.registry import create_storage
from tests.support.waiting import wait_for

ACCESS_KEY, SECRET_KEY = "testkey", "testsecret"
AZURE_ACCOUNT = "devstoreaccount1"
# the published key of every Azure emulator
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

_numbers = itertools.count(os.getpid() * 1000)


def new_bucket_name() -> str:
    """A bucket name that no other test of this machine's run uses."""
    return f"bucket{next(_numbers)}"


class S3Server:
    """A moto server; any key is accepted. `url` is its endpoint."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def new_bucket(self) -> str:
        """A bucket URL as `--bucket` takes it; the bucket does not exist yet."""
        return f"{self.url}/{new_bucket_name()}"

    def made_bucket(self) -> str:
        """The URL of a bucket that exists; the real client cannot make one on this server."""
        bucket = self.new_bucket()
        create_storage("s3", bucket, ACCESS_KEY, SECRET_KEY).create()
        return bucket


class AzureServer:
    """Azurite's blob service."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
        self.connection_string = (
            f"DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};"
            f"AccountKey={AZURE_KEY};BlobEndpoint={self.url};"
        )

    def new_bucket(self) -> str:
        """A `--bucket` for a container that does not exist yet; needs the connection string."""
        return f"http://{new_bucket_name()}.127.0.0.1:{self.port}"


@contextlib.contextmanager
def running_s3() -> Iterator[S3Server]:
    port = _free_port()
    words = [sys.executable, "-c", "from moto.server import main; main()"]
    with _server([*words, "-H", "127.0.0.1", "-p", str(port)], port, Path.cwd()):
        yield S3Server(port)


@contextlib.contextmanager
def running_azurite() -> Iterator[AzureServer]:
    program = shutil.which("azurite-blob")
    assert program, "azurite-blob is not on PATH: npm install -g azurite"
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="azurite") as home:
        words = [program, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        words += ["--location", home, "--blobHost", "127.0.0.1", "--blobPort", str(port)]
        with _server(words, port, Path(home)):
            yield AzureServer(port)


@contextlib.contextmanager
def _server(words: list[str], port: int, home: Path) -> Iterator[None]:
    """A server process; on return from entering it answers HTTP on `port`."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home
        )

        def answers() -> bool:
            if process.poll() is not None:
                log.seek(0)
                pytest.fail(f"{words[0]} ended: {log.read()[-2000:].decode(errors='replace')}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
            except urllib.error.HTTPError as error:
                error.close()
            return True

        try:
            wait_for(answers, f"an answer on port {port}", timeout_s=120)
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_S3 = pytest.StashKey[S3Server]()
_AZURE = pytest.StashKey[AzureServer]()
T = TypeVar("T")


def _shared(
    config: pytest.Config, key: pytest.StashKey[T], start: Callable[[], AbstractContextManager[T]]
) -> T:
    """The one server of the test session, whichever modules import the fixture."""
    if key not in config.stash:
        stack = contextlib.ExitStack()
        config.stash[key] = stack.enter_context(start())
        config.add_cleanup(stack.close)
    return config.stash[key]


@pytest.fixture(scope="session")
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    return _shared(request.config, _S3, running_s3)


@pytest.fixture(scope="session")
def azure_server(request: pytest.FixtureRequest) -> AzureServer:
    return _shared(request.config, _AZURE, running_azurite)


class GoogleServer:
    """As much of Google Storage's XML interface as a client of one bucket needs; all are allowed.

    Listings come in pages of three.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        handler = type("Handler", (_GoogleHandler,), {"store": self})
        self._server = _ThreadingServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def page(self, prefix: str, after: str) -> tuple[list[str], bool]:
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        return keys[:3], len(keys) > 3

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(20)
        self._server.server_close()


class _GoogleHandler(http.server.BaseHTTPRequestHandler):
    store: GoogleServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        if url.query:
            self._list({name: values[0] for name, values in parse_qs(url.query).items()})
            return
        data = self.store.objects.get(self._key())
        if data is None:
            self._send(404)
            return
        asked = (self.headers.get("Range") or "").removeprefix("bytes=")
        if not asked:
            self._send(200, data)
            return
        first, _, last = asked.partition("-")
        start, end = int(first), min(int(last or len(data)) + 1, len(data))
        if start >= len(data):
            self._send(416)
            return
        where = f"bytes {start}-{end - 1}/{len(data)}"
        self._send(206, data[start:end], {"Content-Range": where})

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.store.objects[self._key()] = self.rfile.read(length)
        self._send(200)

    def do_DELETE(self) -> None:
        self._send(204 if self.store.objects.pop(self._key(), None) is not None else 404)

    def _key(self) -> str:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        return path.lstrip("/").partition("/")[2]

    def _list(self, query: dict[str, str]) -> None:
        after = max(query.get("continuation-token", ""), query.get("start-after", ""))
        keys, more = self.store.page(query.get("prefix", ""), after)
        found = "".join(
            f"<Contents><Key>{xml_escape(key)}</Key><Size>{len(self.store.objects[key])}</Size>"
            "<LastModified>2026-11-02T07:28:00.000Z</LastModified><ETag>tag</ETag></Contents>"
            for key in keys
        )
        if more:
            found += f"<NextContinuationToken>{xml_escape(keys[-1])}</NextContinuationToken>"
        self._send(200, f"<ListBucketResult>{found}</ListBucketResult>".encode())

    def _send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"tag"')
        self.send_header("Last-Modified", "Mon, 02 Nov 2026 07:28:00 GMT")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def google_server() -> Iterator[GoogleServer]:
    server = GoogleServer()
    yield server
    server.close()


class ScriptedServer:
    """An HTTP server that answers as it is told.

    `answers` is a list of what the next requests get, the last of which stays: an HTTP status,
    `"reset"` (the connection is reset unanswered), `"slow"` (no answer until the server closes),
    `"trickle"` (a body that comes too slowly to end), `"short"` (a body cut off), or the bytes of
    a body that is sent with 200. `requests` holds (method, path) of all that came, `bodies` and
    `sent_headers` what came with them.
    """

    def __init__(self) -> None:
        self.answers: list[int | str | bytes] = [200]
        self.headers: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        self.sent_headers: list[dict[str, str]] = []
        self.ended = threading.Event()
        handler = type("Handler", (_ScriptedHandler,), {"script": self})
        self._server = _ThreadingServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def next_answer(self) -> int | str | bytes:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._thread.join(20)
        self._server.server_close()


class _ThreadingServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up is what these tests are about."""


class _ScriptedHandler(http.server.BaseHTTPRequestHandler):
    script: ScriptedServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _answer(self) -> None:
        self.script.bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        self.script.sent_headers.append({k.lower(): v for k, v in self.headers.items()})
        self.script.requests.append((self.command, self.path))
        answer = self.script.next_answer()
        if isinstance(answer, int):
            body = b"<Error><Code>Scripted</Code></Error>" if answer >= 400 else b""
            self._send(answer, body, len(body))
        elif isinstance(answer, bytes):
            self._send(200, answer, len(answer))
        else:
            self.close_connection = True
            getattr(self, f"_{answer}")()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer

    def _reset(self) -> None:
        linger_zero = b"\1\0\0\0\0\0\0\0"
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_zero)
        self.connection.close()

    def _slow(self) -> None:
        self.script.ended.wait(60)

    def _trickle(self) -> None:
        self._send(200, b"some", 1000)
        while not self.script.ended.wait(0.05):
            self.wfile.write(b"x")

    def _short(self) -> None:
        self._send(200, b"some", 1000)

    def _send(self, status: int, body: bytes, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("ETag", '"tag"')
        self.send_header("Last-Modified", "Mon, 02 Nov 2026 07:28:00 GMT")
        for name, value in self.script.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def scripted_server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


class Pauses:
    """Stands for sleeping: keeps how long, and returns at once."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


def timed(call: Callable[[], object]) -> float:
    """Seconds that `call` takes, whether it raises OSError or not."""
    start = time.monotonic()
    with contextlib.suppress(OSError):
        call()
    return time.monotonic() - start
