"""The options of `jfs mount`, and the settings of client and kernel that they make."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from juicepy.cmd import cgroup, presets
from juicepy.cmd.options import Duration, Octal, Option, Rate, Size
from juicepy.cmd.settings import is_chosen
from juicepy.errors import Refused

if TYPE_CHECKING:
    from juicepy.fuse.options import FuseOptions
    from juicepy.vfs.options import Setting, VfsOptions

FSNAME = "JuiceFS:"  # before the name of the volume, in the table of mounts
METRICS_ADDRESS = "127.0.0.1:9567"
ATIME_MODES = ("noatime", "relatime", "strictatime")
CHECKSUMS = ("none", "full", "shrink", "extend")
EVICTIONS = ("none", "2-random", "lru")
FRONT_ENDS = ("own", "llfuse")
TRACKING_MODES = ("auto", "on", "off")
_TRACKED = ("attr_cache", "entry_cache", "dir_entry_cache")  # long, unless given, if tracked
MAX_WORKERS = 64
OPEN_MODES = ("block", "whole")


@dataclass(frozen=True, slots=True)
class MountOptions:
    """All that one mount was asked for; `url` holds the password."""

    url: str
    mount_point: str
    vfs: VfsOptions
    fuse: FuseOptions
    front_end: str = "own"
    background: bool = False
    log_path: str = ""
    force: bool = False
    check_storage: bool = False
    no_thp: bool = False
    metrics_address: str = ""
    labels: tuple[tuple[str, str], ...] = ()


def default_log() -> str:
    return "/var/log/juicefs.log" if os.geteuid() == 0 else _home("juicefs.log")


def default_cache() -> str:
    return "/var/jfsCache" if os.geteuid() == 0 else _home("cache")


def _home(name: str) -> str:
    return str(Path.home() / ".juicefs" / name)


_FLAG = {"is_flag": True}
_SECONDS = Duration()

# section -> rows of (option, what click is to know, help)
_OPTIONS: dict[str, list[tuple[str, dict[str, Any], str]]] = {
    "OPTIONS": [
        ("--background -d", _FLAG, "Return when the mount answers; serve in the background."),
        ("--no-syslog", _FLAG, "Accepted for JuiceFS scripts: nothing goes to syslog."),
        (
            "--preset",
            {"default": "", "is_eager": True, "callback": presets.choose, "metavar": "NAME"},
            f"Defaults for one way of reading. {presets.shown()}.",
        ),
        ("--log", {"default": default_log()}, "Log file of a mount in the background."),
        ("--force", _FLAG, "Mount on top of what is mounted there already."),
        ("--hide-internal", _FLAG, "Hide .accesslog, .stats, .config, .trash in listings."),
        ("--disable-transparent-hugepage", _FLAG, "No transparent huge pages in this process."),
    ],
    "FUSE": [
        ("--fuse", {"default": "own"}, "Front end: own, or llfuse (the library)."),
        ("--workers", {"type": int, "default": 1}, "Processes that serve it; needs --read-only."),
        ("--enable-xattr", _FLAG, "Extended attributes."),
        ("--enable-cap", _FLAG, "The extended attribute security.capability."),
        ("--enable-selinux", _FLAG, "The extended attribute security.selinux."),
        ("--enable-ioctl", _FLAG, "The ioctls of lsattr and chattr."),
        ("--root-squash", {"default": ""}, "Serve root as this UID:GID."),
        ("--all-squash", {"default": ""}, "Serve everyone as this UID:GID."),
        ("--prefix-internal", _FLAG, "Begin the names of internal files with .jfs."),
        ("--no-passthrough", _FLAG, "Never let the kernel read local files by itself."),
        ("--no-page-fill", _FLAG, "Never give the kernel more of a file than it asks for."),
        (
            "--passthrough-age",
            {"type": _SECONDS, "default": "60s"},
            "Only those unchanged for so long.",
        ),
        ("--max-fuse-io", {"type": Size(""), "default": "1M"}, "Most bytes of one request."),
        ("--umask", {"type": Octal()}, "Instead of the umask of who creates, in octal."),
        ("-o", {"multiple": True, "metavar": "OPTION,..."}, "Further mount options."),
    ],
    "META": [
        ("--subdir", {"default": ""}, "Mount this directory of the volume as the root."),
        ("--backup-meta", {"type": _SECONDS, "default": "1h"}, "Interval of backups; 0: none."),
        ("--backup-skip-trash", _FLAG, "Leave the trash out of backups."),
        ("--heartbeat", {"type": _SECONDS, "default": "12s"}, "Interval of the heartbeat."),
        ("--read-only", _FLAG, "Allow reading only."),
        ("--no-bgjob", _FLAG, "No background jobs (clean-up, backup)."),
        ("--atime-mode", {"default": "noatime"}, "Or relatime, strictatime."),
        ("--skip-dir-nlink", {"type": int, "default": 20}, "Accepted: no engine here needs it."),
        ("--skip-dir-mtime", {"type": _SECONDS, "default": "100ms"}, "Least change of a mtime."),
        ("--sort-dir", _FLAG, "List directories in the order of names."),
        ("--fast-statfs", _FLAG, "Answer statfs from counters of this client."),
        ("--network-interfaces", {"default": ""}, "Interfaces whose addresses are told."),
    ],
    "META CACHE": [
        (
            "--cache-tracking",
            {"default": "off"},
            "Keep what the kernel caches true by the database's word: off, auto, on.",
        ),
        ("--attr-cache", {"type": _SECONDS, "default": "1.0s"}, "Attributes, in the kernel."),
        ("--entry-cache", {"type": _SECONDS, "default": "1.0s"}, "Names of files, likewise."),
        ("--dir-entry-cache", {"type": _SECONDS, "default": "1.0s"}, "Names of directories."),
        ("--negative-entry-cache", {"type": _SECONDS, "default": "0s"}, "Names not there."),
        ("--readdir-cache", _FLAG, "Let the kernel cache listings."),
        ("--open-cache", {"type": _SECONDS, "default": "0s"}, "Reopen without asking for."),
        ("--open-cache-limit", {"type": int, "default": 10000}, "Files kept so; 0: all."),
    ],
    "DATA STORAGE": [
        ("--storage", {"default": None}, "Kind of object store, instead of the volume's."),
        ("--bucket", {"default": None}, "Bucket, instead of the volume's."),
        ("--storage-class", {"default": None}, "Storage class of what this client writes."),
        ("--get-timeout", {"type": _SECONDS, "default": "60s"}, "Timeout of a download."),
        ("--put-timeout", {"type": _SECONDS, "default": "60s"}, "Timeout of an upload."),
        ("--io-retries", {"type": int, "default": 10}, "Retries after network failures."),
        ("--max-uploads", {"type": int, "default": 20}, "Uploads at once."),
        ("--max-downloads", {"type": int, "default": 200}, "Downloads at once."),
        ("--max-deletes", {"type": int, "default": 10}, "Deletions at once."),
        ("--upload-limit", {"type": Rate(), "default": 0}, "Mbps; 0: the volume's limit."),
        ("--download-limit", {"type": Rate(), "default": 0}, "Mbps; 0: the volume's limit."),
        ("--check-storage", _FLAG, "Test the object store before mounting."),
    ],
    "DATA CACHE": [
        (
            "--buffer-size",
            {"type": Size("M"), "default": cgroup.default_buffers, "show_default": "300M"},
            "Buffers in all, MiB; less in a control group with a limit.",
        ),
        ("--max-readahead", {"type": Size("M"), "default": 0}, "Read-ahead per stream, MiB."),
        ("--prefetch", {"type": int, "default": 1}, "Blocks fetched behind a small read."),
        ("--writeback", _FLAG, "Upload in the background; blocks wait in the cache directory."),
        (
            "--writeback-threshold-size",
            {"type": Size(""), "default": "0"},
            "Only blocks below; 0: all.",
        ),
        ("--upload-delay", {"type": _SECONDS, "default": "0s"}, "Time that blocks wait at least."),
        ("--upload-hours", {"default": ""}, "Hours in which they are uploaded: start-end."),
        ("--max-stage-write", {"type": int, "default": 1000}, "Blocks staged at once."),
        ("--cache-dir", {"default": default_cache()}, "Directories, separated by colons."),
        ("--cache-mode", {"type": Octal(), "default": "0600"}, "Permissions of cache files."),
        ("--cache-size", {"type": Size("M"), "default": "100G"}, "Size of the cache in MiB."),
        ("--cache-items", {"type": int, "default": 0}, "Blocks in the cache; 0: by space."),
        ("--free-space-ratio", {"type": float, "default": 0.1}, "Free share of the disk."),
        ("--cache-reserve", {"type": Size("M"), "default": "150M"}, "Free MiB at least."),
        ("--cache-prune-above", {"type": float, "default": 1.0}, "Share of limits to clean up at."),
        ("--cache-prune-to", {"type": float, "default": 0.95}, "Share of limits to clean up to."),
        ("--cache-write-pending", {"type": Size("M"), "default": "64M"}, "MiB waiting per disk."),
        ("--cache-writers", {"type": int, "default": 1}, "Threads that write to one disk."),
        ("--open-mode", {"default": "block"}, "Or whole: an open brings the file into the cache."),
        (
            "--whole-file-min",
            {"type": Size("M"), "default": "0"},
            "Least size of such a file, MiB.",
        ),
        ("--cache-partial-only", _FLAG, "Cache only small reads."),
        ("--cache-large-write", _FLAG, "Cache full blocks after their upload too."),
        ("--verify-cache-checksum", {"default": "extend"}, "Or none, full, shrink."),
        ("--cache-eviction", {"default": "2-random"}, "Or none, lru."),
        (
            "--cache-scan-interval",
            {"type": Duration(may_be_negative=True), "default": "1h"},
            "Interval of scans.",
        ),
        ("--cache-expire", {"type": _SECONDS, "default": "0s"}, "Idle time kept; 0: all."),
    ],
    "METRICS": [
        ("--metrics", {"default": METRICS_ADDRESS}, "Address of the metrics; empty: none."),
        ("--custom-labels", {"default": ""}, "Labels of the metrics: name:value;..."),
        ("--no-usage-report", _FLAG, "Accepted for JuiceFS scripts: none is ever sent."),
    ],
}


def mount_options() -> list[click.Parameter]:
    return [
        Option([*names.split()], section=section, help=text, **given)
        for section, rows in _OPTIONS.items()
        for names, given, text in rows
    ]


def build(
    url: str, mount_point: str, given: Mapping[str, Any], in_force: Sequence[Setting] = ()
) -> MountOptions:
    """The settings that the options make. Refused names the option that is wrong.

    `in_force`: the same options as text, for `.config`.
    """
    _check(given)
    cgroup.warn_of(given["buffer_size"])
    address = given["metrics"]
    return MountOptions(
        url=url,
        mount_point=mount_point,
        vfs=replace(
            _vfs(mount_point, given, address), settings=tuple(in_force), **_tracked(in_force, given)
        ),
        fuse=_fuse(given),
        front_end=given["fuse"],
        background=given["background"],
        log_path=os.path.abspath(given["log"]),
        force=given["force"],
        check_storage=given["check_storage"],
        no_thp=given["disable_transparent_hugepage"],
        metrics_address=address,
        labels=_labels(given["custom_labels"]),
    )


def _tracked(in_force: Sequence[Setting], given: Mapping[str, Any]) -> dict[str, Any]:
    """How long the kernel may keep what is kept true: as long as was asked for, if it was."""
    chosen = {each.name.replace("-", "_") for each in in_force if is_chosen(each)}
    return {
        f"tracked_{name.replace('_cache', '')}_s": given[name]
        for name in _TRACKED
        if name in chosen
    }


def _check(given: Mapping[str, Any]) -> None:
    from juicepy.cache.staging import parse_hours

    for name, known in (
        ("atime_mode", ATIME_MODES),
        ("verify_cache_checksum", CHECKSUMS),
        ("cache_eviction", EVICTIONS),
        ("fuse", FRONT_ENDS),
        ("cache_tracking", TRACKING_MODES),
        ("open_mode", OPEN_MODES),
    ):
        if given[name] not in known:
            raise Refused(f"{_dashed(name)} {given[name]!r} is not one of {', '.join(known)}")
    for name in ("io_retries", "cache_items", "open_cache_limit", "prefetch", "skip_dir_nlink"):
        _least(given, name, 0)
    for name in ("max_uploads", "max_downloads", "max_deletes", "max_stage_write", "cache_writers"):
        _least(given, name, 1)
    _least(given, "buffer_size", 32 << 20, "32M")
    _check_workers(given)
    if given["upload_hours"]:
        try:
            parse_hours(given["upload_hours"])
        except ValueError:
            text = f"--upload-hours {given['upload_hours']!r} is not of the form start-end"
            raise Refused(text) from None
    is_on_disk = given["cache_dir"] != "memory" and given["cache_size"] > 0
    if given["open_mode"] == "whole" and not is_on_disk:
        raise Refused("--open-mode whole needs a cache on disk: see --cache-dir and --cache-size")
    if not 0 <= given["free_space_ratio"] < 1:
        raise Refused(f"--free-space-ratio {given['free_space_ratio']} is not between 0 and 1")
    if not 0 < given["cache_prune_to"] <= given["cache_prune_above"] <= 1:
        text = f"{given['cache_prune_to']} and {given['cache_prune_above']}"
        raise Refused(
            f"--cache-prune-to and --cache-prune-above: not 0 < {text} <= 1 in this order"
        )
    if not 4096 <= given["max_fuse_io"] <= 16 << 20:
        raise Refused(f"--max-fuse-io {given['max_fuse_io']} is not between 4K and 16M")


def _check_workers(given: Mapping[str, Any]) -> None:
    workers = given["workers"]
    if not 1 <= workers <= MAX_WORKERS:
        raise Refused(f"--workers {workers} is not between 1 and {MAX_WORKERS}")
    if workers > 1 and not is_read_only(given):
        raise Refused(f"--workers {workers} needs --read-only: what is written is in one process")
    if workers > 1 and given["fuse"] != "own":
        raise Refused(f"--workers {workers} does not go with --fuse {given['fuse']}")


def _least(given: Mapping[str, Any], name: str, least: int, shown: str = "") -> None:
    if given[name] < least:
        raise Refused(f"{_dashed(name)} {given[name]} is less than {shown or least}")


def _dashed(name: str) -> str:
    return "--" + name.replace("_", "-")


def _vfs(mount_point: str, given: Mapping[str, Any], metrics_address: str) -> VfsOptions:
    from juicepy.cache.options import CacheOptions
    from juicepy.cache.staging import StagingOptions
    from juicepy.chunk.store import StoreOptions
    from juicepy.vfs.options import VfsOptions

    def same(*names: str) -> dict[str, Any]:
        return {name: given[name] for name in names}

    def seconds(*names: str) -> dict[str, Any]:
        return {f"{name}_s": given[name] for name in names}

    store = StoreOptions(
        readahead=given["max_readahead"],
        **same("max_uploads", "max_downloads", "buffer_size", "prefetch", "io_retries"),
        **same("upload_limit", "download_limit", "cache_large_write", "cache_partial_only"),
        **seconds("get_timeout", "put_timeout"),
    )
    cache = CacheOptions(
        dirs=absolute_dirs(given["cache_dir"]),
        mode=given["cache_mode"],
        size=given["cache_size"],
        items=given["cache_items"],
        checksum=given["verify_cache_checksum"],
        eviction=given["cache_eviction"],
        scan_interval_s=given["cache_scan_interval"],
        expire_s=given["cache_expire"],
        free_space=given["free_space_ratio"],
        reserve=given["cache_reserve"],
        prune_above=given["cache_prune_above"],
        prune_to=given["cache_prune_to"],
        write_pending=given["cache_write_pending"],
        writers=given["cache_writers"],
    )
    return VfsOptions(
        mount_point=mount_point,
        network_interfaces=tuple(filter(None, given["network_interfaces"].split(","))),
        root_squash=_squash("root_squash", given),
        all_squash=_squash("all_squash", given),
        store=store,
        cache=cache,
        metrics_address=metrics_address,
        read_only=is_read_only(given),
        staging=StagingOptions(
            enabled=given["writeback"],
            threshold=given["writeback_threshold_size"],
            delay_s=given["upload_delay"],
            hours=given["upload_hours"],
            max_writes=given["max_stage_write"],
        ),
        open_whole=given["open_mode"] == "whole",
        page_fill=not given["no_page_fill"],
        whole_file_min=given["whole_file_min"],
        **same("subdir", "no_bgjob", "atime_mode", "skip_dir_nlink", "sort_dir"),
        **same("fast_statfs", "readdir_cache", "open_cache_limit", "backup_skip_trash"),
        **same("enable_xattr", "enable_cap", "enable_selinux", "enable_ioctl", "umask"),
        **same("prefix_internal", "hide_internal", "max_deletes"),
        **same("storage", "bucket", "storage_class", "cache_tracking"),
        **seconds("attr_cache", "entry_cache", "dir_entry_cache", "negative_entry_cache"),
        **seconds("passthrough_age", "open_cache", "heartbeat", "skip_dir_mtime", "backup_meta"),
    )


def _fuse(given: Mapping[str, Any]) -> FuseOptions:
    from juicepy.fuse.options import MAX_WRITE, FuseOptions, resolve

    options = FuseOptions(
        fsname=FSNAME,
        options=tuple(given["o"]),  # read-only is the VFS's: tools write to `.control`
        max_write=min(given["max_fuse_io"], MAX_WRITE),
        passthrough=not given["no_passthrough"] and given["workers"] == 1,  # ids are a process's
        processes=given["workers"],
    )
    resolve(options, as_root=os.geteuid() == 0)  # refuses an unknown -o before anything is done
    return options


def is_read_only(given: Mapping[str, Any]) -> bool:
    """By `--read-only` or `-o ro`; the latter makes the kernel's mount read-only, too."""
    from juicepy.fuse.options import split_items

    return bool(given["read_only"]) or "ro" in split_items(given["o"])


def absolute_dirs(text: str) -> str:
    """Cache directories, each absolute; `memory` stays. A comma separates where no colon does."""
    parts = text.split(":")
    if len(parts) == 1:
        parts = text.split(",")
    found = [part if part == "memory" else os.path.abspath(part) for part in parts if part]
    if not found:
        raise Refused("--cache-dir is empty")
    return ":".join(found)


def _squash(name: str, given: Mapping[str, Any]) -> tuple[int, int] | None:
    text = given[name]
    if not text:
        return None
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match is None:
        raise Refused(f"{_dashed(name)} {text!r} is not of the form UID:GID")
    return int(match[1]), int(match[2])


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for item in filter(None, text.split(";")):
        name, colon, value = item.partition(":")
        if not colon or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise Refused(f"--custom-labels {item!r} is not of the form name:value")
        pairs.append((name, value))
    return tuple(pairs)
