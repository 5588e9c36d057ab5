"""File systems without a mount: a VFS over metadata and objects in memory."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from juicepy.meta.registry import open_engine
from juicepy.object.storage import ObjectStorage
from juicepy.types import ROOT, Buffer, Cred, Fh, Inode
from juicepy.vfs.open import VfsOptions, open_vfs
from juicepy.vfs.vfs import VFS
from tests.support.meta import format_engine

ME = Cred(pid=77)
KiB = 1 << 10


def new_volume(**settings: object) -> str:
    """The URL of a new volume with blocks of 64 KiB."""
    url = f"mem://{uuid.uuid4()}"
    format_engine(open_engine(url), storage="mem", block_size=64, **settings)
    return url


@contextmanager
def opened(url: str | None = None, **options: object) -> Iterator[VFS]:
    """A file system over the volume, or over a new one, without background jobs."""
    chosen = VfsOptions(no_bgjob=True, **options)  # type: ignore[arg-type]
    with open_vfs(url or new_volume(), chosen) as vfs:
        yield vfs


@contextmanager
def two_clients(**settings: object) -> Iterator[tuple[VFS, VFS]]:
    """Two clients of one volume."""
    url = new_volume(**settings)
    with opened(url, attr_cache_s=0.0) as first, opened(url, attr_cache_s=0.0) as second:
        second.store.storage = first.store.storage
        yield first, second


class Faulty:
    """A storage whose puts fail while `error` is set, and wait while `gate` is cleared."""

    def __init__(self, inner: ObjectStorage) -> None:
        self.inner = inner
        self.error: OSError | None = None
        self.gate, self.waiting = Event(), Event()
        self.gate.set()

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def put(self, key: str, data: Buffer) -> None:
        if self.error is not None:
            raise self.error
        self.waiting.set()
        assert self.gate.wait(30)
        self.inner.put(key, data)


def faulty(vfs: VFS) -> Faulty:
    """Put a `Faulty` between the file system and its storage."""
    storage = Faulty(vfs.store.storage)
    vfs.store.storage = storage  # type: ignore[assignment]  # the rest comes by __getattr__
    return storage


def create(
    vfs: VFS, name: bytes, data: bytes = b"", *, parent: Inode = ROOT, flags: int = os.O_RDWR
) -> tuple[Inode, Fh]:
    found, handle = vfs.create(ME, parent, name, 0o644, 0, flags)
    if data:
        assert write(vfs, found.ino, handle.fh, 0, data) == len(data)
    return found.ino, handle.fh


def write(vfs: VFS, ino: Inode, fh: Fh, offset: int, data: bytes, *, cred: Cred = ME) -> int:
    buffer = bytearray(data)
    written = vfs.write(cred, ino, fh, offset, memoryview(buffer), 0)
    buffer[:] = b"\xee" * len(buffer)  # what a front end does: the buffer is used again
    return written


def read(vfs: VFS, ino: Inode, fh: Fh, offset: int = 0, size: int = 1 << 20) -> bytes:
    return b"".join(vfs.read(ME, ino, fh, offset, size))


def close(vfs: VFS, ino: Inode, fh: Fh, owner: int = 1) -> None:
    try:
        vfs.flush(ME, ino, fh, owner)
    finally:
        vfs.release(ME, ino, fh, 0)


def names(vfs: VFS, ino: Inode = ROOT) -> list[bytes]:
    handle = vfs.opendir(ME, ino, 0)
    try:
        return [entry.name for _, entry in vfs.readdir(ME, ino, handle.fh, 0, plus=False)]
    finally:
        vfs.releasedir(ME, ino, handle.fh)
