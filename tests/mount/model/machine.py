"""Random steps by Hypothesis. What it draws picks among what is there, so most steps succeed."""

from __future__ import annotations

import os
import stat
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.mount.model.operations import USERS, Step
from tests.mount.model.pair import TOP, Bases, Pair
from tests.mount.posix.ranges import BLOCK, KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE
from tests.support.trees import acl

MAX_DEPTH = 3  # of directories that get new names; a rename may still move one deeper
SLOTS = 4

Pick = int | tuple[int, str]

users = st.sampled_from(["root", "alice", "alice", "bob"])
numbers = st.integers(0, 40)
names = st.one_of(
    st.sampled_from("abcd"),
    st.sampled_from("abcd"),
    st.sampled_from(["a/", "b/", "a/.", "a/b", ".", "..", "", "\udcff\n", "n" * 255, "n" * 256]),
)
there = numbers  # of a name that exists, by number
anywhere: st.SearchStrategy[Pick] = st.one_of(there, st.tuples(numbers, names))
new = st.tuples(numbers, names)  # a number of a directory, and a name in it
targets = st.sampled_from(["a", "b", "./c", "a/b", "../a", "..", ".", "nowhere/x", "t" * 300])
modes = st.sampled_from([0o777, 0o755, 0o700, 0o644, 0o666, 0o600, 0o000, 0o444, 0o333, 0o111])
all_modes = st.one_of(modes, st.sampled_from([0o4755, 0o2755, 0o6777, 0o1777, 0o2775, 0o2644]))
ids = st.sampled_from([-1, *(user.uid for user in USERS.values()), 0])
gids = st.sampled_from([-1, 0, *(gid for u in USERS.values() for gid in (u.gid, *u.groups))])
slots = st.integers(0, SLOTS - 1)
sizes = st.sampled_from([0, 1, 10, 511, 4096, 5000, 70_000, 131_072, 300_000])
offsets = st.builds(
    lambda place, shift: max(0, place + shift),
    st.sampled_from([0, 0, 0, 4096, 65_536, 131_072, 1 << 20, BLOCK]),
    st.sampled_from([0, 0, 1, -1, 100, 4000, -4096]),
)
times = st.sampled_from(  # all older than SET_BEFORE_NS
    [0, 1_000_000_000_123_456_789, 1_200_000_000_000_000_001, -1_500_000_000, 1]
)
ACL_NAMES = ["system.posix_acl_access", "system.posix_acl_default"]
xattr_names = st.sampled_from(
    [
        "user.a",
        "user.b",
        "user.",
        "user",
        "odd.x",
        "user." + "x" * 250,
        "user." + "x" * 251,
        *ACL_NAMES,
    ]
)
# ext4 has a block for all attributes of a file: not more than it holds
values = st.sampled_from([b"", b"1", b"\0\xff", b"v" * 300])
acls = st.sampled_from(
    [
        acl((1, 7), (4, 5), (32, 5)),
        acl((1, 6), (2, 6, 41001), (4, 4), (16, 6), (32, 0)),
        acl((1, 7), (2, 5, 41002), (4, 5), (8, 7, 41100), (16, 5), (32, 1)),
        acl((1, 7), (2, 7, 41001), (4, 0), (32, 0)),  # not valid: no mask
        acl((1, 7), (4, 7)),
    ]
)
CREAT, APPEND, NOFOLLOW = os.O_CREAT, os.O_APPEND, os.O_NOFOLLOW
MORE_FLAGS = [
    *(0, CREAT, CREAT, CREAT | os.O_EXCL, os.O_TRUNC, CREAT | os.O_TRUNC, APPEND, CREAT | APPEND),
    *(os.O_DIRECTORY, os.O_DIRECTORY | CREAT, NOFOLLOW, NOFOLLOW | CREAT, os.O_SYNC),
]  # no O_DIRECT: alignment is the file system's matter
open_flags = st.builds(
    lambda access, more: access | more,
    st.sampled_from([os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR]),
    st.sampled_from(MORE_FLAGS),
)
fallocate_modes = st.sampled_from(
    [0, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE, PUNCH_HOLE, 0x100]
)

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
        ]
        return f"{directories[number % len(directories)]}/{name}"

    def slot(self, number: int) -> int:
        """One of those in use."""
        opened = sorted(self.pair.local.handles)
        return opened[number % len(opened)]

    def has_open(self) -> bool:
        return bool(self.pair.local.handles)

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
        self.pair.do(user, "fchown", self.slot(number), uid, gid)

    @precondition(has_open)
    @rule(user=users, number=numbers, ns=st.tuples(times, times))
    def futime(self, user: str, number: int, ns: tuple[int, int]) -> None:
        self.pair.do(user, "futime", self.slot(number), ns)
