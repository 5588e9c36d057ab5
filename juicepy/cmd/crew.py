"""`jfs mount --workers N`: the other processes that serve a read-only mount.

They are started with the arguments of the first, which is the one that mounts, and get what they
need besides through the environment. They end when the mount is gone, and with the first process.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from juicepy.cmd import daemon, handover
from juicepy.errors import Refused

if TYPE_CHECKING:
    from juicepy.fuse.crew import Post

logger = logging.getLogger(__name__)

_POST = "JFS_CREW_POST"
_END_S = 60.0
_PR_SET_PDEATHSIG = 1


def take_post() -> Post | None:
    """What this process is to serve beside another one; None where it is the first."""
    text = os.environ.pop(_POST, None)
    if text is None:
        return None
    from juicepy.fuse.crew import Post
    from juicepy.fuse.negotiate import Agreed

    told = json.loads(text)
    _end_with(told["leader"])
    post = Post(
        told["index"],
        tuple(told["fds"]),
        {int(peer): fd for peer, fd in told["links"].items()},
        Agreed(*told["agreed"]),
    )
    for fd in post.inherited():
        os.set_inheritable(fd, False)
    return post


def _end_with(leader: int) -> None:
    """Be killed when the first process ends; Ctrl-C and SIGTERM are for that one."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != leader:
        raise Refused("the process that mounted has ended")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


class Processes:
    """The crew of a mount (`juicepy.fuse.server.Crew`)."""

    def __init__(self, arguments: Sequence[str], url: str) -> None:
        """`arguments` of this process, without the secrets of `url`."""
        self._arguments, self._url = arguments, url
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, posts: Sequence[Post]) -> None:
        readers = [self._start(post) for post in posts]
        try:
            for number, reader in enumerate(readers, 1):
                told = daemon.wait_told(reader)
                if told != handover.READY:
                    raise Refused(
                        f"process {number} of the mount: {told or 'ended without a word'}"
                    )
        except BaseException:
            self._kill()
            raise
        finally:
            for reader in readers:
                os.close(reader)

    def _start(self, post: Post) -> int:
        """The reading end of the pipe through which the process reports."""
        reader, writer = os.pipe()
        url_fd = handover.url_pipe(self._url)
        agreed = post.agreed
        told = {
            "leader": os.getpid(),
            "index": post.index,
            "fds": post.fds,
            "links": post.links,
            "agreed": [agreed.minor, agreed.flags, agreed.max_write],
        }
        handed = {handover.URL_FD: str(url_fd), handover.REPORT_FD: str(writer)}
        try:
            process = subprocess.Popen(
                handover.own_command(self._arguments),
                stdin=subprocess.DEVNULL,
                pass_fds=(*post.inherited(), url_fd, writer),
                env={**os.environ, **handed, _POST: json.dumps(told)},
            )
        finally:
            os.close(writer)
            os.close(url_fd)
        self._running.append(process)
        return reader

    def failed(self) -> bool:
        return any(process.poll() is not None for process in self._running)

    def wait_ended(self) -> None:
        end_s = time.monotonic() + _END_S
        for process in self._running:
            try:
                process.wait(max(0.0, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                logger.error("process %d of the mount does not end: it is killed", process.pid)
                process.kill()
                process.wait()

    def _kill(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()
