"""Serving a mount in this process, until it is unmounted or told to stop."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

from juicepy.cmd.exporter import exporting
from juicepy.cmd.memory import keep_arenas_small, trimming
from juicepy.cmd.mount_options import FSNAME, METRICS_ADDRESS
from juicepy.cmd.volume_options import driver_settings, passphrase
from juicepy.errors import Refused

if TYPE_CHECKING:
    from juicepy.cmd.crew import Processes
    from juicepy.cmd.mount_options import MountOptions
    from juicepy.fuse.crew import Post
    from juicepy.metrics import Metrics
    from juicepy.vfs.options import VfsOptions
    from juicepy.vfs.vfs import VFS
    from juicepy.volume import Format

logger = logging.getLogger(__name__)

LEAST_BUFFER = 32 << 20
VOLUME_GONE = 11  # the exit code of JuiceFS for a destroyed or replaced volume
_PR_SET_THP_DISABLE = 41


def serve(
    options: MountOptions,
    volume: Format,
    ready: Callable[[], None],
    crew: Processes | None = None,
) -> int:
    """Mount `volume` and serve it; `ready` is called when the mount answers. The exit code.

    SIGTERM and SIGINT flush all and unmount, as an unmount from outside does.
    """
    if options.no_thp:
        ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    keep_arenas_small()
    stop = threading.Event()
    _stop_on_signals(stop)
    gone: list[str] = []

    def on_gone(why: str) -> None:
        logger.error("%s: unmounting %s", why, options.mount_point)
        gone.append(why)
        stop.set()

    try:
        _run(options, volume, ready, stop, on_gone, crew)
    except OSError as error:
        if not gone:
            raise
        logger.warning("while unmounting: %s", error)
    logger.info("Volume %s is unmounted from %s", volume.name, options.mount_point)
    return VOLUME_GONE if gone else 0


def _run(
    options: MountOptions,
    volume: Format,
    ready: Callable[[], None],
    stop: threading.Event,
    on_gone: Callable[[str], None],
    crew: Processes | None,
) -> None:
    """All that a mount consists of, from the inside out; ends when the mount does."""
    from juicepy.vfs.open import new_metrics, open_vfs

    metrics = new_metrics(volume, options.vfs, dict(options.labels))
    with ExitStack() as stack:
        trimmer = trimming()
        if trimmer is not None:
            stack.callback(trimmer.start().close)
        fall_back = options.metrics_address == METRICS_ADDRESS
        exporter = exporting(options.metrics_address, metrics.exposition, fall_back=fall_back)
        address = stack.enter_context(exporter)
        settings = replace(_share(options), metrics_address=address)
        opened = open_vfs(
            options.url,
            settings,
            passphrase=passphrase(),
            drivers=driver_settings(),
            metrics=metrics,
            on_gone=on_gone,
        )
        vfs = stack.enter_context(opened)
        if not (settings.read_only or settings.no_bgjob):
            stack.enter_context(_backups(vfs, settings, metrics))
        fuse = replace(options.fuse, fsname=f"{FSNAME}{volume.name}", enable_acl=volume.enable_acl)
        logger.info("Mounting volume %s at %s ...", volume.name, options.mount_point)
        helped = {} if crew is None else {"crew": crew}
        front_end(options.front_end)(vfs, options.mount_point, fuse, ready, stop, **helped)


def help_serving(options: MountOptions, post: Post, ready: Callable[[], None]) -> None:
    """Serve the mount of another process with this one, until it is gone."""
    from juicepy.fuse.server import help_serving as serve_post
    from juicepy.vfs.open import open_vfs

    settings = replace(
        _share(options),
        metrics_address="",
        worker=(post.index, options.fuse.processes),
        leader_pid=os.getppid(),
    )
    with ExitStack() as stack:
        trimmer = trimming()
        if trimmer is not None:
            stack.callback(trimmer.start().close)
        opened = open_vfs(options.url, settings, passphrase=passphrase(), drivers=driver_settings())
        vfs = stack.enter_context(opened)
        serve_post(vfs, options.fuse, post, ready)


def _share(options: MountOptions) -> VfsOptions:
    """The settings of one process of a mount that has several: they share the buffers."""
    count = options.fuse.processes
    size = max(LEAST_BUFFER, options.vfs.store.buffer_size // count)
    store = replace(options.vfs.store, buffer_size=size)
    return replace(options.vfs, store=store, worker=(0, count))


def _backups(vfs: VFS, settings: VfsOptions, metrics: Metrics) -> AbstractContextManager[None]:
    from juicepy.jobs.backup import backing_up

    meta = vfs.meta
    return backing_up(
        meta.engine,
        vfs.store.storage,
        lambda: meta.format,
        metrics,
        interval_s=settings.backup_meta_s,
        skip_trash=settings.backup_skip_trash,
    )


def front_end(name: str) -> Callable[..., None]:
    """The function that speaks with the kernel: our own, or the one on llfuse."""
    if name == "own":
        from juicepy.fuse.server import serve as own

        return own
    try:
        from juicepy.fuse.llfuse_front import serve as on_llfuse
    except ImportError as error:
        raise Refused("--fuse llfuse: the package llfuse is not installed") from error
    return on_llfuse


def _stop_on_signals(stop: threading.Event) -> None:
    def told(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, told)
    signal.signal(signal.SIGINT, told)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
