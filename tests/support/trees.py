"""A file tree with one of everything, ways to change it, and a description to compare.

`plant` and `disturb` do the same on any POSIX file system, byte for byte from their seed, so the
same calls on a local directory tell what a mount should hold.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import stat
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from io import FileIO
from pathlib import Path

MIB = 1 << 20
CHUNK = 64 * MIB
BORN_NS = 1_700_000_000_123_456_789  # the first time stamp; every node gets one of its own
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16

ODD_NAMES = (
    b"plain",
    b"with space",
    b" leading and trailing ",
    b"-rf",
    b"new\nline",
    b"tab\tand\x01control\x7f",
    b"quote'\"`",
    b"back\\slash",
    b"percent%20%41",
    b"glob*?[a]{b}",
    b"colon:semi;amp&hash#at@",
    b"\xff\xfe not utf-8 \x80",
    "Grüße 世界 \N{PILE OF POO}".encode(),
    "e\N{COMBINING ACUTE ACCENT}".encode(),  # not the same name as the next
    "é".encode(),
    b"Upper",
    b"upper",
    b"...",
    b"~",
    b"x" * 255,
    "\N{SNOWMAN}".encode() * 85,
)


@dataclass(frozen=True)
class Node:
    """What `describe` says of one name."""

    kind: str
    mode: int
    uid: int
    gid: int
    size: int
    nlink: int
    rdev: int
    mtime_ns: int
    ctime_ns: int
    xattrs: tuple[tuple[str, bytes], ...]
    content: str  # SHA-256 of a file, the target of a symlink
    same_as: bytes | None  # the first name of a hard-linked inode


Tree = dict[bytes, Node]

# Inodes that `plant` or `disturb` takes a name from. While that name lies in the trash the real
# client still counts it as a link, and a local file system has no trash: no link count for these.
UNLINKED_NAMES = frozenset((b"linked/was-two", b"linked/one", b"small/03/third name"))


def plant(root: Path, seed: int = 1) -> None:
    """Make the tree under `root`, a directory. Needs root, for owners and device nodes."""
    top = os.fsencode(root)
    chance = random.Random(seed)
    _plant_small_files(top, chance)
    _plant_odd_names(top)
    _plant_kinds(top)
    _plant_attributes(top, chance)
    _plant_written_files(top, chance)
    _stamp(top, BORN_NS)


def disturb(root: Path, seed: int = 2) -> None:
    """Change in place what `plant` made: overwrite, cut, grow, replace, move, remove."""
    top = os.fsencode(root)
    chance = random.Random(seed)
    for name in (b"written/overwritten", b"written/appended", b"written/border"):
        path = os.path.join(top, name)
        size = os.stat(path).st_size
        with open(path, "r+b", buffering=0) as file:
            for _ in range(6):
                file.seek(chance.randrange(size))
                file.write(chance.randbytes(chance.randrange(1, 70_000)))
                os.fsync(file.fileno())
    os.truncate(os.path.join(top, b"written/truncated"), 700_001)
    os.truncate(os.path.join(top, b"written/border"), CHUNK + 5)
    os.truncate(os.path.join(top, b"written/overwritten"), 3 * MIB + 1)
    os.truncate(os.path.join(top, b"written/overwritten"), 5 * MIB)
    os.truncate(os.path.join(top, b"small/03/0007"), 0)
    with open(os.path.join(top, b"small/02/0001"), "ab") as file:
        file.write(chance.randbytes(10_000))
    _disturb_names(top)
    os.chmod(os.path.join(top, b"attributes/mode-1777"), 0o700)
    os.chown(os.path.join(top, b"attributes/owned-1-1"), 4321, 1234)
    os.setxattr(os.path.join(top, b"attributes/xattrs"), "user.text", b"another value")
    os.removexattr(os.path.join(top, b"attributes/xattrs"), "user.empty")
    _stamp(top, BORN_NS + 86_400_000_000_000)


def describe(root: Path, *, hidden: Callable[[bytes], bool] = lambda _: False) -> Tree:
    """Every name below `root` with all that `stat`, `listxattr`, `readlink` and `read` tell.

    Key b"" is `root` itself. `hidden` names directly below `root` are left out.
    """
    tree: Tree = {}
    firsts: dict[int, bytes] = {}
    top = os.fsencode(root)
    waiting = [b""]
    while waiting:
        name = waiting.pop()
        path = os.path.join(top, name) if name else top
        tree[name] = node = _describe_one(path, name, firsts)
        if name in UNLINKED_NAMES or node.same_as in UNLINKED_NAMES:
            tree[name] = replace(node, nlink=0)
        if node.kind == "directory":
            children = sorted(os.listdir(path))
            assert len(set(children)) == len(children), f"{path!r} lists a name twice: {children}"
            if not name:
                children = [child for child in children if not hidden(child)]
            waiting.extend(os.path.join(name, child) for child in reversed(children))
    return tree


def essence(tree: Tree) -> Tree:
    """What any two file systems agree on: no ctime, no sizes and link counts of directories."""

    def plain(node: Node) -> Node:
        node = replace(node, ctime_ns=0)
        return replace(node, size=0, nlink=0) if node.kind == "directory" else node

    return {name: plain(node) for name, node in tree.items() if name}


def assert_same(found: Tree, expected: Tree, what: str = "tree") -> None:
    """Fail with the first differences, each named by path and field."""
    lines = [f"missing: {name!r}" for name in sorted(expected.keys() - found.keys())]
    lines += [f"not expected: {name!r}" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(expected.keys() & found.keys()):
        have, want = asdict(found[name]), asdict(expected[name])
        lines += [
            f"{name!r}: {key} is {have[key]!r}, not {want[key]!r}"
            for key in want
            if have[key] != want[key]
        ]
    if lines:
        more = f"\n... and {len(lines) - 30} more" if len(lines) > 30 else ""
        raise AssertionError(f"{what} differs:\n" + "\n".join(lines[:30]) + more)


def hashes(root: Path) -> dict[bytes, str]:
    """SHA-256 of every regular file and the target of every symlink below `root`."""
    tree: dict[bytes, str] = {}
    top = os.fsencode(root)
    for parent, _, names in os.walk(top, onerror=_raise):
        for name in names:
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISREG(mode):
                tree[os.path.relpath(path, top)] = _sha256(path)
            elif stat.S_ISLNK(mode):
                tree[os.path.relpath(path, top)] = os.fsdecode(os.readlink(path))
    return tree


def assert_same_hashes(found: Mapping[bytes, str], expected: Mapping[bytes, str]) -> None:
    differing = [
        name
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]
    assert not differing, f"{len(differing)} of {len(expected)} files differ: {differing[:20]}"


def _plant_small_files(top: bytes, chance: random.Random) -> None:
    for group in range(6):
        directory = os.path.join(top, b"small/%02d" % group)
        os.makedirs(directory)
        for number in range(8):
            _write(b"%s/%04d" % (directory, number), chance.randbytes(chance.randrange(20_000)))
    os.makedirs(os.path.join(top, b"deep" + b"/d" * 30))
    os.makedirs(os.path.join(top, b"empty/inner"))


def _plant_odd_names(top: bytes) -> None:
    os.mkdir(os.path.join(top, b"odd"))
    for number, name in enumerate(ODD_NAMES):
        path = os.path.join(top, b"odd", name)
        if number % 3 == 0:
            os.mkdir(path)
            _write(os.path.join(path, name), name)
        else:
            _write(path, name * 3)
        os.symlink(name, os.path.join(top, b"odd", b"link-%d" % number))


def _plant_kinds(top: bytes) -> None:
    kinds = os.path.join(top, b"kinds")
    os.mkdir(kinds)
    os.mkfifo(os.path.join(kinds, b"fifo"), 0o640)
    os.mknod(os.path.join(kinds, b"socket"), stat.S_IFSOCK | 0o755)
    os.mknod(os.path.join(kinds, b"null"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(os.path.join(kinds, b"block"), stat.S_IFBLK | 0o660, os.makedev(8, 300))
    os.symlink(b"/nowhere/" + b"t" * 3000, os.path.join(kinds, b"long-target"))
    os.symlink(b"../small/00/0000", os.path.join(kinds, b"good-target"))
    os.symlink(b'\xff\n%41"', os.path.join(kinds, b"odd-target"))
    linked = os.path.join(top, b"linked")
    os.makedirs(os.path.join(linked, b"other"))
    _write(os.path.join(linked, b"one"), b"three names")
    os.link(os.path.join(linked, b"one"), os.path.join(linked, b"two"))
    os.link(os.path.join(linked, b"one"), os.path.join(linked, b"other/three"))
    _write(os.path.join(linked, b"was-two"), b"one name is left")
    os.link(os.path.join(linked, b"was-two"), os.path.join(linked, b"removed"))
    os.unlink(os.path.join(linked, b"removed"))
    os.link(os.path.join(kinds, b"fifo"), os.path.join(linked, b"fifo"))
    # no second name for a symlink: the real client then counts its length twice


def _plant_attributes(top: bytes, chance: random.Random) -> None:
    place = os.path.join(top, b"attributes")
    os.mkdir(place)
    for mode in (0o000, 0o400, 0o644, 0o755, 0o4755, 0o2755, 0o6711):
        path = os.path.join(place, b"mode-%o" % mode)
        _write(path, b"%o" % mode)
        os.chmod(path, mode)
    for mode in (0o500, 0o1777, 0o2775):
        path = os.path.join(place, b"mode-%o" % mode)
        os.mkdir(path)
        os.chmod(path, mode)
    for uid, gid in ((1, 1), (1000, 100), (2**31 - 1, 2**31 - 1)):
        path = os.path.join(place, b"owned-%d-%d" % (uid, gid))
        _write(path, b"mine")
        os.chown(path, uid, gid)
        os.symlink(b"mine", path + b"-link")
        os.chown(path + b"-link", uid, gid, follow_symlinks=False)
    for name in (b"xattrs", b"xattrs-dir"):
        path = os.path.join(place, name)
        if name.endswith(b"dir"):
            os.mkdir(path)
        else:
            _write(path, b"with attributes")
        os.setxattr(path, "user.text", b"value")
        os.setxattr(path, "user.empty", b"")
        os.setxattr(path, "user.bytes", bytes(range(256)))
        os.setxattr(path, "user.big", chance.randbytes(1500))
        os.setxattr(path, "user.näme %", b"odd name")
    _write(os.path.join(place, b"acl"), b"with an access list")
    access = acl((1, 6), (2, 4, 1000), (4, 4), (16, 6), (32, 0))
    os.setxattr(os.path.join(place, b"acl"), "system.posix_acl_access", access)
    os.mkdir(os.path.join(place, b"acl-dir"))
    default = acl((1, 7), (2, 5, 77), (4, 5), (8, 3, 88), (16, 7), (32, 1))
    os.setxattr(os.path.join(place, b"acl-dir"), "system.posix_acl_default", default)
    _write(os.path.join(place, b"acl-dir/heir"), b"inherits")
    os.mkdir(os.path.join(place, b"acl-dir/heirs"))


def _plant_written_files(top: bytes, chance: random.Random) -> None:
    place = os.path.join(top, b"written")
    os.mkdir(place)
    with _new(place, b"overwritten") as file:
        file.write(chance.randbytes(6 * MIB + 123))
        for _ in range(8):
            os.fsync(file.fileno())
            file.seek(chance.randrange(6 * MIB))
            file.write(chance.randbytes(chance.randrange(1, 100_000)))
    for _ in range(5):  # each close commits a slice of its own
        with open(os.path.join(place, b"appended"), "ab") as file:
            file.write(chance.randbytes(chance.randrange(1, 30_000)))
    with _new(place, b"truncated") as file:
        file.write(chance.randbytes(2 * MIB))
        file.truncate(300_000)
        os.fsync(file.fileno())
        file.truncate(1_500_000)
        file.seek(1_000_000)
        file.write(b"an island")
    with _new(place, b"border") as file:
        file.seek(CHUNK - 300_000)
        file.write(chance.randbytes(600_000))
        os.fsync(file.fileno())
        file.seek(CHUNK - 10)
        file.write(b"across the border")
    with _new(place, b"sparse") as file:
        for number in range(4):
            file.seek(number * 5 * MIB + 777)
            file.write(b"data between holes")
        file.truncate(23 * MIB)
    with _new(place, b"punched") as file:
        file.write(chance.randbytes(3 * MIB))
        file.flush()
        _fallocate(file.fileno(), PUNCH_HOLE | KEEP_SIZE, 100_001, MIB)
        _fallocate(file.fileno(), ZERO_RANGE, 2 * MIB + 1, 50_000)
        _fallocate(file.fileno(), 0, 3 * MIB, 12_345)
    with open(os.path.join(place, b"overwritten"), "rb") as source, _new(place, b"copied") as file:
        os.copy_file_range(source.fileno(), file.fileno(), 5 * MIB, 12_345, 4_321)
    with _new(place, b"backwards") as file:
        for offset in reversed(range(0, 500_000, 50_000)):
            file.seek(offset)
            file.write(chance.randbytes(50_000))


def _disturb_names(top: bytes) -> None:
    def at(name: bytes) -> bytes:
        return os.path.join(top, name)

    os.rename(at(b"small/04"), at(b"empty/inner/moved"))
    os.rename(at(b"small/00/0001"), at(b"small/00/0002"))
    os.rename(at(b"small/00/0003"), at(b"small/01/new name"))
    os.rename(at(b"linked/other/three"), at(b"small/03/third name"))
    os.link(at(b"small/00/0004"), at(b"linked/other/0004"))
    for number in range(6):
        os.unlink(at(b"small/05/%04d" % number))
    os.unlink(at(b"linked/two"))
    os.unlink(at(b"odd/link-3"))
    os.symlink(b"a new target", at(b"odd/link-3"))
    os.unlink(at(b"odd/" + ODD_NAMES[4]))
    os.rmdir(at(b"deep" + b"/d" * 30))
    os.mkdir(at(b"empty/new"))
    _write(at(b"empty/new/file"), b"new")
    _write(at(b"small/02/0005"), b"written anew")


def _describe_one(path: bytes, name: bytes, firsts: dict[int, bytes]) -> Node:
    info = os.lstat(path)
    kind = _KINDS[stat.S_IFMT(info.st_mode)]
    content = ""
    if kind == "file":
        content = _sha256(path)
    elif kind == "symlink":
        content = os.fsdecode(os.readlink(path))
    is_linked = info.st_nlink > 1 and kind != "directory"
    first = firsts.setdefault(info.st_ino, name)
    return Node(
        kind=kind,
        mode=stat.S_IMODE(info.st_mode),
        uid=info.st_uid,
        gid=info.st_gid,
        size=info.st_size,
        nlink=info.st_nlink,
        rdev=info.st_rdev,
        mtime_ns=info.st_mtime_ns,
        ctime_ns=info.st_ctime_ns,
        xattrs=() if kind == "symlink" else _xattrs(path),
        content=content,
        same_as=first if is_linked and first != name else None,
    )


_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


def _xattrs(path: bytes) -> tuple[tuple[str, bytes], ...]:
    names = sorted(os.listxattr(path, follow_symlinks=False))
    return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)


def _sha256(path: bytes) -> str:
    """Read through an own descriptor in requests of 1 MiB; all bytes that `stat` promises."""
    digest = hashlib.sha256()
    total = 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(MIB):
            digest.update(block)
            total += len(block)
        size = os.fstat(file.fileno()).st_size
    assert total == size, f"{path!r}: {total} bytes read, size {size}"
    return digest.hexdigest()


def _stamp(top: bytes, born_ns: int) -> None:
    """Give every node times of its own, in an order no listing decides, and parents last."""
    directories: list[bytes] = []
    others: list[bytes] = []
    for parent, below, names in os.walk(top, onerror=_raise):
        for name in below + names:
            path = os.path.join(parent, name)
            is_directory = name in below and not os.path.islink(path)
            (directories if is_directory else others).append(path)
    for number, path in enumerate(sorted(others) + sorted(directories, reverse=True)):
        mtime_ns = born_ns + number * 1_000_003_001
        os.utime(path, ns=(mtime_ns + 5, mtime_ns), follow_symlinks=False)


def acl(*entries: tuple[int, ...]) -> bytes:
    """The kernel's xattr form: version 2, then (tag, permissions, id) of each entry."""
    packed = struct.pack("<I", 2)
    for tag, perm, *who in entries:
        packed += struct.pack("<HHI", tag, perm, *(who or [0xFFFFFFFF]))
    return packed


def _new(place: bytes, name: bytes) -> FileIO:
    return FileIO(os.path.join(place, name), "w+")


def _write(path: bytes, data: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(data)


def _fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if call(fd, mode, offset, length) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"fallocate {mode}")


def _raise(error: OSError) -> None:
    raise error
