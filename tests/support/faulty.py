"""An HTTP proxy in front of an object store, which fails requests as it is told."""

from __future__ import annotations

import http.client
import http.server
import itertools
import threading
import urllib.parse


class FaultyStore:
    """`url` leads to the store at `target`.

    Requests for blocks whose method `failing` holds ("PUT", "GET") are answered 500.
    `every` = n answers each n-th request for a block with 503, whatever its method; 0 none.
    """

    def __init__(self, target: str) -> None:
        self.failing: frozenset[str] = frozenset()
        self.every = 0
        self.failed = 0
        self._target = urllib.parse.urlsplit(target).netloc
        self._numbers = itertools.count(1)
        handler = type("Handler", (_Handler,), {"store": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def verdict(self, method: str, path: str) -> int:
        """The status to fail this request with, or 0 to let it pass."""
        if "/chunks/" not in path:
            return 0
        status = 0
        if method in self.failing:
            status = 500
        elif self.every and next(self._numbers) % self.every == 0:
            status = 503
        self.failed += status != 0
        return status

    def forward(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, bytes, list[tuple[str, str]]]:
        connection = http.client.HTTPConnection(self._target, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.getheaders()
        finally:
            connection.close()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(20)
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed or gave up is no failure here."""


class _Handler(http.server.BaseHTTPRequestHandler):
    store: FaultyStore
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status = self.store.verdict(self.command, self.path)
        if status:
            text = b"<Error><Code>InternalError</Code><Message>as told</Message></Error>"
            self._send(status, text, [("Content-Type", "application/xml")])
            return
        headers = {key: value for key, value in self.headers.items() if key != "Content-Length"}
        self._send(*self.store.forward(self.command, self.path, body, headers))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer

    def _send(self, status: int, body: bytes, headers: list[tuple[str, str]]) -> None:
        self.send_response(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # that of a HEAD answer belongs to no body here
            elif name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""
