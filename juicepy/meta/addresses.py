"""The addresses of this host, as a session's record tells them (Linux)."""

from __future__ import annotations

import fcntl
import ipaddress
import logging
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_IF_INET6 = Path("/proc/net/if_inet6")


def addresses(interfaces: Sequence[str] = ()) -> list[str]:
    """IPv4, then IPv6 addresses of the interfaces (none given: all), without the loopback."""
    try:
        names = [name for _, name in socket.if_nameindex()]
        found = [each for name in _chosen(names, interfaces) for each in _ipv4(name)]
        found += list(_ipv6(interfaces))
    except OSError as error:
        logger.debug("addresses of this host: %s", error)
        return []
    return [each for each in found if not ipaddress.ip_address(each).is_loopback]


def _chosen(names: Sequence[str], interfaces: Sequence[str]) -> list[str]:
    return [name for name in names if not interfaces or name in interfaces]


def _ipv4(name: str) -> list[str]:
    """The first address of an interface; of one that is down or has none, nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("256s", name.encode()[:15])
        try:
            answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)
        except OSError as error:
            logger.debug("%s has no IPv4 address: %s", name, error)
            return []
    return [socket.inet_ntoa(answer[20:24])]


def _ipv6(interfaces: Sequence[str]) -> Iterator[str]:
    """Lines are: address in hex, index, prefix, scope, flags, name."""
    if not _IF_INET6.exists():
        return
    for line in _IF_INET6.read_text().splitlines():
        digits, _, _, _, _, name = line.split()
        if _chosen([name], interfaces):
            yield str(ipaddress.IPv6Address(int(digits, 16)))
