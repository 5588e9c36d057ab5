"""The second front end serves the same operations, as far as its binding goes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

import pytest

from juicepy.fuse import mounts
from tests.support.toymount import ToyMount, toy_mount


@pytest.fixture(scope="module")
def toy() -> Iterator[ToyMount]:
    with toy_mount(front="llfuse") as mounted:
        yield mounted


def test_files_directories_and_links(toy: ToyMount) -> None:
    root = toy.path / "tree"
    root.mkdir()
    data = os.urandom(3_000_000)
    (root / "f").write_bytes(data)
    assert (root / "f").read_bytes() == data
    (root / "l").symlink_to("f")
    os.link(root / "f", root / "h")
    os.mkfifo(root / "p")
    assert sorted(os.listdir(root)) == ["f", "h", "l", "p"]
    assert os.stat(root / "h").st_nlink == 2
    assert stat.S_ISFIFO(os.stat(root / "p").st_mode)
    (root / "h").rename(root / "g")
    os.truncate(root / "g", 5)
    assert (root / "f").read_bytes() == data[:5]
    for name in os.listdir(root):
        (root / name).unlink()
    root.rmdir()
    assert not root.exists()


def test_names_of_odd_bytes(toy: ToyMount) -> None:
    name = os.fsencode(toy.path) + b"/\xff\x01\n" + b"n" * 252
    with open(name, "wb") as file:
        file.write(b"x")
    assert os.path.basename(name) in os.listdir(os.fsencode(toy.path))
    os.unlink(name)


def test_attributes_and_xattrs(toy: ToyMount) -> None:
    path = toy.path / "a"
    path.touch(0o640)
    os.chmod(path, 0o604)
    os.chown(path, 12, 34)
    os.utime(path, ns=(10**18 + 1, 10**18 + 2))
    told = os.stat(path)
    assert (stat.S_IMODE(told.st_mode), told.st_uid, told.st_gid) == (0o604, 12, 34)
    assert (told.st_atime_ns, told.st_mtime_ns) == (10**18 + 1, 10**18 + 2)
    os.setxattr(path, "user.x", b"\0\1")
    assert (os.getxattr(path, "user.x"), os.listxattr(path)) == (b"\0\1", ["user.x"])
    os.removexattr(path, "user.x")
    with pytest.raises(OSError) as caught:
        os.getxattr(path, "user.x")
    assert caught.value.errno == errno.ENODATA


def test_errors_reach_the_caller(toy: ToyMount) -> None:
    with pytest.raises(FileNotFoundError):
        os.stat(toy.path / "none")
    toy.run("def broken(*_): raise ValueError('a bug')\nfs.hooks['mkdir'] = broken")
    with pytest.raises(OSError) as caught:
        (toy.path / "d").mkdir()
    toy.run("fs.hooks.clear()")
    assert caught.value.errno == errno.EIO
    assert "a bug" in toy.ask("errors")[-1]


def test_statfs_and_table(toy: ToyMount) -> None:
    st = os.statvfs(toy.path)
    assert (st.f_frsize, st.f_blocks) == (4096, (1 << 40) // 4096)
    mount = mounts.find_mount(toy.path)
    assert mount is not None
    assert (mount.source, mount.fstype) == ("JuiceFS:toy", "fuse.juicefs")


def test_open_sees_what_another_client_wrote() -> None:
    setup = "fs.attr_timeout_s = fs.entry_timeout_s = 600.0"
    with toy_mount(front="llfuse", setup=setup) as toy:
        path = toy.path / "f"
        path.write_bytes(b"short")
        assert path.read_bytes() == b"short"
        toy.run("node = fs.nodes[2]; fs._resize(node, 0); node.data.extend(b'much longer')")
        toy.run("node.attr.length = len(node.data)")
        assert path.read_bytes() == b"much longer"


def test_unmount_and_stop_end_it() -> None:
    with toy_mount(front="llfuse") as toy:
        mounts.unmount(toy.path)
        assert toy.wait_ended() == [1, [], []]
    with toy_mount(front="llfuse") as toy:
        toy.run("stop.set()")
        assert toy.wait_ended() == [1, [], []]
        assert not mounts.is_mounted(toy.path)
