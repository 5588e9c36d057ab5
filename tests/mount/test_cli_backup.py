"""Backups that a mount makes load in the real client, and bring back the same tree."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from tests.support.programs import OURS, PEER
from tests.support.volumes import new_volume
from tests.support.waiting import wait_for


@pytest.mark.parametrize("variant", ["plain", "encrypted"])
def test_backup_loads_in_the_real_client(variant: str, tmp_path: Path) -> None:
    volume = new_volume(f"sqlite3://{tmp_path}/meta.db", tmp_path / "v", variant)
    volume.format(OURS, "-q")
    with volume.mounted(OURS) as mount:
        _fill(mount.path)
    with volume.mounted(OURS, "--backup-meta", "1s"):
        folder = Path(volume.bucket, volume.name, "meta")
        (dump, *_) = wait_for(lambda: sorted(folder.glob("dump-*.json.gz")), "a backup")
    if variant == "encrypted":
        assert not dump.read_bytes().startswith(b"\x1f\x8b")
        return
    text = gzip.decompress(dump.read_bytes()).decode()
    assert '"SecretKey": "removed"' not in text
    copy = new_volume(f"sqlite3://{tmp_path}/copy.db", tmp_path / "v")
    PEER.load(copy.meta_url, dump)
    with volume.mounted(PEER) as old, copy.mounted(PEER) as new:
        assert _tree(old.path) == _tree(new.path)


def _fill(top: Path) -> None:
    (top / "d" / "e").mkdir(parents=True)
    (top / "d" / "f").write_bytes(b"x" * 300_000)
    os.link(top / "d" / "f", top / "hard")
    os.symlink('odd "%41" target', top / "link")
    os.setxattr(top / "d" / "f", "user.a", b"\xff v")
    (top / "d" / os.fsdecode(b'n\xff %41"\\')).write_text("odd name")
    with open(top / "sparse", "wb") as file:
        file.seek(70 << 20)
        file.write(b"end")
    (top / "gone").write_text("x")
    (top / "gone").unlink()


def _tree(top: Path) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    tops = [path for path in top.iterdir() if not path.name.startswith(".")]
    below = [path for each in tops for path in each.rglob("*")]
    for path in sorted(tops + below):
        stat = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        target = os.readlink(path) if path.is_symlink() else ""
        kept = (stat.st_mode, stat.st_nlink, stat.st_size, stat.st_mtime_ns)
        found.append((os.fsencode(path.relative_to(top)), *kept, hash(data), target))
    return found
