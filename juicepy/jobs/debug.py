"""CPU and heap of a running mount: py-spy looks at it from outside, tracemalloc from inside."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from juicepy.errors import Refused
from juicepy.jobs import control, figures
from juicepy.vfs.heap import HEAP

FORMATS = {".svg": "flamegraph", ".json": "speedscope", ".txt": "raw"}
_START_S = 60.0


def pid_of(mount_point: str) -> int:
    """The process that serves a mount of this program. Refused for those of others."""
    path = figures.find(mount_point, "config")
    with open(path, "rb") as file:
        told = json.load(file)
    if "juicepy" not in told.get("Version", ""):
        raise Refused(f"{mount_point} is not a mount of this program, but of JuiceFS")
    return int(told["Pid"])


def cpu(pid: int, seconds: float, rate: int, out: str = "") -> list[tuple[str, int, int]]:
    """(function, samples in it, samples in it or below) of the process, the busiest first.

    `out`: a file for the whole, whose name's end says the format (`FORMATS`).
    """
    spy = _py_spy()
    suffix = Path(out).suffix if out else ".txt"
    if suffix not in FORMATS:
        raise Refused(f"--out {out} does not end with one of {', '.join(FORMATS)}")
    with tempfile.TemporaryDirectory() as place:
        # samples are counted from the raw form; the other forms are made of a second run of it
        raw = os.path.join(place, "raw.txt")
        _record(spy, pid, seconds, rate, "raw", raw)
        if out and suffix == ".txt":
            shutil.copyfile(raw, out)
        elif out:
            _record(spy, pid, seconds, rate, FORMATS[suffix], out)
        return _counted(Path(raw).read_text(encoding="utf-8", errors="replace"))


def heap(mount_point: str, seconds: float, count: int) -> str:
    """Lines of source with the most bytes of what was allocated meanwhile and is still there."""
    body = struct.pack(">HH", min(0xFFFF, round(seconds * 10)), count)
    channel = control.find(mount_point)
    return control.ask(channel, HEAP, body, idle_timeout_s=seconds + _START_S).decode()


def _py_spy() -> str:
    beside = Path(sys.executable).parent / "py-spy"
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise Refused("py-spy is not installed: pip install py-spy")
    return found


def _record(spy: str, pid: int, seconds: float, rate: int, form: str, out: str) -> None:
    words = [spy, "record", "--pid", str(pid), "--rate", str(rate), "--format", form]
    words += ["--duration", str(max(1, round(seconds))), "--nonblocking", "--output", out]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=seconds + _START_S, check=False
    )
    if done.returncode or not os.path.exists(out):
        told = [line for line in done.stderr.splitlines() if line.strip()]
        raise Refused(f"py-spy failed: {told[-1].strip() if told else done.returncode}")


def _counted(text: str) -> list[tuple[str, int, int]]:
    """From lines `outermost;...;innermost count`."""
    own: Counter[str] = Counter()
    below: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        names = [name.rpartition(":")[0] or name for name in stack.split(";")]
        own[names[-1].strip()] += int(count)
        below.update({name.strip(): int(count) for name in set(names)})
    return [(name, own[name], below[name]) for name, _ in own.most_common()]
