"""What the words of the HTTP client mean."""

from __future__ import annotations

import errno

import pytest

from juicepy.errors import ObjectNotFound
from juicepy.object.failure import Transient, begins_beyond_end, http_error


def status(number: int, code: str = "") -> str:
    body = (
        f"<Error><Code>{code}</Code><AWSAccessKeyId>AKID</AWSAccessKeyId></Error>" if code else ""
    )
    said = f"Server returned non-2xx status code: {number} X: {body}"
    return f"Error performing GET http://h/k?sig=SECRET - {said}"


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        (status(500), Transient, errno.EIO),
        (status(503, "SlowDown"), Transient, errno.EIO),
        (status(429), Transient, errno.EIO),
        (status(408), Transient, errno.EIO),
        (status(400, "RequestTimeout"), Transient, errno.EIO),
        ("source: reqwest::Error { kind: Timeout, TimedOut", Transient, errno.ETIMEDOUT),
        ("HttpError { kind: Interrupted", Transient, errno.EIO),
        ("HttpError { kind: Connect", Transient, errno.EIO),
        (status(403), PermissionError, errno.EACCES),
        (status(401), PermissionError, errno.EACCES),
        (status(400, "ExpiredToken"), PermissionError, errno.EACCES),
        (status(403, "SignatureDoesNotMatch"), PermissionError, errno.EACCES),
        (status(404), ObjectNotFound, errno.ENOENT),
        (status(404, "NoSuchBucket"), OSError, errno.EIO),
        (status(404, "ContainerNotFound"), OSError, errno.EIO),
        (status(400, "InvalidArgument"), OSError, errno.EIO),
        ("Received redirect without LOCATION", OSError, errno.EIO),
        ("something new", OSError, errno.EIO),
    ],
)
def test_failure_is_told_by_its_words(text: str, kind: type[OSError], code: int) -> None:
    error = http_error(text, "the/key")
    assert type(error) is kind
    assert error.errno == code
    assert error.filename == "the/key"
    assert "SECRET" not in str(error)
    assert "AKID" not in str(error)


def test_range_beyond_the_end_is_no_failure() -> None:
    assert begins_beyond_end(status(416))
    assert begins_beyond_end("source: StartTooLarge { requested: 10")
    assert not begins_beyond_end(status(404))
