"""What only a mount of ours has: limits of volumes, quotas, squashed users, hidden files."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount.posix.conftest import open_home
from tests.support.programs import OURS, PEER
from tests.support.users import ALICE, BOB, refused
from tests.support.volumes import Volume, new_volume
from tests.support.waiting import wait_for

GIB = 1 << 30
PIECE = 256 << 20


@pytest.fixture
def volume(new_meta_url: Callable[[str], str]) -> Iterator[Volume]:
    with open_home() as home:
        yield new_volume(new_meta_url("redis"), home / "volume")


def set_quota(volume: Volume, *options: str) -> None:
    """As long as this program has no command for it."""
    PEER.run("quota", "set", volume.meta_url, *options)


def grow(path: Path, size: int) -> None:
    """Space of a file counts by its length."""
    with open(path, "ab") as file:
        os.truncate(file.fileno(), size)


@pytest.mark.parametrize("trash_days", ["0", "1"])
def test_a_full_volume_says_enospc_until_something_is_removed(
    volume: Volume, trash_days: str
) -> None:
    volume.format(OURS, "--capacity", "1", "--inodes", "20", "--trash-days", trash_days)
    with volume.mounted(OURS) as mount:
        top = mount.path
        grow(top / "a", 3 * PIECE)
        with refused(errno.ENOSPC):
            grow(top / "b", PIECE + 4096)
        with open(top / "b", "wb", buffering=0) as file, refused(errno.ENOSPC):
            file.seek(2 * PIECE)
            file.write(b"x")
            os.fsync(file.fileno())
        assert os.statvfs(top).f_blocks * os.statvfs(top).f_frsize == GIB
        grow(top / "b", PIECE - 64 * 1024)
        assert os.statvfs(top).f_bavail * os.statvfs(top).f_frsize <= 64 * 1024
        os.truncate(top / "a", PIECE)
        wait_for(lambda: grow(top / "c", PIECE) or True, "room after a truncation")
        made = []
        with refused(errno.ENOSPC):
            for number in range(25):
                (top / f"d{number}").mkdir()
                made.append(top / f"d{number}")
        assert 10 <= len(made) <= 20
        assert os.statvfs(top).f_ffree == 0
        if trash_days == "0":  # else they count until they expire
            os.rmdir(made[0])
            wait_for(lambda: (top / "again").touch() or True, "an inode after a removal")


def test_quotas_of_directories_users_and_groups_say_edquot(volume: Volume) -> None:
    volume.format(OURS, "--trash-days", "0")
    PEER.run("config", volume.meta_url, "--user-group-quota", "--yes")
    with volume.mounted(OURS) as mount:
        (mount.path / "dir").mkdir()
        for path in (mount.path, mount.path / "dir"):
            path.chmod(0o777)
    set_quota(volume, "--path", "/dir", "--capacity", "1", "--inodes", "5")
    set_quota(volume, "--uid", str(ALICE.uid), "--inodes", "3")
    set_quota(volume, "--gid", str(BOB.gid), "--capacity", "1")
    with volume.mounted(OURS) as mount:
        top = mount.path
        grow(top / "dir" / "a", 3 * PIECE)
        with refused(errno.EDQUOT):
            grow(top / "dir" / "b", PIECE + 4096)
        with refused(errno.EDQUOT):
            for number in range(6):
                (top / "dir" / f"d{number}").mkdir()
        grow(top / "outside", 2 * GIB)
        with refused(errno.EDQUOT):
            os.rename(top / "outside", top / "dir" / "inside")
        os.unlink(top / "dir" / "a")
        (top / "dir" / "now").touch()
        with refused(errno.EDQUOT):
            for number in range(4):
                ALICE.run(lambda n=number: (top / f"alice{n}").touch())
        ALICE.run(os.unlink, top / "alice0")
        ALICE.run((top / "alice0").touch)
        BOB.run(grow, top / "bob", GIB - 4096)
        with refused(errno.EDQUOT):
            BOB.run(grow, top / "bob2", 8192)


@pytest.mark.parametrize("flag", ["--root-squash", "--all-squash"])
def test_squashed_users_are_somebody_else(volume: Volume, flag: str) -> None:
    volume.format(OURS, "--trash-days", "0")
    with volume.mounted(OURS) as mount:
        (mount.path / "open").mkdir()
        (mount.path / "open").chmod(0o777)
        (mount.path / "private").write_text("x")
        (mount.path / "private").chmod(0o600)
        (mount.path / "closed").mkdir(mode=0o700)
        (mount.path / "closed" / "f").touch()
    with volume.mounted(OURS, flag, f"{BOB.uid}:{BOB.gid}") as mount:
        top = mount.path
        (top / "open" / "roots").touch()
        assert os.stat(top / "open" / "roots").st_uid == BOB.uid
        ALICE.run((top / "open" / "hers").touch)
        owner = BOB.uid if flag == "--all-squash" else ALICE.uid
        assert os.stat(top / "open" / "hers").st_uid == owner
        for call in (
            lambda: (top / "closed" / "new").touch(),
            lambda: os.listdir(top / "closed"),
            lambda: os.stat(top / "closed" / "f"),
            lambda: (top / "private").read_text(),
            lambda: (top / "private").write_text("y"),
        ):
            with refused(errno.EACCES, errno.EPERM):
                call()
        with refused(errno.EACCES, errno.EPERM):
            os.chown(top / "open" / "roots", 1, 1)


def test_hidden_files_are_not_listed_but_there(volume: Volume) -> None:
    volume.format(OURS)
    with volume.mounted(OURS, "--hide-internal") as mount:
        assert os.listdir(mount.path) == []
        assert (mount.path / ".config").read_text()
        assert list(mount.path.rglob("*")) == []
        subprocess.run(["rm", "-rf", *mount.path.iterdir()], check=True)


def test_devices_are_closed_unless_the_mount_allows_them(volume: Volume) -> None:
    volume.format(OURS)
    with volume.mounted(OURS) as mount:
        os.mknod(mount.path / "zero", 0o020666, os.makedev(1, 5))
        with refused(errno.EACCES):
            open(mount.path / "zero", "rb")  # noqa: SIM115  # it is not opened
    with volume.mounted(OURS, "-o", "dev") as mount:
        with open(mount.path / "zero", "rb", buffering=0) as device:
            assert device.read(3) == bytes(3)


def test_space_is_told_alike_by_df_du_and_stat(volume: Volume) -> None:
    volume.format(OURS, "--capacity", "1", "--trash-days", "0")
    with volume.mounted(OURS) as mount:
        before = os.statvfs(mount.path)
        (mount.path / "d").mkdir()
        for number, size in enumerate((1, 4096, 4097, 100_000, 5_000_000)):
            (mount.path / "d" / f"f{number}").write_bytes(b"x" * size)
        blocks = sum(
            os.lstat(p).st_blocks for p in [*mount.path.rglob("d"), *mount.path.rglob("f*")]
        )
        told = subprocess.run(
            ["du", "-s", "--block-size=512", mount.path / "d"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        assert int(told.split()[0]) == blocks
        after = os.statvfs(mount.path)
        assert (before.f_bfree - after.f_bfree) * after.f_frsize == blocks * 512
        assert (after.f_files - after.f_ffree) - (before.f_files - before.f_ffree) == 6
