"""The two command-line programs under test: `jfs`, and `juicefs`, the real client.

Both take the same commands and flags, so every test is written once and a `Program` is its
argument. Setting the environment variable JUICEPY_TEST_PEER_ONLY=1 puts the real client in both
places: a test that fails then is a wrong test, unless it says what the real client does not keep.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.waiting import wait_for

TAIL_LINES = 60


@dataclass(frozen=True)
class Result:
    """What a finished command said."""

    args: Sequence[str]
    code: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout + self.stderr

    def __str__(self) -> str:
        return f"$ {' '.join(self.args)}\nexit code {self.code}\n{_tail(self.text)}"


@dataclass(frozen=True)
class Mount:
    """A mount that answers."""

    program: Program
    path: Path
    log: Path
    pids: tuple[int, ...]  # of the daemon, its supervisor first

    def kill(self) -> None:
        """kill -9, as a crash of the machine would; the dead mount point stays behind."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(map(_is_running, self.pids)), f"end of {self.pids}")

    def tail(self) -> str:
        """The end of the daemon's log."""
        return _tail(self.log.read_text(errors="replace")) if self.log.exists() else "(no log)"


@dataclass(frozen=True)
class Program:
    name: str
    executable: Path
    mount_flags: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        return self.name

    def run(
        self,
        *args: str | Path,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        check: bool = True,
    ) -> Result:
        """Run a command to its end; its output goes through files, which no daemon keeps open."""
        words = [str(self.executable), *map(str, args)]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                done = subprocess.run(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env={**os.environ, **(env or {})},
                    timeout=timeout_s,
                    check=False,
                )
                code = done.returncode
            except subprocess.TimeoutExpired:
                code = -1
            texts = [_read(out), _read(err)]
        result = Result(words, code, *texts)
        if code == -1:
            raise AssertionError(f"no end after {timeout_s:.0f} s: {result}")
        if check and code != 0:
            raise AssertionError(str(result))
        return result

    @contextlib.contextmanager
    def mounted(
        self,
        meta_url: str,
        path: Path,
        *,
        cache_dir: Path,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> Iterator[Mount]:
        """Mount in the background, and unmount at the end, whatever happens in between.

        A test that fails inside shows the end of the daemon's log.
        """
        mount = self.mount(
            meta_url, path, cache_dir=cache_dir, options=options, env=env, timeout_s=timeout_s
        )
        try:
            yield mount
        except BaseException as error:
            error.add_note(f"log of {self} at {path}:\n{mount.tail()}")
            discard(mount)
            raise
        self.umount(mount)

    def mount(
        self,
        meta_url: str,
        path: Path,
        *,
        cache_dir: Path,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> Mount:
        """Mount in the background. The caller unmounts or discards it."""
        if not is_mounted(path):
            path.mkdir(parents=True, exist_ok=True)
        log = path.parent / f"{path.name}.{self.name}.log"
        words = ["mount", "-d", "--log", str(log), "--cache-dir", str(cache_dir)]
        words += ["--cache-size", "1024", "--backup-meta", "0", "--metrics", "127.0.0.1:0"]
        words += ["--enable-xattr", *self.mount_flags, *options, meta_url, str(path)]
        try:
            self.run(*words, env=env, timeout_s=timeout_s)
            pids = daemon_pids(path)
        except BaseException as error:
            error.add_note(f"log of {self}:\n{_tail(_text(log))}")
            _lazy_umount(path)
            raise
        return Mount(self, path, log, pids)

    def umount(self, mount: Mount, *, timeout_s: float = 60.0) -> None:
        """Unmount with `umount` and wait until the daemon has ended, so that all is flushed."""
        try:
            self.run("umount", mount.path, timeout_s=timeout_s)
            wait_for(
                lambda: not any(map(_is_running, mount.pids)),
                f"end of {self} {mount.pids} after umount; its log:\n{mount.tail()}",
                timeout_s=timeout_s,
            )
        finally:
            discard(mount)

    # The commands of the volume. What they print is judged by the caller.

    def status(self, meta_url: str, env: Mapping[str, str] | None = None) -> Result:
        return self.run("status", meta_url, env=env)

    def fsck(self, meta_url: str, *options: str, env: Mapping[str, str] | None = None) -> Result:
        return self.run("fsck", *options, meta_url, env=env, check=False)

    def gc(self, meta_url: str, *options: str, env: Mapping[str, str] | None = None) -> Result:
        """`JFS_GC_SKIPPEDTIME=1`: objects older than a second count, not only those of an hour."""
        env = {**(env or {}), "JFS_GC_SKIPPEDTIME": "1"}
        return self.run("gc", *options, meta_url, env=env, check=False)

    def dump(
        self,
        meta_url: str,
        path: Path,
        *options: str,
        env: Mapping[str, str] | None = None,
    ) -> Result:
        return self.run("dump", *options, meta_url, path, env=env)

    def load(
        self,
        meta_url: str,
        path: Path,
        *options: str,
        env: Mapping[str, str] | None = None,
    ) -> Result:
        return self.run("load", *options, meta_url, path, env=env)


def discard(mount: Mount) -> None:
    """Leave nothing behind of a mount that may be dead, hung or gone already."""
    _lazy_umount(mount.path)
    for pid in mount.pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    try:
        wait_for(lambda: not any(map(_is_running, mount.pids)), "the daemon's end", timeout_s=10)
    except AssertionError:
        mount.kill()


def is_mounted(path: Path) -> bool:
    """Is there a mount point here? Also true of a dead one, which answers nothing."""
    escaped = re.sub(r"[\\ \t\n]", lambda m: f"\\{ord(m[0]):03o}", str(path))
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as lines:
        return any(line.split(" ")[1] == escaped for line in lines)


def _lazy_umount(path: Path) -> None:
    """Detach without the program's help, as often as something is mounted there."""
    for _ in range(4):
        if not is_mounted(path):
            return
        subprocess.run(["umount", "-l", path], check=False, capture_output=True, timeout=30)


def daemon_pids(path: Path) -> tuple[int, ...]:
    """The process that serves `path`, after its parent if that watches over it."""
    pid = int(json.loads((path / ".config").read_text())["Pid"])
    status = Path(f"/proc/{pid}/status").read_text()
    parent = int(status.partition("\nPPid:")[2].split()[0])
    command = Path(f"/proc/{parent}/cmdline").read_bytes()
    return (parent, pid) if os.fsencode(path) in command else (pid,)


def _is_running(pid: int) -> bool:
    """False too for a process that is dead and only waits for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _read(file: object) -> str:
    file.seek(0)  # type: ignore[attr-defined]  # a TemporaryFile of any platform
    return file.read().decode(errors="replace")  # type: ignore[attr-defined, no-any-return]


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-TAIL_LINES:])


def _executable(name: str) -> Path:
    """The script that the environment of the running tests has installed."""
    return Path(sysconfig.get_path("scripts")) / name


PEER = Program("juicefs", _executable("juicefs"), ("--no-usage-report",))
OURS = PEER if os.environ.get("JUICEPY_TEST_PEER_ONLY") else Program("jfs", _executable("jfs"))

assert sys.platform == "linux"
