"""Directory statistics and quotas: rows of numbers in hashes, one hash per number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from juicepy.meta.codec import decode_limits, encode_limits
from juicepy.meta.engine import DirStats, Quota
from juicepy.meta.redis.commit import QUOTAS, STATS
from juicepy.meta.redis.keys import Keys
from juicepy.meta.redis.link import Link
from juicepy.meta.redis.scripts import ADD_EXISTING, pack
from juicepy.meta.redis.wire import Command
from juicepy.types import Inode

Usage = tuple[int, int]  # (space, inodes)

_NO_LIMITS = encode_limits(-1, -1)


class UsageRows:
    def __init__(self, link: Link, keys: Keys) -> None:
        self._link, self._keys = link, keys

    # -- directory statistics
    def dir_stats(self, ino: Inode) -> DirStats | None:
        length, space, inodes = self._link.run(
            [("HGET", self._keys.named(name), ino) for name in STATS]
        )
        if space is None:
            return None
        return DirStats(int(length or 0), int(space), int(inodes or 0))

    def add_dir_stats(self, deltas: dict[Inode, DirStats]) -> list[Inode]:
        rows = [(ino, one.length, one.space, one.inodes) for ino, one in deltas.items()]
        return [Inode(ino) for ino in self._add_existing("dirUsedSpace", STATS, rows)]

    def set_dir_stats(self, ino: Inode, stats: DirStats) -> None:
        values = (stats.length, stats.space, stats.inodes)
        self._link.run(
            [
                ("HSET", self._keys.named(name), ino, value)
                for name, value in zip(STATS, values, strict=True)
            ]
        )

    def reset_dir_stats(self) -> None:
        self._link.call("DEL", *map(self._keys.named, STATS))

    # -- quotas
    def dir_quotas(self) -> dict[Inode, Quota]:
        return {Inode(ino): quota for ino, quota in self._quotas("dir").items()}

    def set_dir_quota(self, ino: Inode, quota: Quota | None) -> None:
        names = [self._keys.named(name) for name in QUOTAS]
        commands: list[Command] = [("HDEL", name, ino) for name in names]
        if quota is not None:
            limits = encode_limits(quota.max_space, quota.max_inodes)
            values: list[bytes | int] = [limits, quota.used_space, quota.used_inodes]
            commands = [
                ("HSET", name, ino, value) for name, value in zip(names, values, strict=True)
            ]
        self._link.run(commands)

    def add_dir_quotas(self, deltas: dict[Inode, Usage]) -> None:
        rows = [(ino, space, inodes) for ino, (space, inodes) in deltas.items()]
        self._add_existing("dirQuota", QUOTAS[1:], rows)

    def user_group_quotas(self) -> tuple[dict[int, Quota], dict[int, Quota]]:
        return self._quotas("user"), self._quotas("group")

    def add_user_group_usage(self, users: dict[int, Usage], groups: dict[int, Usage]) -> None:
        """A row without limits is made where there is none."""
        made = [
            ("HSETNX", self._keys.named(f"{kind}Quota"), ident, _NO_LIMITS)
            for kind, deltas in (("user", users), ("group", groups))
            for ident in deltas
        ]
        if made:
            self._link.run(made)
        for kind, deltas in (("user", users), ("group", groups)):
            rows = [(ident, space, inodes) for ident, (space, inodes) in deltas.items()]
            used = (f"{kind}QuotaUsedSpace", f"{kind}QuotaUsedInodes")
            self._add_existing(f"{kind}Quota", used, rows)

    def _quotas(self, kind: str) -> dict[int, Quota]:
        flats = self._link.run(
            [
                ("HGETALL", self._keys.named(f"{kind}{name}"))
                for name in ("Quota", "QuotaUsedSpace", "QuotaUsedInodes")
            ]
        )
        limits, spaces, inodes = (dict(zip(flat[::2], flat[1::2], strict=True)) for flat in flats)
        return {
            int(ident): Quota(
                *decode_limits(raw), int(spaces.get(ident, 0)), int(inodes.get(ident, 0))
            )
            for ident, raw in limits.items()
        }

    def _add_existing(
        self, guard: str, names: Iterable[str], rows: Sequence[tuple[int, ...]]
    ) -> list[int]:
        """Add the numbers of each row (id, number per hash) where `guard` has its id.

        Returns ids that it lacks or for which a number fell below zero.
        """
        if not rows:
            return []
        as_fields: list[tuple[Any, ...]] = [(b"%d" % ident, *numbers) for ident, *numbers in rows]
        program = pack(([self._keys.named(name) for name in names], as_fields))
        odd = self._link.script(ADD_EXISTING, self._keys.named(guard), program, repeatable=False)
        return [int(ident) for ident in odd]
