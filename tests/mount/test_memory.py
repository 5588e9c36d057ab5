"""The memory of a mount has the bound that its operator sets."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.programs import OURS, Mount, Program
from tests.support.servers import new_meta_url
from tests.support.volumes import new_volume
from tests.support.waiting import wait_for

__all__ = ["new_meta_url"]

MIB = 1 << 20
BUFFER, ALLOWANCE = 64, 200  # MiB
GROUP_MIB = 256  # half of it would be more than what 200 leave
WRITERS, ROUNDS = 32, 3


def resident(mount: Mount) -> int:
    """MiB of the largest of the mount's processes."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in mount.pids]
    return max(pages) * 4096 // MIB


def test_memory_has_its_bound_after_a_storm(
    new_meta_url: Callable[[str], str], tmp_path: Path
) -> None:
    """See also `tests/unit/cmd/test_memory.py`: freed memory is given back."""
    volume = new_volume(new_meta_url("redis"), tmp_path)
    volume.format(OURS)
    options = ("--buffer-size", str(BUFFER), "--cache-size", "100")
    data = bytes(range(256)) * (6 * MIB // 256)
    with volume.mounted(OURS, *options) as mount:

        def write_and_read(number: int) -> None:
            path = mount.path / f"f{number}"
            for step in range(ROUNDS):
                path.write_bytes(data[step:])
                assert path.read_bytes() == data[step:]

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(write_and_read, range(WRITERS)))
        wait_for(
            lambda: resident(mount) < BUFFER + ALLOWANCE,
            f"less than {BUFFER + ALLOWANCE} MiB of memory ({resident(mount)} now)",
            timeout_s=30,
        )


READ_FILES, READ_MIB = 256, 2
WRITE_FILES, WRITE_MIB = 64, 4
REQUEST = 128 << 10


def peak(mount: Mount) -> int:
    """MiB that the largest of the mount's processes has ever had."""
    status = [Path(f"/proc/{pid}/status").read_text() for pid in mount.pids]
    return max(int(text.partition("VmHWM:")[2].split()[0]) for text in status) // 1024


def content(number: int, size: int) -> bytes:
    """Bytes that tell files and offsets apart, quick to make."""
    line = b"%07d\n" % number
    return b"".join(line + b"%07d\n" % at for at in range(0, size, 16))


@pytest.mark.long
def test_memory_has_its_bound_with_many_files_read_and_written_at_once(
    new_meta_url: Callable[[str], str], tmp_path: Path
) -> None:
    volume = new_volume(new_meta_url("redis"), tmp_path)
    volume.format(OURS)
    parts = {number: content(number, MIB) for number in range(READ_FILES)}
    with volume.mounted(OURS) as mount, ThreadPoolExecutor(4) as pool:
        paths = [f"r{number}" for number in range(READ_FILES)]
        list(pool.map(lambda at: (mount.path / paths[at]).write_bytes(parts[at] * READ_MIB), parts))
    for buffers in (64, 300):
        with volume.mounted(OURS, "--buffer-size", str(buffers), "--cache-size", "200") as mount:
            _read_and_write(mount.path, parts)
            assert peak(mount) < buffers + ALLOWANCE


def _read_and_write(root: Path, parts: dict[int, bytes]) -> None:
    """Every file open at once, each with a thread of its own; raises what failed."""
    meeting = threading.Barrier(READ_FILES + WRITE_FILES, timeout=120)

    def read(number: int) -> None:
        fd = os.open(root / f"r{number}", os.O_RDONLY)
        try:
            meeting.wait()
            for at in range(0, READ_MIB * MIB, REQUEST):
                into = at % MIB
                assert os.pread(fd, REQUEST, at) == parts[number][into : into + REQUEST]
        finally:
            os.close(fd)

    def write(number: int) -> None:
        data = parts[number]
        fd = os.open(root / f"w{number}", os.O_WRONLY | os.O_CREAT)
        try:
            meeting.wait()
            for _ in range(WRITE_MIB):
                assert os.write(fd, data) == MIB
        finally:
            os.close(fd)

    with ThreadPoolExecutor(READ_FILES + WRITE_FILES) as pool:
        tasks = [pool.submit(read, number) for number in range(READ_FILES)]
        tasks += [pool.submit(write, number) for number in range(WRITE_FILES)]
        for task in tasks:
            task.result(300)


@pytest.fixture
def small_group(tmp_path: Path) -> Iterator[Program]:
    """`jfs` run in a control group of `GROUP_MIB`."""
    parent = own_memory_group()
    if parent is None:
        pytest.skip("no control groups of version 1 for memory that may be made here")
    group = parent / f"jfs-test-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(GROUP_MIB * MIB))
    script = tmp_path / "jfs"
    script.write_text(f'#!/bin/sh\necho $$ > {group}/cgroup.procs\nexec {OURS.executable} "$@"\n')
    script.chmod(0o755)
    yield replace(OURS, executable=script)
    wait_for(lambda: not (group / "cgroup.procs").read_text(), "an empty group")
    group.rmdir()


def own_memory_group() -> Path | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        group = Path(f"/sys/fs/cgroup/memory{path}")
        if controllers == "memory" and os.access(group, os.W_OK):
            return group
    return None


def test_a_mount_in_a_small_control_group_is_not_killed(
    small_group: Program, new_meta_url: Callable[[str], str], tmp_path: Path
) -> None:
    volume = new_volume(new_meta_url("redis"), tmp_path)
    volume.format(OURS)
    data = content(1, 4 * MIB)
    with volume.mounted(small_group, "--cache-size", "100") as mount:
        config = json.loads((mount.path / ".config").read_text())
        assert config["Chunk"]["BufferSize"] == (GROUP_MIB - ALLOWANCE) * MIB

        def write_and_read(number: int) -> None:
            path = mount.path / f"f{number}"
            path.write_bytes(data)
            assert path.read_bytes() == data

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(write_and_read, range(32)))
        assert peak(mount) < GROUP_MIB
