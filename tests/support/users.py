"""Doing things as another user: in a child, since ids belong to processes, or by a thread's ids."""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import pytest

T = TypeVar("T")

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class User:
    """Ids of a process. No account of the system is needed."""

    uid: int
    gid: int
    groups: Sequence[int] = ()
    umask: int = 0o022

    def run(self, call: Callable[..., T], *args: object, **named: object) -> T:
        """The result of `call` in a child with these ids, or the exception that it raised."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            code = 1
            try:
                with open(writer, "wb") as out:
                    out.write(self._outcome(call, args, named))
                code = 0
            finally:
                os._exit(code)
        os.close(writer)
        with open(reader, "rb") as source:
            outcome = source.read()
        os.waitpid(pid, 0)
        is_fine, result = pickle.loads(outcome)
        if not is_fine:
            raise result
        return result  # type: ignore[no-any-return]  # what `call` returned in the child

    def _outcome(
        self, call: Callable[..., object], args: tuple[object, ...], named: dict[str, object]
    ) -> bytes:
        try:
            os.setgroups(self.groups)
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)
            os.umask(self.umask)
            return pickle.dumps((True, call(*args, **named)))
        except OSError as error:
            return pickle.dumps((False, error))
        except BaseException:
            return pickle.dumps((False, AssertionError(traceback.format_exc())))


ALICE = User(41001, 41001)
BOB = User(41002, 41002)
STAFF = 41100  # a group


@contextmanager
def refused(*codes: int) -> Iterator[None]:
    """The block raises OSError with one of these errnos."""
    with pytest.raises(OSError) as caught:
        yield
    found = errno.errorcode.get(caught.value.errno or 0, str(caught.value))
    assert caught.value.errno in codes, f"{found}, not {[errno.errorcode[code] for code in codes]}"


@contextmanager
def acting_as(user: User) -> Iterator[None]:
    """This thread's files are looked at as `user` would; cheaper than a child.

    The kernel judges by the ids set here and takes the capabilities about files away with them.
    Others stay, so this is not for what is about CAP_SYS_ADMIN: `trusted.` attributes, say.
    """
    groups, umask = os.getgroups(), os.umask(user.umask)
    os.setgroups(user.groups)
    _libc.setfsgid(user.gid)
    _libc.setfsuid(user.uid)
    try:
        yield
    finally:
        _libc.setfsuid(os.geteuid())
        _libc.setfsgid(os.getegid())
        os.setgroups(groups)
        os.umask(umask)
