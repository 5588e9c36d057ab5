"""What this client chose for its mount: `VfsOptions`. Times in seconds, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from juicepy.cache.options import CacheOptions
from juicepy.cache.staging import StagingOptions
from juicepy.chunk.store import StoreOptions


@dataclass(frozen=True, slots=True)
class Setting:
    """One option as it was given; `source` says by what: default, preset, environment, ..."""

    name: str
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class VfsOptions:
    """All settings of a mounted file system but those of the kernel's protocol."""

    mount_point: str = ""
    subdir: str = ""
    read_only: bool = False
    # how long the kernel may believe what it was told
    attr_cache_s: float = 1.0
    entry_cache_s: float = 1.0
    dir_entry_cache_s: float = 1.0
    negative_entry_cache_s: float = 0.0
    readdir_cache: bool = False
    # the same where the database tells of changes
    cache_tracking: str = "off"
    tracked_attr_s: float = 3600.0
    tracked_entry_s: float = 3600.0
    tracked_dir_entry_s: float = 3600.0
    open_cache_s: float = 0.0
    open_cache_limit: int = 10000
    # metadata
    heartbeat_s: float = 12.0
    no_bgjob: bool = False
    atime_mode: str = "noatime"
    skip_dir_nlink: int = 20
    skip_dir_mtime_s: float = 0.1
    sort_dir: bool = False
    fast_statfs: bool = False
    network_interfaces: tuple[str, ...] = ()
    backup_meta_s: float = 3600.0
    backup_skip_trash: bool = False
    max_deletes: int = 10
    worker: tuple[int, int] = (0, 1)  # of so many processes that serve the mount the how manieth
    leader_pid: int = 0  # of the first of them, where this is another one
    # what is seen and allowed
    enable_xattr: bool = False
    enable_cap: bool = False
    enable_selinux: bool = False
    enable_ioctl: bool = False
    prefix_internal: bool = False
    hide_internal: bool = False
    root_squash: tuple[int, int] | None = None  # uid, gid
    all_squash: tuple[int, int] | None = None
    umask: int | None = None  # instead of the caller's
    # storage: what is not None stands in for the volume's setting
    storage: str | None = None
    bucket: str | None = None
    storage_class: str | None = None
    # data
    store: StoreOptions = field(default_factory=StoreOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    staging: StagingOptions = field(default_factory=StagingOptions)
    open_whole: bool = False  # bring files into the cache as a whole when they are opened
    whole_file_min: int = 0  # bytes; shorter files are read block by block
    page_fill: bool = True  # give the kernel whole blocks of what is read here and there
    passthrough_age_s: float = 60.0  # since a file's last change, before the kernel reads it
    # told in `.config` only
    settings: tuple[Setting, ...] = ()
    metrics_address: str = ""
    debug_address: str = ""
