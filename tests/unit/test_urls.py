"""Metadata URLs, with every odd character in their passwords."""

from urllib.parse import quote

import pytest

from juicepy import urls
from juicepy.errors import Refused

ODD = [
    "p@ss",
    "a:b",
    "a/b",
    "a?b=c",
    "a#b",
    "100%",
    "[x]",
    "two words",
    "p@:/?#%[] w",
    "@",
    "x@h/1",
]


@pytest.mark.parametrize("password", ODD)
@pytest.mark.parametrize(
    ("scheme", "user", "place", "address", "path"),
    [
        ("redis", "", "127.0.0.1:6379/1", "127.0.0.1:6379", "1"),
        ("rediss", "bob", "[::1]:6379/1", "[::1]:6379", "1"),
        ("mysql", "jfs", "(db.example:3306)/juicefs", "db.example:3306", "juicefs"),
        ("postgres", "jfs", "db:5432/juicefs?sslmode=disable", "db:5432", "juicefs"),
        ("unix", "", "/run/redis.sock?db=2", "", "/run/redis.sock"),
    ],
)
def test_password_of_any_character_is_found_and_hidden(
    password: str, scheme: str, user: str, place: str, address: str, path: str
) -> None:
    for written in (password, quote(password, safe="")):
        url = f"{scheme}://{user}:{written}@{place}"
        found = urls.parse(url)
        assert password in found.passwords
        assert (found.user, found.address, found.path) == (user, address, path)
        assert urls.redact(url) == f"{scheme}://{user}:****@{place}"
        assert written in urls.secrets_of(url)
        assert password not in repr(found) or len(password) == 1


def test_password_with_percent_signs_has_both_readings() -> None:
    assert urls.parse("redis://:a%40b@h/1").passwords == ("a@b", "a%40b")
    assert urls.parse("redis://:50%@h/1").passwords == ("50%",)
    assert urls.parse("redis://h/1").password == ""


def test_options_may_hold_an_at_sign() -> None:
    found = urls.parse("rediss://:pw@h:6380/1?tls-ca-cert-file=/x/y@z")
    assert found.password == "pw"
    assert found.query == {"tls-ca-cert-file": "/x/y@z"}
    assert urls.parse("redis://h/1?a=b@c").query == {"a": "b@c"}


def test_paths_of_local_databases_are_taken_as_they_are() -> None:
    found = urls.parse("sqlite3:///a@b:c d.db?cache=shared")
    assert (found.path, found.query) == ("/a@b:c d.db", {"cache": "shared"})
    assert urls.redact("sqlite3://u:p@x.db") == "sqlite3://u:p@x.db"
    assert urls.with_password("sqlite3://x.db", "pw") == "sqlite3://x.db"


def test_several_hosts_share_the_last_port() -> None:
    found = urls.parse("redis://master,s1,s2:26379/2?route-read=replica")
    assert found.hosts(6379) == [("master", 26379), ("s1", 26379), ("s2", 26379)]
    assert urls.parse("redis://h/1").hosts(6379) == [("h", 6379)]
    assert urls.parse("redis://[::1]:7000/1").hosts(6379) == [("::1", 7000)]


def test_socket_of_mysql() -> None:
    found = urls.parse("mysql://jfs:pw@unix(/run/my.sock)/db")
    assert (found.socket, found.address, found.path) == ("/run/my.sock", "", "db")
    assert urls.parse("mysql://jfs:pw@tcp(h:1)/db").hosts(3306) == [("h", 1)]


def test_bare_address_is_redis() -> None:
    assert urls.parse("host:6379/1").scheme == "redis"
    assert urls.parse("host:6379/1").where == "redis://host:6379/1"


@pytest.mark.parametrize("url", ["", "/x/y.db", "./y.db"])
def test_url_without_scheme_is_refused(url: str) -> None:
    with pytest.raises(Refused, match="scheme"):
        urls.parse(url)


@pytest.mark.parametrize("url", ["redis://:pw@h:99999/1", "redis://:pw@h:port/1"])
def test_bad_port_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(Refused, match="port") as caught:
        urls.parse(url)
    assert ":pw" not in str(caught.value)


def test_password_from_outside_is_put_in_only_where_none_is() -> None:
    given = urls.with_password("mysql://jfs:@(h:1)/db", "a@b/c%41")
    assert urls.parse(given).password == "a@b/c%41"
    assert urls.parse(urls.with_password("redis://h/1", "x y")).password == "x y"
    assert urls.with_password("redis://:own@h/1", "other") == "redis://:own@h/1"
    assert urls.with_password("redis://h/1", None) == "redis://h/1"


def test_where_names_no_login() -> None:
    assert urls.parse("postgres://u:pw@h:5432/db?x=1").where == "postgres://h:5432/db"
    assert urls.parse("unix://:pw@/run/r.sock").where == "unix:///run/r.sock"
