"""Errors of the stores: which are worth another attempt, and what an HTTP failure means.

OSError
├── ObjectNotFound          no such object (`juicepy.errors`)
└── Transient               ETIMEDOUT or EIO that may pass: the one class `Retrying` repeats
                            (a time-out, 408, 429, 5xx, a broken connection, a bad checksum)

Everything else (EACCES for 401, 403 and bad signatures, EIO for what no repetition mends) is a
plain OSError. Each names the key and a short reason; the text of a driver's exception is never
passed on, for it may hold a signed URL.
"""

from __future__ import annotations

import errno
import re

from juicepy.errors import ObjectNotFound

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z]{1,64})</Code>")
_KIND = re.compile(r"kind: (Timeout|Connect|Interrupted|Request|Decode|Unknown)\b")

_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"}
_PASSING_CODES = {"RequestTimeout", "SlowDown", "ServerBusy", "OperationTimedOut", "InternalError"}
_REFUSED_CODES = {"ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
_PASSING = {408, 425, 429}
_DENIED = {401, 403, 407}


class Transient(OSError):
    """A failure that may pass. One request failed; nothing is known to be stored or lost."""


def http_error(text: str, key: str, *, missing: bool = False, denied: bool = False) -> OSError:
    """The error behind `text`, what an HTTP client says of a failed request for `key`.

    `missing`, `denied`: the client has already told it from the rest by its exception.
    """
    code = _first(_CODE, text)
    status = int(_first(_STATUS, text) or 0)
    reason = " ".join(part for part in (str(status) if status else "", code) if part)
    if code in _NO_BUCKET:
        return OSError(errno.EIO, f"the bucket does not exist ({reason})", key)
    if code in _REFUSED_CODES or denied or status in _DENIED:
        return OSError(errno.EACCES, f"access denied ({reason or 'no credentials'})", key)
    if missing or status == 404:
        return ObjectNotFound(key)
    if code in _PASSING_CODES or status in _PASSING or status >= 500:
        return Transient(errno.EIO, f"the store is unavailable ({reason})", key)
    if status:
        return OSError(errno.EIO, f"the store refuses the request ({reason})", key)
    return _unanswered(text, key)


def begins_beyond_end(text: str) -> bool:
    """Is `text` about a range that begins at the end of the object or behind it?"""
    return _first(_STATUS, text) == "416" or "StartTooLarge" in text


def _unanswered(text: str, key: str) -> OSError:
    """The error of a request that got no whole answer."""
    kind = _first(_KIND, text)
    if kind == "Timeout" or "TimedOut" in text:
        return Transient(errno.ETIMEDOUT, "no answer in time", key)
    if "redirect" in text:
        return OSError(errno.EIO, "the bucket is in another region", key)
    if kind == "Connect":
        return Transient(errno.EIO, "cannot connect to the store", key)
    if kind:
        return Transient(errno.EIO, "the connection broke", key)
    return OSError(errno.EIO, "the request cannot be made or its answer not be read", key)


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found.group(1) if found else ""
