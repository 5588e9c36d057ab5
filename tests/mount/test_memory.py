"""The memory of a mount has the bound that its operator sets."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.programs import OURS, Mount
from tests.support.servers import new_meta_url
from tests.support.volumes import new_volume
from tests.support.waiting import wait_for

__all__ = ["new_meta_url"]

MIB = 1 << 20
BUFFER, ALLOWANCE = 64, 200  # MiB
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
