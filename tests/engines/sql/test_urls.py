"""What a URL tells about the database."""

from __future__ import annotations

import errno

import pytest

from juicepy.meta.sql.url import parse


def test_sqlite_path_is_taken_as_it_stands() -> None:
    url = parse("sqlite3:///tmp/a b%20c.db?_sync=FULL")
    assert (url.dialect, url.database) == ("sqlite", "/tmp/a b%20c.db")
    assert url.options == {"_sync": "FULL"}
    assert url.where == "sqlite3:///tmp/a b%20c.db"
    assert parse("sqlite3://meta.db").database == "meta.db"


@pytest.mark.parametrize(
    ("address", "host", "port", "socket"),
    [
        ("(db.example:3307)", "db.example", 3307, ""),
        ("(db.example)", "db.example", 3306, ""),
        ("tcp(10.0.0.1:33)", "10.0.0.1", 33, ""),
        ("db.example:3307", "db.example", 3307, ""),
        ("unix(/run/my.sock)", "", 3306, "/run/my.sock"),
        ("([::1]:33)", "::1", 33, ""),
    ],
)
def test_mysql_addresses(address: str, host: str, port: int, socket: str) -> None:
    url = parse(f"mysql://user:secret@{address}/db")
    assert (url.user, url.database, url.passwords) == ("user", "db", ("secret",))
    assert (url.port, url.socket) == (port, socket)
    assert url.host == host or socket


def test_postgres_addresses() -> None:
    url = parse("postgres://me:pw@h:55/db?sslmode=disable&search_path=s")
    assert (url.host, url.port, url.user) == ("h", 55, "me")
    assert url.options == {"sslmode": "disable", "search_path": "s"}
    assert parse("postgresql://me@h/db").port == 5432
    assert parse("postgres://me@/db?host=/run/postgresql").socket == "/run/postgresql"


def test_options_of_the_client_are_taken_out() -> None:
    url = parse(
        "mysql://u:p@(h)/db?max_open_conns=7&max_idle_conns=3&max_life_time=60"
        "&max_idle_time=300&table_prefix=x&innodb_lock_wait_timeout=5"
    )
    assert (url.max_open, url.max_idle, url.max_life_s) == (7, 3, 60)
    assert url.table_prefix == "jfs_x_"
    assert url.options == {"innodb_lock_wait_timeout": "5"}


@pytest.mark.parametrize("scheme", ["mysql", "postgres"])
@pytest.mark.parametrize("password", ["a@b:c/d?e#f%g[h] i", "p%40ss", "ä", "@"])
def test_password_is_never_shown(scheme: str, password: str) -> None:
    url = parse(f"{scheme}://user:{password}@(h:1)/db" if scheme == "mysql" else
                f"{scheme}://user:{password}@h:1/db")  # fmt: skip
    assert password in url.passwords
    assert password not in repr(url)
    assert url.where == f"{scheme}://user@h:1/db"


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("mysql://u:hidden@(h:1)/", "database"),
        ("postgres://u:hidden@h", "database"),
        ("sqlite3://", "path"),
        ("mysql://u:hidden@(h:1)/db?table_prefix=a-b", "table_prefix"),
        ("postgres://u:hidden@h/db?max_open_conns=many", "max_open_conns"),
        ("postgres://u:hidden@h:port/db", "port"),
    ],
)
def test_malformed_url_names_the_part(url: str, part: str) -> None:
    with pytest.raises(OSError) as caught:
        parse(url)
    assert caught.value.errno == errno.EINVAL
    assert part in str(caught.value)
    assert "hidden" not in str(caught.value)
