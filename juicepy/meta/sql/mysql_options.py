"""Options of a `mysql://` URL, named as the real client's driver names them, for PyMySQL."""

from __future__ import annotations

import re
import ssl
from typing import Any

from juicepy.errors import Refused

CONNECT_TIMEOUT_S = 10
IO_TIMEOUT_S = 120  # longer than the server waits for a lock

# of the real client's driver, without a meaning here
_IGNORED = frozenset(
    (
        "allowAllFiles",
        "allowCleartextPasswords",
        "allowFallbackToPlaintext",
        "allowNativePasswords",
        "allowOldPasswords",
        "checkConnLiveness",
        "clientFoundRows",
        "collation",
        "columnsWithAlias",
        "connectionAttributes",
        "interpolateParams",
        "loc",
        "maxAllowedPacket",
        "multiStatements",
        "parseTime",
        "rejectReadOnly",
        "transaction_isolation",
        "tx_isolation",
    )
)


def driver_options(options: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Arguments of the driver, and session variables: what is no known option, as in JuiceFS."""
    own: dict[str, Any] = {
        "charset": options.get("charset", "utf8mb4").split(",")[0],
        "connect_timeout": _seconds(options.get("timeout", ""), CONNECT_TIMEOUT_S),
        "read_timeout": _seconds(options.get("readTimeout", ""), IO_TIMEOUT_S),
        "write_timeout": _seconds(options.get("writeTimeout", ""), IO_TIMEOUT_S),
    }
    tls = options.get("tls", "false").lower()
    if tls in ("true", "1", "skip-verify"):
        own["ssl"] = ssl.create_default_context()
        if tls == "skip-verify":
            own["ssl"].check_hostname = False
            own["ssl"].verify_mode = ssl.CERT_NONE
    elif tls not in ("false", "0", "preferred", ""):
        raise Refused(f"invalid tls {tls!r} in META-URL")
    known = _IGNORED | {"charset", "timeout", "readTimeout", "writeTimeout", "tls"}
    session = []
    for name, value in options.items():
        if name in known:
            continue
        if not re.fullmatch(r"\w+", name) or not re.fullmatch(r"[\w.+-]*|'[^'\\]*'", value):
            raise Refused(f"invalid option {name} in META-URL")
        session.append(f"{name}={value}")
    return own, session


def _seconds(text: str, default: int) -> int:
    """A duration such as 30s, 500ms or 1m, in whole seconds, at least one."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
    if not match:
        return default
    unit = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]
    return max(1, round(float(match[1]) * unit))
