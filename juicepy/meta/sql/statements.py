"""Every statement that is run often, built by SQLAlchemy and compiled once per engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.sql.expression import ClauseElement

from juicepy.meta.sql.dialects import Dialect, share
from juicepy.meta.sql.tables import Tables


class Statement:
    """SQL text and the order of its parameters."""

    __slots__ = ("_constants", "_names", "sql")

    def __init__(self, element: ClauseElement, dialect: Dialect, columns: Sequence[str] = ()):
        options: dict[str, Any] = {"column_keys": list(columns)} if columns else {}
        compiled: Any = element.compile(dialect=dialect.compiler, **options)
        self.sql = str(compiled)
        self._names: tuple[str, ...] = tuple(compiled.positiontup or ())
        params: dict[str, Any] = compiled.params
        self._constants = {key: value for key, value in params.items() if value is not None}

    def bind(self, values: Mapping[str, Any]) -> list[Any]:
        if self._constants:
            values = {**self._constants, **values}
        return [values[name] for name in self._names]


class Family:
    """A statement with an IN list, compiled for lists of 1, 2, 4, 8, ... items."""

    __slots__ = ("_build", "_dialect", "_made", "_type")

    def __init__(
        self, dialect: Dialect, like: ColumnElement[Any], build: Callable[[Any], ClauseElement]
    ) -> None:
        self._dialect, self._type, self._build = dialect, like.type, build
        self._made: dict[int, Statement] = {}

    def of(self, items: Sequence[Any]) -> tuple[Statement, dict[str, Any]]:
        """The statement for so many items, and its parameters; a repeated item does no harm."""
        size = 1 << (len(items) - 1).bit_length()
        statement = self._made.get(size)
        if statement is None:
            binds = [bindparam(f"i{n}", type_=self._type) for n in range(size)]
            statement = self._made[size] = Statement(self._build(binds), self._dialect)
        values = {f"i{n}": item for n, item in enumerate(items)}
        for n in range(len(items), size):
            values[f"i{n}"] = items[-1]
        return statement, values


def param(name: str, like: ColumnElement[Any]) -> BindParameter[Any]:
    """A parameter of a condition: `w_` keeps it apart from the columns that are set."""
    return bindparam(f"w_{name}", type_=like.type)


def matches(table: Table, *names: str) -> ColumnElement[bool]:
    return and_(*(table.c[name] == param(name, table.c[name]) for name in names))


class Statements:
    """Grouped by table. Parameters: columns that are set by their names, conditions by `w_`."""

    def __init__(self, tables: Tables, dialect: Dialect) -> None:
        self._dialect = dialect
        self._tables = tables
        self._nodes()
        self._edges()
        self._links_and_xattrs()
        self._chunks()
        self._references()
        self._locks()
        self._usage()
        self._acls()

    def _made(self, element: ClauseElement, *columns: str) -> Statement:
        return Statement(element, self._dialect, columns)

    def _insert(self, table: Table) -> Statement:
        names = [column.name for column in table.c if column.name != "id"]
        return self._made(insert(table).inline(), *names)

    def _upsert(self, table: Table, *keys: str, **changes: str) -> Statement:
        names = [column.name for column in table.c if column.name != "id"]
        return self._made(self._dialect.upsert(table, keys, **changes).inline(), *names)

    def _delete(self, table: Table, *names: str) -> Statement:
        return self._made(delete(table).where(matches(table, *names)))

    def _delete_in(self, column: ColumnElement[Any], table: Table) -> Family:
        return Family(
            self._dialect, column, lambda binds: delete(table).where(column.in_(binds))
        )  # fmt: skip

    def _nodes(self) -> None:
        node = self._tables.node
        self._node = self._dialect.packed(node.c.inode, list(node.c))

        def those(binds: Any) -> Select[Any]:
            return (
                select(node.c.inode, *self._node)
                .where(node.c.inode.in_(binds))
                .order_by(node.c.inode)
            )

        key = node.c.inode
        self.nodes = Family(self._dialect, key, those)
        self.nodes_locked = Family(self._dialect, key, lambda b: those(b).with_for_update())
        self.nodes_exist = Family(
            self._dialect,
            key,
            lambda binds: share(select(key).where(key.in_(binds)).order_by(key), key_only=True),
        )
        self.insert_node = self._insert(node)
        self.update_node = self._made(
            update(node).where(matches(node, "inode")),
            *(column.name for column in node.c if column.name != "inode"),
        )
        self.drop_nodes = self._delete_in(key, node)
        relative = update(node).where(matches(node, "inode"))
        nlink = {node.c.nlink: node.c.nlink + bindparam("delta", type_=node.c.nlink.type)}
        times = {
            node.c[name]: bindparam(f"new_{name}", type_=node.c[name].type)
            for name in ("mtime", "ctime", "mtimensec", "ctimensec")
        }
        self.add_nlink = self._made(relative.values(nlink))
        self.set_times = self._made(relative.values(times))
        self.add_nlink_set_times = self._made(relative.values({**nlink, **times}))

    def _edges(self) -> None:
        edge, node = self._tables.edge, self._tables.node
        found = edge.outerjoin(node, node.c.inode == edge.c.inode)
        self.lookup = self._made(
            select(edge.c.inode, edge.c.type, *self._node)
            .select_from(found)
            .where(matches(edge, "parent", "name"))
        )
        name_here = and_(edge.c.parent == node.c.inode, edge.c.name == param("name", edge.c.name))
        self.dir_and_entry = self._made(
            select(edge.c.id, edge.c.inode, edge.c.type, *self._node)
            .select_from(node.outerjoin(edge, name_here))
            .where(matches(node, "inode"))
        )
        entry = select(edge.c.name, edge.c.id, edge.c.inode, edge.c.type)

        def entries(binds: Any) -> Select[Any]:
            return entry.where(matches(edge, "parent"), edge.c.name.in_(binds))

        self.entries = Family(self._dialect, edge.c.name, entries)
        self.entries_now = Family(self._dialect, edge.c.name, lambda b: share(entries(b)))
        any_name = select(edge.c.id).where(matches(edge, "parent")).limit(1)
        self.any_entry = self._made(any_name)
        self.any_entry_now = self._made(share(any_name))
        parents = select(edge.c.parent).where(matches(edge, "inode"))
        self.parents = self._made(parents)
        self.parents_now = self._made(share(parents))
        page = select(edge.c.name, edge.c.inode, edge.c.type)
        after = (
            matches(edge, "parent"),
            edge.c.name > bindparam("after", type_=edge.c.name.type),
        )
        limit: BindParameter[Any] = bindparam("limit", type_=edge.c.type.type)
        self.list_names = self._made(page.where(*after).order_by(edge.c.name).limit(limit))
        self.list_attrs = self._made(
            page.add_columns(*self._node)
            .select_from(found)
            .where(*after)
            .order_by(edge.c.name)
            .limit(limit)
        )
        self.insert_edge = self._insert(edge)
        same = ("id", "parent", "name", "inode", "type")
        self.drop_edge = self._delete(edge, *same)
        self.change_edge = self._made(
            update(edge).where(matches(edge, *same)), "inode", "type"
        )  # fmt: skip
        self.drop_name = self._delete(edge, "parent", "name")
        self.change_name = self._made(
            update(edge).where(matches(edge, "parent", "name")), "inode", "type"
        )

    def _links_and_xattrs(self) -> None:
        symlink, xattr, dialect = self._tables.symlink, self._tables.xattr, self._dialect
        self.link = self._made(select(symlink.c.target).where(matches(symlink, "inode")))
        self.set_link = self._upsert(symlink, "inode", target="new")
        self.drop_links = self._delete_in(symlink.c.inode, symlink)
        name = xattr.c.name == dialect.name_of(param("name", xattr.c.name))
        one = and_(matches(xattr, "inode"), name)
        value = select(xattr.c.value).where(one)
        self.xattr = self._made(value)
        self.xattr_now = self._made(share(value))
        self.xattr_names = self._made(select(xattr.c.name).where(matches(xattr, "inode")))
        changed = and_(one, xattr.c.value == param("value", xattr.c.value))
        self.change_xattr = self._made(update(xattr).where(changed), "value")
        self.put_xattr = self._made(update(xattr).where(one), "value")
        self.insert_xattr = self._made(
            insert(xattr)
            .inline()
            .values(
                inode=bindparam("inode"),
                name=dialect.name_of(bindparam("name", type_=xattr.c.name.type)),
                value=bindparam("value"),
            )
        )
        self.drop_xattr = self._made(delete(xattr).where(one))
        self.drop_xattrs = self._delete_in(xattr.c.inode, xattr)

    def _chunks(self) -> None:
        chunk, dialect = self._tables.chunk, self._dialect
        slices = dialect.blob(chunk.c.slices)
        here = matches(chunk, "inode")

        def lists(binds: Any) -> Select[Any]:
            return select(chunk.c.indx, slices).where(here, chunk.c.indx.in_(binds))

        self.chunks = Family(dialect, chunk.c.indx, lists)
        self.chunks_locked = Family(dialect, chunk.c.indx, lambda b: lists(b).with_for_update())
        one = matches(chunk, "inode", "indx")
        self.chunk_locked = self._made(select(chunk.c.id, slices).where(one).with_for_update())
        self.chunk_length = self._made(select(func.length(slices)).where(one))
        self.chunk_indexes = self._made(select(chunk.c.indx).where(here))
        self.set_chunk = self._made(update(chunk).where(matches(chunk, "id")), "slices")
        same = slices == param("slices", chunk.c.slices)
        self.drop_chunk = self._made(delete(chunk).where(one, same))
        tail: BindParameter[Any] = bindparam("tail", type_=chunk.c.slices.type)
        joined = update(chunk).where(one).values(slices=dialect.joined(chunk.c.slices, tail))
        append = dialect.upsert(chunk, ("inode", "indx"), slices="join")
        if dialect.has_returning:
            joined = joined.returning(func.length(slices))
            append = append.returning(func.length(slices))
        self.extend_chunk = self._made(joined)
        self.append_chunk = self._made(append, "inode", "indx", "slices")

    def _references(self) -> None:
        ref, dialect = self._tables.chunk_ref, self._dialect
        key = ref.c.chunkid
        self.insert_ref = self._insert(ref)
        self.refs = Family(
            dialect,
            key,
            lambda binds: select(key, ref.c.size, ref.c.refs).where(key.in_(binds)),
        )
        delta: BindParameter[Any] = bindparam("delta", type_=ref.c.refs.type)
        self.add_refs = Family(
            dialect,
            key,
            lambda binds: update(ref).where(key.in_(binds)).values(refs=ref.c.refs + delta),
        )
        unused = ref.c.refs <= bindparam("zero", 0, type_=ref.c.refs.type)
        self.unreferenced = self._made(
            select(key, ref.c.size)
            .where(unused)
            .limit(bindparam("limit", type_=ref.c.refs.type))
        )  # fmt: skip
        self.forget_ref = self._made(delete(ref).where(matches(ref, "chunkid", "size"), unused))
        tables = self._tables
        self.put_delfile = self._upsert(tables.delfile, "inode", length="new", expire="new")
        self.drop_delfile = self._delete(tables.delfile, "inode")
        self.put_delayed = self._insert(tables.delslices)
        self.drop_delayed = self._delete(tables.delslices, "chunkid", "deleted")
        self.put_sustained = self._upsert(tables.sustained, "sid", "inode")
        self.drop_sustained = self._delete(tables.sustained, "sid", "inode")

    def _locks(self) -> None:
        flock, plock = self._tables.flock, self._tables.plock
        owner = ("inode", "sid", "owner")
        # by whether it is POSIX
        self.locks: dict[bool, Statement] = {}
        self.locks_now: dict[bool, Statement] = {}
        self.lock_held: dict[bool, Statement] = {}
        self.put_lock = {
            False: self._upsert(flock, *owner, ltype="new"),
            True: self._upsert(plock, *owner, records="new"),
        }
        self.drop_lock = {False: self._delete(flock, *owner), True: self._delete(plock, *owner)}
        for posix, table, value in ((False, flock, flock.c.ltype), (True, plock, plock.c.records)):
            found = select(table.c.sid, table.c.owner, value).where(matches(table, "inode"))
            self.locks[posix] = self._made(found)
            self.locks_now[posix] = self._made(found.with_for_update())
            one = select(table.c.id).where(matches(table, *owner))
            self.lock_held[posix] = self._made(share(one))

    def _usage(self) -> None:
        tables, dialect = self._tables, self._dialect
        stats, quota, counter = tables.dir_stats, tables.dir_quota, tables.counter
        self.put_stats = self._upsert(
            stats, "inode", data_length="new", used_space="new", used_inodes="new"
        )
        self.make_stats = self._upsert(stats, "inode")
        self.stats = Family(
            dialect, stats.c.inode, lambda b: select(stats).where(stats.c.inode.in_(b))
        )
        self.add_stats = self._made(self._relative(stats, "inode", names=(
            "data_length", "used_space", "used_inodes",
        )))  # fmt: skip
        self.drop_stats = self._delete_in(stats.c.inode, stats)
        self.add_quota = self._made(
            self._relative(quota, "inode", names=("used_space", "used_inodes"))
        )
        self.drop_quotas = self._delete_in(quota.c.inode, quota)
        everything = ("max_space", "max_inodes", "used_space", "used_inodes")
        self.put_quota = self._upsert(quota, "inode", **dict.fromkeys(everything, "new"))
        self.add_usage = self._upsert(
            tables.user_group_quota, "qtype", "qkey", used_space="add", used_inodes="add"
        )
        one = select(counter.c.value).where(matches(counter, "name"))
        self.counter = self._made(one)
        self.counter_locked = self._made(one.with_for_update())
        self.add_counter = self._made(self._relative(counter, "name", names=("value",)))
        self.set_counter = self._made(update(counter).where(matches(counter, "name")), "value")
        self.insert_counter = self._insert(counter)

    def _acls(self) -> None:
        acl, dialect = self._tables.acl, self._dialect
        values = [column for column in acl.c if column.name != "id"]
        rule = select(acl)
        self.acls = Family(dialect, acl.c.id, lambda binds: rule.where(acl.c.id.in_(binds)))
        self.acls_like = self._made(rule.where(matches(acl, "owner", "group", "mask", "other")))
        added = insert(acl)
        if dialect.has_returning:
            added = added.returning(acl.c.id)
        self.insert_acl = self._made(added, *(column.name for column in values))

    def _relative(self, table: Table, *keys: str, names: Sequence[str]) -> ClauseElement:
        """UPDATE that adds parameters `add_<column>`."""
        changes = {
            table.c[name]: table.c[name] + bindparam(f"add_{name}", type_=table.c[name].type)
            for name in names
        }
        return update(table).where(matches(table, *keys)).values(changes)
