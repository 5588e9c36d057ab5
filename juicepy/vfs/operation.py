"""What goes on around every operation of the VFS: mapping of users, counting, timing, logging."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator
from functools import wraps
from time import perf_counter
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from juicepy.metrics import Metrics
from juicepy.types import KERNEL, Cred, DirEntry
from juicepy.vfs.accesslog import AccessLog

logger = logging.getLogger(__name__)

# Not the caller's doing, so whoever runs the mount has to hear of it; each text once in a while.
COMPLAINTS = frozenset((errno.EIO, errno.ENOSPC, errno.ETIMEDOUT))
COMPLAIN_EVERY_S = 10.0
_MAX_TEXTS = 1000
_complained: dict[tuple[str, str], float] = {}

P = ParamSpec("P")
R = TypeVar("R")


class Observed(Protocol):
    """Who has operations: where they are counted and logged, and whom its users become."""

    log: AccessLog
    metrics: Metrics
    squash: Callable[[Cred], Cred] | None


V = TypeVar("V", bound=Observed)
Method = Callable[Concatenate[V, Cred, P], R]


def operation(method: Method[V, P, R]) -> Method[V, P, R]:
    """A method of the VFS that the access log and the metrics call by its name."""
    op = method.__name__.removeprefix("try_")

    @wraps(method)
    def observed(self: V, cred: Cred, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.squash is not None:
            cred = self.squash(cred)
        began = perf_counter()
        try:
            result = method(self, cred, *args, **kwargs)
        except OSError as error:
            seconds = perf_counter() - began
            self.metrics.fuse_failed(error)
            self.metrics.fuse_ops.observe(op, seconds)
            if error.errno in COMPLAINTS:
                _complain(op, args, error)
            if self.log.readers:
                self.log.write(cred, op, (*args, *kwargs.values()), None, error, seconds)
            raise
        seconds = perf_counter() - began
        self.metrics.fuse_ops.observe(op, seconds)
        if self.log.readers:
            self.log.write(cred, op, (*args, *kwargs.values()), result, None, seconds)
        return result

    return observed


def _complain(op: str, args: tuple[Any, ...], error: OSError) -> None:
    """Log what failed with its reasons, unless the same was logged just now."""
    reasons, cause = [str(error)], error.__cause__
    while cause is not None:
        reasons.append(str(cause))
        cause = cause.__cause__
    text = " < ".join(dict.fromkeys(reasons))
    now_s = time.monotonic()
    if now_s - _complained.get((op, text), -COMPLAIN_EVERY_S) < COMPLAIN_EVERY_S:
        return
    if len(_complained) >= _MAX_TEXTS:
        _complained.clear()
    _complained[op, text] = now_s
    subject = args[0] if args else ""
    logger.error("%s of inode %s failed: %s", op, subject, text)


def observed_listing(
    owner: Observed, cred: Cred, args: tuple[Any, ...], entries: Iterator[tuple[int, DirEntry]]
) -> Iterator[tuple[int, DirEntry]]:
    """`entries`, counted and logged as one `readdir` once the caller has taken what it can hold."""
    began, count, failed = perf_counter(), 0, None
    try:
        for pair in entries:
            yield pair
            count += 1
    except OSError as error:
        failed = error
        owner.metrics.fuse_failed(error)
        if error.errno in COMPLAINTS:
            _complain("readdir", args, error)
        raise
    finally:
        seconds = perf_counter() - began
        owner.metrics.fuse_ops.observe("readdir", seconds)
        if owner.log.readers:
            owner.log.write(cred, "readdir", args, count, failed, seconds)


def squash(
    root: tuple[int, int] | None, everybody: tuple[int, int] | None
) -> Callable[[Cred], Cred] | None:
    """Who the callers become: everybody, or just root, is mapped to (uid, gid); None: nobody."""
    target = everybody or root
    if target is None:
        return None
    uid, gid = target

    def squashed(cred: Cred) -> Cred:
        if cred is KERNEL:
            return cred
        return Cred(uid, gid, (), cred.pid) if everybody or cred.is_root else cred

    return squashed
