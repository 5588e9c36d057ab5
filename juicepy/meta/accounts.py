"""Usage: limits that are checked before growth, deltas that are gathered and flushed after it.

Directory statistics are flushed every second, quota usage every third (spec 12, 13). Checks are
against what was read last plus what this client added since, so several clients may overshoot a
limit by what they did within that time.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from errno import EDQUOT, ENOSPC
from typing import TypeVar

from juicepy.concurrency import Lock
from juicepy.errors import posix_error
from juicepy.meta.effects import Effects
from juicepy.meta.engine import DirStats, MetaEngine, Quota
from juicepy.meta.rules import is_trash
from juicepy.types import ROOT, TRASH, Cred, Inode, Kind, StatFs
from juicepy.volume import Format

logger = logging.getLogger(__name__)

_MAX_PARENTS = 100_000
_VOLUME_AGE_S = 1.0

Usage = tuple[int, int]  # (space in bytes, inodes)
K = TypeVar("K")


class Accounts:
    """One client's view of usage and limits. Thread-safe."""

    def __init__(self, engine: MetaEngine, tree_usage: Callable[[Inode], Usage]) -> None:
        self._engine, self._tree_usage = engine, tree_usage
        self._lock = Lock("accounts")  # guards all below
        self._format: Format | None = None
        self._volume: Usage = (0, 0)
        self._volume_since: Usage = (0, 0)
        self._volume_read_s = -_VOLUME_AGE_S
        self._quotas: dict[Inode, Quota] = {}
        self._quotas_since: dict[Inode, Usage] = {}
        self._users: dict[int, Quota] = {}
        self._groups: dict[int, Quota] = {}
        self._users_since: dict[int, Usage] = {}
        self._groups_since: dict[int, Usage] = {}
        self._stats: dict[Inode, DirStats] = {}
        self._parents: OrderedDict[Inode, Inode] = OrderedDict()

    # -- what other clients changed
    def reload(self, setting: Format) -> None:
        """Read limits and usage anew: at the start and at every heartbeat."""
        quotas = self._engine.dir_quotas()
        users, groups = self._engine.user_group_quotas() if setting.user_group_quota else ({}, {})
        with self._lock:
            self._format, self._quotas, self._users, self._groups = setting, quotas, users, groups
            self._parents.clear()

    # -- before growth
    def check(self, parent: Inode | None, space: int, inodes: int, cred: Cred | None) -> None:
        """ENOSPC or EDQUOT if the volume, a directory above or the owner has no room."""
        setting = self._format
        if setting is None or (space <= 0 and inodes <= 0):
            return
        if setting.capacity or setting.inodes:
            used_space, used_inodes = self.volume()
            if 0 < setting.capacity < used_space + space and space > 0:
                raise posix_error(ENOSPC)
            if 0 < setting.inodes < used_inodes + inodes and inodes > 0:
                raise posix_error(ENOSPC)
        if self._quotas and parent is not None:
            for ino in self._covering(parent):
                self._check_quota(self._quotas.get(ino), self._quotas_since.get(ino), space, inodes)
        if setting.user_group_quota and cred is not None:
            user, group = self._users.get(cred.uid), self._groups.get(cred.gid)
            self._check_quota(user, self._users_since.get(cred.uid), space, inodes)
            self._check_quota(group, self._groups_since.get(cred.gid), space, inodes)

    def entered(self, old: Inode | None, new: Inode) -> list[Inode]:
        """Directories with a quota over `new` and not over `old` (None: what comes is new)."""
        if not self._quotas or old == new:
            return []
        left = set(self._covering(old)) if old is not None else set()
        return [ino for ino in self._covering(new) if ino not in left]

    def check_entered(self, quotas: list[Inode], space: int, inodes: int) -> None:
        """EDQUOT if one of these directories has no room."""
        for ino in quotas:
            self._check_quota(self._quotas.get(ino), self._quotas_since.get(ino), space, inodes)

    def has_limits(self) -> bool:
        """Is there anything that growth could run into?"""
        setting = self._format
        return bool(self._quotas) or (
            setting is not None
            and bool(setting.capacity or setting.inodes or setting.user_group_quota)
        )

    @staticmethod
    def _check_quota(quota: Quota | None, since: Usage | None, space: int, inodes: int) -> None:
        if quota is None:
            return
        pending = since or (0, 0)
        if space > 0 and 0 < quota.max_space < quota.used_space + pending[0] + space:
            raise posix_error(EDQUOT)
        if inodes > 0 and 0 < quota.max_inodes < quota.used_inodes + pending[1] + inodes:
            raise posix_error(EDQUOT)

    def volume(self) -> Usage:
        """Space and inodes in use, at most a second old, with this client's latest changes."""
        now_s = time.monotonic()
        if now_s - self._volume_read_s >= _VOLUME_AGE_S:
            fresh = (self._engine.counter("usedSpace"), self._engine.counter("totalInodes"))
            with self._lock:
                self._volume, self._volume_since, self._volume_read_s = fresh, (0, 0), now_s
        (space, inodes), (more, new) = self._volume, self._volume_since
        return max(0, space + more), max(0, inodes + new)

    def statfs(self, root: Inode) -> StatFs:
        """Room in the volume, or in the tightest quota over the directory `root`."""
        setting = self._format or Format()
        used, inodes = self.volume()
        total = setting.capacity or _room_for(used, 1 << 50, 0.8)
        files = setting.inodes or inodes + _files_for(inodes)
        quota = self.tightest(root) if root != ROOT else None
        if quota is not None:
            if quota.max_space > 0:
                total, used = quota.max_space, quota.used_space
            if quota.max_inodes > 0:
                files, inodes = quota.max_inodes, quota.used_inodes
        return StatFs(total, max(0, total - used), inodes, max(0, files - inodes))

    def tightest(self, ino: Inode) -> Quota | None:
        """The quota with the least room that covers the directory; None if there is none."""
        covering = [self._with_pending(q) for q in self._covering(ino)] if self._quotas else []
        limited = [quota for quota in covering if quota.max_space > 0 or quota.max_inodes > 0]
        return min(limited, key=_room, default=None)

    def _with_pending(self, ino: Inode) -> Quota:
        quota, (space, inodes) = self._quotas[ino], self._quotas_since.get(ino, (0, 0))
        used = (quota.used_space + space, quota.used_inodes + inodes)
        return replace(quota, used_space=used[0], used_inodes=used[1])

    def _covering(self, ino: Inode) -> list[Inode]:
        """Directories with a quota from `ino` up to the root."""
        found = []
        while not is_trash(ino):
            if ino in self._quotas:
                found.append(ino)
            if ino == ROOT or ino == 0:
                break
            ino = self._parent(ino)
        return found

    def _parent(self, ino: Inode) -> Inode:
        parent = self._parents.get(ino)
        if parent is None:
            attr = self._engine.attr(ino)
            parent = attr.parent if attr is not None else Inode(0)
            with self._lock:
                self._parents[ino] = parent
                if len(self._parents) > _MAX_PARENTS:
                    self._parents.popitem(last=False)
        return parent

    # -- after a commit
    def apply(self, effects: Effects) -> None:
        below = dict(effects.below)
        if effects.moved:
            self._add_moves(effects, below)
        quotas = self._quota_deltas(below) if self._quotas else {}
        with self._lock:
            self._volume_since = _plus(self._volume_since, effects.volume)
            for ino, delta in effects.stats.items():
                old = self._stats.get(ino, _NO_STATS)
                self._stats[ino] = _plus_stats(old, delta)
            for ino, usage in quotas.items():
                self._quotas_since[ino] = _plus(self._quotas_since.get(ino, (0, 0)), usage)
            if self._format is not None and self._format.user_group_quota:
                for (uid, gid), usage in effects.owners.items():
                    _gather(self._users_since, uid, usage)
                    _gather(self._groups_since, gid, usage)

    def _add_moves(self, effects: Effects, below: dict[Inode, Usage]) -> None:
        """A directory took its whole tree from one quota to another."""
        for ino, old, new in effects.moved:
            with self._lock:
                self._parents[ino] = new
            if not self._quotas or self._covering(old) == self._covering(new):
                continue
            space, inodes = self._tree_usage(ino)
            if not is_trash(old):
                _gather(below, old, (-space, -inodes))
            _gather(below, new, (space, inodes))

    def _quota_deltas(self, below: dict[Inode, Usage]) -> dict[Inode, Usage]:
        deltas: dict[Inode, Usage] = {}
        for parent, usage in below.items():
            for ino in self._covering(parent):
                _gather(deltas, ino, usage)
        return deltas

    # -- to the store
    def flush_stats(self) -> None:
        """Directory statistics and the engine's own gathered usage."""
        self._engine.flush()
        with self._lock:
            deltas, self._stats = self._stats, {}
        if not deltas or self._format is None or not self._format.dir_stats:
            return
        changed = {ino: delta for ino, delta in deltas.items() if delta != _NO_STATS}
        try:
            for ino in self._engine.add_dir_stats(changed):
                # A negative row waits for another client's delta: a count now would include
                # what that delta is about to add once more. A missing row has to be made.
                if self._engine.dir_stats(ino) is None and not self._is_removed(ino):
                    self.recompute(ino)
        except OSError:
            self._keep_stats(changed)
            raise

    def _is_removed(self, ino: Inode) -> bool:
        """A removed directory has lost its row on purpose, also where the trash keeps it."""
        attr = self._engine.attr(ino)
        return attr is None or attr.parent > TRASH

    def _keep_stats(self, deltas: dict[Inode, DirStats]) -> None:
        """The store did not take them: try again with the next flush."""
        with self._lock:
            for ino, delta in deltas.items():
                self._stats[ino] = _plus_stats(self._stats.get(ino, _NO_STATS), delta)

    def ensure_root(self) -> None:
        """Give the root its statistics, which formatting does not make.

        Before this client changes anything: a count beside changes whose deltas are still on
        their way would count these twice.
        """
        setting = self._format
        if setting is not None and setting.dir_stats and self._engine.dir_stats(ROOT) is None:
            self.recompute(ROOT)

    def recompute(self, ino: Inode) -> DirStats | None:
        """Store statistics counted anew; None if the directory is gone."""
        if self._engine.attr(ino) is None:
            return None
        stats = count_children(self._engine, ino)
        self._engine.set_dir_stats(ino, stats)
        return stats

    def flush_quotas(self) -> None:
        with self._lock:
            quotas, self._quotas_since = self._quotas_since, {}
            users, self._users_since = self._users_since, {}
            groups, self._groups_since = self._groups_since, {}
            for ino, (space, inodes) in quotas.items():
                if ino in self._quotas:
                    old = self._quotas[ino]
                    used = (old.used_space + space, old.used_inodes + inodes)
                    self._quotas[ino] = replace(old, used_space=used[0], used_inodes=used[1])
        if quotas:
            self._engine.add_dir_quotas(quotas)
        if users or groups:
            self._engine.add_user_group_usage(users, groups)


def count_children(engine: MetaEngine, ino: Inode) -> DirStats:
    """Statistics of one directory by reading it."""
    length = space = inodes = 0
    for page in engine.list_dir(ino, with_attrs=True):
        for entry in page:
            if entry.attr is not None:
                length += entry.attr.length if entry.attr.kind is Kind.FILE else 0
                space += entry.attr.space
                inodes += 1
    return DirStats(length, space, inodes)


_NO_STATS = DirStats()


def _room(quota: Quota) -> int:
    return quota.max_space - quota.used_space if quota.max_space > 0 else 1 << 62


def _plus(left: Usage, right: Usage) -> Usage:
    return left[0] + right[0], left[1] + right[1]


def _plus_stats(left: DirStats, right: DirStats) -> DirStats:
    return DirStats(
        left.length + right.length, left.space + right.space, left.inodes + right.inodes
    )


def _gather(table: dict[K, Usage], key: K, usage: Usage) -> None:
    table[key] = _plus(table.get(key, (0, 0)), usage)


def _room_for(used: int, total: int, share: float) -> int:
    """`total` doubled until `used` is at most `share` of it."""
    while used > total * share:
        total *= 2
    return total


def _files_for(used: int) -> int:
    """Free inodes to show: 10 Mi, doubled while the used ones are more than four times that."""
    free = 10 << 20
    while used > 4 * free:
        free *= 2
    return free
