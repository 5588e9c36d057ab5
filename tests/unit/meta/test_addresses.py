"""Addresses of this host for the record of a session."""

import ipaddress
import socket

from juicepy.meta.addresses import addresses


def test_addresses_are_valid_and_without_the_loopback() -> None:
    for each in addresses():
        assert not ipaddress.ip_address(each).is_loopback


def test_interfaces_can_be_chosen() -> None:
    names = [name for _, name in socket.if_nameindex()]
    assert addresses(["nosuch0"]) == []
    assert sorted(each for name in names for each in addresses([name])) == sorted(addresses())
