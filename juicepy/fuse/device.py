"""Opening /dev/fuse and mounting: by mount(2) with privilege, otherwise through fusermount3."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import subprocess
import tempfile
from pathlib import Path

from juicepy.errors import Refused, posix_error
from juicepy.fuse import mounts
from juicepy.fuse.options import FuseOptions, MountFlags, flag_words, resolve

DEVICE = "/dev/fuse"

_ANSWER_TIMEOUT_S = 30.0


def mount(path: str, options: FuseOptions) -> tuple[int, FuseOptions]:
    """Mount on the directory `path`; the open device and the options as they hold.

    A dead mount left there by a killed client is cleaned first.
    """
    mounts.clear_dead(path)
    if not os.path.isdir(path):
        raise Refused(f"mount point {path} is not a directory", errno.ENOTDIR)
    as_root = os.geteuid() == 0
    options, flags = resolve(options, as_root=as_root)
    if as_root:
        return _mount_directly(path, options, flags), options
    return _mount_by_helper(path, options, flags), options


def _mount_directly(path: str, options: FuseOptions, flags: MountFlags) -> int:
    fd = open_device()
    try:
        root_mode = os.stat(path).st_mode & 0o170000
        words = (
            f"fd={fd}",
            f"rootmode={root_mode:o}",
            f"user_id={os.getuid()}",
            f"group_id={os.getgid()}",
            *flags.words,
        )
        fstype = f"fuse.{options.subtype}" if options.subtype else "fuse"
        result = mounts.libc.mount(
            os.fsencode(options.fsname),
            os.fsencode(os.path.realpath(path)),
            os.fsencode(fstype),
            ctypes.c_ulong(flags.flags),
            ",".join(words).encode(),
        )
        if result != 0:
            raise _mount_error(ctypes.get_errno(), path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_device() -> int:
    try:
        return os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(
            f"cannot open {DEVICE} ({error.strerror}): load the kernel module fuse, or give the "
            "container the device and the capability SYS_ADMIN",
            error.errno or errno.EIO,
        ) from error


def _mount_error(code: int, path: str) -> OSError:
    if code == errno.EPERM:
        return Refused(f"not permitted to mount on {path}: needs the capability SYS_ADMIN", code)
    return posix_error(code, path)


def _mount_by_helper(path: str, options: FuseOptions, flags: MountFlags) -> int:
    """fusermount3 mounts and passes the device back over the socket named in _FUSE_COMMFD."""
    words = [*flag_words(flags.flags), *flags.words, f"fsname={escape(options.fsname)}"]
    if options.subtype:
        words.append(f"subtype={escape(options.subtype)}")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        with theirs:
            helper = subprocess.Popen(
                [mounts.fusermount(), "-o", ",".join(words), "--", path],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            )
        ours.settimeout(_ANSWER_TIMEOUT_S)
        fd = _receive_fd(ours)
        _, said = helper.communicate(timeout=_ANSWER_TIMEOUT_S)
    if fd is None:
        text = said.decode(errors="replace").strip() or "fusermount3 failed"
        raise Refused(f"cannot mount on {path}: {text}", errno.EPERM)
    os.set_inheritable(fd, False)
    return fd


def _receive_fd(link: socket.socket) -> int | None:
    """The file descriptor the helper sends; None if it ended without one."""
    try:
        _, fds, _, _ = socket.recv_fds(link, 1, 1)
    except ConnectionError:
        return None
    return fds[0] if fds else None


def escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace(",", "\\,")


def set_readahead(path: str, size: int) -> bool:
    """Let the kernel read `size` bytes ahead; needs privilege (the default is 128 KiB)."""
    found = mounts.find_mount(path)
    if found is None:
        return False
    major, minor = found.device
    knob = Path(f"/sys/class/bdi/{major}:{minor}/read_ahead_kb")
    try:
        knob.write_text(str(size // 1024))
    except OSError:
        return False
    return True


def abort(device: tuple[int, int]) -> bool:
    """Cut the connection of the mount with that device number: its requests fail at once.

    False where that is not possible. The kernel's control files are often not mounted in
    containers: with privilege they are, for the moment it takes.
    """
    _, minor = device  # the major number of such mounts is 0
    if _write_abort(Path("/sys/fs/fuse/connections"), minor):
        return True
    with tempfile.TemporaryDirectory(prefix="fusectl.") as place:
        target = os.fsencode(place)
        if mounts.libc.mount(b"fusectl", target, b"fusectl", ctypes.c_ulong(0), None) != 0:
            return False
        try:
            return _write_abort(Path(place), minor)
        finally:
            mounts.libc.umount2(target, mounts.MNT_DETACH)


def _write_abort(connections: Path, number: int) -> bool:
    try:
        (connections / str(number) / "abort").write_text("1")
    except OSError:
        return False
    return True
