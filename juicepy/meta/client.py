"""MetaClient: the metadata of one volume for one client, one short method per operation.

It puts together an engine, the operations, and the state beside them: ids, open files, session,
trash, accounts, clean-up, compaction. Methods raise OSError with the errno the caller shall see.
Inode 1 is the directory that this client has mounted.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from errno import EINVAL, EIO, ENAMETOOLONG, ENOENT, ENOSPC, EPERM, EROFS
from typing import TypeVar

from juicepy.errors import NotFormatted, Refused, posix_error
from juicepy.meta import paths, rules, trash, tree
from juicepy.meta.cleanup import DeleteSlice
from juicepy.meta.compaction import Compactor
from juicepy.meta.effects import Effects
from juicepy.meta.engine import Changed, MetaEngine, Tracked
from juicepy.meta.ops import attrs, common, create, data, locks, remove, rename, xattrs
from juicepy.meta.service import MetaOptions, Service
from juicepy.meta.tx import HeldLock, Tx
from juicepy.types import (
    CHUNK_BITS,
    CHUNK_SIZE,
    MAX_FILE_SIZE,
    MAX_NAME,
    MAX_SYMLINK,
    ROOT,
    TRASH,
    Attr,
    Cred,
    DirEntry,
    Entry,
    Inode,
    Kind,
    LockKind,
    PosixLock,
    SessionId,
    SetAttr,
    Slice,
    SliceId,
    StatFs,
    aligned,
)
from juicepy.volume import Format

logger = logging.getLogger(__name__)

T = TypeVar("T")
SUPERUSER = Cred()
_SLOW_S = 10.0
LARGE_ALLOCATION = 1 << 30  # from here on fallocate looks at the room that statfs tells
MANY_CHUNKS = 16  # of a longer file, those that have slices are asked for first


def open_meta(engine: MetaEngine, options: MetaOptions | None = None) -> MetaClient:
    """The client of the volume in `engine`. NotFormatted; Refused for a volume too new for us."""
    raw = engine.load_format()
    if raw is None:
        raise NotFormatted(engine.scheme)
    setting = Format.from_json(raw).decrypted()
    setting.check_client_version()
    options = options or MetaOptions()
    if setting.change_log and not options.read_only:
        raise Refused("the volume keeps a change log, which this client does not write", EROFS)
    return MetaClient(engine, setting, options)


class MetaClient:
    """See the module. Thread-safe; starts nothing until `start_session`."""

    def __init__(self, engine: MetaEngine, setting: Format, options: MetaOptions) -> None:
        self.engine, self.options = engine, options
        self.root = ROOT
        self._service = service = Service(engine, setting, options, self._tree_usage)
        self._run, self._read, self._follow = service.run, service.read, service.follow
        self._run_in_session = service.run_in_session
        self._accounts, self._compaction = service.accounts, service.compaction
        self._open = service.open_files
        self._trash = trash.Trash(engine)
        self._tracked: Tracked | None = None
        if options.subdir:
            self.root = paths.subdir(self, options.subdir, make=not options.read_only)

    # ------------------------------------------------------------ life
    @property
    def format(self) -> Format:
        """The volume's setting as it was read last."""
        return self._service.setting

    @property
    def sid(self) -> SessionId:
        return self._service.sessions.sid

    @property
    def epoch(self) -> int:
        """How many sessions of this client others have ended."""
        return self._service.sessions.epoch

    def watch(
        self, observe: Callable[[str, float], None], restarted: Callable[[str, int], None]
    ) -> None:
        """Tell of every operation (name, seconds), and of those run again (name, times)."""
        self._service.observe, self._service.restarted = observe, restarted

    def on_delete_slice(self, delete: DeleteSlice) -> None:
        """How the blocks of a slice (id, size) are deleted; without it nothing is."""
        self._service.deleter.delete_slice = delete

    def on_compact(self, compactor: Compactor) -> None:
        self._compaction.compactor = compactor

    def on_reload(self, tell: Callable[[Format], None]) -> None:
        """Call `tell` with the setting whenever it changed."""
        self._service.on_reload.append(tell)

    def on_gone(self, tell: Callable[[str], None]) -> None:
        """Call `tell` with the reason if the volume was destroyed or replaced."""
        self._service.on_gone = tell

    def on_lost(self, tell: Callable[[bool, set[Inode]], None]) -> None:
        """Call `tell` when other clients have ended this client's session, for its silence.

        It gets whether locks were lost, and the open inodes that had no name and are gone.
        """
        self._service.sessions.on_lost = lambda had_locks: tell(had_locks, self._open.nameless())

    def track(self, tell: Callable[[Changed], None]) -> Tracked | None:
        """See `MetaEngine.track`; what is `believed` then comes from there."""
        self._tracked = self.engine.track(tell)
        return self._tracked

    def ensure_session(self) -> None:
        """Before a change: be sure that other clients take this one for alive."""
        self._service.ensure_session()

    def start_session(self) -> None:
        """Register this client and start its background work (read-only: only reloads)."""
        self._service.start(self.clean_trash)

    def close_session(self) -> None:
        """Stop the background work, store what is gathered, release what the session holds."""
        self._service.close()

    def heartbeat(self) -> None:
        """What happens at every heartbeat, now: follow the setting, refresh the session."""
        self._service.heartbeat()

    # ------------------------------------------------------------ lookup
    def _in(self, ino: Inode) -> Inode:
        """The stored inode of one the kernel names: 1 is the mounted directory."""
        return self.root if ino == ROOT else ino

    stored = _in

    def _shown(self, ino: Inode, attr: Attr) -> Attr:
        """Names that lie in the trash are no links to who looks from outside."""
        if attr.parent > TRASH:
            return attr.with_(nlink=0 if attr.is_dir else max(0, attr.nlink - 1))
        if attr.parent == 0 and attr.nlink > 0 and self.format.trash_days > 0:
            parents = self.engine.read(lambda tx: tx.parents(ino))
            trashed = sum(count for parent, count in parents.items() if parent > TRASH)
            return attr.with_(nlink=max(0, attr.nlink - trashed)) if trashed else attr
        return attr

    def lookup(
        self, cred: Cred, parent: Inode, name: bytes, *, believed: bool = False
    ) -> tuple[Inode, Attr]:
        """The inode of a name. ENOENT, ENOTDIR. `believed`: as `track` keeps it, if it does."""
        parent = self._in(parent)
        if name == b".":
            return parent, self.getattr(parent)
        if name == b"..":
            above = ROOT if parent == self.root else self.getattr(parent).parent
            return above, self.getattr(above)
        if parent == ROOT and self.root == ROOT and name == b".trash":
            return TRASH, self.getattr(TRASH)
        if len(name) > MAX_NAME:
            raise posix_error(ENAMETOOLONG, name[:32])
        source = self._tracked if believed and self._tracked is not None else self.engine
        found = self._read("Lookup", lambda: source.lookup(parent, name))
        if found is None or found[1] is None:
            raise posix_error(ENOENT, name)
        return found[0].ino, self._shown(found[0].ino, found[1])

    def getattr(self, ino: Inode, *, believed: bool = False) -> Attr:
        """Attributes as they are now, or `believed`. ENOENT."""
        ino = self._in(ino)
        source = self._tracked if believed and self._tracked is not None else self.engine
        attr = self._read("GetAttr", lambda: source.attr(ino))
        if attr is None:
            raise posix_error(ENOENT, f"inode {ino}")
        return self._shown(ino, attr)

    def resolve(self, cred: Cred, path: bytes, *, follow: bool = True) -> tuple[Inode, Attr]:
        """Walk an absolute path with `cred`'s permissions. ENOENT, ENOTDIR, EACCES, ELOOP."""
        return paths.resolve(self, cred, path, follow=follow)

    def _allow(self, attr: Attr, cred: Cred, want: int) -> None:
        if attr.access_acl and not cred.is_root:
            self.engine.read(lambda tx: common.allow(tx, attr, cred, want))
        else:
            rules.check_access(attr, cred, want)

    def access(self, cred: Cred, ino: Inode, mask: int) -> None:
        self._allow(self.getattr(ino), cred, mask & 7)

    def readlink(self, cred: Cred, ino: Inode) -> bytes:
        target = self._read("ReadLink", lambda: self.engine.read(lambda tx: tx.link_target(ino)))
        if target is None:
            raise posix_error(ENOENT if self.engine.attr(ino) is None else EINVAL)
        return target

    def list_dir(self, cred: Cred, ino: Inode, *, with_attrs: bool) -> Iterator[list[DirEntry]]:
        """All entries in pages, without `.` and `..`."""
        pages = self.engine.list_dir(self._in(ino), with_attrs=with_attrs)
        if with_attrs and self.format.trash_days > 0:
            return map(self._shown_page, pages)
        return pages

    def _shown_page(self, page: list[DirEntry]) -> list[DirEntry]:
        """As `_shown`, for all entries of a listing."""
        return [
            replace(entry, attr=self._shown(entry.ino, attr))
            if (attr := entry.attr) and (attr.parent > TRASH or (attr.parent == 0 < attr.nlink))
            else entry
            for entry in page
        ]

    # ------------------------------------------------------------ names
    def _make(
        self,
        parent: Inode,
        name: bytes,
        kind: Kind,
        mode: int,
        umask: int,
        cred: Cred,
        rdev: int = 0,
        target: bytes = b"",
    ) -> tuple[Inode, Attr]:
        parent = self._in(parent)
        rules.check_name(name)
        self._check_virtual(parent, name)
        self._accounts.check(parent, 4096, 1, cred)
        ino = self._service.new_inode()
        node = create.NewNode(parent, name, ino, kind, mode, umask, rdev, target)
        now_ns, skip_ns = time.time_ns(), self.options.skip_dir_mtime_ns
        (attr, effects), _ = self._run(
            "Mknod", lambda tx: create.make(tx, node, cred, now_ns, skip_ns)
        )
        self._follow(effects)
        return ino, attr

    def _check_virtual(self, parent: Inode, name: bytes) -> None:
        if parent == ROOT and name == b".trash":
            raise posix_error(EPERM, name)

    def mknod(
        self,
        cred: Cred,
        parent: Inode,
        name: bytes,
        kind: Kind,
        mode: int,
        umask: int,
        rdev: int = 0,
        target: bytes = b"",
    ) -> tuple[Inode, Attr]:
        """A new inode of any kind but a directory; a symlink has a `target`. EEXIST, ..."""
        if kind is Kind.SYMLINK and not 0 < len(target) < MAX_SYMLINK:
            raise posix_error(ENAMETOOLONG if target else ENOENT, name)
        return self._make(parent, name, kind, mode, umask, cred, rdev, target)

    def mkdir(
        self, cred: Cred, parent: Inode, name: bytes, mode: int, umask: int
    ) -> tuple[Inode, Attr]:
        return self._make(parent, name, Kind.DIR, mode, umask, cred)

    def create(
        self, cred: Cred, parent: Inode, name: bytes, mode: int, umask: int, flags: int
    ) -> tuple[Inode, Attr]:
        """Make and open a file; without O_EXCL an existing one is opened."""
        try:
            ino, attr = self._make(parent, name, Kind.FILE, mode, umask, cred)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            ino, attr = self.lookup(cred, parent, name)
            if attr.kind is not Kind.FILE:
                raise
            return ino, self.open(cred, ino, flags)
        self._open.opened(ino)
        return ino, attr

    def tmpfile(
        self, cred: Cred, parent: Inode, mode: int, umask: int, *, linkable: bool
    ) -> tuple[Inode, Attr]:
        """Make and open a file that has no name, and ends with its last handle. If it is
        `linkable`, `link` may give it one.
        """
        parent = self._in(parent)
        self._accounts.check(parent, 4096, 1, cred)
        ino = self._service.new_inode()
        node = create.NewNode(parent, b"", ino, Kind.FILE, mode, umask)
        now_ns = time.time_ns()
        self._open.opened(ino)
        try:
            (attr, effects), _ = self._run_in_session(
                "Tmpfile", lambda tx, sid: create.make_nameless(tx, node, sid, cred, now_ns)
            )
        except BaseException:
            self._open.closed(ino)
            raise
        if linkable:
            self._open.may_be_linked(ino)
        self._follow(effects)
        return ino, attr

    def _removal(self, *, skip_trash: bool = False) -> remove.Removal:
        now_ns = time.time_ns()
        keep = self.format.trash_days > 0 and not skip_trash and not self.options.read_only
        folder = self._trash.directory(now_ns) if keep else None
        return remove.Removal(
            folder, self.sid, self._open.is_open, now_ns, self.options.skip_dir_mtime_ns
        )

    def unlink(self, cred: Cred, parent: Inode, name: bytes, *, skip_trash: bool = False) -> Inode:
        parent = self._in(parent)
        self._check_virtual(parent, name)
        removal = self._removal(skip_trash=skip_trash)
        (ino, effects), _ = self._run(
            "Unlink", lambda tx: remove.unlink(tx, parent, name, cred, removal)
        )
        self._follow(effects)
        return ino

    def rmdir(self, cred: Cred, parent: Inode, name: bytes, *, skip_trash: bool = False) -> Inode:
        parent = self._in(parent)
        self._check_virtual(parent, name)
        if name == b".":
            raise posix_error(EINVAL)
        removal = self._removal(skip_trash=skip_trash)
        (ino, effects), _ = self._run(
            "Rmdir", lambda tx: remove.rmdir(tx, parent, name, cred, removal)
        )
        self._follow(effects)
        return ino

    def rename(
        self,
        cred: Cred,
        parent: Inode,
        name: bytes,
        parent2: Inode,
        name2: bytes,
        flags: int = 0,
    ) -> tuple[Inode, Inode | None]:
        """Move a name; the inode moved and the one replaced."""
        parent, parent2 = self._in(parent), self._in(parent2)
        self._check_virtual(parent, name)
        self._check_virtual(parent2, name2)
        if name2 not in (b".", b".."):
            rules.check_name(name2)
        rules.check_rename_flags(flags)
        whiteout = None
        if flags & rules.WHITEOUT:
            self._accounts.check(parent, 4096, 1, cred)
            whiteout = self._service.new_inode()
        self._check_quotas_of_move(parent, name, parent2, name2, flags)
        move = rename.Move(parent, name, parent2, name2, flags, whiteout)
        removal = self._removal()
        moved, _ = self._run("Rename", lambda tx: rename.rename(tx, move, cred, removal))
        self._follow(moved.effects)
        return moved.ino, moved.replaced

    def _check_quotas_of_move(
        self, parent: Inode, name: bytes, parent2: Inode, name2: bytes, flags: int
    ) -> None:
        """EDQUOT if what a rename takes along has no room in a quota that it enters."""
        entered, left = self._accounts.entered(parent, parent2), []
        if flags & rules.EXCHANGE:
            left = self._accounts.entered(parent2, parent)
        if entered or left:
            (space, inodes), (space2, inodes2) = (
                self._usage_below(self.engine.lookup(parent, name)),
                self._usage_below(self.engine.lookup(parent2, name2)),
            )
            self._accounts.check_entered(entered, space - space2, inodes - inodes2)
            self._accounts.check_entered(left, space2 - space, inodes2 - inodes)

    def _usage_below(self, found: tuple[Entry, Attr | None] | None) -> tuple[int, int]:
        if found is None or found[1] is None:
            return 0, 0
        ino, attr = found[0].ino, found[1]
        return self._tree_usage(ino) if attr.is_dir else (attr.space, 1)

    def link(self, cred: Cred, ino: Inode, parent: Inode, name: bytes) -> Attr:
        parent = self._in(parent)
        rules.check_name(name)
        self._check_virtual(parent, name)
        quotas = self._accounts.entered(None, parent)
        if quotas:
            self._accounts.check_entered(quotas, self.getattr(ino).space, 1)
        now_ns, skip_ns = time.time_ns(), self.options.skip_dir_mtime_ns

        def change(tx: Tx, keeper: SessionId | None = None) -> tuple[Attr, Effects]:
            return create.link(tx, ino, parent, name, cred, now_ns, skip_ns, keeper=keeper)

        if self._open.is_linkable(ino):
            (attr, effects), _ = self._run_in_session("Link", change)
            self._open.linked(ino)
        else:
            (attr, effects), _ = self._run("Link", change)
        self._follow(effects)
        return self._shown(ino, attr)

    # ------------------------------------------------------------ attributes
    def setattr(self, cred: Cred, ino: Inode, change: SetAttr) -> Attr:
        ino = self._in(ino)
        now_ns, is_open = time.time_ns(), self._open.is_open(ino)
        (attr, effects), _ = self._run(
            "SetAttr",
            lambda tx: attrs.setattr(tx, ino, change, cred, now_ns, is_open=is_open),
        )
        self._follow(effects)
        return self._shown(ino, attr)

    def accessed(self, ino: Inode) -> None:
        """A file was read or a directory listed: set atime if the mount wants it."""
        mode = self.options.atime_mode
        if mode == "noatime" or self.options.read_only:
            return
        ino, now_ns = self._in(ino), time.time_ns()
        attr = self.engine.attr(ino)
        if attr is not None and rules.wants_atime(attr, mode, now_ns):
            self._run("SetAttr", lambda tx: attrs.touch_atime(tx, ino, mode, now_ns))

    def getxattr(self, cred: Cred, ino: Inode, name: bytes) -> bytes:
        """ENODATA if there is no such attribute."""
        ino, acls = self._in(ino), self.format.enable_acl
        return self._read(
            "GetXattr", lambda: self.engine.read(lambda tx: xattrs.get(tx, ino, name, acls=acls))
        )

    def listxattr(self, cred: Cred, ino: Inode) -> list[bytes]:
        ino, acls = self._in(ino), self.format.enable_acl
        return self._read(
            "ListXattr", lambda: self.engine.read(lambda tx: xattrs.names(tx, ino, acls=acls))
        )

    def setxattr(self, cred: Cred, ino: Inode, name: bytes, value: bytes, flags: int) -> None:
        rules.check_xattr(name, value)
        change = xattrs.Change(self._in(ino), name, value, flags, self.format.enable_acl)
        now_ns = time.time_ns()
        self._run("SetXattr", lambda tx: xattrs.apply(tx, change, cred, now_ns))

    def removexattr(self, cred: Cred, ino: Inode, name: bytes) -> None:
        rules.check_xattr(name)
        change = xattrs.Change(self._in(ino), name, None, 0, self.format.enable_acl)
        now_ns = time.time_ns()
        self._run("RemoveXattr", lambda tx: xattrs.apply(tx, change, cred, now_ns))

    # ------------------------------------------------------------ open files and their content
    def open(self, cred: Cred, ino: Inode, flags: int) -> Attr:
        """Open a file; its attributes as they are now. EPERM, EACCES, EROFS, ENOENT."""
        writing = flags & os.O_ACCMODE != os.O_RDONLY
        truncating = bool(flags & os.O_TRUNC)
        if (writing or truncating) and self.options.read_only:
            raise posix_error(EROFS)
        self._open.opened(ino)  # first, so that an unlink from now on keeps the file
        try:
            attr = self.getattr(ino)
            if writing or truncating:
                appending = bool(flags & os.O_APPEND)
                rules.check_write_open(attr, appending=appending, truncating=truncating)
            if truncating:
                attr = self.truncate(cred, ino, 0, by_handle=True)
        except BaseException:
            self.close(ino)
            raise
        return attr

    def reopen(self, ino: Inode) -> None:
        """Open a file for reading whose attributes the caller knows (`--open-cache`)."""
        self._open.opened(ino)

    def close(self, ino: Inode) -> None:
        """One handle less; the last one of an unlinked file ends it."""
        if self._open.closed(ino):
            self._service.release_sustained(self.sid, ino)

    def is_open(self, ino: Inode) -> bool:
        return self._open.is_open(ino)

    def slices(self, ino: Inode, index: int) -> tuple[Slice, ...]:
        """Slices of a chunk, oldest first."""
        return self._read("Read", lambda: self.engine.slices(ino, index))

    def all_slices(self, ino: Inode, length: int) -> dict[int, tuple[Slice, ...]]:
        """Slices of the chunks of a file of `length` bytes that have any, oldest first."""
        chunks = -(-length // CHUNK_SIZE)
        indexes = range(chunks) if chunks <= MANY_CHUNKS else self.chunk_indexes(ino)

        def fetch(tx: Tx) -> dict[int, tuple[Slice, ...]]:
            tx.fetch(*(("chunk", ino, index) for index in indexes))
            found = {index: tx.slices(ino, index) for index in indexes if index < chunks}
            return {index: slices for index, slices in found.items() if slices}

        return self._read("Read", lambda: self.engine.read(fetch))

    def new_slice(self) -> SliceId:
        return self._service.new_slice()

    def write(
        self,
        ino: Inode,
        index: int,
        piece: Slice,
        mtime_ns: int,
        *,
        strip: bool = False,
        epoch: int | None = None,
    ) -> Attr:
        """Commit an uploaded slice. `strip`: an unprivileged user wrote it (suid, sgid go).

        EIO if this client's session is found to have been ended since `epoch` (the present one).
        """
        now_ns = time.time_ns()
        if self._has_limits():
            end = (index << CHUNK_BITS) + piece.pos + piece.length
            self.check_growth(ino, self.getattr(ino).length, end)
        (attr, effects), done = self._run_in_session(
            "Write",
            lambda tx, _: data.write(tx, ino, index, piece, mtime_ns, now_ns, strip),
            epoch,
            changes=ino,
        )
        self._follow(effects)
        self._compaction.written(ino, index, done.chunks.get((ino, index), 0))
        return attr

    def check_growth(self, ino: Inode, old_length: int, new_length: int) -> None:
        """ENOSPC or EDQUOT if there is no room for a file to grow so."""
        space = aligned(new_length) - aligned(old_length)
        if space <= 0 or new_length <= old_length:
            return
        attr = self.engine.attr(ino) if self._has_limits() else None
        if attr is not None:
            owner = Cred(attr.uid, attr.gid)
            self._accounts.check(None, space, 0, owner)
            for parent in self.parents(ino):
                self._accounts.check(parent, space, 0, owner)

    def _has_limits(self) -> bool:
        return self._accounts.has_limits()

    def truncate(
        self, cred: Cred, ino: Inode, length: int, *, by_handle: bool, epoch: int | None = None
    ) -> Attr:
        """Set the length. EIO as `write`, if the session has ended since `epoch`."""
        now_ns = time.time_ns()
        if self._has_limits():
            self.check_growth(ino, self.getattr(ino).length, length)
        (attr, effects), _ = self._run_in_session(
            "Truncate",
            lambda tx, _: data.truncate(
                tx,
                ino,
                length,
                cred,
                now_ns,
                by_handle=by_handle,
                existing=lambda: self._chunks_of(ino),
            ),
            epoch,
            changes=ino,
        )
        self._follow(effects)
        return self._shown(ino, attr)

    def _chunks_of(self, ino: Inode) -> list[int]:
        return self.engine.chunk_indexes(ino, MAX_FILE_SIZE)

    def fallocate(
        self,
        cred: Cred,
        ino: Inode,
        mode: int,
        offset: int,
        length: int,
        *,
        epoch: int | None = None,
    ) -> Attr:
        """Allocate, punch or zero. EIO as `write`, if the session has ended since `epoch`."""
        now_ns, strip = time.time_ns(), not cred.is_root
        if self._has_limits() and not mode & rules.FALLOC_KEEP_SIZE:
            self.check_growth(ino, self.getattr(ino).length, offset + length)
        if not rules.punches(mode):
            self._check_room(cred, ino, offset + length)
        (attr, effects), _ = self._run_in_session(
            "Fallocate",
            lambda tx, _: data.fallocate(
                tx,
                ino,
                mode,
                offset,
                length,
                now_ns,
                strip=strip,
                existing=lambda: self._chunks_of(ino),
            ),
            epoch,
            changes=ino,
        )
        self._follow(effects)
        return attr

    def _check_room(self, cred: Cred, ino: Inode, length: int) -> None:
        """ENOSPC if a large file has no room in what statfs tells of the volume."""
        if length >= LARGE_ALLOCATION:
            room = self.statfs(cred).avail_bytes
            if length - self.getattr(ino).length > room:
                raise posix_error(ENOSPC)

    def copy_file_range(
        self,
        cred: Cred,
        ino: Inode,
        offset: int,
        ino_out: Inode,
        offset_out: int,
        length: int,
        *,
        epoch: int | None = None,
    ) -> int:
        """Share up to `length` bytes of one file with another; the number shared.

        EIO as `write`, if the session has ended since `epoch`.
        """
        copy = data.Copy(ino, offset, ino_out, offset_out, length)
        now_ns = time.time_ns()
        if self._has_limits():
            self.check_growth(ino_out, self.getattr(ino_out).length, offset_out + length)
        (copied, _, effects), done = self._run_in_session(
            "CopyFileRange",
            lambda tx, _: data.copy_file_range(tx, copy, now_ns),
            epoch,
            changes=ino_out,
        )
        self._follow(effects)
        for (target, index), count in done.chunks.items():
            self._compaction.written(target, index, count)
        return copied

    def compact(self, ino: Inode, index: int) -> bool:
        """Compact a chunk now; False if there was nothing to do."""
        return self._compaction.compact(ino, index)

    def chunk_indexes(self, ino: Inode) -> list[int]:
        return self.engine.chunk_indexes(ino, self.getattr(ino).length)

    # ------------------------------------------------------------ locks
    def flock(self, ino: Inode, owner: int, kind: LockKind) -> None:
        """EAGAIN if another holder is in the way."""
        self._lock(
            "Flock",
            (ino, owner, False),
            kind,
            lambda tx, sid: locks.flock(tx, ino, (sid, owner), kind),
        )

    def setlk(self, ino: Inode, owner: int, lock: PosixLock) -> None:
        self._lock(
            "SetLk",
            (ino, owner, True),
            lock.kind,
            lambda tx, sid: locks.setlk(tx, ino, (sid, owner), lock),
        )

    def _lock(
        self, name: str, lock: HeldLock, kind: LockKind, change: Callable[[Tx, SessionId], bool]
    ) -> None:
        """Run a change of locks, which tells whether its owner has any now."""
        sessions = self._service.sessions
        epoch, sid = sessions.epoch, sessions.sid
        with sessions.changing(lock, gives_up=kind is LockKind.UNLOCK):
            has_any, _ = self._run_in_session(name, change, epoch)
            if sessions.epoch != epoch:  # stored for a session that nobody will clean again
                self.engine.release_locks(sid)
                raise posix_error(EIO, f"session {sid}")
            if has_any:
                sessions.took(lock)

    def getlk(self, ino: Inode, owner: int, lock: PosixLock) -> PosixLock | None:
        """The lock in the way; its pid is 0 if another client holds it."""
        found = self.engine.read(lambda tx: locks.getlk(tx, ino, (self.sid, owner), lock))
        if found is None:
            return None
        (sid, _), other = found
        pid = other.pid if sid == self.sid else 0
        return PosixLock(other.kind, other.start, other.end, pid)

    def lock_owners(self, ino: Inode, owner: int, lock: PosixLock) -> set[int]:
        """Owners of this session whose record locks are in the way."""
        wanted = (self.sid, owner)
        found = self.engine.read(lambda tx: locks.in_the_way(tx, ino, wanted, lock))
        return {holder for (sid, holder), _ in found if sid == self.sid}

    # ------------------------------------------------------------ the volume and its trees
    def usage(self) -> tuple[int, int]:
        """(bytes, inodes) in use."""
        return self._accounts.volume()

    def statfs(self, cred: Cred) -> StatFs:
        """Room in the volume, or in the tightest quota over the mounted directory."""
        return self._accounts.statfs(self.root)

    def parents(self, ino: Inode) -> dict[Inode, int]:
        """Directories that hold a name of it, with the number of names."""
        attr = self.engine.attr(ino)
        if attr is None:
            return {}
        return self.engine.read(lambda tx: common.holders(tx, ino, attr))

    def paths(self, ino: Inode) -> list[bytes]:
        """Absolute paths below the mounted directory that lead to the inode."""
        ino = self._in(ino)
        parents = self.parents(ino)
        if len(parents) > 1:  # a hard link: its names in the trash are of no interest
            parents = {parent: count for parent, count in parents.items() if parent < TRASH}
        return tree.paths(self.engine, ino, parents, self.root)

    def summary(
        self,
        ino: Inode,
        *,
        recursive: bool = True,
        strict: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> tree.TreeUsage:
        ino = self._in(ino)
        attr = self.getattr(ino)
        return tree.usage(
            self.engine, ino, attr, recursive=recursive, strict=strict, progress=progress
        )

    def _tree_usage(self, ino: Inode) -> tuple[int, int]:
        total = self.summary(ino)
        return total.space, total.files + total.dirs

    def remove_tree(
        self,
        cred: Cred,
        parent: Inode,
        name: bytes,
        *,
        skip_trash: bool = False,
        threads: int = 8,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Remove a name and all below it; the number of names removed."""
        parent = self._in(parent)
        found = self.engine.lookup(parent, name)
        if found is None:
            raise posix_error(ENOENT, name)
        remover = tree.Remover(
            lambda directory, child: self._discard(
                self.unlink(cred, directory, child, skip_trash=skip_trash)
            ),
            lambda directory, child: self._discard(
                self.rmdir(cred, directory, child, skip_trash=skip_trash)
            ),
        )
        entry = DirEntry(name, found[0].ino, found[0].kind)
        return tree.remove(self.engine, parent, entry, remover, threads=threads, progress=progress)

    @staticmethod
    def _discard(_: Inode) -> None:
        """The inode of a removed name is of no interest to a tree's removal."""

    def clean_trash(self) -> int:
        """Remove what the trash keeps no longer."""
        now_ns = time.time_ns()
        days = self.format.trash_days
        removed = 0
        if self.engine.attr(TRASH) is not None:
            removed = trash.clean(
                self.engine,
                days,
                now_ns,
                lambda parent, name: self.remove_tree(SUPERUSER, parent, name, skip_trash=True),
            )
        self._service.deleter.delayed(now_ns // 10**9 - days * 86400)
        return removed
