"""The life of a mount: coming up, trouble, coming down."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from juicepy.fuse import mounts
from juicepy.fuse.options import FuseOptions
from tests.support.toymount import NOBODY, toy_mount
from tests.support.waiting import wait_for


def options(*items: str) -> FuseOptions:
    return FuseOptions("JuiceFS:toy", options=items)


def test_mount_table_names_the_volume() -> None:
    with toy_mount(FuseOptions("JuiceFS:my,vol ume")) as toy:
        mount = mounts.find_mount(toy.path)
        assert mount is not None
        assert (mount.source, mount.fstype) == ("JuiceFS:my,vol ume", "fuse.juicefs")
        assert mount.is_fuse
        assert {"nosuid", "nodev"} <= set(mount.options.split(","))


def test_unmount_ends_the_server_and_leaves_no_thread() -> None:
    with toy_mount() as toy:
        (toy.path / "f").write_bytes(b"x" * 100_000)
        toy.run("fs.notifier.inval_inode(2)")
        mounts.unmount(toy.path)
        assert toy.wait_ended() == [1, [], []]
        assert not mounts.is_mounted(toy.path)


def test_stop_event_unmounts() -> None:
    with toy_mount() as toy:
        toy.run("stop.set()")
        assert toy.wait_ended() == [1, [], []]
        assert not mounts.is_mounted(toy.path)


def test_stop_of_a_busy_mount_hides_it_and_waits_for_its_users() -> None:
    with toy_mount() as toy:
        with open(toy.path / "f", "wb", buffering=0) as file:
            toy.run("stop.set()")
            wait_for(lambda: not mounts.is_mounted(toy.path), "the mount to be hidden")
            file.write(b"still served")
            assert toy.ask("bytes(fs.nodes[2].data)") == b"still served"
        assert toy.wait_ended() == [1, [], []]


def test_stop_cuts_off_users_who_stay_too_long() -> None:
    with toy_mount(FuseOptions("JuiceFS:toy", stop_grace_s=0.2)) as toy:
        fd = os.open(toy.path / "f", os.O_WRONLY | os.O_CREAT)
        toy.run("stop.set()")
        destroyed, threads, _ = toy.wait_ended()
        assert (destroyed, threads) == (1, [])
        with pytest.raises(OSError):
            os.write(fd, b"too late")
        with pytest.raises(OSError):
            os.close(fd)


def test_handler_that_raises_is_eio_and_one_error_with_traceback() -> None:
    with toy_mount() as toy:
        toy.run("def broken(*_): raise ValueError('a bug')\nfs.hooks['lookup'] = broken")
        with pytest.raises(OSError) as caught:
            os.stat(toy.path / "x")
        assert caught.value.errno == errno.EIO
        toy.run("fs.hooks.clear()")
        (toy.path / "x").touch()
        (line,) = toy.ask("errors")
        assert line.startswith("ERROR request LOOKUP")
        assert "Traceback" in line
        assert "ValueError: a bug" in line


def test_os_error_of_a_handler_reaches_the_caller() -> None:
    with toy_mount() as toy:
        toy.run("def full(*_): raise OSError(122, 'quota')\nfs.hooks['mkdir'] = full")
        with pytest.raises(OSError) as caught:
            (toy.path / "d").mkdir()
        assert caught.value.errno == errno.EDQUOT
        toy.run("def odd(*_): raise OSError('no number')\nfs.hooks['mkdir'] = odd")
        with pytest.raises(OSError) as caught:
            (toy.path / "d").mkdir()
        assert caught.value.errno == errno.EIO
        assert toy.ask("errors") == []


def test_slow_requests_do_not_starve_others() -> None:
    setup = "gate = threading.Event(); fs.direct_io = True; fs.attr_timeout_s = 0.0"
    with toy_mount(setup=setup) as toy, ThreadPoolExecutor(30) as pool:
        (toy.path / "f").write_bytes(b"data")
        toy.run("fs.hooks['read'] = lambda *_: gate.wait(60)")
        slow = [pool.submit((toy.path / "f").read_bytes) for _ in range(30)]
        wait_for(lambda: toy.calls("read") == 30, "all reads to be under way")
        for _ in range(10):
            os.stat(toy.path / "f")
            os.listdir(toy.path)
        assert not any(future.done() for future in slow)
        toy.run("gate.set()")
        assert {future.result(60) for future in slow} == {b"data"}
        count = "sum(t.name.startswith('fuse-worker') for t in threading.enumerate())"

        def few() -> bool:
            for _ in range(500):
                os.stat(toy.path / "f")
            return bool(toy.ask(count) <= 8)

        wait_for(few, "spare workers to end")


def test_workers_are_bounded() -> None:
    setup = "gate = threading.Event(); fs.direct_io = True"
    bounded = FuseOptions("JuiceFS:toy", workers=4)
    with toy_mount(bounded, setup=setup) as toy, ThreadPoolExecutor(12) as pool:
        (toy.path / "f").write_bytes(b"data")
        toy.run("fs.hooks['read'] = lambda *_: gate.wait(60)")
        reads = [pool.submit((toy.path / "f").read_bytes) for _ in range(12)]
        wait_for(lambda: toy.calls("read") == 4, "all workers to be busy")
        toy.run("gate.set()")
        assert {future.result(60) for future in reads} == {b"data"}


def test_dead_mount_is_cleaned_when_mounting_there_again(tmp_path: Path) -> None:
    path = tmp_path / "mnt"
    path.mkdir()
    with toy_mount(path=path) as toy:
        assert toy.process.pid is not None
        os.kill(toy.process.pid, signal.SIGKILL)
        toy.process.join()
        wait_for(lambda: mounts.is_dead(path), "the mount to be dead")
        assert mounts.is_mounted(path)
        with toy_mount(path=path) as again:
            (again.path / "f").write_bytes(b"alive")
            assert (path / "f").read_bytes() == b"alive"
            assert len([m for m in mounts.list_mounts() if m.path == str(path)]) == 1


def test_mount_point_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(AssertionError, match="not a directory"):
        with toy_mount(path=path):
            pass


def test_unknown_option_is_refused_before_mounting() -> None:
    with pytest.raises(AssertionError, match="-o nosuch: unknown mount option"):
        with toy_mount(options("noatime,nosuch")):
            pass


def test_read_only_mount_refuses_writes() -> None:
    with toy_mount(options("ro,noexec")) as toy:
        with pytest.raises(OSError) as caught:
            (toy.path / "f").touch()
        assert caught.value.errno == errno.EROFS
        mount = mounts.find_mount(toy.path)
        assert mount is not None
        assert "noexec" in mount.options


def as_nobody(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def open_device() -> Iterator[None]:
    """/dev/fuse as udev leaves it, open to all, also where nobody did."""
    mode = stat.S_IMODE(os.stat("/dev/fuse").st_mode)
    os.chmod("/dev/fuse", 0o666)
    yield
    os.chmod("/dev/fuse", mode)


@pytest.mark.usefixtures("open_device")
def test_unprivileged_user_mounts_through_fusermount() -> None:
    with toy_mount(uid=NOBODY, setup=f"fs.nodes[1].attr.uid = {NOBODY}") as toy:
        path = str(toy.path)
        assert as_nobody("mkdir", f"{path}/d").returncode == 0
        assert as_nobody("ls", path).stdout == "d\n"
        with pytest.raises(PermissionError):  # without allow_other not even root may
            os.listdir(path)
        mount = mounts.find_mount(path)
        assert mount is not None
        assert (mount.source, mount.fstype) == ("JuiceFS:toy", "fuse.juicefs")
        toy.run("stop.set()")
        assert toy.wait_ended() == [1, [], []]
        assert not mounts.is_mounted(path)


def test_default_permissions_are_checked_by_the_kernel() -> None:
    with toy_mount() as toy:
        (toy.path / "mine").mkdir(0o700)
        assert as_nobody("ls", str(toy.path)).stdout == "mine\n"
        assert "denied" in as_nobody("ls", str(toy.path / "mine")).stderr


def test_access_is_asked_where_the_kernel_does_not_check() -> None:
    with toy_mount(FuseOptions("JuiceFS:toy", default_permissions=False)) as toy:
        (toy.path / "f").touch()
        toy.run("def no(*_): raise PermissionError(13, 'no')\nfs.hooks['access'] = no")
        assert not os.access(toy.path / "f", os.R_OK)
        assert toy.calls("access") == 1


def test_two_mounts_live_in_one_process() -> None:
    with toy_mount() as one, toy_mount() as two:
        (one.path / "f").write_bytes(b"1")
        (two.path / "f").write_bytes(b"2")
        assert (one.path / "f").read_bytes() == b"1"


def test_many_threads_create_and_remove() -> None:
    with toy_mount() as toy:

        def work(number: int) -> None:
            for turn in range(30):
                path = toy.path / f"{number}-{turn}"
                path.write_bytes(path.name.encode())
                assert path.read_bytes() == path.name.encode()
                path.unlink()

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(work, range(16)))
        assert os.listdir(toy.path) == []
        assert threading.active_count() >= 1
        assert toy.ask("errors") == []
