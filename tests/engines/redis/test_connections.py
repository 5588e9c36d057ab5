"""Ways to a server: sockets, passwords, TLS, Sentinel, Cluster, and servers that go away."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from juicepy.meta.redis.engine import RedisEngine, open_redis
from juicepy.types import ROOT, Attr, Inode, Kind, SessionId, Slice, SliceId
from tests.engines.redis.bodies import grow, make, remove
from tests.support.redis_servers import (
    RedisCluster,
    RedisServer,
    free_port,
    redis_cluster,
    redis_sentinel,
    redis_server,
    tls_server,
)

ODD = "p@s:s/w?o#r%d[ ]&=+é"


@contextlib.contextmanager
def opened(url: str) -> Iterator[RedisEngine]:
    with contextlib.closing(open_redis(url)) as engine:
        yield engine


def use(engine: RedisEngine) -> None:
    """Each way of talking to the server once."""
    root = Attr(Kind.DIR, 0o777, nlink=2, length=4096, parent=ROOT)
    engine.init(b"{}", root, None)
    engine.transact(make(10, b"file"))
    engine.transact(grow(10, 5))
    engine.transact(lambda tx: tx.append(Inode(10), 0, Slice(0, SliceId(1), 1, 0, 1)))
    engine.transact(lambda tx: tx.set_lock(Inode(10), (SessionId(1), 2), b"W", posix=False))
    found = engine.lookup(ROOT, b"file")
    assert found is not None
    assert found[1] is not None
    assert found[1].length == 5
    assert [one.name for page in engine.list_dir(ROOT, with_attrs=True) for one in page] == [
        b"file"
    ]
    assert {ino for ino, _ in engine.scan_attrs()} == {1, 10}
    assert [ino for ino, _, _ in engine.scan_chunks()] == [10]
    assert len(engine.session_locks(SessionId(1))) == 1
    engine.release_locks(SessionId(1))
    assert engine.session_locks(SessionId(1)) == []
    engine.transact(remove(b"file"))
    assert engine.lookup(ROOT, b"file") is None


def test_unix_socket(server: RedisServer, db: int) -> None:
    with opened(server.unix_url(db)) as engine:
        use(engine)
    with contextlib.closing(server.client(db)) as raw:
        assert raw.exists("i1") == 1, "the db option chooses the database"


@pytest.mark.parametrize("spell", [lambda text: text, lambda text: quote(text, safe="")])
def test_odd_passwords_as_they_are_and_encoded(spell: object) -> None:
    with redis_server(password=ODD) as server:
        written = spell(ODD)  # type: ignore[operator]  # a function of a string
        with opened(f"redis://:{written}@127.0.0.1:{server.port}/2") as engine:
            use(engine)
        with opened(f"unix://:{written}@{server.socket_path}?db=3") as engine:
            use(engine)


def test_password_that_looks_encoded() -> None:
    with redis_server(password="a%20b") as server:
        with opened(f"redis://:a%20b@127.0.0.1:{server.port}") as engine:
            use(engine)


def test_users_and_passwords_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with redis_server() as server:
        with contextlib.closing(server.client()) as raw:
            raw.acl_setuser("me", enabled=True, passwords=["+pw"], keys="*", categories=["+@all"])
        monkeypatch.setenv("META_PASSWORD", "pw")
        with opened(f"redis://me@127.0.0.1:{server.port}/0") as engine:
            use(engine)


@pytest.mark.parametrize("login", ["", ":wr0ng@", "nobody:wr0ng@"])
def test_wrong_password_is_one_clear_line(login: str) -> None:
    with redis_server(password=ODD) as server:
        with pytest.raises(OSError, match=rf"redis at 127\.0\.0\.1:{server.port}") as caught:
            open_redis(f"redis://{login}127.0.0.1:{server.port}/0")
    assert caught.value.errno == errno.EACCES
    assert "wr0ng" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["redis://:secret@127.0.0.1:{}/1", "unix://:secret@/none/{}"])
def test_unreachable_server_is_named_and_the_password_is_not(path: str) -> None:
    url = path.format(free_port())
    with pytest.raises(OSError) as caught:
        open_redis(url)
    assert caught.value.errno == errno.EIO
    assert url.rpartition("@")[2].partition("/1")[0].strip("/") in str(caught.value)
    assert "secret" not in str(caught.value)


def test_what_is_no_redis_is_told(server: RedisServer) -> None:
    with pytest.raises(OSError) as caught:
        open_redis(f"rediss://127.0.0.1:{server.port}/1?dial-timeout=200ms")
    assert caught.value.errno == errno.EIO


def test_tls_verifies_the_server() -> None:
    with tls_server() as (port, files):
        url = f"rediss://127.0.0.1:{port}/0"
        with pytest.raises(OSError, match="certificate"):
            open_redis(url)
        with opened(f"{url}?tls-ca-cert-file={files.ca}") as engine:
            use(engine)
        with opened(f"{url}?insecure-skip-verify=true") as engine:
            use(engine)
        with opened(f"{url}?tls-ca-cert-file={files.ca}&tls-server-name=localhost") as engine:
            use(engine)
        with pytest.raises(OSError, match=r"elsewhere\.example"):
            open_redis(f"{url}?tls-ca-cert-file={files.ca}&tls-server-name=elsewhere.example")


def test_tls_client_certificate() -> None:
    with tls_server(client_certificates=True) as (port, files):
        url = f"rediss://localhost:{port}/0?tls-ca-cert-file={files.ca}"
        with opened(f"{url}&tls-cert-file={files.certificate}&tls-key-file={files.key}") as engine:
            use(engine)
        with pytest.raises(OSError):
            open_redis(url)


def test_sentinel_and_its_fail_over() -> None:
    with redis_sentinel() as sentinel:
        with opened(sentinel.url(2)) as engine:
            use(engine)
            engine.transact(make(11, b"before"))
            with contextlib.closing(sentinel.master.client(2)) as master:
                assert master.wait(1, 20_000) == 1, "the replica has it"
            sentinel.fail_over()
            engine.transact(make(12, b"after"))
            assert engine.lookup(ROOT, b"before") is not None
        with contextlib.closing(sentinel.replica.client(2)) as promoted:
            assert promoted.hexists("d1", "after")
        with pytest.raises(OSError, match="nomaster"):
            open_redis(f"redis://nomaster,127.0.0.1:{sentinel.port}/0")


# -- cluster
@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with redis_cluster() as running:
        yield running


@pytest.mark.parametrize("db", [0, 1, 2, 7])
def test_cluster_keeps_a_volume_in_one_slot(cluster: RedisCluster, db: int) -> None:
    with opened(cluster.url(db)) as engine:
        assert engine.is_empty_database()
        use(engine)
        engine.transact(lambda tx: tx.set_lock(Inode(10), (SessionId(1), 2), b"W", posix=False))
    prefix = b"{%d}" % db
    with contextlib.closing(cluster.holder(prefix).client()) as raw:
        assert raw.get(prefix + b"setting") == b"{}"
        assert raw.smembers(prefix + b"locked1") == {prefix + b"lockf10"}
        assert all(key.startswith(b"{") for key in raw.scan_iter())


def test_single_node_of_a_cluster_is_recognised(cluster: RedisCluster) -> None:
    for server in cluster.servers:
        with opened(server.url(3)) as engine:
            engine.init(b"{}", Attr(Kind.DIR, 0o777), None)
            assert engine.load_format() == b"{}"
    with contextlib.closing(cluster.holder(b"{3}").client()) as raw:
        assert raw.get("{3}setting") == b"{}"


def test_slot_that_moves_is_followed(cluster: RedisCluster) -> None:
    with opened(cluster.url(9)) as engine:
        use(engine)
        source = cluster.holder(b"{9}")
        target = next(one for one in cluster.servers if one is not source)
        with (
            contextlib.closing(source.client()) as old,
            contextlib.closing(target.client()) as new,
        ):
            slot = old.cluster("keyslot", "{9}")
            ids = [one.cluster("myid") for one in (old, new)]
            new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
            old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
            keys = old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
            old.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 10_000, "KEYS", *keys)
            assert engine.attr(ROOT) is not None, "asked of the node it moves to"
            for one in (new, old):
                one.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        engine.transact(make(20, b"later"))
        assert engine.lookup(ROOT, b"later") is not None


# -- servers that go away
def test_restarted_server_is_found_again(caplog: pytest.LogCaptureFixture) -> None:
    with redis_server(persistent=True) as server:
        with opened(server.url(1)) as engine:
            use(engine)
            server.stop()
            server.start()
            engine.transact(make(11, b"again"))
            assert engine.lookup(ROOT, b"again") is not None


def test_server_that_stays_away_is_eio(monkeypatch: pytest.MonkeyPatch) -> None:
    with redis_server() as server:
        with opened(f"{server.url(1)}?max-retry-backoff=1ms&min-retry-backoff=1ms") as engine:
            use(engine)
            server.stop()
            with pytest.raises(OSError, match=rf"127\.0\.0\.1:{server.port}") as caught:
                engine.lookup(ROOT, b"file")
            assert caught.value.errno == errno.EIO
            with pytest.raises(OSError) as caught:
                engine.transact(make(12, b"never"))
            assert caught.value.errno == errno.EIO


def test_login_that_is_refused_later_is_no_matter_of_permissions() -> None:
    with redis_server() as server, opened(server.url()) as engine:
        use(engine)
        with contextlib.closing(server.client()) as raw:
            raw.config_set("requirepass", "new")
            raw.client_kill_filter(_type="normal", skipme=True)
        with pytest.raises(OSError, match="redis at") as caught:
            engine.attr(ROOT)
    assert caught.value.errno == errno.EIO


def test_server_out_of_memory_is_no_space() -> None:
    with redis_server() as server, opened(server.url()) as engine:
        use(engine)
        with contextlib.closing(server.client()) as raw:
            raw.config_set("maxmemory", "1mb")
        with pytest.raises(OSError, match="OOM") as caught:
            engine.transact(make(12, b"never"))
    assert caught.value.errno == errno.ENOSPC


def test_eviction_is_turned_off() -> None:
    with redis_server("--maxmemory-policy", "allkeys-lru") as server:
        with opened(server.url()):
            pass
        with contextlib.closing(server.client()) as raw:
            assert raw.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_eviction_that_cannot_be_turned_off_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = ("--maxmemory-policy", "allkeys-lru", "--rename-command", "CONFIG", "")
    with redis_server(*options) as server, caplog.at_level(logging.WARNING):
        with opened(server.url()):
            pass
    assert "noeviction" in caplog.text


def test_user_that_may_not_ask_for_settings_can_use_the_volume() -> None:
    with redis_server() as server:
        with contextlib.closing(server.client()) as raw:
            rules = ["+@all", "-@dangerous", "-info"]
            raw.acl_setuser("me", enabled=True, passwords=["+pw"], keys="*", commands=rules)
        with opened(f"redis://me:pw@127.0.0.1:{server.port}/0") as engine:
            use(engine)
