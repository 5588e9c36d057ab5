"""From the options of `jfs mount` to the settings of client and kernel."""

from typing import Any

import click
import pytest

from juicepy.cache.staging import StagingOptions
from juicepy.cmd import cgroup, mount, mount_options
from juicepy.cmd.options import Command
from juicepy.errors import Refused


def given(*words: str) -> dict[str, Any]:
    command = Command("mount", params=mount_options.mount_options())
    context = click.Context(command)
    command.parse_args(context, list(words))
    return context.params


def built(*words: str) -> mount_options.MountOptions:
    return mount_options.build("mem://x", "/mnt", given(*words))


def test_defaults_are_those_of_juicefs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "memory_limit", lambda: None)
    options = built()
    vfs = options.vfs
    assert (vfs.attr_cache_s, vfs.entry_cache_s, vfs.dir_entry_cache_s) == (1, 1, 1)
    assert (vfs.heartbeat_s, vfs.backup_meta_s, vfs.skip_dir_mtime_s) == (12, 3600, 0.1)
    assert vfs.store.buffer_size == 300 << 20
    assert (vfs.store.max_uploads, vfs.store.max_downloads) == (20, 200)
    assert vfs.cache.size == 100 << 30
    assert vfs.cache.mode == 0o600
    assert options.metrics_address == "127.0.0.1:9567"
    assert not options.background


def test_a_control_group_lowers_the_default_of_the_buffers_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cgroup, "memory_limit", lambda: 512 << 20)
    assert built().vfs.store.buffer_size == 256 << 20
    assert built("--buffer-size", "400").vfs.store.buffer_size == 400 << 20


def test_options_reach_their_settings() -> None:
    options = built(
        *("--subdir", "/a", "--read-only", "--no-bgjob", "--attr-cache", "5", "-o", "ro,noexec"),
        *("--buffer-size", "64", "--cache-dir", "c1:c2", "--cache-size", "10G", "--umask", "022"),
        *("--all-squash", "1000:100", "--custom-labels", "team:a;env:b", "--metrics", ""),
        *("--max-fuse-io", "128K", "--hide-internal", "--bucket", "b", "--upload-limit", "80"),
    )
    vfs = options.vfs
    assert (vfs.subdir, vfs.read_only, vfs.no_bgjob, vfs.hide_internal) == ("/a", True, True, True)
    assert vfs.attr_cache_s == 5
    assert vfs.store.buffer_size == 64 << 20
    assert vfs.store.upload_limit == 80
    assert [part.rpartition("/")[2] for part in vfs.cache.dirs.split(":")] == ["c1", "c2"]
    assert all(part.startswith("/") for part in vfs.cache.dirs.split(":"))
    assert (vfs.umask, vfs.all_squash, vfs.root_squash) == (0o22, (1000, 100), None)
    assert options.labels == (("team", "a"), ("env", "b"))
    assert options.metrics_address == ""
    assert options.fuse.max_write == 128 << 10
    assert options.fuse.options == ("ro,noexec",)
    assert list(options.fuse.options) == ["ro,noexec"]


def test_options_of_write_back_and_whole_files() -> None:
    vfs = built(
        *("--writeback", "--upload-delay", "1m", "--upload-hours", "22-6"),
        *("--writeback-threshold-size", "64K", "--max-stage-write", "5"),
        *("--open-mode", "whole", "--whole-file-min", "2", "--passthrough-age", "5m"),
    ).vfs
    assert vfs.staging == StagingOptions(True, 64 << 10, 60.0, "22-6", 5)
    assert (vfs.open_whole, vfs.whole_file_min, vfs.passthrough_age_s) == (True, 2 << 20, 300.0)
    assert built("--no-passthrough").fuse.passthrough is False


@pytest.mark.parametrize(
    "words",
    [
        ("--buffer-size", "1"),
        ("--max-uploads", "0"),
        ("--io-retries", "-1"),
        ("--free-space-ratio", "2"),
        ("--atime-mode", "never"),
        ("--verify-cache-checksum", "some"),
        ("--cache-eviction", "fifo"),
        ("--fuse", "other"),
        ("--root-squash", "root"),
        ("--custom-labels", "a=b"),
        ("--cache-dir", ":"),
        ("--max-fuse-io", "1K"),
        ("-o", "nosuch"),
        ("--open-mode", "half"),
        ("--upload-hours", "all"),
        ("--max-stage-write", "0"),
    ],
)
def test_bad_value_is_refused_with_its_option(words: tuple[str, str]) -> None:
    with pytest.raises(Refused) as caught:
        built(*words)
    assert words[0] in str(caught.value)


def test_memory_cache_and_commas() -> None:
    assert mount_options.absolute_dirs("memory") == "memory"
    assert mount_options.absolute_dirs("/a,/b") == "/a:/b"
    assert mount_options.absolute_dirs("/a,x:/b") == "/a,x:/b"


def test_path_of_a_local_database_becomes_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert mount.absolute_url("sqlite3://x.db?a=b") == "sqlite3:///x.db?a=b"
    assert mount.absolute_url("sqlite3://file:x.db") == "sqlite3://file:/x.db"
    assert mount.absolute_url("redis://h/1") == "redis://h/1"
