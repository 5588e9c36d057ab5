"""Ways to a server, and the one clear line when there is none."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from juicepy.meta.engine import MetaEngine
from juicepy.meta.sql.url import parse
from juicepy.types import ROOT
from tests.engines.sql.conftest import ROOT_ATTR, cursor

Opened = Callable[..., MetaEngine]
ODD = [
    "a@b:c/d?e#f%g[h] i",
    "p%40ss",
    "100%",
    "'\"`\\$&;()",
    "äöü€",
    "@(127.0.0.1:1)",
    "%25",
    "a+b c",
]
_numbers = itertools.count(1)


def with_login(url: str, user: str, password: str) -> str:
    """The URL of the same database for somebody else; the password is put in as it is."""
    head, _, place = url.rpartition("@")
    return f"{head.partition('://')[0]}://{user}:{password}@{place}"


@pytest.fixture
def odd_user(server_url: str) -> Callable[[str], str]:
    """Makes a user with a password; returns the user's name."""

    def make(password: str) -> str:
        user = f"odd{next(_numbers)}"
        quoted = password.replace("'", "''")
        with cursor(server_url) as sql:
            if server_url.startswith("mysql"):
                quoted = quoted.replace("\\", "\\\\")
                sql.plain(f"CREATE USER '{user}'@'%' IDENTIFIED BY '{quoted}'")
                sql.plain(f"GRANT ALL ON *.* TO '{user}'@'%'")
            else:
                sql.plain(f"CREATE ROLE {user} LOGIN SUPERUSER PASSWORD '{quoted}'")
        return user

    return make


@pytest.mark.parametrize("password", ODD)
def test_odd_passwords_are_accepted_encoded_or_not(
    server_url: str, opened: Opened, odd_user: Callable[[str], str], password: str
) -> None:
    user = odd_user(password)
    for written in (quote(password, safe=""), password):
        engine = opened(with_login(server_url, user, written), init=False)
        assert engine.load_format() is None


@pytest.mark.parametrize("given", ["wrong", "wr%40ng", "w/r?o#n@g"])
def test_wrong_password_is_one_line_without_it(
    server_url: str, opened: Opened, odd_user: Callable[[str], str], given: str
) -> None:
    user = odd_user("right")
    url = with_login(server_url, user, given)
    assert_refused(opened(url, init=False), parse(server_url).database, user, secret=given)


def assert_refused(engine: MetaEngine, *parts: str, secret: str = "secret") -> None:
    with pytest.raises(OSError) as caught:
        engine.load_format()
    text = str(caught.value)
    assert caught.value.errno == errno.EIO
    for part in parts:
        assert part in text
    assert secret not in text
    assert unquote(secret) not in text
    assert "\n" not in text


def test_missing_database_is_named(server_url: str, opened: Opened) -> None:
    name = parse(server_url).database
    url = server_url.replace(f"/{name}", "/nowhere")
    assert_refused(opened(url, init=False), "nowhere", "127.0.0.1")


@pytest.mark.parametrize(
    "url", ["mysql://u:secret@(127.0.0.1:1)/db", "postgres://u:secret@127.0.0.1:1/db"]
)
def test_unreachable_server_is_named_at_once(opened: Opened, url: str) -> None:
    assert_refused(opened(url, init=False), "127.0.0.1:1")


def test_unknown_host_is_named(opened: Opened) -> None:
    for scheme, place in (("mysql", "(no.such.invalid:1)"), ("postgres", "no.such.invalid:1")):
        engine = opened(f"{scheme}://u:secret@{place}/db", init=False)
        assert_refused(engine, "no.such.invalid")


def test_sqlite_in_a_missing_directory_is_named(opened: Opened, tmp_path: Path) -> None:
    engine = opened(f"sqlite3://{tmp_path}/no/meta.db", init=False)
    with pytest.raises(OSError, match=f"{tmp_path}/no/meta.db") as caught:
        engine.init(b"{}", ROOT_ATTR, None)
    assert caught.value.errno == errno.EIO


def test_file_that_is_no_database_is_refused(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "meta.db").write_bytes(b"something else, and long enough to be looked at" * 100)
    assert_refused(opened(f"sqlite3://{tmp_path}/meta.db", init=False), "meta.db")


def test_unix_sockets(server_url: str, opened: Opened) -> None:
    place = parse(server_url)
    with cursor(server_url) as sql:
        if place.scheme == "mysql":
            path = sql.one("SELECT @@socket")
            url = f"mysql://jfs:secret@unix({path})/{place.database}"
        else:
            directory = sql.one("SHOW unix_socket_directories")
            url = f"postgres://jfs:secret@:{place.port}/{place.database}?host={directory}"
    assert opened(url).attr(ROOT) == ROOT_ATTR


def test_search_path_selects_the_schema(new_meta_url: Callable[[str], str], opened: Opened) -> None:
    url = new_meta_url("postgres")
    with cursor(url) as sql:
        sql.run('CREATE SCHEMA "My schema"')
    schema = quote('"My schema"')
    engine = opened(f"{url}&search_path={schema}")
    assert engine.attr(ROOT) == ROOT_ATTR
    assert opened(url, init=False).load_format() is None
    with pytest.raises(OSError, match="one schema"):
        opened(f"{url}&search_path=a,b")


def test_server_without_tls_is_told_so(server_url: str, opened: Opened) -> None:
    if server_url.startswith("mysql"):
        url = f"{server_url}?tls=skip-verify"
    else:
        url = server_url.replace("sslmode=disable", "sslmode=require")
    assert_refused(opened(url, init=False), "SSL")


def test_session_variables_of_the_url_are_set(
    new_meta_url: Callable[[str], str], opened: Opened
) -> None:
    url = new_meta_url("mariadb")
    with cursor(f"{url}?innodb_lock_wait_timeout=7") as sql:
        assert sql.one("SELECT @@innodb_lock_wait_timeout") == 7
        assert sql.one("SELECT @@transaction_isolation" if _is_new(sql.one("SELECT VERSION()"))
                       else "SELECT @@tx_isolation") == "REPEATABLE-READ"  # fmt: skip
    with pytest.raises(OSError) as caught:
        opened(f"{url}?a%3Bdrop=1")
    assert caught.value.errno == errno.EINVAL


def _is_new(version: str) -> bool:
    """MariaDB before 11.1 has the old name only."""
    major, minor = version.split(".")[:2]
    return "MariaDB" not in version or (int(major), int(minor)) >= (11, 1)


def test_durability_of_sqlite_can_be_chosen(sqlite_url: str) -> None:
    with cursor(sqlite_url) as sql:
        assert sql.one("PRAGMA synchronous") == 1
    with cursor(f"{sqlite_url}?_sync=FULL&_timeout=100") as sql:
        assert sql.one("PRAGMA synchronous") == 2
        assert sql.one("PRAGMA busy_timeout") == 100
