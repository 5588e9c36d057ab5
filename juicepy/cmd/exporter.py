"""The metrics of a mount over HTTP, at `/metrics`."""

from __future__ import annotations

import errno
import logging
import os
import re
import selectors
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from juicepy.errors import Refused

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def parse_address(text: str) -> tuple[str, int]:
    """(host, port) of `--metrics`. Refused if it is none."""
    match = re.fullmatch(r"(?:\[([^\]]*)\]|([^:]*)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise Refused(f"--metrics {text!r} is no address, as in 127.0.0.1:9567")
    return match[1] or match[2] or "", int(match[3])


@contextmanager
def exporting(
    address: str, exposition: Callable[[], bytes], *, fall_back: bool = False
) -> Iterator[str]:
    """Serve what `exposition` returns; yields the address.

    If the port is taken (by another mount), a free one is found if `fall_back`, as for the
    default; an address that was asked for is used or, with an ERROR in the log, none.
    """
    if not address:
        yield ""
        return
    try:
        listening = _listen(*parse_address(address), exposition, fall_back=fall_back)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        logger.error("no metrics: --metrics %s: %s", address, error.strerror)
        yield ""
        return
    with listening as server:
        host, port = server.server_address[:2]
        found = f"{host!s}:{port}"
        stopped, stop = os.pipe()
        work = threading.Thread(target=_serve, args=[server, stopped], name="metrics", daemon=True)
        work.start()
        logger.info("Prometheus metrics listening on %s", found)
        try:
            yield found
        finally:
            os.close(stop)
            work.join()
            os.close(stopped)


def _serve(server: ThreadingHTTPServer, stopped: int) -> None:
    """Answer until the other end of the pipe `stopped` is closed.

    Not `serve_forever`: that looks twice a second whether it is to end, and ends that much later.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        selector.register(stopped, selectors.EVENT_READ)
        while all(key.fileobj is server for key, _ in selector.select()):
            server.handle_request()


def _listen(
    host: str, port: int, exposition: Callable[[], bytes], *, fall_back: bool
) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.split("?")[0] not in ("/metrics", "/"):
                self.send_error(404)
                return
            body = exposition()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            logger.debug(format, *args)

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise Refused(f"--metrics {host}:{port}: {error.strerror}") from error
        if not fall_back:
            raise
        return ThreadingHTTPServer((host, 0), Handler)
