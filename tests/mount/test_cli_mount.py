"""The life of a mount: in the foreground, in the background, killed, stopped, mounted twice."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.programs import OURS, PEER, discard, is_mounted
from tests.support.volumes import Volume, new_volume
from tests.support.waiting import wait_for


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    made = new_volume(f"sqlite3://{tmp_path}/meta.db", tmp_path / "v")
    made.format(OURS, "--quiet")
    return made


@contextmanager
def foreground(volume: Volume, path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A mount in the foreground that answers; its stderr is a pipe."""
    path.mkdir(exist_ok=True)
    words = [str(OURS.executable), "mount", volume.meta_url, str(path), "--metrics", ""]
    words += ["--cache-dir", "memory", *options]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: is_mounted(path) and os.stat(path).st_ino == 1, "the mount")
        yield process
    finally:
        process.kill()
        process.communicate()
        subprocess.run(["umount", "-l", path], capture_output=True, check=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_flushes_and_unmounts(number: int, volume: Volume, tmp_path: Path) -> None:
    path = tmp_path / "mnt"
    with foreground(volume, path) as process:
        with open(path / "f", "w") as file:
            file.write("unflushed")
            file.flush()
            process.send_signal(number)
            wait_for(lambda: not is_mounted(path), "the unmount")
        assert process.wait(60) == 0
    status = json.loads(OURS.run("status", volume.meta_url).stdout)
    assert status["Sessions"] == []
    with volume.mounted(PEER) as mount:
        assert (mount.path / "f").read_text() == "unflushed"


def test_umount_returns_when_all_is_stored(volume: Volume, tmp_path: Path) -> None:
    path = tmp_path / "mnt"
    with foreground(volume, path) as process:
        (path / "f").write_bytes(b"x" * 3_000_000)
        OURS.run("umount", path)
        assert not is_mounted(path)
        assert process.wait(10) == 0
    assert json.loads(OURS.run("status", volume.meta_url).stdout)["Stat"]["UsedInodes"] == 1


def test_umount_of_a_busy_mount_is_refused_and_forced(volume: Volume, tmp_path: Path) -> None:
    path = tmp_path / "mnt"
    with foreground(volume, path):
        (path / "f").write_text("x")
        with open(path / "f"):
            result = OURS.run("umount", path, check=False)
            assert result.code == 1
            assert "in use" in result.stderr
            assert is_mounted(path)
            OURS.run("umount", "--force", path)
            assert not is_mounted(path)


def test_dead_mount_is_cleaned_by_mounting_again(volume: Volume, tmp_path: Path) -> None:
    path = tmp_path / "mnt"
    mount = volume.mount(OURS, path)
    try:
        (path / "f").write_text("kept")
        mount.kill()
        with pytest.raises(OSError):
            os.listdir(path)
        mount = volume.mount(OURS, path)
        assert (path / "f").read_text() == "kept"
        OURS.umount(mount)
        assert not is_mounted(path)
    finally:
        discard(mount)


def test_dead_mount_is_taken_down_by_umount(volume: Volume, tmp_path: Path) -> None:
    path = tmp_path / "mnt"
    mount = volume.mount(OURS, path)
    try:
        mount.kill()
        OURS.run("umount", path)
        assert not is_mounted(path)
    finally:
        discard(mount)


def test_second_mount_at_one_place_is_refused(volume: Volume, tmp_path: Path) -> None:
    with volume.mounted(OURS) as mount:
        result = OURS.run("mount", "-d", volume.meta_url, mount.path, check=False)
        assert result.code == 1
        assert "already mounted" in result.stderr
        assert OURS.run("status", volume.meta_url).stdout.count('"Sid"') == 1


def test_directory_with_files_is_covered_on_request(volume: Volume, tmp_path: Path) -> None:
    path = tmp_path / "mnt"
    path.mkdir()
    (path / "under").write_text("x")
    with foreground(volume, path, "-o", "nonempty"):
        assert not (path / "under").exists()
    assert (path / "under").exists()


def test_daemon_that_fails_tells_why(volume: Volume, tmp_path: Path) -> None:
    """The address is well-formed, so only the mount process finds out."""
    log = tmp_path / "x.log"
    path = tmp_path / "mnt"
    path.mkdir()
    words = ["mount", "-d", "--log", log, "--metrics", "203.0.113.7:1", volume.meta_url, path]
    result = OURS.run(*words, check=False)
    assert result.code == 1
    assert result.stderr.splitlines()[-1].startswith("jfs mount: --metrics 203.0.113.7:1")
    assert not is_mounted(path)


def test_daemon_lets_go_of_all_that_its_caller_has_open(volume: Volume, tmp_path: Path) -> None:
    path = tmp_path / "mnt"
    path.mkdir()
    reader, writer = os.pipe()
    words = [OURS.executable, "mount", "-d", "--log", tmp_path / "log", "--metrics", ""]
    words += ["--cache-dir", "memory", volume.meta_url, path]
    try:
        with open(reader, "rb") as pipe:
            done = subprocess.run(words, pass_fds=[writer], stdout=writer, check=True, timeout=60)
            os.close(writer)
            assert done.returncode == 0
            assert is_mounted(path)
            assert pipe.read() == b""  # it would wait for ever for a daemon that holds the pipe
    finally:
        OURS.run("umount", path)


def test_relative_paths_are_those_of_the_caller(tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    env = {**os.environ, "HOME": str(tmp_path)}

    def run(*words: str) -> None:
        subprocess.run(
            [OURS.executable, *words], cwd=tmp_path, env=env, check=True, timeout=60, stderr=-3
        )

    run("format", "-q", "sqlite3://meta.db", "rel", "--bucket", "objects")
    run("mount", "-d", "sqlite3://meta.db", "mnt", "--log", "x.log", "--cache-dir", "cache")
    try:
        (tmp_path / "mnt" / "f").write_text("x")
        pid = json.loads((tmp_path / "mnt" / ".config").read_text())["Pid"]
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
    finally:
        run("umount", "mnt")
    assert (tmp_path / "objects" / "rel" / "juicefs_uuid").exists()
    assert "rel is ready" in (tmp_path / "x.log").read_text()
    assert (tmp_path / "cache").is_dir()


def test_read_only_mount_has_no_session_and_changes_nothing(volume: Volume) -> None:
    with volume.mounted(OURS) as mount:
        (mount.path / "f").write_text("x")
    with volume.mounted(OURS, "--read-only") as mount:
        assert (mount.path / "f").read_text() == "x"
        with pytest.raises(OSError, match="Read-only"):
            (mount.path / "g").write_text("x")
        assert json.loads(OURS.run("status", volume.meta_url).stdout)["Sessions"] == []


def test_tools_work_on_a_read_only_mount(volume: Volume) -> None:
    with volume.mounted(OURS) as mount:
        (mount.path / "f").write_text("x")
    with volume.mounted(OURS, "--read-only") as mount:
        for program in (OURS, PEER):
            assert "inode: 2" in program.run("info", str(mount.path / "f")).stdout
        for change in (
            lambda: os.mkdir(mount.path / "d"),
            lambda: os.unlink(mount.path / "f"),
            lambda: os.chmod(mount.path / "f", 0o600),
            lambda: os.truncate(mount.path / "f", 0),
        ):
            with pytest.raises(OSError, match="Read-only"):
                change()


def test_mount_by_o_ro_is_read_only_and_makes_no_subdirectory(volume: Volume) -> None:
    with volume.mounted(OURS, "-o", "ro") as mount, pytest.raises(OSError, match="Read-only"):
        (mount.path / "g").write_text("x")
    path = volume.place(OURS)
    path.mkdir()
    refused = OURS.run(
        "mount", volume.meta_url, str(path), "-o", "ro", "--subdir", "new", check=False
    )
    assert "--subdir new does not exist" in refused.stderr


def test_forced_unmount_does_not_wait_for_a_frozen_client(volume: Volume) -> None:
    mount = volume.mount(OURS, volume.place(OURS))
    try:
        for pid in mount.pids:
            os.kill(pid, signal.SIGSTOP)
        OURS.run("umount", "--force", str(mount.path))
        assert not is_mounted(mount.path)
    finally:
        mount.kill()


def test_info_says_that_a_mount_is_dead(volume: Volume) -> None:
    mount = volume.mount(OURS, volume.place(OURS))
    try:
        mount.kill()
        told = OURS.run("info", str(mount.path), check=False).stderr
    finally:
        discard(mount)
    assert "the mount is dead" in told


def test_lost_object_is_told_in_the_log(volume: Volume) -> None:
    with volume.mounted(OURS) as mount:
        (mount.path / "f").write_bytes(b"x" * 100_000)
    for block in volume.home.rglob("*_0_100000"):
        block.unlink()
    with volume.mounted(OURS) as mount:
        with pytest.raises(OSError, match="Input/output"):
            (mount.path / "f").read_bytes()
        assert "_0_100000" in mount.tail()


def test_subdirectory_is_the_root_of_its_mount(volume: Volume) -> None:
    with volume.mounted(OURS, "--subdir", "/a/b") as mount:
        (mount.path / "f").write_text("x")
        assert os.stat(mount.path).st_ino == 1
    with volume.mounted(OURS) as mount:
        assert (mount.path / "a" / "b" / "f").read_text() == "x"


def test_metrics_are_served_with_the_labels_of_the_mount(volume: Volume) -> None:
    with volume.mounted(OURS, "--custom-labels", "team:a") as mount:
        (mount.path / "f").write_text("x")
        address = json.loads((mount.path / ".config").read_text())["Port"]["PrometheusAgent"]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    line = re.search(r'juicefs_fuse_ops_total\{(.*method="create".*)\} (\d+)', text)
    assert line is not None
    assert f'vol_name="{volume.name}"' in line[1]
    assert f'mp="{mount.path}"' in line[1]
    assert 'team="a"' in line[1]
    assert int(float(line[2])) >= 1


def test_settings_show_in_the_mount_table(volume: Volume) -> None:
    with volume.mounted(OURS, "-o", "noexec,noatime") as mount:
        (line,) = (
            each
            for each in Path("/proc/mounts").read_text().splitlines()
            if str(mount.path) in each
        )
    assert line.startswith(f"JuiceFS:{volume.name} ")
    assert " fuse.juicefs rw,nosuid,nodev,noexec,noatime" in line
    assert "default_permissions" in line


def test_log_is_verbose_on_request(volume: Volume) -> None:
    with volume.mounted(OURS, "--verbose") as mount:
        (mount.path / "f").write_text("x")
    assert "<DEBUG>" in mount.log.read_text()


def test_volume_that_is_destroyed_unmounts_with_code_11(volume: Volume, tmp_path: Path) -> None:
    path = tmp_path / "mnt"
    with foreground(volume, path, "--heartbeat", "1") as process:
        uuid = json.loads(OURS.run("config", volume.meta_url).stdout)["UUID"]
        status = PEER.run("destroy", "--force", volume.meta_url, uuid, check=False)
        assert status.code == 0, status
        assert process.wait(60) == 11
        assert not is_mounted(path)


def test_second_front_end_serves_the_same_volume(volume: Volume) -> None:
    with volume.mounted(OURS) as mount:
        (mount.path / "f").write_text("x" * 100_000)
    with volume.mounted(OURS, "--fuse", "llfuse") as mount:
        assert (mount.path / "f").read_text() == "x" * 100_000
        (mount.path / "g").write_text("y")
        assert sorted(os.listdir(mount.path))[-2:] == ["f", "g"]
    with volume.mounted(PEER) as mount:
        assert (mount.path / "g").read_text() == "y"


def test_a_mount_tells_what_is_in_force_and_from_where(volume: Volume) -> None:
    env = {"JFS_MOUNT_BUFFER_SIZE": "64M", "JFS_MOUNT_PRESET": "random"}
    mount = OURS.mount(
        volume.meta_url,
        volume.place(OURS),
        cache_dir=volume.cache(),
        options=["--prefetch", "2", "--bucket", volume.bucket],
        env=env,
    )
    try:
        told = json.loads((mount.path / ".config").read_text())
        assert told["Chunk"]["BufferSize"] == 64 << 20
        assert told["Options"]["buffer-size"] == {"Value": "64M", "From": "environment"}
        assert told["Options"]["preset"] == {"Value": "random", "From": "environment"}
        assert told["Options"]["prefetch"] == {"Value": "2", "From": "command line"}
        assert told["Options"]["open-mode"] == {"Value": "whole", "From": "preset"}
        assert "buffer-size=64M (environment)" in mount.log.read_text()
        assert PEER.run("info", mount.path).code == 0
        PEER.run("umount", mount.path)
    finally:
        discard(mount)


def test_variables_of_config_are_changes_but_shared_ones_are_not(volume: Volume) -> None:
    shared = OURS.run("config", volume.meta_url, env={"SECRET_KEY": "s", "ACCESS_KEY": "a"})
    assert json.loads(shared.stdout)["TrashDays"] == 1
    OURS.run("config", volume.meta_url, env={"JFS_CONFIG_TRASH_DAYS": "3", "ACCESS_KEY": "a"})
    setting = json.loads(PEER.run("config", volume.meta_url).stdout)
    assert (setting["TrashDays"], setting.get("AccessKey", "")) == (3, "")
