"""Every statement of the daily business finds its rows by an index."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from juicepy.meta.engine import MetaEngine
from juicepy.meta.sql.engine import SqlEngine
from juicepy.meta.sql.statements import Family, Statement
from juicepy.types import ROOT, Attr, Entry, Inode, Kind, Slice, SliceId
from tests.engines.sql.conftest import Cursor

# they read or change a table that is as large as the number of sessions, rules or locks of one file
SMALL = {"acls_like", "insert_acl"}


def statements(engine: MetaEngine) -> Iterator[tuple[str, Statement]]:
    assert isinstance(engine, SqlEngine)
    for name, made in vars(engine._s).items():
        if isinstance(made, Family):
            yield name, made.of([1, 2, 3])[0]
        elif isinstance(made, Statement):
            yield name, made
        elif isinstance(made, dict):
            yield from ((f"{name} {key}", one) for key, one in made.items())


def fill(engine: MetaEngine) -> None:
    """So many rows that a scan would not be chosen for being shorter."""

    def make(tx: Any) -> None:
        for number in range(2000):
            ino = Inode(1000 + number)
            tx.make_inode(ino, Attr(Kind.FILE, 0o644, parent=ROOT))
            tx.set_entry(Inode(100 + number % 50), b"name%d" % number, Entry(ino, Kind.FILE))
            tx.append(ino, 0, Slice(0, SliceId(number + 1), 1, 0, 1))
            tx.made_slice((SliceId(number + 1), 1))

    engine.transact(make)


def values(name: str, statement: Statement) -> list[Any]:
    """Some value of the right type for every parameter."""
    text = "counter" in name or "xattr" in name
    found: dict[str, Any] = {}
    for one in statement._names:
        plain = one.removeprefix("w_")
        if plain == "name":
            found[one] = "x" if text else b"x"
        elif plain in ("slices", "records", "target", "after", "tail") or (
            (plain == "value" and "xattr" in name) or (name.startswith("entries") and one[0] == "i")
        ):
            found[one] = b"x"
        else:
            found[one] = 5
    return statement.bind(found)


@pytest.fixture
def filled(opened: Callable[..., MetaEngine], url: str) -> MetaEngine:
    engine = opened(url)
    fill(engine)
    return engine


def test_no_statement_scans_a_table(filled: MetaEngine, sql: Cursor) -> None:
    scans: dict[str, str] = {}
    if filled.scheme == "postgres":
        sql.run("ANALYZE")
    for name, statement in statements(filled):
        if name in SMALL or statement.sql.startswith("INSERT"):
            continue
        plan = explained(filled.scheme, sql, statement.sql, values(name, statement))
        if plan:
            scans[name] = f"{statement.sql}\n{plan}"
    assert scans == {}


def explained(scheme: str, sql: Cursor, text: str, bound: list[Any]) -> str:
    """What in the plan is a scan of a table; nothing if all is well."""
    if scheme == "sqlite3":
        rows = sql.run(f"EXPLAIN QUERY PLAN {text}", *bound)
        return "\n".join(row[3].decode() for row in rows if row[3].startswith(b"SCAN"))
    if scheme == "mysql":
        rows = sql.run(f"EXPLAIN {text}", *bound)
        return "\n".join(repr(row) for row in rows if row[3] in ("ALL", "index"))
    sql.run("SET enable_seqscan=off")
    ((plan,),) = sql.run(f"EXPLAIN (FORMAT JSON) {text}", *bound)
    return json.dumps(plan) if "Seq Scan" in json.dumps(plan) else ""
