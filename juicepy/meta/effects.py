"""What follows the commit of an operation: returned by its body, acted on by the client.

The table of spec/metadata.md section 14 (accounting) is filled in by the operations through the
methods here; volume usage itself is part of the transaction (`Tx.use`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from juicepy.meta.engine import DirStats
from juicepy.types import Attr, Inode, Kind


@dataclass(slots=True)
class Effects:
    """Deltas to statistics and quotas, and work for the background.

    `stats`: directory -> change of its direct children. `below`: directory -> (space, inodes) that
    every quota from there up to the root feels. `owners`: (uid, gid) -> (space, inodes).
    `deleted`: files whose data may go. `sustained`: files without a name that are open here.
    `moved`: a directory that changed its parent (inode, from, to).
    """

    stats: dict[Inode, DirStats] = field(default_factory=dict)
    below: dict[Inode, tuple[int, int]] = field(default_factory=dict)
    owners: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    deleted: list[tuple[Inode, int]] = field(default_factory=list)
    sustained: list[Inode] = field(default_factory=list)
    moved: list[tuple[Inode, Inode, Inode]] = field(default_factory=list)

    def child(self, parent: Inode, attr: Attr, sign: int) -> None:
        """`attr` came under (+1) or left (-1) `parent`: statistics only."""
        length = attr.length if attr.kind is Kind.FILE else 0
        self.dir_stats(parent, sign * length, sign * attr.space, sign)

    def dir_stats(self, parent: Inode, length: int, space: int, inodes: int) -> None:
        old = self.stats.get(parent, _NONE)
        self.stats[parent] = DirStats(old.length + length, old.space + space, old.inodes + inodes)

    def quota(self, parent: Inode, space: int, inodes: int) -> None:
        """Usage below `parent` changed."""
        old = self.below.get(parent, (0, 0))
        self.below[parent] = (old[0] + space, old[1] + inodes)

    @property
    def volume(self) -> tuple[int, int]:
        """(space, inodes) of the volume: every inode counts for its owner, too."""
        return sum(s for s, _ in self.owners.values()), sum(n for _, n in self.owners.values())

    def owner(self, attr: Attr, space: int, inodes: int) -> None:
        """Usage of the owner changed."""
        key = (attr.uid, attr.gid)
        old = self.owners.get(key, (0, 0))
        self.owners[key] = (old[0] + space, old[1] + inodes)


_NONE = DirStats()
