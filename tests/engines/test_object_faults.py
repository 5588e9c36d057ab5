"""Drivers and `Retrying` against a server that fails: what is repeated, and how it ends."""

from __future__ import annotations

import errno
from collections.abc import Callable

import google_crc32c
import pytest

from juicepy.errors import ObjectNotFound
from juicepy.object.failure import Transient
from juicepy.object.registry import create_storage
from juicepy.object.retry import Retrying
from juicepy.object.storage import ObjectStorage
from juicepy.object.target import DriverSettings
from tests.support.objects import (
    AZURE_KEY,
    Pauses,
    ScriptedServer,
    google_server,
    scripted_server,
    timed,
)

__all__ = ["google_server", "scripted_server"]

Open = Callable[[ScriptedServer, DriverSettings], ObjectStorage]


def _s3(server: ScriptedServer, settings: DriverSettings) -> ObjectStorage:
    return create_storage("s3", f"{server.url}/bucket", "AKID", "SECRET", "", settings)


def _wasb(server: ScriptedServer, settings: DriverSettings) -> ObjectStorage:
    text = f"AccountName=acct;AccountKey={AZURE_KEY};BlobEndpoint={server.url}"
    settings = DriverSettings(
        settings.get_timeout_s, settings.put_timeout_s, connection_string=text
    )
    return create_storage("wasb", "http://container", settings=settings)


def _gs(server: ScriptedServer, settings: DriverSettings) -> ObjectStorage:
    settings = DriverSettings(
        settings.get_timeout_s, settings.put_timeout_s, gs_endpoint=server.url
    )
    return create_storage("gs", "gs://bucket", settings=settings)


DRIVERS = [pytest.param(_s3, id="s3"), pytest.param(_wasb, id="wasb"), pytest.param(_gs, id="gs")]
PATIENT = DriverSettings(30.0, 30.0)


@pytest.fixture(params=DRIVERS)
def open_driver(request: pytest.FixtureRequest) -> Open:
    opened: Open = request.param
    return opened


def repeated(open_driver: Open, server: ScriptedServer, retries: int = 3) -> Retrying:
    """The driver with `Retrying` around it, which waits for no pause."""
    return Retrying(open_driver(server, PATIENT), retries, pause=Pauses())


@pytest.mark.parametrize("failure", [500, 503, 429, "reset", "short"])
def test_get_outlives_failures_that_pass(
    open_driver: Open, scripted_server: ScriptedServer, failure: int | str
) -> None:
    scripted_server.answers = [failure, failure, b"the data"]
    assert repeated(open_driver, scripted_server).get("key") == b"the data"
    assert len(scripted_server.requests) == 3


@pytest.mark.parametrize("failure", [500, 503, 429, "reset"])
def test_put_outlives_failures_that_pass_and_sends_all_again(
    open_driver: Open, scripted_server: ScriptedServer, failure: int | str
) -> None:
    scripted_server.answers = [failure, failure, 200]
    repeated(open_driver, scripted_server).put("key", b"payload")
    assert scripted_server.bodies == [b"payload"] * 3


@pytest.mark.parametrize("failure", [500, 429, "reset"])
def test_attempts_are_bounded(
    open_driver: Open, scripted_server: ScriptedServer, failure: int | str
) -> None:
    scripted_server.answers = [failure]
    pauses = Pauses()
    storage = Retrying(open_driver(scripted_server, PATIENT), 3, pause=pauses)
    with pytest.raises(OSError) as caught:
        storage.get("the/key")
    assert caught.value.errno == errno.EIO
    assert "the/key" in str(caught.value)
    assert len(scripted_server.requests) == 4
    assert len(pauses.taken) == 3
    assert all(0.05 * 2**turn <= pause <= 0.1 * 2**turn for turn, pause in enumerate(pauses.taken))


@pytest.mark.parametrize(
    ("status", "code"), [(403, errno.EACCES), (401, errno.EACCES), (400, errno.EIO)]
)
def test_refusals_are_not_repeated(
    open_driver: Open, scripted_server: ScriptedServer, status: int, code: int
) -> None:
    scripted_server.answers = [status]
    storage = repeated(open_driver, scripted_server)
    calls: list[Callable[[], object]] = [
        lambda: storage.get("key"),
        lambda: storage.get("key", 5, 5),
        lambda: storage.put("key", b"x"),
        lambda: storage.head("key"),
        lambda: storage.delete("key"),
        lambda: list(storage.list_from("")),
    ]
    for done, call in enumerate(calls, 1):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == code
        assert not isinstance(caught.value, Transient)
        assert len(scripted_server.requests) == done


def test_missing_object_is_not_asked_for_again(
    open_driver: Open, scripted_server: ScriptedServer
) -> None:
    scripted_server.answers = [404]
    with pytest.raises(ObjectNotFound):
        repeated(open_driver, scripted_server).get("key")
    assert len(scripted_server.requests) == 1


@pytest.mark.parametrize("failure", ["slow", "trickle"])
def test_get_ends_when_its_whole_time_is_up(
    open_driver: Open, scripted_server: ScriptedServer, failure: str
) -> None:
    scripted_server.answers = [failure]
    storage = open_driver(scripted_server, DriverSettings(0.3, 30.0))
    with pytest.raises(OSError) as caught:
        storage.get("key")
    assert caught.value.errno == errno.ETIMEDOUT
    assert timed(lambda: storage.get("key")) < 20


def test_put_has_a_time_of_its_own(open_driver: Open, scripted_server: ScriptedServer) -> None:
    scripted_server.answers = ["slow"]
    storage = open_driver(scripted_server, DriverSettings(30.0, 0.3))
    with pytest.raises(OSError) as caught:
        storage.put("key", b"payload")
    assert caught.value.errno == errno.ETIMEDOUT


def test_answer_after_the_time_is_up_is_not_taken_for_the_next(
    open_driver: Open, scripted_server: ScriptedServer
) -> None:
    scripted_server.answers = ["trickle", b"second"]
    storage = open_driver(scripted_server, DriverSettings(0.3, 30.0))
    with pytest.raises(OSError):
        storage.get("first")
    assert Retrying(storage, 5, pause=Pauses()).get("second") == b"second"


def test_time_outs_are_repeated(open_driver: Open, scripted_server: ScriptedServer) -> None:
    scripted_server.answers = ["slow", b"at last"]
    storage = Retrying(open_driver(scripted_server, DriverSettings(0.5, 30.0)), 20, pause=Pauses())
    assert storage.get("key") == b"at last"


def test_server_that_is_not_there_is_worth_another_attempt(
    open_driver: Open, scripted_server: ScriptedServer
) -> None:
    storage = open_driver(scripted_server, PATIENT)
    scripted_server.close()
    with pytest.raises(Transient) as caught:
        storage.get("key")
    assert caught.value.errno == errno.EIO


def test_errors_show_neither_key_id_nor_secret(
    open_driver: Open, scripted_server: ScriptedServer
) -> None:
    for answer in (403, 500, "reset"):
        scripted_server.answers = [answer]
        with pytest.raises(OSError) as caught:
            open_driver(scripted_server, PATIENT).get("key")
        assert caught.value.__cause__ is None
        for secret in ("AKID", "SECRET", AZURE_KEY, "Authorization", "127.0.0.1"):
            assert secret not in str(caught.value)


def test_damaged_object_is_read_again_then_refused(scripted_server: ScriptedServer) -> None:
    scripted_server.headers = {"x-amz-meta-crc32c": str(google_crc32c.value(b"hello"))}
    storage = repeated(_s3, scripted_server)
    scripted_server.answers = [b"hellO", b"hello"]
    assert storage.get("key") == b"hello"
    scripted_server.answers = [b"hellO"]
    with pytest.raises(OSError, match="checksum") as caught:
        storage.get("key")
    assert caught.value.errno == errno.EIO
    assert len(scripted_server.requests) == 2 + 4


def test_checksum_is_left_alone_where_it_is_absent_or_switched_off(
    scripted_server: ScriptedServer,
) -> None:
    scripted_server.answers = [b"hello"]
    assert repeated(_s3, scripted_server).get("key") == b"hello"
    scripted_server.headers = {"x-amz-meta-crc32c": "1"}
    plain = create_storage("s3", f"{scripted_server.url}/bucket?disable-checksum", "a", "b")
    assert plain.get("key") == b"hello"
    plain.put("key", b"hello")
    assert "x-amz-meta-crc32c" not in scripted_server.sent_headers[-1]


def test_s3_put_looks_as_the_shared_format_says(scripted_server: ScriptedServer) -> None:
    settings = DriverSettings(storage_class="STANDARD_IA")
    storage = create_storage(
        "s3", f"{scripted_server.url}/bucket", "AKID", "SECRET", "TOK", settings
    )
    storage.put("vol/chunks/0/0/1_0_5", b"hello")
    assert scripted_server.requests == [("PUT", "/bucket/vol/chunks/0/0/1_0_5")]
    sent = scripted_server.sent_headers[0]
    assert sent["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert sent["x-amz-meta-crc32c"] == "2591144780"
    assert sent["content-type"] == "application/octet-stream"
    assert sent["x-amz-storage-class"] == "STANDARD_IA"
    assert sent["x-amz-security-token"] == "TOK"
    assert "Credential=AKID/" in sent["authorization"]
    with pytest.raises(OSError):  # the server sends no range, and so is not believed
        storage.get("vol/chunks/0/0/1_0_5", 100, 50)
    assert scripted_server.sent_headers[1]["range"] == "bytes=100-149"
    storage.delete("vol/chunks/0/0/1_0_5")
    assert scripted_server.requests[2][0] == "DELETE"
