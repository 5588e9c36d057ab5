"""The tables are those of the real client, whoever makes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from juicepy.meta.engine import MetaEngine
from juicepy.types import ROOT, TRASH, Kind
from tests.engines.sql.conftest import Cursor, cursor
from tests.support.programs import PEER

Opened = Callable[..., MetaEngine]


def format_with_juicefs(url: str, tmp_path: Path) -> None:
    bucket = tmp_path / "objects"
    PEER.run("format", url, "volume", "--storage", "file", "--bucket", f"{bucket}/")


def sqlite_schema(sql: Cursor) -> dict[str, object]:
    """Columns and indexes of every table, as SQLite sees them."""
    found: dict[str, object] = {}
    listed = sql.run("SELECT name, sql FROM sqlite_master WHERE type='table' ORDER BY name")
    for name, text in listed:
        table = name.decode()
        indexes = {}
        for _, index, unique, origin, _ in sql.run(f"PRAGMA index_list({table})"):
            columns = [row[2] for row in sql.run(f"PRAGMA index_info({index.decode()})")]
            indexes[index if origin == b"c" else b"auto"] = (unique, columns)
        auto = b"AUTOINCREMENT" in text
        found[table] = (sql.run(f"PRAGMA table_info({table})"), indexes, auto)
    return found


def server_schema(sql: Cursor) -> dict[str, object]:
    """What the information schema tells of columns and indexes."""
    if sql.dialect.has_returning:
        here = "table_schema = current_schema()"
        indexes = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()"
        more = "SELECT sequencename, data_type::text FROM pg_sequences"
    else:
        here = "table_schema = database()"
        indexes = (
            "SELECT table_name, index_name, seq_in_index, column_name, non_unique "
            "FROM information_schema.statistics WHERE table_schema = database()"
        )
        more = (
            "SELECT table_name, column_name, extra, column_type FROM information_schema.columns "
            "WHERE table_schema = database()"
        )
    columns = sql.run(
        "SELECT table_name, column_name, ordinal_position, data_type, is_nullable, "
        "column_default, character_maximum_length, numeric_precision "
        f"FROM information_schema.columns WHERE {here}"
    )
    return {
        "columns": sorted(columns, key=repr),
        "indexes": sorted(sql.run(indexes), key=repr),
        "more": sorted(sql.run(more), key=repr),
    }


def test_sqlite_schema_equals_that_of_the_real_client(opened: Opened, tmp_path: Path) -> None:
    ours, theirs = f"sqlite3://{tmp_path}/ours.db", f"sqlite3://{tmp_path}/theirs.db"
    opened(ours)
    format_with_juicefs(theirs, tmp_path)
    with cursor(ours) as mine, cursor(theirs) as real:
        assert sqlite_schema(mine) == sqlite_schema(real)
        for sql in (mine, real):
            assert sql.one("PRAGMA journal_mode") == b"wal"


@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
def test_server_schema_equals_that_of_the_real_client(
    new_meta_url: Callable[[str], str], opened: Opened, tmp_path: Path, kind: str
) -> None:
    ours, theirs = new_meta_url(kind), new_meta_url(kind)
    opened(ours)
    format_with_juicefs(theirs, tmp_path)
    with cursor(ours) as mine, cursor(theirs) as real:
        assert server_schema(mine) == server_schema(real)


def test_volume_of_the_real_client_is_read(opened: Opened, url: str, tmp_path: Path) -> None:
    format_with_juicefs(url, tmp_path)
    engine = opened(url, init=False)
    setting = engine.load_format()
    assert setting is not None
    assert json.loads(setting)["Name"] == "volume"
    root, trash = engine.attr(ROOT), engine.attr(TRASH)
    assert root is not None
    assert (root.kind, root.mode, root.nlink, root.length) == (Kind.DIR, 0o777, 2, 4096)
    assert trash is not None
    assert trash.mode == 0o555
    assert engine.allocate_inodes(1024) == range(2, 1026)
    assert engine.allocate_slices(4096) == range(1, 4097)


def test_counters_of_a_fresh_volume(opened: Opened, url: str, sql: Cursor) -> None:
    opened(url)
    rows = {
        name.decode() if isinstance(name, bytes) else name: value
        for name, value in sql.run("SELECT name, value FROM jfs_counter")
    }
    assert rows == {
        "nextInode": 2,
        "nextChunk": 1,
        "nextSession": 0,
        "usedSpace": 0,
        "totalInodes": 0,
        "nextCleanupSlices": 0,
    }


def test_missing_table_and_column_are_made(
    new_meta_url: Callable[[str], str], opened: Opened
) -> None:
    """As of a volume that an older client has made."""
    for url in map(new_meta_url, ("sqlite", "mariadb", "postgres")):
        opened(url)
        with cursor(url) as sql:
            sql.run("DROP TABLE jfs_dir_stats")
            sql.run("ALTER TABLE jfs_node DROP COLUMN tier_id")
        engine = opened(url, init=False)
        assert engine.dir_stats(ROOT) is None
        attr = engine.attr(ROOT)
        assert attr is not None
        assert attr.tier == 0


def test_table_prefix_is_part_of_every_name(opened: Opened, tmp_path: Path) -> None:
    url = f"sqlite3://{tmp_path}/meta.db?table_prefix=x"
    engine = opened(url)
    plain = opened(f"sqlite3://{tmp_path}/meta.db", init=False)
    assert plain.load_format() is None
    assert engine.load_format() == b"{}"
    with cursor(url) as sql:
        names = [row[0].decode() for row in sql.run("SELECT name FROM sqlite_master")]
    made = [name for name in names if not name.startswith("sqlite_")]
    assert "UQE_jfs_x_edge_edge" in made
    assert all("jfs_x_" in name for name in made)


def test_database_without_tables_stays_as_it_is(
    new_meta_url: Callable[[str], str], opened: Opened
) -> None:
    for kind in ("mariadb", "postgres"):
        engine = opened(new_meta_url(kind), init=False)
        assert engine.load_format() is None
        assert engine.is_empty_database()
        with pytest.raises(OSError, match="no volume"):
            engine.attr(ROOT)
        assert engine.load_format() is None


def test_sqlite_file_is_not_made_by_looking(opened: Opened, tmp_path: Path) -> None:
    engine = opened(f"sqlite3://{tmp_path}/meta.db", init=False)
    assert engine.load_format() is None
    assert engine.is_empty_database()
    assert list(tmp_path.iterdir()) == []
