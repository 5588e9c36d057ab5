"""Reading and writing through the kernel."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from juicepy.fuse import mounts
from juicepy.fuse.options import FuseOptions
from tests.support.toyfs import FS_APPEND_FL, FS_IOC_GETFLAGS, FS_IOC_SETFLAGS
from tests.support.toymount import ToyMount, toy_mount
from tests.support.waiting import wait_for

MIB = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def test_a_megabyte_travels_in_one_request(toy: ToyMount, place: Path) -> None:
    data = os.urandom(8 * MIB)
    block = mmap.mmap(-1, len(data))  # page-aligned, as O_DIRECT wants it
    block.write(data)
    writes, reads = toy.calls("write"), toy.calls("read")
    with opened(place / "f", os.O_RDWR | os.O_CREAT | os.O_DIRECT) as fd:
        assert os.pwrite(fd, block, 0) == len(data)
        assert toy.calls("write") - writes <= 9
        got = mmap.mmap(-1, len(data))
        assert os.preadv(fd, [got], 0) == len(data)
        assert got[:] == data
    assert toy.calls("read") - reads <= 9


def test_buffered_data_comes_back(place: Path) -> None:
    data = os.urandom(5 * MIB + 12345)
    (place / "f").write_bytes(data)
    with opened(place / "f", os.O_RDONLY) as fd:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert (place / "f").read_bytes() == data
    assert os.stat(place / "f").st_size == len(data)


def test_random_writes_match_a_model(place: Path) -> None:
    seed = random.randrange(1 << 30)
    rng, model = random.Random(seed), bytearray()
    with opened(place / "f", os.O_RDWR | os.O_CREAT) as fd:
        for _ in range(200):
            offset, data = rng.randrange(1 << 18), rng.randbytes(rng.randrange(1, 30000))
            model.extend(bytes(max(0, offset + len(data) - len(model))))
            model[offset : offset + len(data)] = data
            assert os.pwrite(fd, data, offset) == len(data)
            at = rng.randrange(len(model))
            assert os.pread(fd, 5000, at) == model[at : at + 5000], f"seed {seed}"
    assert (place / "f").read_bytes() == bytes(model), f"seed {seed}"


def test_mmap_reads_and_writes(place: Path) -> None:
    path = place / "f"
    path.write_bytes(bytes(3 * MIB))
    with opened(path, os.O_RDWR) as fd, mmap.mmap(fd, 0) as mapped:
        mapped[MIB : MIB + 5] = b"hello"
        mapped[-3:] = b"end"
        mapped.flush()
    data = path.read_bytes()
    assert data[MIB : MIB + 5] == b"hello"
    assert data[-3:] == b"end"


def test_append_truncate_and_sparse(place: Path) -> None:
    path = place / "f"
    for _ in range(3):
        with open(path, "ab") as file:
            file.write(b"abc")
    assert path.read_bytes() == b"abc" * 3
    os.truncate(path, 4)
    assert path.read_bytes() == b"abca"
    os.truncate(path, 10)
    assert path.read_bytes() == b"abca" + bytes(6)
    path.write_bytes(b"new")  # O_TRUNC in the open itself
    assert path.read_bytes() == b"new"


def test_read_beyond_the_end_is_short(place: Path) -> None:
    (place / "f").write_bytes(b"123")
    with opened(place / "f", os.O_RDONLY) as fd:
        assert os.pread(fd, 100, 0) == b"123"
        assert os.pread(fd, 100, 3) == b""
        assert os.pread(fd, 100, 1 << 40) == b""


def test_unlinked_file_stays_open(place: Path) -> None:
    with opened(place / "f", os.O_RDWR | os.O_CREAT) as fd:
        os.unlink(place / "f")
        os.write(fd, b"still here")
        assert os.pread(fd, 100, 0) == b"still here"


def test_fallocate_modes(place: Path) -> None:
    path = place / "f"
    path.write_bytes(b"x" * 20000)
    with opened(path, os.O_RDWR) as fd:
        os.posix_fallocate(fd, 0, 30000)
        assert os.fstat(fd).st_size == 30000
        assert libc.fallocate(fd, 3, ctypes.c_long(4096), ctypes.c_long(4096)) == 0
        assert os.pread(fd, 4096, 4096) == bytes(4096)
        assert os.pread(fd, 1, 8192) == b"x"


def test_lseek_finds_data_and_holes(place: Path) -> None:
    path = place / "f"
    path.write_bytes(b"x" * 4096 + bytes(8192) + b"y" * 100)
    with opened(path, os.O_RDONLY) as fd:
        assert os.lseek(fd, 0, os.SEEK_HOLE) == 4096
        assert os.lseek(fd, 5000, os.SEEK_DATA) == 12288
        with pytest.raises(OSError) as caught:
            os.lseek(fd, 1 << 20, os.SEEK_DATA)
        assert caught.value.errno == errno.ENXIO


def test_copy_file_range_is_done_by_the_file_system(toy: ToyMount, place: Path) -> None:
    data = os.urandom(300_000)
    (place / "a").write_bytes(data)
    (place / "b").touch()
    before = toy.calls("copy_file_range")
    with opened(place / "a", os.O_RDONLY) as source, opened(place / "b", os.O_RDWR) as target:
        assert os.copy_file_range(source, target, 200_000, 1000, 5) == 200_000
    assert toy.calls("copy_file_range") == before + 1
    assert (place / "b").read_bytes() == bytes(5) + data[1000:201_000]


def test_fsync_fdatasync_and_syncfs(toy: ToyMount, place: Path) -> None:
    before = toy.calls("fsync")
    with opened(place / "f", os.O_RDWR | os.O_CREAT) as fd:
        os.write(fd, b"x")
        os.fsync(fd)
        os.fdatasync(fd)
        assert libc.syncfs(fd) == 0
    with opened(place, os.O_RDONLY) as fd:
        os.fsync(fd)
    assert toy.calls("fsync") == before + 2
    assert toy.calls("fsyncdir") == 1


def test_ioctl_flags_in_four_bytes_and_in_eight(place: Path) -> None:
    path = place / "f"
    path.touch()
    with opened(path, os.O_RDONLY) as fd:
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, (FS_APPEND_FL).to_bytes(8, "little"))
        got = fcntl.ioctl(fd, FS_IOC_GETFLAGS, bytes(8))
        assert int.from_bytes(got[:4], "little") == FS_APPEND_FL
        with pytest.raises(OSError) as caught:
            fcntl.ioctl(fd, 0x40046699, bytes(4))
        assert caught.value.errno == errno.ENOTTY


def test_release_follows_the_last_close(toy: ToyMount, place: Path) -> None:
    with opened(place / "f", os.O_RDWR | os.O_CREAT) as fd:
        with opened(place / "f", os.O_RDONLY):
            pass
        os.close(os.dup(fd))
    wait_for(lambda: not toy.ask("sum(fs.open_files.values())"), "all handles to be released")


def test_length_told_by_open_beats_cached_attributes() -> None:
    """Another client appends: who opens then reads all, although attributes are cached."""
    with toy_mount(setup="fs.attr_timeout_s = fs.entry_timeout_s = 600.0") as toy:
        path = toy.path / "f"
        path.write_bytes(b"short")
        assert path.read_bytes() == b"short"
        assert os.stat(path).st_size == 5
        toy.run("node = fs.nodes[2]; fs._resize(node, 0); node.data.extend(b'much longer')")
        toy.run("node.attr.length = len(node.data)")
        assert os.stat(path).st_size == 5, "the attributes are not cached, this test shows nothing"
        assert path.read_bytes() == b"much longer"
        assert os.stat(path).st_size == 11


def test_notifications_reach_the_kernel() -> None:
    setup = "fs.attr_timeout_s = fs.entry_timeout_s = 600.0; fs.keep_cache = True"
    with toy_mount(setup=setup) as toy:
        path = toy.path / "f"
        path.write_bytes(b"old")
        assert path.read_bytes() == b"old"
        toy.run("fs.nodes[2].data[:] = b'new'; fs.notifier.inval_inode(2)")
        wait_for(lambda: path.read_bytes() == b"new", "the pages to be dropped")
        toy.run("fs.nodes[1].entries[b'g'] = fs.nodes[1].entries.pop(b'f')")
        assert path.exists()
        toy.run("fs.notifier.inval_entry(1, b'f')")
        wait_for(lambda: not path.exists(), "the entry to be dropped")
        toy.run("fs.notifier.inval_inode(4711); fs.notifier.inval_entry(1, b'unknown')")
        assert toy.ask("errors") == []


def test_direct_io_file_reads_beyond_its_told_size() -> None:
    with toy_mount(setup="fs.direct_io = True; fs.announce_length = False") as toy:
        (toy.path / "f").touch()
        toy.run("fs.nodes[2].data[:] = b'not in the attributes'")
        assert (toy.path / "f").read_bytes() == b"not in the attributes"


def test_passthrough_reads_the_local_file(tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"from the local file" * 1000)
    with toy_mount(setup="fs.passthrough = True") as toy:
        path = toy.path / "f"
        path.write_bytes(local.read_bytes())
        toy.run(f"fs.backing[2] = os.open({str(local)!r}, os.O_RDONLY)")
        before = toy.calls("read")
        with opened(path, os.O_RDONLY) as first:
            assert os.pread(first, 50000, 0) == local.read_bytes()
            passed = toy.calls("read") == before
            # every other open while it lasts must be served too, whatever its way
            with opened(path, os.O_WRONLY) as writer:
                assert os.pwrite(writer, b"FROM", 0) == 4
            toy.run("fs.backing.clear()")
            assert path.read_bytes()[:8] == b"FROM the"
            if passed:  # a shared mapping would change the local file
                with pytest.raises(OSError) as caught:
                    os.open(path, os.O_RDWR)
                assert caught.value.errno == errno.ETXTBSY
        with opened(path, os.O_RDWR) as both, mmap.mmap(both, 0) as mapped:
            mapped[:4] = b"from"
        assert path.read_bytes()[:8] == b"from the"
        assert local.read_bytes()[:4] == b"from"
        wait_for(lambda: not toy.ask("sum(fs.open_files.values())"), "all handles to be released")
        assert toy.ask("errors") == []


def test_writeback_cache_keeps_what_was_written() -> None:
    with toy_mount(FuseOptions("JuiceFS:toy", writeback_cache=True)) as toy:
        data = os.urandom(3 * MIB + 5)
        (toy.path / "f").write_bytes(data)
        assert (toy.path / "f").read_bytes() == data
        with open(toy.path / "f", "ab") as file:
            file.write(b"tail")
        assert (toy.path / "f").read_bytes() == data + b"tail"


def test_small_requests_where_they_are_asked_for() -> None:
    with toy_mount(FuseOptions("JuiceFS:toy", max_write=1 << 16)) as toy:
        data = os.urandom(MIB)
        (toy.path / "f").write_bytes(data)
        assert toy.calls("write") >= 16
        assert (toy.path / "f").read_bytes() == data


def test_readahead_is_raised(toy: ToyMount) -> None:
    mount = mounts.find_mount(toy.path)
    assert mount is not None
    major, minor = mount.device
    knob = Path(f"/sys/class/bdi/{major}:{minor}/read_ahead_kb")
    assert int(knob.read_text()) in (128, 1024)
