"""A `ToyFs` mounted by a process of its own, which the test can look into.

Own process: a page fault on the mount with this interpreter's lock held would never be served.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from juicepy.fuse import mounts
from juicepy.fuse.options import FuseOptions

TIMEOUT_S = 60.0
NOBODY = 65534


class ToyMount:
    """The other side: `path`, and `run`/`ask` to execute there, where `fs` is the `ToyFs`."""

    def __init__(self, path: Path, link: Connection, process: BaseProcess) -> None:
        self.path, self.process = path, process
        self._link = link
        self._lock = threading.Lock()

    def run(self, code: str) -> None:
        self._call("run", code)

    def ask(self, expression: str) -> Any:
        return self._call("ask", expression)

    def calls(self, method: str) -> int:
        return int(self.ask(f"fs.calls[{method!r}]"))

    def _call(self, verb: str, code: str) -> Any:
        with self._lock:
            self._link.send((verb, code))
            assert self._link.poll(TIMEOUT_S), f"no answer to {code}"
            fine, value = self._link.recv()
        assert fine, value
        return value

    def wait_ended(self) -> list[Any]:
        """[how often destroy was called, threads left, error lines], once the server returned."""
        assert self._link.poll(TIMEOUT_S), "the server does not end"
        fine, value = self._link.recv()
        assert fine, value
        self.process.join(TIMEOUT_S)
        return list(value)


@contextmanager
def toy_mount(
    options: FuseOptions | None = None,
    *,
    front: str = "kernel",
    uid: int = 0,
    setup: str = "",
    path: Path | None = None,
) -> Iterator[ToyMount]:
    """A mounted toy; unmounted and ended whatever happens. `setup` runs before the mount."""
    base = Path(tempfile.mkdtemp(prefix="toy."))
    where = path or base / "mnt"
    try:
        base.chmod(0o755)
        if path is None:
            where.mkdir()
            os.chown(where, uid, uid)
        with _server(where, options or FuseOptions("JuiceFS:toy"), front, uid, setup) as toy:
            yield toy
    finally:
        shutil.rmtree(base, ignore_errors=True)


@contextmanager
def _server(
    where: Path, options: FuseOptions, front: str, uid: int, setup: str
) -> Iterator[ToyMount]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(theirs, str(where), options, front, uid, setup), daemon=True
    )
    process.start()
    theirs.close()
    try:
        assert ours.poll(TIMEOUT_S), "the mount does not come up"
        fine, value = ours.recv()
        if not fine:
            raise AssertionError(value)
        yield ToyMount(where, ours, process)
    finally:
        end(process, where)


def end(process: BaseProcess, where: Path) -> None:
    """Unmount and end the process, the hard way if need be."""
    try:
        mounts.unmount(where, lazy=True)
    except OSError:
        pass  # a test has unmounted it
    process.join(10)
    if process.is_alive():
        process.kill()
        process.join()
    while mounts.is_mounted(where):
        mounts.unmount(where, lazy=True)


def _serve(
    link: Connection, path: str, options: FuseOptions, front: str, uid: int, setup: str
) -> None:
    """The process: serves the mount in its main thread, answers the test in another."""
    from juicepy.fuse import server
    from tests.support.toyfs import ToyFs

    errors: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: errors.append(_formatted(record))  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    fs, stop = ToyFs(), threading.Event()
    known = {"fs": fs, "stop": stop, "errors": errors, "os": os, "time": time, "sys": sys}
    known["threading"] = threading
    exec(setup, known)
    serve = server.serve
    if front == "llfuse":
        from juicepy.fuse import llfuse_front

        serve = llfuse_front.serve
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    before = set(threading.enumerate())
    console = threading.Thread(target=_answer, args=(link, known), daemon=True)
    before.add(console)

    def ready() -> None:
        link.send((True, "ready"))
        console.start()

    try:
        serve(fs, path, options, ready=ready, stop=stop)
    except BaseException:
        link.send((False, traceback.format_exc()))
        return
    after = set(threading.enumerate()) - before
    left = [t.name for t in after if not isinstance(t, threading._DummyThread)]
    link.send((True, [fs.destroyed, left, errors]))
    link.close()


def _formatted(record: logging.LogRecord) -> str:
    return logging.Formatter("%(levelname)s %(message)s").format(record)


def _answer(link: Connection, known: dict[str, Any]) -> None:
    while True:
        try:
            verb, code = link.recv()
        except (EOFError, OSError):
            return
        try:
            if verb == "ask":
                link.send((True, eval(code, known)))
            else:
                exec(code, known)
                link.send((True, None))
        except Exception:
            link.send((False, traceback.format_exc()))
