"""`jfs mount`: mount a volume, in the foreground or with -d in the background."""

from __future__ import annotations

import errno
import logging
import os
import stat
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from juicepy import log, urls
from juicepy.cmd import crew, daemon, handover, settings
from juicepy.cmd.exporter import parse_address
from juicepy.cmd.mount_options import FSNAME, build, mount_options
from juicepy.cmd.options import META_URL, Command, describe, meta_url, setup_log
from juicepy.errors import Refused
from juicepy.types import ROOT, Kind

if TYPE_CHECKING:
    from juicepy.cmd.mount_options import MountOptions
    from juicepy.fuse.crew import Post
    from juicepy.meta.engine import MetaEngine
    from juicepy.vfs.options import Setting
    from juicepy.volume import Format

logger = logging.getLogger(__name__)


@click.command(
    cls=Command,
    params=[META_URL, click.Argument(["mount_point"], metavar="MOUNTPOINT"), *mount_options()],
)
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int:
    """Mount the volume at META-URL on the directory MOUNTPOINT.

    In the foreground until it is unmounted or stopped; with -d in the background.
    """
    report = handover.Report()
    try:
        return _mount(ctx.obj, given, settings.in_force(ctx), report)
    except Exception as error:
        report.failed(describe(error) if isinstance(error, OSError) else repr(error))
        raise


def _mount(
    arguments: list[str],
    given: dict[str, Any],
    in_force: Sequence[Setting],
    report: handover.Report,
) -> int:
    handed, post = handover.take_url(), crew.take_post()
    url = absolute_url(meta_url(given["meta_url"]) if handed is None else handed)
    log.redactor.hide(*urls.secrets_of(url))
    options = build(url, os.path.abspath(given["mount_point"]), given, in_force)
    if options.metrics_address:
        parse_address(options.metrics_address)
    if handed is None:
        handover.hide_in_ps(arguments, given["meta_url"], url)
    if post is not None:
        return _help(options, post, report)
    check_mount_point(options.mount_point, options)
    if options.background:
        told = daemon.start(options.mount_point, options.log_path)
        if told is None:
            return _tell_ready(options.mount_point)
        report.send_to(told)
        setup_log(options.log_path)
    volume, options = _checked(options)
    if options.background:
        os.chdir("/")
    settings.tell(in_force)
    helpers = None
    if options.fuse.processes > 1:
        helpers = crew.Processes(handover.hidden(arguments, given["meta_url"]), url)
    return _serve(options, volume, report, helpers)


def _tell_ready(path: str) -> int:
    """What the caller of a mount in the background reads."""
    from juicepy.fuse import mounts

    found = mounts.find_mount(path)
    if found is None:
        raise Refused(f"{path} was unmounted in this moment")
    click.echo(f"{found.source.removeprefix(FSNAME)} is ready at {path}", err=True)
    return 0


def _help(options: MountOptions, post: Post, report: handover.Report) -> int:
    """Serve what another process has checked and mounted."""
    from juicepy.cmd.serve import help_serving

    if options.background:
        setup_log(options.log_path)
        os.chdir("/")
    help_serving(options, post, report.ready)
    return 0


def _serve(
    options: MountOptions,
    volume: Format,
    report: handover.Report,
    helpers: crew.Processes | None,
) -> int:
    from juicepy.cmd.serve import serve

    def ready() -> None:
        report.ready()
        logger.info("OK, %s is ready at %s", volume.name, options.mount_point)

    return serve(options, volume, ready, helpers)


def _checked(options: MountOptions) -> tuple[Format, MountOptions]:
    """The volume to be mounted, after a look at all that could be wrong with it or the options."""
    from juicepy.cmd.volume_options import bucket_of, volume_storage
    from juicepy.jobs import volume as volumes
    from juicepy.meta.registry import open_engine

    with closing(open_engine(options.url)) as engine:
        volume = volumes.formatted(engine, urls.parse(options.url).where)
        check_subdir(engine, options.vfs.subdir, read_only=options.vfs.read_only)
    volume.check_client_version()
    check_not_mounted(options.mount_point, volume, force=options.force)
    if volume.change_log and not options.vfs.read_only:
        raise Refused("the volume keeps a change log, which this client does not write")
    if volume.removed_secrets:
        names = ", ".join(volume.removed_secrets)
        raise Refused(f"{names} of the volume was removed, set it again with jfs config")
    storage = options.vfs.storage or volume.storage
    bucket = options.vfs.bucket or volume.bucket
    seen = volume.with_(storage=storage, bucket=bucket_of(storage, bucket))
    if storage == "file" and volume.shards <= 1 and not os.path.isdir(seen.bucket):
        raise Refused(f"--bucket {seen.bucket} of volume {volume.name} does not exist")
    with volume_storage(seen) as store:
        if options.check_storage:
            volumes.check_storage(store)
        elif storage not in ("file", "mem"):
            volumes.check_bucket(store)
    check_cache_dirs(options.vfs.cache.dirs, options.vfs.cache.size)
    if options.vfs.bucket is not None:
        options = replace(options, vfs=replace(options.vfs, bucket=seen.bucket))
    return volume, options


def absolute_url(url: str) -> str:
    """The URL with an absolute path where it names a local file: a daemon has another cwd."""
    scheme, found, rest = url.partition("://")
    if not found or scheme != "sqlite3":
        return url
    path, question, options = rest.partition("?")
    prefix = "file:" if path.startswith("file:") else ""
    return f"{scheme}://{prefix}{os.path.abspath(path.removeprefix(prefix))}{question}{options}"


def check_mount_point(path: str, options: MountOptions) -> None:
    """Refused if it is no empty directory. A dead mount on it is taken down first."""
    from juicepy.fuse import mounts
    from juicepy.fuse.options import split_items

    if mounts.clear_dead(path):
        logger.warning("took down a dead mount at %s", path)
    try:
        found = os.stat(path)
    except OSError as error:
        text = "does not exist" if error.errno == errno.ENOENT else error.strerror
        raise Refused(f"MOUNTPOINT {path} {text}", error.errno or errno.EIO) from error
    if not stat.S_ISDIR(found.st_mode):
        raise Refused(f"MOUNTPOINT {path} is not a directory", errno.ENOTDIR)
    may_cover = options.force or "nonempty" in split_items(options.fuse.options)
    if not may_cover and mounts.find_mount(path) is None and os.listdir(path):
        raise Refused(f"MOUNTPOINT {path} is not empty (-o nonempty mounts over it)")


def check_not_mounted(path: str, volume: Format, *, force: bool) -> None:
    """Refused if something is mounted there already."""
    from juicepy.fuse import mounts

    found = mounts.find_mount(path)
    if found is None or force:
        return
    if found.source == f"{FSNAME}{volume.name}":
        raise Refused(f"volume {volume.name} is already mounted at {path}", errno.EBUSY)
    raise Refused(
        f"MOUNTPOINT {path} is busy: {found.source} ({found.fstype}) is mounted there", errno.EBUSY
    )


def check_subdir(engine: MetaEngine, path: str, *, read_only: bool) -> None:
    """Refused if `--subdir` names no directory, nor one that can be made."""
    ino = ROOT
    for part in filter(None, os.fsencode(path).split(b"/")):
        found = engine.lookup(ino, part)
        if found is None:
            if read_only:
                raise Refused(f"--subdir {path} does not exist in the volume", errno.ENOENT)
            return
        if found[0].kind is not Kind.DIR:
            raise Refused(f"--subdir {path} is not a directory", errno.ENOTDIR)
        ino = found[0].ino


def check_cache_dirs(dirs: str, size: int) -> None:
    """Refused if a cache directory cannot be written."""
    if size == 0:
        return
    for path in dirs.split(":"):
        if path == "memory" or any(mark in path for mark in "*?["):
            continue
        try:
            os.makedirs(path, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise Refused(f"--cache-dir {path} is not writable: {error.strerror}") from error
