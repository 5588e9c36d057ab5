"""What is compared of two trees, and what is not.

Left out, since file systems may choose: sizes of directories, st_blocks, st_blksize, inode and
device numbers (but which names are one inode is compared), access and change times, and the order
of listings. A modification time is compared only if it was set: a clock's is never the same twice;
and not of a FIFO: the kernel moves its data itself and tells no FUSE file system.
"""

from __future__ import annotations

import hashlib
import os
import stat

MIB = 1 << 20
SET_BEFORE_NS = 1_500_000_000 * 10**9  # times that steps set are older, those of clocks younger

Facts = dict[str, object]
Tree = dict[str, Facts]


def facts(status: os.stat_result) -> Facts:
    is_set = status.st_mtime_ns < SET_BEFORE_NS and not stat.S_ISFIFO(status.st_mode)
    return {
        "mode": oct(status.st_mode),
        "owner": (status.st_uid, status.st_gid),
        "nlink": status.st_nlink,
        "size": None if stat.S_ISDIR(status.st_mode) else status.st_size,
        "rdev": status.st_rdev,
        "mtime_ns": status.st_mtime_ns if is_set else "of a clock",
    }


def describe(root: str, *, with_data: bool) -> Tree:
    """Every name below `root` and `root` itself; reads files only `with_data`."""
    tree: Tree = {}
    firsts: dict[int, str] = {}
    waiting = [""]
    while waiting:
        name = waiting.pop()
        path = os.path.join(root, name) if name else root
        status = os.lstat(path)
        tree[name] = found = facts(status)
        found["xattrs"] = _xattrs(path)
        if stat.S_ISDIR(status.st_mode):
            waiting += [os.path.join(name, child) for child in sorted(os.listdir(path))[::-1]]
            continue
        found["same as"] = firsts.setdefault(status.st_ino, name)
        if stat.S_ISLNK(status.st_mode):
            found["target"] = os.readlink(path)
        elif stat.S_ISREG(status.st_mode) and with_data:
            found["data"] = _read(path)
    return tree


def differences(found: Tree, expected: Tree) -> list[str]:
    """One line for each, with path and field."""
    lines = [f"missing: {name!r}" for name in sorted(expected.keys() - found.keys())]
    lines += [f"not expected: {name!r}" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(expected.keys() & found.keys()):
        have, want = found[name], expected[name]
        lines += [
            f"{name!r}: {key} is {have.get(key)!r}, not {want.get(key)!r}"
            for key in sorted(want.keys() | have.keys())
            if have.get(key) != want.get(key)
        ]
    return lines


def _xattrs(path: str) -> list[tuple[str, bytes]]:
    names = sorted(os.listxattr(path, follow_symlinks=False))
    return [(name, os.getxattr(path, name, follow_symlinks=False)) for name in names]


def _read(path: str) -> tuple[int, str]:
    """Length and SHA-256 of all that read(2) gives."""
    digest, length = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(MIB):
            digest.update(block)
            length += len(block)
    return length, digest.hexdigest()
