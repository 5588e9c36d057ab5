"""Random steps by Hypothesis. What it draws picks among what is there, so most steps succeed."""

from __future__ import annotations

import os
import stat
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.mount.model.draws import (
    Pick,
    acls,
    all_modes,
    anywhere,
    fallocate_modes,
    gids,
    ids,
    modes,
    names,
    new,
    numbers,
    offsets,
    open_flags,
    sizes,
    slots,
    targets,
    there,
    times,
    users,
    values,
    xattr_names,
)
from tests.mount.model.operations import Step
from tests.mount.model.pair import TOP, Bases, Pair

MAX_DEPTH = 3  # of directories that get new names; a rename may still move one deeper

PLANTED: list[Step] = [  # for more steps that find something
    ("alice", "mkdir", f"{TOP}/a", 0o777),
    ("alice", "open", 0, f"{TOP}/a/b", os.O_RDWR | os.O_CREAT, 0o666),
    ("alice", "write", 0, 5000, 1),
    ("root", "link", f"{TOP}/a/b", f"{TOP}/c"),
    ("bob", "open", 1, f"{TOP}/b", os.O_RDWR | os.O_CREAT, 0o664),
    ("bob", "symlink", "a/b", f"{TOP}/d"),
]


class Machine(RuleBasedStateMachine):
    def __init__(self, bases: Bases) -> None:
        super().__init__()
        self.bases = bases
        self.pair = Pair(bases)

    @initialize(with_data=st.booleans(), is_planted=st.booleans())
    def begin(self, with_data: bool, is_planted: bool) -> None:
        self.pair.with_data = with_data
        if is_planted:
            for step in PLANTED:
                self.pair.do(*step)

    def teardown(self) -> None:
        self.pair.finish()

    def path(self, pick: Pick) -> str:
        """A path for what was drawn, always the same in the same tree."""
        if isinstance(pick, int):
            known = [name for name in self.pair.tree if name.startswith(f"{TOP}/")] or [f"{TOP}/a"]
            return known[pick % len(known)]
        number, name = pick
        directories = [
            path
            for path, found in self.pair.tree.items()
            if path.startswith(TOP)
            and stat.S_ISDIR(int(str(found["mode"]), 8))
            and path.count("/") < MAX_DEPTH
        ] or [TOP]  # which somebody may have removed
        return f"{directories[number % len(directories)]}/{name}"

    def slot(self, number: int) -> int:
        """One of those in use."""
        opened = sorted(self.pair.local.handles)
        return opened[number % len(opened)]

    def has_open(self) -> bool:
        return bool(self.pair.local.handles)

    def folder(self, number: int) -> int:
        """The slot of an open directory."""
        slots = self.folders()
        return slots[number % len(slots)]

    def folders(self) -> list[int]:
        opened = sorted(self.pair.local.handles.items())
        return [slot for slot, fd in opened if stat.S_ISDIR(os.fstat(fd).st_mode)]

    def has_folder(self) -> bool:
        return bool(self.folders())

    # -- names
    @rule(user=users, at=new, mode=all_modes)
    def mkdir(self, user: str, at: Pick, mode: int) -> None:
        self.pair.do(user, "mkdir", self.path(at), mode)

    @rule(user=users, at=new, kind=st.sampled_from([stat.S_IFIFO, stat.S_IFSOCK, 0]), mode=modes)
    def mknod(self, user: str, at: Pick, kind: int, mode: int) -> None:
        self.pair.do(user, "mknod", self.path(at), kind | mode)

    @rule(user=users, content=targets, at=new)
    def symlink(self, user: str, content: str, at: Pick) -> None:
        self.pair.do(user, "symlink", content, self.path(at))

    @rule(user=users, source=there, at=new)
    def link(self, user: str, source: Pick, at: Pick) -> None:
        self.pair.do(user, "link", self.path(source), self.path(at))

    @rule(user=users, at=anywhere)
    def unlink(self, user: str, at: Pick) -> None:
        self.pair.do(user, "unlink", self.path(at))

    @rule(user=users, at=anywhere)
    def rmdir(self, user: str, at: Pick) -> None:
        self.pair.do(user, "rmdir", self.path(at))

    @rule(user=users, source=anywhere, at=anywhere, flags=st.sampled_from([0, 0, 0, 1, 2, 3]))
    def rename(self, user: str, source: Pick, at: Pick, flags: int) -> None:
        self.pair.do(user, "rename", self.path(source), self.path(at), flags)

    # -- attributes
    @rule(user=users, at=anywhere, follow=st.booleans())
    def stat(self, user: str, at: Pick, follow: bool) -> None:
        self.pair.do(user, "stat", self.path(at), follow)

    @rule(user=users, at=anywhere, wanted=st.integers(0, 7))
    def access(self, user: str, at: Pick, wanted: int) -> None:
        self.pair.do(user, "access", self.path(at), wanted)

    @rule(user=users, at=there, operation=st.sampled_from(["listdir", "readlink"]))
    def look(self, user: str, at: Pick, operation: str) -> None:
        self.pair.do(user, operation, self.path(at))

    @rule(user=users, at=there, mode=all_modes)
    def chmod(self, user: str, at: Pick, mode: int) -> None:
        self.pair.do(user, "chmod", self.path(at), mode)

    @rule(user=users, at=there, uid=ids, gid=gids, follow=st.booleans())
    def chown(self, user: str, at: Pick, uid: int, gid: int, follow: bool) -> None:
        user = entitled(user, uid, gid)
        self.pair.do(user, "chown", self.path(at), uid, gid, follow)

    @rule(
        user=users,
        at=there,
        ns=st.one_of(st.none(), st.tuples(times, times)),
        follow=st.booleans(),
    )
    def utime(self, user: str, at: Pick, ns: Any, follow: bool) -> None:
        self.pair.do(user, "utime", self.path(at), ns, follow)

    @rule(user=users, at=there, length=offsets)
    def truncate(self, user: str, at: Pick, length: int) -> None:
        self.pair.do(user, "truncate", self.path(at), length)

    @rule(
        user=users,
        at=there,
        name=xattr_names,
        value=values,
        acl=acls,
        flags=st.sampled_from([0, 0, os.XATTR_CREATE, os.XATTR_REPLACE]),
        follow=st.booleans(),
    )
    def setxattr(
        self, user: str, at: Pick, name: str, value: bytes, acl: bytes, flags: int, follow: bool
    ) -> None:
        value = acl if name.startswith("system.") else value
        self.pair.do(user, "setxattr", self.path(at), name, value, flags, follow)

    @rule(
        user=users,
        at=there,
        name=xattr_names,
        operation=st.sampled_from(["getxattr", "removexattr"]),
    )
    def xattr(self, user: str, at: Pick, name: str, operation: str) -> None:
        self.pair.do(user, operation, self.path(at), name)

    # -- open files
    @rule(user=users, slot=slots, at=anywhere, flags=open_flags, mode=all_modes)
    def open(self, user: str, slot: int, at: Pick, flags: int, mode: int) -> None:
        self.pair.do(user, "open", slot, self.path(at), flags, mode)

    @rule(user=users, slot=slots, at=new, mode=all_modes)
    def create(self, user: str, slot: int, at: Pick, mode: int) -> None:
        self.pair.do(user, "open", slot, self.path(at), os.O_RDWR | os.O_CREAT, mode)

    @precondition(has_open)
    @rule(user=users, number=numbers, operation=st.sampled_from(["close", "fsync", "flistdir"]))
    def plain(self, user: str, number: int, operation: str) -> None:
        self.pair.do(user, operation, self.slot(number))

    @precondition(has_open)
    @rule(user=users, number=numbers, size=sizes)
    def read(self, user: str, number: int, size: int) -> None:
        self.pair.do(user, "read", self.slot(number), size)

    @precondition(has_open)
    @rule(user=users, number=numbers, size=sizes, offset=offsets)
    def pread(self, user: str, number: int, size: int, offset: int) -> None:
        self.pair.do(user, "pread", self.slot(number), size, offset)

    @precondition(has_open)
    @rule(user=users, number=numbers, size=sizes, seed=st.integers(0, 255))
    def write(self, user: str, number: int, size: int, seed: int) -> None:
        self.pair.do(user, "write", self.slot(number), size, seed)

    @precondition(has_open)
    @rule(user=users, number=numbers, size=sizes, offset=offsets, seed=st.integers(0, 255))
    def pwrite(self, user: str, number: int, size: int, offset: int, seed: int) -> None:
        self.pair.do(user, "pwrite", self.slot(number), size, offset, seed)

    @precondition(has_open)
    @rule(user=users, number=numbers, offset=offsets, whence=st.integers(0, 2))
    def seek(self, user: str, number: int, offset: int, whence: int) -> None:
        self.pair.do(user, "seek", self.slot(number), offset, whence)

    @precondition(has_open)
    @rule(user=users, number=numbers, length=offsets)
    def ftruncate(self, user: str, number: int, length: int) -> None:
        self.pair.do(user, "ftruncate", self.slot(number), length)

    @precondition(has_open)
    @rule(user=users, number=numbers, mode=fallocate_modes, offset=offsets, length=sizes)
    def fallocate(self, user: str, number: int, mode: int, offset: int, length: int) -> None:
        self.pair.do(user, "fallocate", self.slot(number), mode, offset, length)

    @precondition(has_open)
    @rule(user=users, source=numbers, out=numbers, offset=offsets, offset_out=offsets, length=sizes)
    def copy(
        self, user: str, source: int, out: int, offset: int, offset_out: int, length: int
    ) -> None:
        ends = self.slot(source), offset, self.slot(out), offset_out
        self.pair.do(user, "copy", *ends, length)

    @precondition(has_open)
    @rule(user=users, number=numbers, mode=all_modes)
    def fchmod(self, user: str, number: int, mode: int) -> None:
        self.pair.do(user, "fchmod", self.slot(number), mode)

    @precondition(has_open)
    @rule(user=users, number=numbers, uid=ids, gid=gids)
    def fchown(self, user: str, number: int, uid: int, gid: int) -> None:
        self.pair.do(entitled(user, uid, gid), "fchown", self.slot(number), uid, gid)

    @precondition(has_open)
    @rule(user=users, number=numbers, ns=st.tuples(times, times))
    def futime(self, user: str, number: int, ns: tuple[int, int]) -> None:
        self.pair.do(user, "futime", self.slot(number), ns)

    # -- below an open directory
    @rule(user=users, slot=slots, number=numbers)
    def opendir(self, user: str, slot: int, number: int) -> None:
        path = self.path((number, "."))
        self.pair.do(user, "open", slot, path, os.O_RDONLY | os.O_DIRECTORY, 0)

    @precondition(has_folder)
    @rule(user=users, number=numbers, name=names, mode=all_modes)
    def mkdir_at(self, user: str, number: int, name: str, mode: int) -> None:
        self.pair.do(user, "mkdir_at", self.folder(number), name, mode)

    @precondition(has_folder)
    @rule(user=users, slot=slots, number=numbers, name=names, flags=open_flags, mode=all_modes)
    def open_at(self, user: str, slot: int, number: int, name: str, flags: int, mode: int) -> None:
        self.pair.do(user, "open_at", slot, self.folder(number), name, flags, mode)

    @precondition(has_folder)
    @rule(
        user=users, number=numbers, name=names, operation=st.sampled_from(["unlink_at", "stat_at"])
    )
    def name_at(self, user: str, number: int, name: str, operation: str) -> None:
        self.pair.do(user, operation, self.folder(number), name)

    @precondition(has_folder)
    @rule(user=users, number=numbers, name=names, out=numbers, name_out=names)
    def rename_at(self, user: str, number: int, name: str, out: int, name_out: str) -> None:
        self.pair.do(user, "rename_at", self.folder(number), name, self.folder(out), name_out)

    @precondition(has_folder)
    @rule(user=users, number=numbers, name=names, at=new)
    def link_at(self, user: str, number: int, name: str, at: Pick) -> None:
        self.pair.do(user, "link_at", self.folder(number), name, self.path(at))


def entitled(user: str, uid: int, gid: int) -> str:
    """Root for a change to nobody: FUSE cannot tell that from what precedes a write, so it is done
    or not, where others refuse it to who is not the owner of a file with set-id bits."""
    return "root" if uid == gid == -1 else user
