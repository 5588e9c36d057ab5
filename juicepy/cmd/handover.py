"""What a mount process gets besides its arguments: the metadata URL, and whom to tell of success.

Arguments show in `ps`, so a URL with a password travels through a pipe, and the arguments hold it
with `****`. A mount in the background reports through a second pipe: one line, then the end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from juicepy import urls

URL_FD = "JFS_META_URL_FD"
REPORT_FD = "JFS_REPORT_FD"
READY = "ready"


def url_pipe(url: str) -> int:
    """The reading end of a pipe that holds the URL; inheritable."""
    reader, writer = os.pipe()
    os.write(writer, url.encode())
    os.close(writer)
    os.set_inheritable(reader, True)
    return reader


def take_url() -> str | None:
    """The URL that the parent handed over, once; None where there was none."""
    fd = os.environ.pop(URL_FD, None)
    if fd is None:
        return None
    with os.fdopen(int(fd), "rb") as pipe:
        return pipe.read().decode()


def own_command(arguments: Sequence[str]) -> list[str]:
    """The command line of this program with `arguments`."""
    return [sys.executable, "-P", "-m", "juicepy.cmd.main", *arguments]


def hidden(arguments: Sequence[str], given_url: str) -> list[str]:
    """The arguments with the password of the URL among them blotted out."""
    return [urls.redact(word) if word == given_url else word for word in arguments]


def hide_in_ps(arguments: Sequence[str], given_url: str, url: str) -> None:
    """Begin this process anew without the password in its arguments; returns if there is none."""
    if not urls.secrets_of(given_url):
        return
    os.environ[URL_FD] = str(url_pipe(url))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, own_command(hidden(arguments, given_url)))


class Report:
    """The line to the parent that waits for a mount in the background. Without one: nothing."""

    def __init__(self) -> None:
        fd = os.environ.pop(REPORT_FD, None)
        self._fd = None if fd is None else int(fd)
        if self._fd is not None:
            os.set_inheritable(self._fd, False)

    def send_to(self, fd: int) -> None:
        """From now on the parent listens at this descriptor."""
        self._fd = fd

    def ready(self) -> None:
        self._send(READY)

    def failed(self, reason: str) -> None:
        self._send(" ".join(reason.split()))

    def _send(self, text: str) -> None:
        fd, self._fd = self._fd, None
        if fd is None:
            return
        try:
            os.write(fd, text.encode(errors="replace"))
        except BrokenPipeError:
            return  # the parent was killed; the mount goes on
        finally:
            os.close(fd)
