"""The tables of a volume: names, columns and indexes that JuiceFS 1.4.2 makes, for SQLAlchemy.

Every name begins with `jfs_`, or `jfs_X_` with the URL option table_prefix=X.

| table            | one row is                                                                   |
|------------------|------------------------------------------------------------------------------|
| setting          | `format`, the JSON setting                                                   |
| counter          | a counter; nextInode and nextChunk are the next free number                  |
| edge             | a name in a directory                                                        |
| node             | an inode; times in microseconds and, in `*nsec`, the 0..999 ns that remain   |
| symlink          | a target                                                                     |
| xattr            | an extended attribute                                                        |
| chunk            | the slices of a chunk, 24 bytes each                                         |
| chunk_ref        | a slice with its real number of references; <= 0: to be deleted              |
| delslices        | slices replaced by compaction, 12 bytes each, `deleted` at a unix time       |
| session2         | a session, its expiry and JSON record                                        |
| sustained        | an unlinked inode that a session has open                                    |
| delfile          | a deleted file whose data is to go; `expire` is when it was deleted          |
| flock, plock     | the locks of one owner on one inode: 82 'R' or 87 'W'; 24-byte records       |
| dir_stats        | statistics of a directory                                                    |
| dir_quota        | a quota of a directory                                                       |
| user_group_quota | a quota or the usage of a user (qtype 1) or group (qtype 2)                  |
| detached_node    | a cloned tree that is not in place yet                                       |
| acl              | an ACL rule; lists of names are 6 bytes each                                 |
| delegation_token | of Kerberos, not used here                                                   |
| change_log       | of replication, not used here                                                |
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.types import TypeEngine

I64: TypeEngine[Any] = BigInteger().with_variant(sqlite.INTEGER(), "sqlite")
I32: TypeEngine[Any] = Integer()
NAME: TypeEngine[Any] = String(255).with_variant(sqlite.TEXT(), "sqlite")
TEXT: TypeEngine[Any] = Text()
BLOB: TypeEngine[Any] = LargeBinary()


def _bytes(size: int) -> TypeEngine[Any]:
    return LargeBinary().with_variant(mysql.VARBINARY(size), "mysql", "mariadb")


def _key(name: str, kind: TypeEngine[Any]) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False, nullable=False)


def _auto(kind: TypeEngine[Any] = I64) -> Column[Any]:
    return Column("id", kind, primary_key=True, autoincrement=True, nullable=False)


def _column(name: str, kind: TypeEngine[Any]) -> Column[Any]:
    return Column(name, kind, nullable=False)


def _maybe(name: str, kind: TypeEngine[Any]) -> Column[Any]:
    return Column(name, kind, nullable=True)


def _zero(name: str) -> Column[Any]:
    return Column(name, I32, nullable=False, server_default=text("0"))


class Tables:
    """All tables of one volume, by attribute."""

    def __init__(self, prefix: str = "jfs_") -> None:
        self._prefix = prefix
        self.metadata = MetaData()
        self.setting = self._table("setting", _key("name", NAME), _column("value", TEXT))
        self.counter = self._table("counter", _key("name", NAME), _column("value", I64))
        self.edge = self._table(
            "edge",
            _auto(),
            _column("parent", I64),
            _column("name", _bytes(255)),
            _column("inode", I64),
            _column("type", I32),
            unique={"edge": ("parent", "name")},
            index={"inode": ("inode",)},
        )
        self.node = self._node()
        self.symlink = self._table("symlink", _key("inode", I64), _column("target", _bytes(4096)))
        self.xattr = self._table(
            "xattr",
            _auto(),
            _column("inode", I64),
            _column("name", NAME),
            _column("value", BLOB),
            unique={"name": ("inode", "name")},
        )
        self._data_tables()
        self._session_tables()
        self._usage_tables()
        self.acl = self._table(
            "acl",
            _auto(I32),
            *(_maybe(name, I32) for name in ("owner", "group", "mask", "other")),
            _maybe("named_users", BLOB),
            _maybe("named_groups", BLOB),
        )
        self._table("detached_node", _key("inode", I64), _column("added", I64))
        self._table("delegation_token", _auto(I32), _maybe("token", BLOB))
        self._table("change_log", _auto(), _column("entry", TEXT))

    def _node(self) -> Table:
        return self._table(
            "node",
            _key("inode", I64),
            *(_column(name, I32) for name in ("type", "flags", "mode", "uid", "gid")),
            *(_column(name, I64) for name in ("atime", "mtime", "ctime")),
            *(_zero(name) for name in ("atimensec", "mtimensec", "ctimensec")),
            _column("nlink", I32),
            _column("length", I64),
            _maybe("rdev", I32),
            _maybe("parent", I64),
            *(_maybe(name, I32) for name in ("access_acl_id", "default_acl_id", "tier_id")),
        )

    def _data_tables(self) -> None:
        self.chunk = self._table(
            "chunk",
            _auto(),
            _column("inode", I64),
            _column("indx", I32),
            _column("slices", BLOB),
            unique={"chunk": ("inode", "indx")},
        )
        self.chunk_ref = self._table(
            "chunk_ref",
            _key("chunkid", I64),
            _column("size", I32),
            _column("refs", I32),
            index={"refs": ("refs",)},
        )
        self.delslices = self._table(
            "delslices", _key("chunkid", I64), _column("deleted", I64), _column("slices", BLOB)
        )
        self.delfile = self._table(
            "delfile", _key("inode", I64), _column("length", I64), _column("expire", I64)
        )

    def _session_tables(self) -> None:
        self.session2 = self._table(
            "session2", _key("sid", I64), _column("expire", I64), _maybe("info", BLOB)
        )
        self.sustained = self._table(
            "sustained",
            _auto(),
            _column("sid", I64),
            _column("inode", I64),
            unique={"sustained": ("sid", "inode")},
        )
        self.flock = self._lock_table("flock", _column("ltype", I32))
        self.plock = self._lock_table("plock", _column("records", BLOB))

    def _lock_table(self, name: str, value: Column[Any]) -> Table:
        owner = [_column(column, I64) for column in ("inode", "sid", "owner")]
        return self._table(
            name, _auto(), *owner, value, unique={name: ("inode", "sid", "owner")}
        )  # fmt: skip

    def _usage_tables(self) -> None:
        self.dir_stats = self._table(
            "dir_stats",
            _key("inode", I64),
            *(_column(name, I64) for name in ("data_length", "used_space", "used_inodes")),
        )
        limits = ("max_space", "max_inodes", "used_space", "used_inodes")
        self.dir_quota = self._table(
            "dir_quota", _key("inode", I64), *(_column(name, I64) for name in limits)
        )
        self.user_group_quota = self._table(
            "user_group_quota",
            _key("qtype", I32),
            _key("qkey", I64),
            *(_column(name, I64) for name in limits),
        )

    def _table(
        self,
        name: str,
        *columns: Column[Any],
        unique: dict[str, tuple[str, ...]] | None = None,
        index: dict[str, tuple[str, ...]] | None = None,
    ) -> Table:
        """A table; indexes are called UQE_jfs_edge_edge and IDX_jfs_edge_inode."""
        full = self._prefix + name
        indexes = [
            Index(f"UQE_{full}_{suffix}", *names, unique=True)
            for suffix, names in (unique or {}).items()
        ]
        indexes += [
            Index(f"IDX_{full}_{suffix}", *names) for suffix, names in (index or {}).items()
        ]
        return Table(full, self.metadata, *columns, *indexes, sqlite_autoincrement="id" in {c.name for c in columns})  # noqa: E501 # fmt: skip
