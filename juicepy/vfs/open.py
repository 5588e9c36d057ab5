"""Putting a file system together: engine, metadata client, storage, cache, block store, VFS."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from juicepy.cache.cache import BlockCache
from juicepy.cache.disks import DiskStates, expand, open_cache, open_staging, open_whole
from juicepy.cache.options import CacheOptions
from juicepy.chunk import compact
from juicepy.chunk.layout import Layout
from juicepy.chunk.store import BlockStore, new_budget
from juicepy.meta.client import MetaClient, open_meta
from juicepy.meta.compaction import Compacted
from juicepy.meta.registry import open_engine
from juicepy.meta.service import MetaOptions
from juicepy.metrics import Metrics
from juicepy.object.registry import open_storage
from juicepy.object.storage import ObjectStorage
from juicepy.object.target import DriverSettings
from juicepy.types import Slice, SliceId
from juicepy.vfs.buffers import WriteBuffers
from juicepy.vfs.config import VERSION
from juicepy.vfs.options import VfsOptions
from juicepy.vfs.vfs import VFS
from juicepy.vfs.whole import WholeFileMode
from juicepy.volume import Format

__all__ = ["CacheOptions", "VfsOptions", "new_metrics", "open_vfs"]

_READS = {"Lookup", "GetAttr", "Read", "ReadLink", "GetXattr", "ListXattr"}  # no transactions


@contextmanager
def open_vfs(
    meta_url: str,
    options: VfsOptions | None = None,
    *,
    passphrase: str = "",
    drivers: DriverSettings | None = None,
    metrics: Metrics | None = None,
    on_gone: Callable[[str], None] | None = None,
) -> Iterator[VFS]:
    """The file system of the volume at `meta_url`, with a session of its own.

    At the end all data is flushed (the first error of that is raised) and the session closed.
    `passphrase` is that of the volume's private key, `drivers` what the environment tells of
    clouds. `on_gone` is told if the volume is destroyed.
    """
    options = options or VfsOptions()
    with ExitStack() as stack:
        engine = open_engine(meta_url)
        stack.callback(engine.close)
        meta = open_meta(engine, _meta_options(options))
        metrics = metrics or new_metrics(meta.format, options)
        storage = _storage(meta.format, options, passphrase, drivers, metrics)
        stack.callback(storage.close)
        layout = Layout(meta.format.block_size_bytes, meta.format.hash_prefix)
        memory = new_budget(options.store, layout.block_size)
        cache = open_cache(options.cache, meta.format.uuid, layout, metrics, memory)
        stack.callback(cache.close)
        compression = meta.format.compression
        staging = None
        if not options.read_only:
            staging = open_staging(cache, options.staging, layout, options.store.max_uploads)
        data = replace(options.store, object_copies=_copies(meta.format, options))
        store = BlockStore(storage, cache, layout, compression, data, metrics, staging, memory)
        _watch_cache(metrics, cache, store)
        stack.callback(store.close)
        if staging is not None:
            staging.tell(metrics)
            stack.callback(staging.close)
        _connect(meta, store, metrics, on_gone)
        meta.start_session()
        stack.callback(meta.close_session)
        buffers = WriteBuffers(memory, layout.block_size).start()
        stack.callback(buffers.close)
        whole = None
        if options.open_whole:
            whole = WholeFileMode(meta, store, open_whole(cache), options.whole_file_min)
            stack.callback(whole.close)
        dirs = _cache_dirs(meta.format, options)
        vfs = VFS(meta, store, buffers, options, metrics, dirs, whole)
        stack.callback(vfs.destroy)
        yield vfs


def new_metrics(
    volume: Format, options: VfsOptions, custom: Mapping[str, str] | None = None
) -> Metrics:
    """Metrics with the labels that every sample of a mount has, and `custom` ones."""
    labels = {
        "instance": socket.gethostname(),
        "juicefs_version": VERSION,
        "mp": options.mount_point,
        "vol_name": volume.name,
    }
    return Metrics(labels | dict(custom or {}))


def _meta_options(options: VfsOptions) -> MetaOptions:
    return MetaOptions(
        read_only=options.read_only,
        no_bgjob=options.no_bgjob,
        heartbeat_s=options.heartbeat_s,
        subdir=options.subdir,
        atime_mode=options.atime_mode,
        skip_dir_mtime_ns=round(options.skip_dir_mtime_s * 1e9),
        mount_point=options.mount_point,
        network_interfaces=options.network_interfaces,
        max_deletes=options.max_deletes,
    )


def _storage(
    volume: Format,
    options: VfsOptions,
    passphrase: str,
    drivers: DriverSettings | None,
    metrics: Metrics,
) -> ObjectStorage:
    chosen = {
        "storage": options.storage,
        "bucket": options.bucket,
        "storage_class": options.storage_class,
    }
    volume = volume.with_(**{name: value for name, value in chosen.items() if value is not None})
    storage_class = volume.storage_class or "STANDARD"

    def observe(method: str, seconds: float, size: int, error: OSError | None) -> None:
        metrics.object_request(method, seconds, size, storage_class)
        if error is not None and not isinstance(error, FileNotFoundError):
            metrics.object_request_errors.inc()

    store = options.store
    return open_storage(
        volume,
        passphrase=passphrase,
        io_retries=store.io_retries,
        get_timeout_s=store.get_timeout_s,
        put_timeout_s=store.put_timeout_s,
        upload_limit=store.upload_limit or volume.upload_limit,
        download_limit=store.download_limit or volume.download_limit,
        observe=observe,
        settings=drivers,
    )


def _copies(volume: Format, options: VfsOptions) -> int:
    """Copies of a block that the object layer makes to upload it."""
    if volume.encrypt_key:
        return 1
    is_local = (options.storage or volume.storage) == "file"
    return int(not is_local and volume.compression in ("", "none"))  # what is packed is sent as is


def _cache_dirs(volume: Format, options: VfsOptions) -> str:
    """The directories as `.config` tells them."""
    if options.cache.dirs == "memory" or options.cache.size <= 0:
        return options.cache.dirs
    paths = expand(options.cache.dirs)
    return ":".join(os.path.join(path, volume.uuid) for path in paths)


def _watch_cache(metrics: Metrics, cache: BlockCache, store: BlockStore) -> None:
    watch = metrics.watch
    watch("blockcache_blocks", lambda: cache.stats()[0])
    watch("blockcache_bytes", lambda: cache.stats()[1])
    metrics.collector(DiskStates(cache))
    watch("blockcache_hits", lambda: store.stats().hits)
    watch("blockcache_hit_bytes", lambda: store.stats().hit_bytes)
    watch("blockcache_miss", lambda: store.stats().misses)
    watch("blockcache_miss_bytes", lambda: store.stats().miss_bytes)


def _connect(
    meta: MetaClient,
    store: BlockStore,
    metrics: Metrics,
    on_gone: Callable[[str], None] | None,
) -> None:
    """What the metadata client leaves to the data path: deleting and compacting slices."""

    def compacted(slices: tuple[Slice, ...], new_slice: Callable[[], SliceId]) -> Compacted | None:
        plan = compact.plan(slices)
        if plan is None:
            return None
        new = new_slice()
        size = compact.copy(store, plan.view, new)
        metrics.compact_size_histogram_bytes.observe(size)
        return Compacted(plan.skipped, plan.taken, Slice(plan.pos, new, size, 0, size))

    def observe(name: str, seconds: float) -> None:
        metrics.meta_ops.observe(name, seconds)
        if name not in _READS:
            metrics.transaction_durations_histogram_seconds.observe(seconds)

    meta.watch(observe, lambda name, count: metrics.transaction_restart.labels(name).inc(count))
    meta.on_delete_slice(store.remove)
    meta.on_compact(compacted)
    if on_gone is not None:
        meta.on_gone(on_gone)
