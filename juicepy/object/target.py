"""Where a driver is to look and with which keys: the argument of every driver's `open_`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from juicepy.errors import Refused


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """What this client chose about its drivers; none of it is stored in the volume."""

    get_timeout_s: float = 60.0
    put_timeout_s: float = 60.0
    storage_class: str = ""
    region: str = ""
    vhost_style: bool = False
    connection_string: str = field(default="", repr=False)
    gs_endpoint: str = ""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> DriverSettings:
        """The settings that JuiceFS takes from its environment; `cmd/` passes `os.environ`."""
        return cls(
            region=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION", ""),
            vhost_style=bool(environ.get("JFS_S3_VHOST_STYLE")),
            connection_string=environ.get("AZURE_STORAGE_CONNECTION_STRING", ""),
            gs_endpoint=environ.get("STORAGE_EMULATOR_HOST", ""),
        )


@dataclass(frozen=True, slots=True)
class Target:
    """A bucket as `--bucket` names it, and the keys to it (all empty: the cloud's own chain)."""

    kind: str
    bucket: str
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    settings: DriverSettings = DriverSettings()


@dataclass(frozen=True, slots=True)
class BucketUrl:
    """`--bucket` taken apart. `host` includes the port; without a scheme it is https."""

    scheme: str
    host: str
    path: str
    query: dict[str, list[str]]


def parse_bucket(bucket: str, scheme: str = "https") -> BucketUrl:
    """Take a bucket URL apart; `scheme` is for one that has none."""
    parts = urlsplit(bucket if "://" in bucket else f"{scheme}://{bucket}")
    host = parts.netloc.rpartition("@")[2]
    if not host:
        raise Refused(f"--bucket: no host or bucket name in {bucket!r}")
    query = parse_qs(parts.query, keep_blank_values=True)
    return BucketUrl(parts.scheme, host, parts.path.strip("/"), query)
