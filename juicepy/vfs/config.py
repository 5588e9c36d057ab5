"""The text of `.config`: the setting of volume and mount as JSON (spec: mount surface, 1.1).

`CommPath` is left out on purpose: with it, a `juicefs mount` over this mount would try to take
over our file descriptor instead of mounting on top.
"""

from __future__ import annotations

import os
from typing import Any

from juicepy import __version__
from juicepy.types import SessionId
from juicepy.vfs.options import VfsOptions
from juicepy.volume import Format, go_json

VERSION = f"{__version__}+juicepy"


def config_text(options: VfsOptions, volume: Format, sid: SessionId, cache_dirs: str) -> bytes:
    """Secrets are replaced by `removed`; durations are nanoseconds."""
    told: dict[str, Any] = {
        "Meta": _meta(options, sid),
        "Format": volume.shown(),
        "Chunk": _chunk(options, volume, cache_dirs),
        "Security": {"EnableCap": options.enable_cap, "EnableSELinux": options.enable_selinux},
        "Port": {"PrometheusAgent": options.metrics_address, "DebugAgent": options.debug_address},
        "Version": VERSION,
        "AttrTimeout": _ns(options.attr_cache_s),
        "DirEntryTimeout": _ns(options.dir_entry_cache_s),
        "NegEntryTimeout": _ns(options.negative_entry_cache_s),
        "EntryTimeout": _ns(options.entry_cache_s),
        "ReaddirCache": options.readdir_cache,
        "BackupMeta": _ns(options.backup_meta_s),
        "BackupSkipTrash": options.backup_skip_trash,
    }
    if options.subdir:
        told["Subdir"] = options.subdir
    told["PrefixInternal"] = options.prefix_internal
    told["HideInternal"] = options.hide_internal
    for name, squash in (("RootSquash", options.root_squash), ("AllSquash", options.all_squash)):
        if squash is not None:
            told[name] = {"Uid": squash[0], "Gid": squash[1]}
    told["UMask"] = 0xFFFF if options.umask is None else options.umask
    told["Pid"] = options.leader_pid or os.getpid()
    told["PPid"] = os.getppid() if not options.leader_pid else 0
    told["Mountpoint"] = options.mount_point
    if options.settings:  # which no tool of JuiceFS knows of
        told["Options"] = {
            each.name: {"Value": each.text, "From": each.source} for each in options.settings
        }
    return go_json(told, 1).encode()


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _meta(options: VfsOptions, sid: SessionId) -> dict[str, Any]:
    return {
        "Retries": 10,
        "MaxDeletes": options.max_deletes,
        "SkipDirNlink": options.skip_dir_nlink,
        "CaseInsensi": False,
        "ReadOnly": options.read_only,
        "NoBGJob": options.no_bgjob,
        "OpenCache": _ns(options.open_cache_s),
        "OpenCacheLimit": options.open_cache_limit,
        "Heartbeat": _ns(options.heartbeat_s),
        "MountPoint": options.mount_point,
        "Subdir": options.subdir,
        "AtimeMode": options.atime_mode,
        "DirStatFlushPeriod": _ns(1),
        "SkipDirMtime": _ns(options.skip_dir_mtime_s),
        "Sid": sid,
        "SortDir": options.sort_dir,
        "FastStatfs": options.fast_statfs,
        "NetworkInterfaces": list(options.network_interfaces) or None,
    }


def _chunk(options: VfsOptions, volume: Format, cache_dirs: str) -> dict[str, Any]:
    cache, store, staging = options.cache, options.store, options.staging
    return {
        "CacheDir": cache_dirs,
        "CacheMode": cache.mode,
        "CacheSize": cache.size,
        "CacheItems": cache.items,
        "CacheChecksum": cache.checksum,
        "CacheEviction": cache.eviction,
        "CacheScanInterval": _ns(cache.scan_interval_s),
        "CacheExpire": _ns(cache.expire_s),
        "OSCache": True,
        "FreeSpace": cache.free_space,
        "AutoCreate": True,
        "Compress": volume.compression,
        "MaxUpload": store.max_uploads,
        "MaxDownload": store.max_downloads,
        "MaxStageWrite": staging.max_writes if staging.enabled else 0,
        "MaxRetries": store.io_retries,
        "UploadLimit": store.upload_limit,
        "DownloadLimit": store.download_limit,
        "Writeback": staging.enabled,
        "WritebackThresholdSize": staging.threshold,
        "UploadDelay": _ns(staging.delay_s),
        "UploadHours": staging.hours,
        "HashPrefix": volume.hash_prefix,
        "BlockSize": volume.block_size_bytes,
        "GetTimeout": _ns(store.get_timeout_s),
        "PutTimeout": _ns(store.put_timeout_s),
        "CacheFullBlock": not store.cache_partial_only,
        "CacheLargeWrite": store.cache_large_write,
        "BufferSize": store.buffer_size,
        "Readahead": store.readahead or store.buffer_size // 10,
        "Prefetch": store.prefetch,
    }
