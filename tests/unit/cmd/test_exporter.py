"""Metrics over HTTP."""

import urllib.error
import urllib.request

import pytest

from juicepy.cmd.exporter import exporting, parse_address
from juicepy.errors import Refused


def fetch(address: str, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as answer:
        data: bytes = answer.read()
        return data


def test_metrics_are_served_until_the_end() -> None:
    with exporting("127.0.0.1:0", lambda: b"juicefs_uptime 1\n") as address:
        assert fetch(address, "/metrics") == b"juicefs_uptime 1\n"
        with pytest.raises(urllib.error.HTTPError):
            fetch(address, "/else")
    with pytest.raises(urllib.error.URLError):
        fetch(address, "/metrics")


def test_taken_port_is_replaced_by_a_free_one() -> None:
    with exporting("127.0.0.1:0", lambda: b"1") as first:
        with exporting(first, lambda: b"2", fall_back=True) as second:
            assert first != second
            assert fetch(second, "/metrics") == b"2"


def test_address_that_was_asked_for_is_not_replaced(caplog: pytest.LogCaptureFixture) -> None:
    with exporting("127.0.0.1:0", lambda: b"1") as first:
        with exporting(first, lambda: b"2") as second:
            assert second == ""
    assert first in caplog.text


def test_empty_address_serves_nothing() -> None:
    with exporting("", lambda: b"") as address:
        assert address == ""


def test_addresses() -> None:
    assert parse_address("127.0.0.1:9567") == ("127.0.0.1", 9567)
    assert parse_address(":9567") == ("", 9567)
    assert parse_address("[::1]:80") == ("::1", 80)
    for text in ("9567", "h:x", "h:99999"):
        with pytest.raises(Refused, match="--metrics"):
            parse_address(text)


def test_address_of_another_machine_is_refused() -> None:
    with pytest.raises(Refused, match="--metrics"), exporting("203.0.113.7:9567", lambda: b""):
        pass
