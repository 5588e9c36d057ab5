"""Passwords of any characters work, and are shown nowhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.programs import OURS, is_mounted
from tests.support.redis_servers import RedisServer, redis_server
from tests.support.volumes import Volume, new_volume
from tests.support.waiting import wait_for

PASSWORD = "p@:/?#%[] w"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server(password=PASSWORD) as started:
        yield started


@pytest.fixture(params=["raw", "encoded", "environment"])
def volume(request: pytest.FixtureRequest, server: RedisServer, tmp_path: Path) -> Volume:
    env = {}
    login = f":{PASSWORD}@" if request.param == "raw" else f":{quote(PASSWORD, safe='')}@"
    if request.param == "environment":
        login, env = "", {"META_PASSWORD": PASSWORD}
    database = ["raw", "encoded", "environment"].index(request.param) + 1
    url = f"redis://{login}127.0.0.1:{server.port}/{database}"
    return new_volume(url, tmp_path / "v", env=env, flags=["--secret-key", "topsecret42"])


def shown_nowhere(*texts: str) -> None:
    for text in texts:
        for secret in (PASSWORD, quote(PASSWORD, safe=""), "topsecret42"):
            assert secret not in text


def arguments_of_all() -> str:
    """The arguments of every process but this test's own."""
    texts = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended
        if "juicepy" in words or "jfs mount" in words:
            texts.append(words)
    return "\n".join(texts)


def test_password_is_shown_nowhere(volume: Volume) -> None:
    words = ["format", "--bucket", volume.bucket, *volume.flags, volume.meta_url, volume.name]
    made = OURS.run(*words, "--verbose", env=volume.env)
    status = OURS.run("status", volume.meta_url, env=volume.env)
    config = OURS.run("config", volume.meta_url, env=volume.env)
    with volume.mounted(OURS, "--verbose") as mount:
        (mount.path / "f").write_text("x")
        shown_nowhere((mount.path / ".config").read_text())
        processes = arguments_of_all()
        assert str(mount.path) in processes
        shown_nowhere(processes)
    shown_nowhere(made.text, status.text, config.text, mount.log.read_text())
    assert json.loads(status.stdout)["Setting"]["SecretKey"] == "removed"
    assert json.loads(config.stdout)["SecretKey"] == "removed"


def test_password_of_a_foreground_mount_is_not_in_its_arguments(
    server: RedisServer, tmp_path: Path
) -> None:
    url = f"redis://:{PASSWORD}@127.0.0.1:{server.port}/9"
    made = new_volume(url, tmp_path / "v")
    made.format(OURS, "-q")
    path = tmp_path / "mnt"
    path.mkdir()
    words = [OURS.executable, "mount", url, path, "--metrics", "", "--cache-dir", "memory"]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: is_mounted(path) and os.stat(path).st_ino == 1, "the mount")
        shown = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode()
        assert re.search(r"redis://:\*\*\*\*@127", shown)
        shown_nowhere(shown, arguments_of_all())
        OURS.run("umount", path)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        subprocess.run(["umount", "-l", path], capture_output=True, check=False)
