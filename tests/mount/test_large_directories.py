"""Very many entries in one directory: listed while others come and go, removed.

`JFS_LARGE_ENTRIES=100000` for a run of some minutes.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from juicepy.meta.engine import MetaEngine
from juicepy.meta.registry import open_engine
from juicepy.meta.tx import Tx
from juicepy.types import Attr, Entry, Inode, Kind
from tests.mount.posix.test_directories import check_listings
from tests.support.programs import OURS, PEER, Mount
from tests.support.volumes import new_volume

ENTRIES, FEW = int(os.environ.get("JFS_LARGE_ENTRIES", "8000")), 2_000
AT_ONCE = 1000  # made by one transaction
MOST_KIB = 12 << 10
PATIENCE_S = 900.0


def plant(engine: MetaEngine, parent: Inode, count: int) -> None:
    """Empty files `s<inode>` in a directory, much faster than through a mount."""
    inodes = engine.allocate_inodes(count)
    for begin in range(0, count, AT_ONCE):
        some = inodes[begin : begin + AT_ONCE]

        def make(tx: Tx, some: range = some) -> None:
            for ino in map(Inode, some):
                tx.make_inode(ino, Attr(Kind.FILE, 0o644, nlink=1, parent=parent))
                tx.set_entry(parent, b"s%d" % ino, Entry(ino, Kind.FILE))
            tx.use(space=4096 * len(some), inodes=len(some))

        engine.transact(make)


def memory(mount: Mount, what: str) -> int:
    """VmRSS or VmHWM of the mount process, in KiB."""
    status = Path(f"/proc/{mount.pids[-1]}/status").read_text()
    return int(status.partition(f"\n{what}:")[2].split()[0])


@contextmanager
def flat(mount: Mount, most_kib: int) -> Iterator[None]:
    """The mount process takes at most so much memory more than before, at any moment."""
    Path(f"/proc/{mount.pids[-1]}/clear_refs").write_text("5")  # VmHWM begins anew
    before = memory(mount, "VmRSS")
    yield
    peak = memory(mount, "VmHWM")
    print(f"{before} KiB, at most {peak - before} more")
    assert peak - before <= most_kib


@pytest.mark.long
@pytest.mark.timeout(4 * PATIENCE_S)
@pytest.mark.parametrize("engine", ["redis", "sqlite"])
def test_large_directory_is_listed_exactly_and_removed_in_little_memory(
    engine: str, new_meta_url: Callable[[str], str], tmp_path: Path
) -> None:
    """What the client remembers of what it saw is bounded, and full after the first listing."""
    volume = new_volume(new_meta_url(engine), tmp_path, flags=("--trash-days", "0"))
    volume.format(OURS)
    opened = open_engine(volume.meta_url)
    try:
        with volume.mounted(OURS) as mount:

            def planted(name: str, count: int) -> Path:
                folder = mount.path / name
                folder.mkdir()
                plant(opened, Inode(folder.stat().st_ino), count)
                return folder

            def remove(folder: Path) -> None:
                subprocess.run(["rm", "-rf", folder], check=True, timeout=PATIENCE_S)

            def remove_inside(folder: Path) -> None:
                PEER.run("rmr", folder, timeout_s=PATIENCE_S)

            first, second = planted("first", ENTRIES), planted("second", ENTRIES)
            check_listings(second)
            listed = subprocess.run(["ls", "-l", first], check=True, stdout=subprocess.PIPE).stdout
            assert listed.count(b"\n") == ENTRIES + 1
            for work in (remove, remove_inside):  # threads and their buffers are there then
                work(planted("small", FEW))
            for work, folder in ((remove, second), (remove_inside, first)):
                with flat(mount, MOST_KIB):
                    work(folder)
                assert not folder.exists()
    finally:
        opened.close()
