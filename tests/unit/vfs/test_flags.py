from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator

import pytest

from juicepy.types import APPEND, IMMUTABLE, ROOT, SKIP_TRASH
from juicepy.vfs import flags
from juicepy.vfs.vfs import VFS
from tests.unit.vfs.volumes import ME, close, create, opened


@pytest.fixture
def vfs() -> Iterator[VFS]:
    with opened(enable_ioctl=True) as vfs:
        yield vfs


def get(vfs: VFS, ino: int, fh: int, cmd: int = flags.GETFLAGS, size: int = 4) -> int:
    return int(struct.unpack_from("<I", vfs.ioctl(ME, ino, fh, cmd, b"", size))[0])  # type: ignore[arg-type]


def test_flags_of_chattr_are_stored_and_told(vfs: VFS) -> None:
    ino, fh = create(vfs, b"f")
    assert get(vfs, ino, fh) == 0
    vfs.ioctl(ME, ino, fh, flags.SETFLAGS, struct.pack("<I", 0x31), 0)
    assert get(vfs, ino, fh) == 0x31
    assert vfs.getattr(ME, ino, None)[0].flags == IMMUTABLE | APPEND | SKIP_TRASH
    assert get(vfs, ino, fh, flags.FSGETXATTR, 28) == 0x18
    with pytest.raises(PermissionError):
        vfs.open(ME, ino, os.O_WRONLY)
    with pytest.raises(PermissionError):
        vfs.unlink(ME, ROOT, b"f")
    vfs.ioctl(ME, ino, fh, flags.SETFLAGS, struct.pack("<I", 0), 0)
    vfs.unlink(ME, ROOT, b"f")
    close(vfs, ino, fh)


def test_flags_that_we_do_not_have_are_refused(vfs: VFS) -> None:
    ino, fh = create(vfs, b"f")
    for cmd, data, code in (
        (flags.SETFLAGS, struct.pack("<I", 0x4), errno.EOPNOTSUPP),
        (flags.SETFLAGS, b"\1", errno.EINVAL),
        (0x5401, b"", errno.ENOTTY),
    ):
        with pytest.raises(OSError) as caught:
            vfs.ioctl(ME, ino, fh, cmd, data, 0)
        assert caught.value.errno == code
    close(vfs, ino, fh)


def test_flags_need_the_option() -> None:
    with opened() as vfs:
        ino, fh = create(vfs, b"f")
        with pytest.raises(OSError) as caught:
            vfs.ioctl(ME, ino, fh, flags.GETFLAGS, b"", 4)
        assert caught.value.errno == errno.EOPNOTSUPP
        close(vfs, ino, fh)


def test_answers_are_as_long_as_asked_for() -> None:
    assert flags.encode(flags.GETFLAGS, IMMUTABLE, 4) == b"\x10\0\0\0"
    assert flags.encode(flags.GETFLAGS, IMMUTABLE, 8) == b"\x10\0\0\0\0\0\0\0"
    assert len(flags.encode(flags.FSGETXATTR, IMMUTABLE, 28)) == 28
    assert flags.decode(flags.FSSETXATTR, struct.pack("<I24x", 0x8), SKIP_TRASH) == (
        IMMUTABLE | SKIP_TRASH
    )
