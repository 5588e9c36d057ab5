"""Keeps a cache directory within its limits, in line with its files, and in or out of use."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from juicepy.cache.blockfile import Corrupt
from juicepy.cache.directory import Space, walk
from juicepy.cache.evict import Excess, Limits, oldest, pairs
from juicepy.cache.index import OVERHEAD, Entry, Index, block_of, stamp_of
from juicepy.concurrency import Lock
from juicepy.types import BlockKey

if TYPE_CHECKING:
    from juicepy.cache.disk import DiskCache

logger = logging.getLogger(__name__)

GARBAGE_AGE_S = 60.0
ROUND_S = 1.0
LATE_SCAN_S = 60.0  # where a saved index tells what is there, the first scan does not hurry
SCAN_GROUP, SCAN_PAUSE_S = 500, 0.003  # requests go on beside a scan of millions of files


class Keeper:
    """The background work on one cache directory, on a thread of its own.

    `is_full`: the directory takes no block, as no room could be made.
    """

    def __init__(self, disk: DiskCache) -> None:
        self._disk, self._options = disk, disk.options
        self.is_full = False
        self._lock = Lock("cache_keeper")  # guards the three below
        self._limits = Limits(0, 0)
        self._room = 0  # bytes that fit on the disk, until it is looked at again
        self._refused = 0  # size of the largest block that found no room since
        self._wake = threading.Event()
        self._is_closing = False
        self._next_scan_s = 0.0
        self._thread = threading.Thread(target=self._loop, name="cache-keep", daemon=True)

    def start(self, *, scan_at_once: bool) -> None:
        self._look(urgent=0)
        if not scan_at_once:
            self._next_scan_s = time.monotonic() + LATE_SCAN_S
        self._thread.start()

    def close(self) -> None:
        self._is_closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(30)

    def admits(self, block: BlockKey) -> bool:
        """Whether there is room for one more block; if not, room is made for later ones."""
        if self.is_full:
            return False
        waiting = len(self._disk.queue)
        blocks, cost = self._disk.stats()  # after it: what is written meanwhile counts twice
        cost += self._disk.queue.bytes + (waiting + 1) * OVERHEAD + block.size
        with self._lock:
            limits = self._limits
            has_room = block.size <= self._room
            if has_room and cost <= limits.cost and blocks + waiting < limits.items:
                self._room -= block.size
                return True
            self._refused = max(self._refused, block.size)
        self._wake.set()
        return False

    def found_full(self) -> None:
        """A file could not be written for want of space."""
        self._set_full(True)
        with self._lock:
            self._refused = max(self._refused, 1)
        self._wake.set()

    # -- rounds
    def _loop(self) -> None:
        while not self._is_closing:
            try:
                self.round()
            except OSError as error:
                logger.debug("looking after %s failed: %s", self._disk.root, error)
            except Exception:
                logger.exception("keeping cache directory %s in its limits failed", self._disk.root)
            self._wake.wait(ROUND_S)
            self._wake.clear()

    def round(self) -> None:
        """Try a disk that is out; else see that the directory is there and within its limits."""
        disk = self._disk
        if disk.is_down:
            disk.close_files()  # so that it can be unmounted
            if disk.health.is_due():
                self._try_again()
            return
        if not disk.is_mounted():
            disk.health.take_out("its disk is not mounted")
            return
        with disk.health.using("look after"):
            disk.restore()
        if time.monotonic() >= self._next_scan_s:
            self.scan()
        self.keep()

    def _try_again(self) -> None:
        disk = self._disk
        try:
            disk.try_out()
        except (OSError, Corrupt) as error:
            logger.debug("%s is still out of use: %s", disk.root, error)
            disk.health.still_out()
            return
        disk.health.bring_back()
        self._next_scan_s = 0.0  # somebody may have repaired or emptied it

    def keep(self) -> None:
        """Drop what is too old or too much."""
        self._disk.close_files(unlinked=True)  # only then the space is free
        if self._options.expire_s > 0:
            self._expire(time.time() - max(self._options.expire_s, 1.0))
        with self._lock:
            refused, self._refused = self._refused, 0
        todo = self._look(refused)
        if todo and self._options.eviction != "none":
            self._make_room(todo)
            self._look(urgent=0)
        self._set_full(self._has_no_room())

    def _set_full(self, is_full: bool) -> None:
        if is_full != self.is_full:
            self.is_full = is_full
            state = "full: it takes no more blocks" if is_full else "no longer full"
            logger.info("cache directory %s is %s", self._disk.root, state)

    def _has_no_room(self) -> bool:
        blocks, cost = self._disk.stats()
        with self._lock:
            limits = self._limits
            return self._room <= 0 or cost >= limits.cost or blocks >= limits.items

    def _look(self, urgent: int) -> Excess:
        """Learn the limits; what has to go. `urgent`: size of a block that found no room."""
        options, disk = self._options, self._disk
        with disk.health.using("see the free space"):
            space = Space.of(disk.root)
        share = 1 - options.free_space
        limit = min(options.size, int(space.total * share))
        if disk.whole is not None:
            limit = max(0, limit - disk.whole.used_bytes())
        items = options.items or int(space.inodes * share) or 1 << 62
        limits = Limits(limit, items, options.prune_above, options.prune_to)
        reserve = space.reserve(options)
        room = space.free - reserve
        with self._lock:
            self._limits = limits
            self._room = room - disk.queue.bytes
        blocks, cost = disk.stats()
        excess = limits.excess(cost, blocks, urgent=urgent > 0)
        lacking = -room
        if lacking > 0 or room < urgent:
            lacking += max(4 * urgent, int(reserve * (1 - options.prune_to)))
        lacking_inodes = int(space.inodes * options.free_space) - space.free_inodes
        return Excess(max(excess.cost, lacking), max(excess.items, lacking_inodes))

    # -- eviction
    def _expire(self, before_s: float) -> None:
        before = stamp_of(0, before_s)
        for group in self._disk.sweep():
            for entry in group:
                if entry[0] < before:
                    self._evict(entry)

    def _make_room(self, todo: Excess) -> None:
        """Until enough is gone, or nothing goes any more: staged blocks stay."""
        spared: set[int] = set()
        has_evicted = True
        while todo and has_evicted and not self._is_closing:
            has_evicted = False
            groups = (
                [each for each in group if each[1] not in spared] for group in self._disk.sweep()
            )
            for entry in self._choose(groups, todo):
                if not self._evict(entry):
                    spared.add(entry[1])
                    continue
                has_evicted = True
                todo = todo.without(entry)
                if not todo:
                    return

    def _choose(self, groups: Iterable[list[Entry]], todo: Excess) -> Iterable[Entry]:
        return oldest(groups, todo) if self._options.eviction == "lru" else pairs(groups)

    def _evict(self, entry: Entry) -> bool:
        """Remove the block, unless it is staged: then its file has a second name."""
        disk, block = self._disk, block_of(entry)
        try:
            with disk.health.using("see"):
                is_staged = os.stat(disk.path(block)).st_nlink > 1
        except FileNotFoundError:
            disk.forget(block)
            return True
        if is_staged:
            return False
        disk.forget(block)
        disk.unlink(block)
        disk.counts.evicts += 1
        return True

    # -- the scan
    def scan(self) -> None:
        """Bring the index in line with the files."""
        interval_s = self._options.scan_interval_s
        self._next_scan_s = time.monotonic() + interval_s if interval_s > 0 else 2.0**62
        disk, started_s = self._disk, time.time()
        found = Index()
        for number, entry in enumerate(walk(disk.raw)):
            if self._is_closing:
                return
            if number % SCAN_GROUP == SCAN_GROUP - 1:
                time.sleep(SCAN_PAUSE_S)
            block = disk.names.parse_key(entry.path[len(disk.raw) :])
            try:
                status = entry.stat(follow_symlinks=False)
                if block is not None:
                    found.add(block, status.st_atime)
                    disk.add(block, status.st_atime)
                elif entry.name.endswith(".tmp") and status.st_mtime < started_s - GARBAGE_AGE_S:
                    os.unlink(entry.path)
            except FileNotFoundError:
                continue  # removed by another client
        for group in disk.sweep():
            for each in group:
                block = block_of(each)
                if block not in found and not os.path.exists(disk.path(block)):
                    disk.forget(block)
