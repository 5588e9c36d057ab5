"""A log of signed records, written on one machine and followed on another, in worker processes."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from pathlib import Path


def content(count: int) -> bytes:
    return b"".join(map(_record, range(count)))


def _record(number: int) -> bytes:
    body = b"%06d " % number + b"%x" % number * (number % 300)
    return hashlib.sha256(body).hexdigest().encode() + b" " + body + b"\n"


def write_log(path: str, count: int) -> int:
    """Append records one by one. After an error go on where the file ends; how often."""
    expected, at, errors = content(count), 0, 0
    while at < len(expected):
        try:
            with open(path, "ab", buffering=0) as file:
                at = os.fstat(file.fileno()).st_size
                while at < len(expected):
                    end = expected.index(b"\n", at) + 1
                    at += file.write(expected[at:end])
                    if at % 5 == 0:
                        os.fsync(file.fileno())
                        time.sleep(0.01)  # so that the reader gets a look in between
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            errors, at = errors + 1, 0
    return errors


def follow_log(path: str, count: int) -> int:
    """Read it by one descriptor and by new ones, to its end; how many lengths were seen.

    Reads may fail. What they give is a prefix of the whole, also where the file is known to be
    longer: never zeros, never a part of another record.
    """
    expected, kept = content(count), b""
    lengths = set()
    with open(path, "rb", buffering=0) as file:
        while len(kept) < len(expected):
            try:
                kept += file.read(1 << 20) or b""
                fresh = Path(path).read_bytes()
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                continue
            _check_prefix(kept, expected)
            _check_prefix(fresh, expected)
            lengths |= {len(kept), len(fresh)}
    return len(lengths)


def _check_prefix(data: bytes, expected: bytes) -> None:
    if not expected.startswith(data):
        good = next(at for at, byte in enumerate(data) if expected[at : at + 1] != bytes((byte,)))
        raise AssertionError(f"{len(data)} bytes, torn at {good}: {data[good : good + 80]!r}")
