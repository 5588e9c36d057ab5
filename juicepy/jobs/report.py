"""What `status` tells: setting, sessions and statistics of a volume, as JuiceFS shows them."""

from __future__ import annotations

import json
import struct
import time
from datetime import UTC, datetime
from typing import Any

from juicepy.errors import Refused
from juicepy.jobs.volume import usage
from juicepy.meta.engine import MetaEngine, StoredLock, StoredSession
from juicepy.types import TRASH, Inode, Kind, SessionId
from juicepy.volume import Format

_PLOCK = struct.Struct(">IIQQ")  # type, pid, start, end: spec metadata.md, section 10
_ALL = 1 << 31
_FUTURE_S = 10 * 365 * 86400
_FREE_SPACE = 1 << 50
_FREE_INODES = 10 << 20


def status(engine: MetaEngine, volume: Format, *, more: bool = False) -> dict[str, Any]:
    """Setting (secrets `removed`), Sessions, Stat; with `more` what waits for deletion."""
    stat = _stat(engine, volume)
    if more:
        stat |= {name: value for name, value in _pending(engine).items() if value}
    sessions = sorted(engine.sessions(), key=lambda session: session.sid)
    return {
        "Setting": volume.shown(),
        "Sessions": [_session(session) for session in sessions],
        "Stat": stat,
    }


def session(engine: MetaEngine, sid: SessionId) -> dict[str, Any]:
    """One session with what it holds: unlinked open files and locks. Refused if there is none."""
    found = next((each for each in engine.sessions() if each.sid == sid), None)
    if found is None:
        raise Refused(f"--session {sid}: session not found")
    shown = _session(found)
    flocks: list[dict[str, Any]] = []
    plocks: list[dict[str, Any]] = []
    for ino, is_posix, lock in engine.session_locks(sid):
        if is_posix:
            plocks.append(_plock(ino, lock))
        else:
            flocks.append({"Inode": ino, "Owner": lock.owner, "Ltype": lock.value.decode()})
    lists = {"Sustained": sorted(engine.sustained(sid)), "Flocks": flocks, "Plocks": plocks}
    return shown | {name: items for name, items in lists.items() if items}


def _session(stored: StoredSession) -> dict[str, Any]:
    moment = datetime.fromtimestamp(stored.expire_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    record: dict[str, Any]
    try:
        record = json.loads(stored.record)
    except ValueError:
        record = {}  # a client died between the two halves of its registration
    return {"Sid": stored.sid, "Expire": moment} | record


def _plock(ino: Inode, lock: StoredLock) -> dict[str, Any]:
    records = [
        {"Type": kind, "Pid": pid, "Start": start, "End": end}
        for kind, pid, start, end in _PLOCK.iter_unpack(lock.value)
    ]
    return {"Inode": ino, "Owner": lock.owner, "Records": records}


def _stat(engine: MetaEngine, volume: Format) -> dict[str, int]:
    """Usage, and what is left: of the limits, or of a size that is always large enough."""
    space, inodes = usage(engine)
    total = volume.capacity or _FREE_SPACE
    while not volume.capacity and space * 10 > total * 8:
        total *= 2
    free_inodes = max(0, volume.inodes - inodes)
    if not volume.inodes:
        free_inodes = _FREE_INODES
        while inodes * 10 > (inodes + free_inodes) * 8:
            free_inodes *= 2
    return {
        "UsedSpace": space,
        "AvailableSpace": max(0, total - space),
        "UsedInodes": inodes,
        "AvailableInodes": free_inodes,
    }


def _pending(engine: MetaEngine) -> dict[str, int]:
    """Numbers and bytes of what is in the trash or waits for its deletion."""
    future_s = int(time.time()) + _FUTURE_S
    trash_files, trash_bytes = _trash(engine)
    deleted = engine.deleted_files(future_s, _ALL)
    delayed = [ref for each in engine.delayed_slices(future_s, _ALL) for ref in each.refs]
    unreferenced = engine.unreferenced(_ALL)
    return {
        "TrashFileCount": trash_files,
        "TrashFileSize": trash_bytes,
        "PendingDeletedFileCount": len(deleted),
        "PendingDeletedFileSize": sum(each.length for each in deleted),
        "TrashSliceCount": len(delayed),
        "TrashSliceSize": sum(size for _, size in delayed),
        "PendingDeletedSliceCount": len(unreferenced),
        "PendingDeletedSliceSize": sum(size for _, size in unreferenced),
    }


def _trash(engine: MetaEngine) -> tuple[int, int]:
    """(files, bytes) below the trash; an empty trash may have no root."""
    files, length = 0, 0
    pending = [TRASH]
    while pending:
        for page in engine.list_dir(pending.pop(), with_attrs=True):
            for entry in page:
                if entry.kind is Kind.DIR:
                    pending.append(entry.ino)
                    continue
                files += 1
                if entry.attr is not None and entry.kind is Kind.FILE:
                    length += entry.attr.length
    return files, length
