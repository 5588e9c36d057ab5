"""What a metadata URL tells about an SQL database (its parts are taken apart by `juicepy.urls`).

    sqlite3://PATH[?options]
    mysql://USER:PASSWORD@(HOST:PORT)/DB[?options]    also @tcp(..), @unix(/SOCKET), @HOST:PORT
    postgres://USER:PASSWORD@HOST:PORT/DB[?options]   also postgresql://, ?host=/SOCKET/DIRECTORY

Options of the client, as in JuiceFS 1.4: table_prefix, max_open_conns, max_idle_conns,
max_life_time, max_idle_time; all others go to the driver (`drivers.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from juicepy import urls
from juicepy.errors import Refused

DIALECTS = {
    "sqlite3": "sqlite",
    "mysql": "mysql",
    "postgres": "postgresql",
    "postgresql": "postgresql",
}
_PORTS = {"mysql": 3306, "postgresql": 5432}


@dataclass(frozen=True, slots=True)
class SqlUrl:
    """Where a database is. `where` names it in messages and never tells the password."""

    scheme: str  # "sqlite3", "mysql", "postgres"
    dialect: str  # as SQLAlchemy calls it
    database: str  # name, or path of the file
    user: str = ""
    passwords: tuple[str, ...] = field(default=("",), repr=False)  # to be tried in this order
    host: str = ""
    port: int = 0
    socket: str = ""
    table_prefix: str = "jfs_"
    max_open: int = 0  # connections, 0: no limit
    max_idle: int = 0  # connections kept, 0: by the number of CPUs
    max_life_s: int = 0
    options: dict[str, str] = field(default_factory=dict)  # of the driver

    @property
    def where(self) -> str:
        if self.dialect == "sqlite":
            return f"{self.scheme}://{self.database}"
        at = f"unix({self.socket})" if self.socket else f"{self.host}:{self.port}"
        return f"{self.scheme}://{self.user}@{at}/{self.database}"


def parse(url: str) -> SqlUrl:
    """Raises OSError(EINVAL) that names the part which is wrong, without the password."""
    parts = urls.parse(url)
    dialect = DIALECTS.get(parts.scheme)
    if dialect is None:
        raise Refused(f"{parts.scheme}:// is not an SQL database")
    if not parts.path:
        what = "path" if dialect == "sqlite" else "database name"
        raise Refused(f"no {what} in META-URL {urls.redact(url)}")
    options = dict(parts.query)
    prefix = options.pop("table_prefix", "")
    if not re.fullmatch(r"\w*", prefix):
        raise Refused(f"invalid table_prefix {prefix!r} in META-URL")
    options.pop("max_idle_time", None)  # a stale connection is found when it is used
    socket, host, port = parts.socket, "", 0
    if dialect != "sqlite":
        if options.get("host", "").startswith("/"):
            socket = options.pop("host")
        found = parts.hosts(_PORTS[dialect]) or [("", _PORTS[dialect])]
        host, port = found[0][0] or options.pop("host", "127.0.0.1"), found[0][1]
    return SqlUrl(
        scheme="postgres" if dialect == "postgresql" else parts.scheme,
        dialect=dialect,
        database=parts.path.removeprefix("file:") if dialect == "sqlite" else parts.path,
        user=parts.user,
        passwords=parts.passwords or ("",),
        host=host,
        port=port,
        socket=socket,
        table_prefix=f"jfs_{prefix}_" if prefix else "jfs_",
        max_open=_number(options, "max_open_conns"),
        max_idle=_number(options, "max_idle_conns"),
        max_life_s=_number(options, "max_life_time"),
        options=options,
    )


def _number(options: dict[str, str], name: str) -> int:
    text = options.pop(name, "0")
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise Refused(f"invalid {name} {text!r} in META-URL")
    return int(text)
