"""What the model test draws from: few values, so that they meet, and some at the limits."""

from __future__ import annotations

import os

from hypothesis import strategies as st

from tests.mount.model.operations import USERS
from tests.mount.posix.ranges import BLOCK, KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE
from tests.support.trees import acl

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
