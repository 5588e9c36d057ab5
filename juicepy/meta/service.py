"""What a client keeps running beside its operations: session, background work, accounting.

The operations run through here (`run`, `run_in_session`, `read`), and what follows their commit is
acted on here (`follow`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from errno import EIO, EROFS
from typing import TypeVar

from juicepy.errors import posix_error
from juicepy.meta.accounts import Accounts, Usage
from juicepy.meta.background import QUOTA_FLUSH_S, STATS_FLUSH_S, Background, Job
from juicepy.meta.cleanup import Deleter
from juicepy.meta.compaction import Compaction
from juicepy.meta.effects import Effects
from juicepy.meta.engine import MetaEngine
from juicepy.meta.ids import INODE_BATCH, SLICE_BATCH, Ids
from juicepy.meta.open_files import OpenFiles
from juicepy.meta.ops import remove
from juicepy.meta.sessions import SessionLapsed, Sessions, Taken
from juicepy.meta.tx import Committed, LockLost, Tx
from juicepy.types import Inode, SessionId, SliceId
from juicepy.volume import Format

logger = logging.getLogger(__name__)

T = TypeVar("T")
_SLOW_S = 10.0
_IN_SESSION_RUNS = 50  # of one operation, while locks come and go or the session lapses
_RERUN_PAUSE_S = 0.02  # at most, between them


@dataclass(frozen=True, slots=True)
class MetaOptions:
    """What this client chose about metadata."""

    read_only: bool = False
    no_bgjob: bool = False
    heartbeat_s: float = 12.0
    subdir: str = ""
    atime_mode: str = "noatime"
    skip_dir_mtime_ns: int = 100_000_000
    mount_point: str = ""
    network_interfaces: tuple[str, ...] = ()  # whose addresses the session tells; none: all
    max_deletes: int = 10


class Service:
    """Owns the state that operations share. Thread-safe; `start` starts its threads."""

    def __init__(
        self,
        engine: MetaEngine,
        setting: Format,
        options: MetaOptions,
        tree_usage: Callable[[Inode], Usage],
    ) -> None:
        self.engine, self.setting, self.options = engine, setting, options
        self.observe: Callable[[str, float], None] | None = None  # (operation, seconds)
        self.restarted: Callable[[str, int], None] | None = None  # (operation, times run again)
        self.on_reload: list[Callable[[Format], None]] = []
        self.on_gone: Callable[[str], None] = lambda why: logger.error("%s", why)
        self._inodes = Ids("inodes", INODE_BATCH, engine.allocate_inodes)
        self._slices = Ids("slices", SLICE_BATCH, engine.allocate_slices)
        self.open_files = OpenFiles()
        self.accounts = Accounts(engine, tree_usage)
        self.deleter = Deleter(engine, options.max_deletes)
        self.compaction = Compaction(engine, self.deleter, self.new_slice)
        self.compaction.keeps_old = lambda: self.setting.trash_days > 0
        self.sessions = Sessions(engine, options.heartbeat_s, self.release_sustained)
        self._background = Background(engine)

    def new_inode(self) -> Inode:
        return Inode(self._inodes.take())

    def new_slice(self) -> SliceId:
        return SliceId(self._slices.take())

    # ------------------------------------------------------------ life
    def start(self, clean_trash: Callable[[], object]) -> None:
        """Register this client and start its background work (read-only: only reloads)."""
        self.accounts.reload(self.setting)
        if not self.options.read_only:
            self.accounts.ensure_root()
            self.sessions.start(self.options.mount_point, self.options.network_interfaces)
            self._background.every("flush-stats", STATS_FLUSH_S, self.accounts.flush_stats)
            self._background.every("flush-quotas", QUOTA_FLUSH_S, self.accounts.flush_quotas)
            if not self.options.no_bgjob:
                self._start_jobs(clean_trash)
        beat_s = self.options.heartbeat_s or 12.0
        self._background.every("heartbeat", beat_s, self.heartbeat)

    def _start_jobs(self, clean_trash: Callable[[], object]) -> None:
        for job in (
            Job("lastCleanupFiles", self.deleter.old_files),
            Job("nextCleanupSlices", self.deleter.unreferenced),
            Job("lastCleanupTrash", clean_trash),
        ):
            self._background.hourly(job)

    def close(self) -> None:
        """Stop the background work, store what is gathered, release what the session holds."""
        self._background.close()
        self.compaction.close()
        if self.options.read_only or not self.sessions.sid:
            self.deleter.close()
            return
        try:
            self.accounts.flush_stats()
            self.accounts.flush_quotas()
            self.sessions.end(self.sessions.sid)
        finally:
            self.deleter.close()
        self.accounts.flush_stats()

    def heartbeat(self) -> None:
        if not self._reload():
            return  # a session must not be made again in a place without volume
        if not self.options.read_only:
            self.sessions.refresh()
        if not self.options.read_only and not self.options.no_bgjob:
            self.sessions.clean_stale()

    def _reload(self) -> bool:
        """Follow the setting; False if the volume is gone."""
        raw = self.engine.load_format()
        if raw is None:
            self.on_gone("the volume has been destroyed")
            return False
        setting = Format.from_json(raw).decrypted()
        if setting.uuid != self.setting.uuid:
            self.on_gone(f"the volume has been replaced by {setting.name} ({setting.uuid})")
            return False
        if setting != self.setting:
            self.setting = setting
            for tell in self.on_reload:
                tell(setting)
        self.accounts.reload(setting)
        return True

    # ------------------------------------------------------------ how operations run
    def ensure_session(self) -> None:
        """Before a change: be sure that other clients take this one for alive."""
        if self.sessions.in_doubt():
            self.sessions.ensure()

    def run(self, name: str, body: Callable[[Tx], T]) -> tuple[T, Committed]:
        """Run a mutation: read-only check, timing, slow-call log."""
        if self.options.read_only:
            raise posix_error(EROFS)
        self.ensure_session()
        runs = 0

        def counted(tx: Tx) -> T:
            nonlocal runs
            runs += 1
            return body(tx)

        begin = time.perf_counter()
        try:
            return self.engine.transact(counted)
        finally:
            self._observed(name, time.perf_counter() - begin)
            if runs > 1 and self.restarted is not None:
                self.restarted(name, runs - 1)

    def run_in_session(
        self,
        name: str,
        body: Callable[[Tx, SessionId], T],
        epoch: int | None = None,
        *,
        changes: Inode | None = None,
    ) -> tuple[T, Committed]:
        """`run` what nobody may do whose session has ended: EIO if it ended since `epoch` (now).

        If the body `changes` the data of an inode, that also holds of an end between body and
        commit, for who holds locks. Who holds none and names no epoch goes on in a new session.
        """
        sessions = self.sessions
        if changes is not None and epoch is None and not sessions.held:
            self.ensure_session()
        begun = sessions.epoch if epoch is None else epoch
        sid = sessions.sid
        witness: Taken | None = None

        def checked(tx: Tx) -> T:
            nonlocal witness  # before the checks: a session that is lost after them leaves none
            witness = None if changes is None else sessions.witness(changes)
            if sessions.in_doubt():
                raise SessionLapsed
            if sessions.epoch != begun:
                raise posix_error(EIO, f"session {sid}")
            if witness is not None:
                tx.rely_on(sid, witness[0])
            return body(tx, sid)

        for runs in range(_IN_SESSION_RUNS):
            try:
                return self.run(name, checked)
            except SessionLapsed:
                pass  # `run` finds out what has become of it
            except LockLost:
                sessions.examine(witness)
            time.sleep(min(_RERUN_PAUSE_S, 0.0005 * 2**runs) if runs else 0)
        raise posix_error(EIO, f"{name}: session {sid} is in doubt")

    def read(self, name: str, call: Callable[[], T]) -> T:
        begin = time.perf_counter()
        try:
            return call()
        finally:
            self._observed(name, time.perf_counter() - begin)

    def _observed(self, name: str, took_s: float) -> None:
        if self.observe is not None:
            self.observe(name, took_s)
        if took_s > _SLOW_S:
            logger.warning("slow metadata operation: %s took %.1f s", name, took_s)

    def follow(self, effects: Effects) -> None:
        """Act on what a committed operation brings with it."""
        self.accounts.apply(effects)
        for ino, length in effects.deleted:
            self.deleter.later(ino, length)
        if effects.sustained:
            for ino in self.open_files.unlinked(effects.sustained):
                self.release_sustained(self.sessions.sid, ino)

    def release_sustained(self, sid: SessionId, ino: Inode) -> None:
        now_s = int(time.time())
        effects, _ = self.engine.transact(lambda tx: remove.release_sustained(tx, sid, ino, now_s))
        self.follow(effects)
