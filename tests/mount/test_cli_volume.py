"""format, config, status and info: their effect and output, beside the real client's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.programs import OURS, PEER
from tests.support.volumes import Volume, new_volume


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return new_volume(f"sqlite3://{tmp_path}/meta.db", tmp_path / "v")


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--enable-acl", "--trash-days", "0", "--capacity", "10", "--inodes", "1000"],
        ["--block-size", "256K", "--compress", "lz4", "--hash-prefix"],
        ["--access-key", "ak", "--storage-class", "IA"],
    ],
    ids=" ".join,
)
def test_setting_is_that_of_the_real_client(flags: list[str], tmp_path: Path) -> None:
    settings = []
    for program in (OURS, PEER):
        url = f"sqlite3://{tmp_path}/{program}.db"
        program.run("format", "--bucket", tmp_path / f"{program}", *flags, url, "same-name")
        setting = json.loads(PEER.run("config", url).stdout)
        del setting["UUID"], setting["Bucket"]
        settings.append(list(setting.items()))
        assert OURS.run("config", url).stdout == PEER.run("config", url).stdout
    assert settings[0] == settings[1]


def test_format_again_changes_what_is_given(volume: Volume) -> None:
    volume.format(OURS, "-q")
    before = json.loads(OURS.run("config", volume.meta_url).stdout)
    OURS.run("format", "-q", volume.meta_url, volume.name, "--trash-days", "7")
    after = json.loads(OURS.run("config", volume.meta_url).stdout)
    assert after == before | {"TrashDays": 7}
    OURS.run("format", volume.meta_url, "any-name", "--no-update")
    assert json.loads(OURS.run("config", volume.meta_url).stdout) == after


def test_config_changes_settings_and_tells_them(volume: Volume) -> None:
    volume.format(OURS, "-q")
    words = ["--trash-days", "3", "--capacity", "5", "--dir-stats=false", "--upload-limit", "100"]
    told = OURS.run("config", volume.meta_url, *words).stdout
    assert "capacity: 0.0 GiB -> 5.0 GiB" in told
    assert "trash-days: 1 -> 3" in told
    assert "dir-stats: true -> false" in told
    assert "upload-limit: 0.0 Mbps -> 100.0 Mbps" in told
    setting = json.loads(PEER.run("config", volume.meta_url).stdout)
    assert (setting["TrashDays"], setting["Capacity"]) == (3, 5 << 30)
    assert "DirStats" not in setting
    assert OURS.run("config", volume.meta_url, *words).stdout == "Nothing changed.\n"


def test_config_with_yes_asks_nothing(volume: Volume) -> None:
    volume.format(OURS, "-q")
    OURS.run("config", volume.meta_url, "--trash-days", "0", "--yes")
    assert json.loads(OURS.run("config", volume.meta_url).stdout)["TrashDays"] == 0


def test_secret_changed_by_config_serves_the_real_client(volume: Volume) -> None:
    volume.format(OURS, "-q", "--access-key", "ak", "--secret-key", "first")
    told = OURS.run("config", volume.meta_url, "--secret-key", "second").stdout
    assert "second" not in told
    assert "secret-key: updated" in told
    PEER.run("status", volume.meta_url)
    PEER.fsck(volume.meta_url)


def test_status_is_that_of_the_real_client(volume: Volume) -> None:
    volume.format(PEER)
    with volume.mounted(PEER) as mount:
        (mount.path / "d").mkdir()
        (mount.path / "d" / "f").write_text("x" * 5000)
        with open(mount.path / "held", "w"):
            os.unlink(mount.path / "held")
            for more in ([], ["-m"]):
                ours = json.loads(OURS.run("status", volume.meta_url, *more).stdout)
                peers = json.loads(PEER.run("status", volume.meta_url, *more).stdout)
                assert ours["Setting"] == peers["Setting"]
                assert list(ours) == list(peers)
                assert len(ours["Sessions"]) == len(peers["Sessions"]) == 1
                assert ours["Sessions"][0] | {"Expire": ""} == peers["Sessions"][0] | {"Expire": ""}
                assert ours["Stat"].keys() == peers["Stat"].keys()


def test_info_is_that_of_the_real_client(volume: Volume) -> None:
    volume.format(OURS, "-q")
    for program in (OURS, PEER):
        with volume.mounted(program) as mount:
            file = mount.path / f"d-{program}" / "f"
            file.parent.mkdir()
            file.write_bytes(b"x" * 5_000_000)
            os.link(file, mount.path / f"l-{program}")
            for words in (
                [str(file)],
                ["--raw", str(file)],
                ["-r", "--strict", str(file.parent)],
                ["--strict", str(mount.path)],
            ):
                ours, peers = (each.run("info", *words).stdout for each in (OURS, PEER))
                assert _sorted_paths(ours) == _sorted_paths(peers)
            assert OURS.run("info", file).stdout.startswith(f"{file} :\n  inode: ")


def _sorted_paths(text: str) -> list[str]:
    """The lines, with the paths of a hard link, which come in any order, in their order."""
    lines = text.splitlines()
    paths = iter(sorted(line for line in lines if line.startswith("\t")))
    return [next(paths) if line.startswith("\t") else line for line in lines]


def test_info_by_inode_from_inside(volume: Volume, monkeypatch: pytest.MonkeyPatch) -> None:
    volume.format(OURS, "-q")
    with volume.mounted(OURS) as mount:
        (mount.path / "f").write_text("x")
        ino = (mount.path / "f").stat().st_ino
        monkeypatch.chdir(mount.path)
        shown = OURS.run("info", "-i", str(ino)).stdout
        missing = OURS.run("info", "-i", "999999", check=False)
        monkeypatch.undo()
    assert f"inode: {ino}" in shown
    assert "path: /f" in shown
    assert missing.code == 1
    assert "999999" in missing.stderr
