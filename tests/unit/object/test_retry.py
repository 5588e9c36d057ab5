"""Retrying: what is repeated, how often, and what waits in between."""

from __future__ import annotations

import errno
import threading

import pytest

from juicepy.errors import ObjectNotFound
from juicepy.object.failure import Transient
from juicepy.object.retry import Retrying
from tests.support.objects import Pauses
from tests.unit.object.faulty import Faulty


def passing(code: int = errno.EIO) -> OSError:
    return Transient(code, "try again", "key")


def test_first_success_ends_it() -> None:
    inner = Faulty(passing(), passing(errno.ETIMEDOUT), None)
    pauses = Pauses()
    Retrying(inner, 5, pause=pauses).put("key", b"1")
    assert inner.calls == [("put", "key")] * 3
    assert len(pauses.taken) == 2


def test_last_error_is_raised_after_all_attempts() -> None:
    errors = [passing() for _ in range(4)]
    inner = Faulty(*errors)
    with pytest.raises(Transient) as caught:
        Retrying(inner, 3, pause=Pauses()).get("key")
    assert caught.value is errors[3]
    assert len(inner.calls) == 4


def test_zero_retries_is_one_attempt() -> None:
    inner = Faulty(passing())
    with pytest.raises(Transient):
        Retrying(inner, 0, pause=Pauses()).get("key")
    assert len(inner.calls) == 1


@pytest.mark.parametrize(
    "error",
    [ObjectNotFound("key"), PermissionError(errno.EACCES, "no"), OSError(errno.EIO, "bad request")],
)
def test_what_does_not_pass_is_raised_at_once(error: OSError) -> None:
    inner = Faulty(error)
    with pytest.raises(type(error)) as caught:
        Retrying(inner, 9, pause=Pauses()).get("key")
    assert caught.value is error
    assert len(inner.calls) == 1


def test_pauses_grow_to_a_bound_and_vary() -> None:
    pauses = Pauses()
    with pytest.raises(Transient):
        Retrying(Faulty(*[passing() for _ in range(31)]), 30, pause=pauses).get("key")
    for turn, pause in enumerate(pauses.taken):
        whole = min(10.0, 0.1 * 2**turn)
        assert whole / 2 <= pause <= whole
    assert len(set(pauses.taken)) > 20


def test_broken_listing_goes_on_where_it_was() -> None:
    inner = Faulty(None, None, passing(), None, passing(), passing())
    for number in range(5):
        inner.objects.put(f"k{number}", b"1")
    listed = [found.key for found in Retrying(inner, 2, pause=Pauses()).list_from("k")]
    assert listed == ["k0", "k1", "k2", "k3", "k4"]


def test_listing_that_gets_nowhere_fails() -> None:
    inner = Faulty(None, *[passing() for _ in range(3)])
    inner.objects.put("k0", b"1")
    inner.objects.put("k1", b"1")
    with pytest.raises(Transient):
        list(Retrying(inner, 2, pause=Pauses()).list_from("k"))


def test_close_ends_the_waiting() -> None:
    inner = Faulty(*[passing() for _ in range(100)])
    storage = Retrying(inner, 99)
    caught: list[BaseException] = []

    def call() -> None:
        try:
            storage.get("key")
        except OSError as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    storage.close()
    thread.join(30)
    assert not thread.is_alive()
    assert isinstance(caught[0], Transient)
    assert inner.closed
