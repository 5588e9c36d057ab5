"""Settings read from Redis URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from juicepy.errors import Refused
from juicepy.meta.redis.url import RedisUrl, parse


def of(url: str, **environ: str) -> RedisUrl:
    return parse(url, environ)


def test_plain_server() -> None:
    found = of("redis://host:6380/3")
    assert (found.addresses, found.db, found.passwords) == ((("host", 6380),), 3, ())
    assert [found.cluster, found.master, found.unix, found.tls] == [False, "", False, None]
    assert of("host").addresses == (("host", 6379),)
    assert of("redis://[::1]:7000/1").addresses == (("::1", 7000),)


def test_unix_socket() -> None:
    found = of("unix://me:pw@/run/redis.sock?db=4")
    assert (found.addresses, found.db, found.unix) == ((("/run/redis.sock", 0),), 4, True)
    assert (found.user, found.passwords) == ("me", ("pw",))


def test_sentinels_share_the_last_port() -> None:
    found = of("redis://:pw@mymaster,a,b:5000/2", SENTINEL_PASSWORD="guard")
    assert found.master == "mymaster"
    assert found.addresses == (("a", 5000), ("b", 5000))
    assert found.sentinel_password == "guard"
    assert of("redis://mymaster,a,b/2").addresses == (("a", 26379), ("b", 26379))


def test_cluster_is_several_addresses() -> None:
    found = of("redis://a:1,b:2,c:3/5")
    assert found.cluster
    assert found.addresses == (("a", 1), ("b", 2), ("c", 3))


def test_tls_options() -> None:
    tls = of("rediss://h/0?tls-ca-cert-file=/ca&tls-server-name=n&insecure-skip-verify=true").tls
    assert tls is not None
    assert (tls.verify, tls.ca_file, tls.server_name) == (False, "/ca", "n")
    plain = of("rediss://h/0").tls
    assert plain is not None
    assert plain.verify


def test_durations() -> None:
    found = of("redis://h/0?read_timeout=1m30s&write-timeout=250ms&dial_timeout=3")
    assert found.read_timeout_s == 90
    assert found.write_timeout_s == 0.25
    assert found.connect_timeout_s == 3


def test_password_of_the_environment(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from file\n")
    assert of("redis://h", META_PASSWORD_FILE=str(secret)).passwords == ("from file",)
    assert of("redis://h", META_PASSWORD="meta").passwords == ("meta",)
    assert of("redis://h", META_PASSWORD="meta", REDIS_PASSWORD="redis").passwords == ("redis",)
    assert of("redis://:own@h", META_PASSWORD="meta").passwords == ("own",)


def test_nothing_shows_a_password() -> None:
    assert "s3cret" not in repr(of("redis://:s3cret@h/0", SENTINEL_PASSWORD="s3cret"))


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret@h/x",
        "redis://:s3cret@h/0?password=1",
        "redis://:s3cret@h/0?read-timeout=soon",
        "redis://:s3cret@h:port/0",
        "http://:s3cret@h/0",
    ],
)
def test_malformed_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(Refused) as caught:
        of(url)
    assert "s3cret" not in str(caught.value)
