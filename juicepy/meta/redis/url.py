"""Settings of a Redis URL, as JuiceFS 1.4 writes them: server, socket, Sentinel, Cluster, TLS.

    redis[s]://[user]:[password]@host[:6379]/<db>?option=value&...
    rediss://...                                    TLS, options tls-* and insecure-skip-verify
    redis://master,sentinel1,sentinel2[:26379]/<db> Sentinel: a comma before the first colon
    redis://host1:6379,host2:6379/<db>              Cluster (a single node that is one also counts)
    unix://[user]:[password]@/path?db=<n>           Unix socket

A password that the URL lacks comes from REDIS_PASSWORD, META_PASSWORD or the file that
META_PASSWORD_FILE names; that of the sentinels from SENTINEL_PASSWORD.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from juicepy import urls
from juicepy.errors import Refused

Address = tuple[str, int]  # (host, port); of a Unix socket (path, 0)

_PORT = 6379
_SENTINEL_PORT = 26379
_DURATION = re.compile(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h)")
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

# Options that tune another client's pool, cache or routing: accepted, without effect here.
_IGNORED = frozenset(
    (
        *("client-cache", "client-cache-size", "client-cache-expire", "client-cache-preload"),
        *("route-read", "protocol", "client-name", "max-retries", "pool-fifo", "pool-size"),
        *("pool-timeout", "min-idle-conns", "max-idle-conns", "max-active-conns"),
        *("idle-timeout", "idle-check-frequency", "max-conn-age"),
        *("conn-max-idle-time", "conn-max-lifetime"),
    )
)


@dataclass(frozen=True, slots=True)
class Tls:
    """How the server is verified and the client shown."""

    verify: bool = True
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """Where the database is. `master` is set for Sentinel, `cluster` for several nodes.

    `passwords` are the readings of an ambiguous password, the likeliest first; () is none.
    """

    addresses: tuple[Address, ...]
    db: int = 0
    user: str = ""
    passwords: tuple[str, ...] = field(default=(), repr=False)
    unix: bool = False
    master: str = ""
    sentinel_password: str = field(default="", repr=False)
    cluster: bool = False
    tls: Tls | None = None
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0
    write_timeout_s: float = 5.0
    min_backoff_s: float = 0.020
    max_backoff_s: float = 10.0

    @property
    def where(self) -> str:
        """For messages: addresses only."""
        if self.unix:
            return self.addresses[0][0]
        hosts = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return f"{hosts} (master {self.master})" if self.master else hosts


def parse(url: str, environ: Mapping[str, str] = os.environ) -> RedisUrl:
    """The settings in `url`. Refused (EINVAL) names the part that is malformed."""
    parts = urls.parse(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise Refused(f"{parts.scheme}:// is no Redis URL")
    unix = parts.scheme == "unix"
    options = {name.replace("_", "-"): value for name, value in parts.query.items()}
    addresses, master = (((parts.path, 0),), "") if unix else _addresses(parts.address)
    chosen = options.pop("db", "")
    parsed = RedisUrl(
        addresses,
        db=_database(chosen if unix else chosen or parts.path.strip("/")),
        user=parts.user,
        passwords=parts.passwords or _password(environ),
        unix=unix,
        master=master,
        sentinel_password=environ.get("SENTINEL_PASSWORD", ""),
        cluster=len(addresses) > 1 and not master,
        tls=_tls(options) if parts.scheme == "rediss" else None,
        connect_timeout_s=_seconds(options, "dial-timeout", 5.0),
        read_timeout_s=_seconds(options, "read-timeout", 30.0),
        write_timeout_s=_seconds(options, "write-timeout", 5.0),
        min_backoff_s=_seconds(options, "min-retry-backoff", 0.020),
        max_backoff_s=_seconds(options, "max-retry-backoff", 10.0),
    )
    unknown = sorted(set(options) - _IGNORED)
    if unknown:
        raise Refused(f"unknown option {unknown[0]!r} in META-URL {urls.redact(url)}")
    return parsed


def _addresses(text: str) -> tuple[tuple[Address, ...], str]:
    """(addresses, name of the master if they are sentinels)."""
    first, comma, others = text.partition(",")
    if comma and ":" not in first:
        return tuple(urls.MetaUrl("redis", address=others).hosts(_SENTINEL_PORT)), first
    hosts = urls.MetaUrl("redis", address=text).hosts(_PORT)
    return tuple((host or "localhost", port) for host, port in hosts or [("", _PORT)]), ""


def _tls(options: dict[str, str]) -> Tls:
    return Tls(
        verify=options.pop("insecure-skip-verify", "") in ("", "false", "0"),
        ca_file=options.pop("tls-ca-cert-file", ""),
        cert_file=options.pop("tls-cert-file", ""),
        key_file=options.pop("tls-key-file", ""),
        server_name=options.pop("tls-server-name", ""),
    )


def _password(environ: Mapping[str, str]) -> tuple[str, ...]:
    for name in ("REDIS_PASSWORD", "META_PASSWORD"):
        if environ.get(name):
            return (environ[name],)
    path = environ.get("META_PASSWORD_FILE")
    if not path:
        return ()
    try:
        password = Path(path).read_text().strip()
    except OSError as error:
        raise Refused(f"META_PASSWORD_FILE {path}: {error.strerror}") from error
    return (password,) if password else ()


def _database(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise Refused(f"database {text!r} of META-URL is no number")
    return int(text)


def _seconds(options: dict[str, str], name: str, default: float) -> float:
    """A duration such as 30s, 1m30s, 200ms; a bare number is seconds."""
    text = options.pop(name, "")
    if not text:
        return default
    if text.isascii() and text.isdigit():
        return float(text)
    parts = _DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        raise Refused(f"option {name}={text} of META-URL is no duration")
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
