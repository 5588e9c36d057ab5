"""A second, thin front end on the binding `llfuse` (libfuse 2), over the same `Operations`.

What the binding lacks is missing here: locks between machines (the kernel keeps them to itself),
readdirplus, fallocate, copy_file_range, lseek, ioctl, rename flags, requests over 128 KiB, direct
I/O (so files whose size is not known, such as `.stats`, read as empty), flags of setxattr. It has
one mount per process. Opened files always keep their pages, so an open that may not sends the
invalidation itself, on the device that libfuse has open.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator

import llfuse

from juicepy.errors import Refused
from juicepy.fuse import device, mounts
from juicepy.fuse.llfuse_handlers import WORKERS, Handlers
from juicepy.fuse.options import FLAGS, MS_RDONLY, FuseOptions, MountFlags, resolve
from juicepy.fuse.server import StopFlag
from juicepy.types import Inode
from juicepy.vfs.api import Operations

logger = logging.getLogger(__name__)

MAX_IO = 1 << 17

_POLL_S = 0.2
_JOIN_S = 10.0


def serve(
    operations: Operations,
    mount_point: str,
    options: FuseOptions,
    ready: Callable[[], None] | None = None,
    stop: StopFlag | None = None,
) -> None:
    """As `juicepy.fuse.server.serve`, but only from the main thread."""
    mounts.clear_dead(mount_point)
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, _woken)  # the binding sends it to end its own threads
    options, flags = resolve(options, as_root=os.geteuid() == 0)
    handlers = Handlers(operations)
    before = _fuse_fds()
    try:
        llfuse.init(handlers, os.path.realpath(mount_point), set(_words(options, flags)))
    except RuntimeError as error:
        raise Refused(f"cannot mount on {mount_point}: {error}", errno.EPERM) from error
    mount = mounts.find_mount(mount_point)
    try:
        handlers.device_fd = next(iter(_fuse_fds() - before), None)
        operations.init(_Notifier())
        _run(mount_point, options, mount, ready, stop)
    finally:
        llfuse.close(unmount=True)
        operations.destroy()


def _woken(number: int, frame: object) -> None:
    """The system call under way ends with EINTR: that is all the signal is for."""


def _run(
    mount_point: str,
    options: FuseOptions,
    mount: mounts.Mount | None,
    ready: Callable[[], None] | None,
    stop: StopFlag | None,
) -> None:
    """The binding's loop in a thread of its own, until the mount is gone."""
    loop = threading.Thread(target=_loop, name="llfuse", daemon=True)
    loop.start()
    try:
        if ready is not None:
            ready()
        while loop.is_alive() and not (stop is not None and stop.is_set()):
            loop.join(_POLL_S)
    finally:
        if loop.is_alive():
            _unmount(mount_point)
            loop.join(options.stop_grace_s)
        if loop.is_alive() and mount is not None:
            logger.warning("%s is still in use: its connection is cut", mount_point)
            device.abort(mount.device)
        loop.join()


def _loop() -> None:
    before = set(threading.enumerate())
    try:
        llfuse.main(workers=WORKERS, handle_signals=False)
    except Exception:
        logger.exception("the llfuse loop failed")
    for thread in set(threading.enumerate()) - before:
        if thread.name.endswith("(_notify_loop)"):  # the binding tells it to end, and goes on
            thread.join(_JOIN_S)


def _unmount(mount_point: str) -> None:
    for lazy in (False, True):
        try:
            mounts.unmount(mount_point, lazy=lazy)
            return
        except OSError as error:
            logger.debug("unmount of %s: %s", mount_point, error)


def _fuse_fds() -> set[int]:
    """Descriptors of this process that are open on /dev/fuse."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == device.DEVICE:
                found.add(int(name))
        except OSError:
            continue  # closed meanwhile: it was the listing's own
    return found


def _words(options: FuseOptions, flags: MountFlags) -> Iterator[str]:
    yield f"fsname={device.escape(options.fsname)}"
    if options.subtype:
        yield f"subtype={device.escape(options.subtype)}"
    yield f"max_write={min(options.max_write, MAX_IO)}"
    yield from ("big_writes", "nonempty", *flags.words)
    if flags.flags & MS_RDONLY:
        yield "ro"
    for name, (bit, on) in FLAGS.items():
        if bit != MS_RDONLY and on == bool(flags.flags & bit) and name in _OF_LIBFUSE:
            yield name


_OF_LIBFUSE = frozenset(
    ("suid", "nosuid", "dev", "nodev", "exec", "noexec", "sync", "dirsync", "noatime")
)


class _Notifier:
    """The binding queues invalidations and sends them from a thread of its own."""

    def inval_inode(self, ino: Inode, offset: int = 0, length: int = 0) -> None:
        llfuse.invalidate_inode(ino, attr_only=offset < 0)

    def renew_inode(self, ino: Inode, length: int, last: bytes = b"") -> None:
        self.inval_inode(ino)

    def inval_entry(self, parent: Inode, name: bytes) -> None:
        llfuse.invalidate_entry(parent, name)
