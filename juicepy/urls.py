"""URLs of metadata engines, as JuiceFS writes them, with whatever characters a password has.

    redis://[[user]:password@]host[:port][,host...][/db][?options]     rediss:// with TLS
    unix://[[user]:password@]/path/redis.sock[?db=N]
    sqlite3://path[?options]
    mysql://user[:password]@(host[:port])/database[?options]           unix(/path) for a socket
    postgres://user[:password]@host[:port]/database[?options]
    mem://name

The password reaches to the last `@` that an address follows, so it may hold any character. It may
be percent-encoded: where it can be read both ways, `passwords` has the decoded form first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote

from juicepy.errors import Refused

HIDDEN = "****"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_PATH_ONLY = frozenset({"sqlite3", "mem", "badger"})
# what follows the `@`: an address, then nothing, a path or options
_PLACE = re.compile(
    r"(?P<address>[a-z]*\([^()@]*\)|(?:\[[0-9A-Fa-f:.%]*\]|[^/?#@()\[\]\s])*)"
    r"(?:/(?P<path>[^?]*))?(?:\?(?P<query>.*))?",
    re.DOTALL,
)
_WHOLE_PLACE = re.compile(r"[^/?#@\s:]+(?::\d+)?/[^/?#@\s]*\?[A-Za-z][\w-]*=")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")


@dataclass(frozen=True, slots=True)
class MetaUrl:
    """The parts of a metadata URL. `path` is without its leading slash, except of unix://.

    `address` is as written: `host:port`, several with commas, or the inside of parentheses.
    `socket` is the path of a Unix socket (`mysql://user@unix(/path)/db`).
    """

    scheme: str
    user: str = ""
    passwords: tuple[str, ...] = field(default=(), repr=False)
    address: str = ""
    path: str = ""
    query: dict[str, str] = field(default_factory=dict)
    socket: str = ""

    @property
    def password(self) -> str:
        """The likeliest reading; "" if there is none."""
        return self.passwords[0] if self.passwords else ""

    def hosts(self, default_port: int) -> list[tuple[str, int]]:
        """(host, port) of each address. A host without a port has the last one's, as in JuiceFS."""
        found = [_host_port(part.strip()) for part in self.address.split(",") if part.strip()]
        last = found[-1][1] if found and found[-1][1] is not None else default_port
        return [(host, last if port is None else port) for host, port in found]

    @property
    def where(self) -> str:
        """The place for messages: no user, no password."""
        if self.scheme in _PATH_ONLY:
            return f"{self.scheme}://{self.path}"
        slash = "" if self.scheme == "unix" or not self.path else "/"
        return f"{self.scheme}://{self.socket or self.address}{slash}{self.path}"


def parse(url: str) -> MetaUrl:
    """Takes a metadata URL apart; a bare `host:port/db` is Redis. Refused names the bad part."""
    scheme, rest = _split_scheme(url)
    if scheme in _PATH_ONLY:
        path, _, options = rest.partition("?")
        return MetaUrl(scheme, path=path, query=_options(options))
    login, place = _split_login(rest)
    match = _PLACE.fullmatch(place)
    if match is None:
        raise Refused(f"invalid address in META-URL {redact(url)}")
    user, colon, password = login.partition(":")
    address, socket = match["address"], ""
    if address.endswith(")"):
        network, _, inside = address[:-1].partition("(")
        address, socket = ("", inside) if network == "unix" else (inside, "")
    path = match["path"] or ""
    if scheme == "unix":
        path = "/" + path
    query = _options(match["query"] or "")
    passwords = _readings(password) if colon else ()
    found = MetaUrl(scheme, unquote(user), passwords, address, path, query, socket)
    try:
        found.hosts(0)
    except ValueError:
        raise Refused(f"invalid port in META-URL {redact(url)}") from None
    return found


def with_password(url: str, password: str | None) -> str:
    """The URL with `password` put in, if it names no password itself and can have one."""
    scheme, rest = _split_scheme(url)
    if not password or scheme in _PATH_ONLY:
        return url
    login, place = _split_login(rest)
    user, _, own = login.partition(":")
    return url if own else f"{scheme}://{user}:{quote(password, safe='')}@{place}"


def redact(url: str) -> str:
    """The URL with `****` for its password; also of an object store's URL with keys in it."""
    match = _SCHEME.fullmatch(url)
    if match is None or match[1].lower() in _PATH_ONLY:
        return url
    login, place = _split_login(match[2])
    if not login:
        return url
    user, colon, _ = login.partition(":")
    return f"{match[1]}://{user}{colon + HIDDEN if colon else ''}@{place}"


def secrets_of(url: str) -> list[str]:
    """Every form in which the URL's password might be printed."""
    match = _SCHEME.fullmatch(url)
    if match is None or match[1].lower() in _PATH_ONLY:
        return []
    raw = _split_login(match[2])[0].partition(":")[2]
    return sorted({raw, unquote(raw), quote(unquote(raw), safe="")} - {""}, key=len, reverse=True)


def _split_scheme(url: str) -> tuple[str, str]:
    match = _SCHEME.fullmatch(url)
    if match is None:
        if not url or url.startswith(("/", ".")):
            raise Refused(f"META-URL {url!r} has no scheme, as in redis://host or sqlite3://file")
        return "redis", url
    return match[1].lower(), match[2]


def _split_login(rest: str) -> tuple[str, str]:
    """(user:password, what follows the `@`): the split is at the last `@` an address follows.

    But an `@` inside the options of a whole place (`host/db?name=value`) belongs to the value.
    """
    chosen = "", rest
    for cut in range(len(rest) - 1, -1, -1):
        if rest[cut] == "@" and (":" in rest[:cut] or "/" not in rest[:cut]):
            place = rest[cut + 1 :]
            if _PLACE.fullmatch(place) and (chosen == ("", rest) or _WHOLE_PLACE.match(place)):
                chosen = rest[:cut], place
    return ("", rest) if _WHOLE_PLACE.match(rest) else chosen


def _options(text: str) -> dict[str, str]:
    return dict(parse_qsl(text, keep_blank_values=True))


def _readings(password: str) -> tuple[str, ...]:
    """The password decoded, and as it stands where that differs. Empty: no password."""
    if not password:
        return ()
    if password.count("%") != len(_ENCODED.findall(password)) or "%" not in password:
        return (password,)
    return unquote(password), password


def _host_port(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::(\d+))?", text)
    if match is None or (match[2] and int(match[2]) > 65535):
        raise ValueError(text)
    return match[1].strip("[]"), int(match[2]) if match[2] else None
