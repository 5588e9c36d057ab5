"""Lua scripts, each with KEYS, ARGV and result in its header. They know no rule of POSIX."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

import msgpack


@dataclass(frozen=True, slots=True)
class Script:
    text: bytes
    sha: bytes


def pack(program: object) -> bytes:
    """An argument for cmsgpack.unpack, which knows byte strings in their old form only."""
    packed: bytes = msgpack.packb(program, use_bin_type=False)
    return packed


def load(name: str) -> Script:
    text = resources.files(__name__).joinpath(f"{name}.lua").read_bytes()
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


COMMIT = load("commit")
LOOKUP = load("lookup")
ADD_EXISTING = load("add_existing")
RELEASE_LOCKS = load("release_locks")
