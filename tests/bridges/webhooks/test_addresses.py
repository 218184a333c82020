"""Which addresses webhooks may go to."""

from __future__ import annotations

import ipaddress

import pytest

from millstream.bridges.webhooks.addresses import (
    RefusedAddress,
    check_addresses,
    embedded,
    is_allowed,
)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0",
        "100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1",
        "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::1", "::127.0.0.1",
        "64:ff9b:1::7f00:1", "fec0::1", "::ffff:0:127.0.0.1", "4000::1",
    ],
)  # fmt: skip
def test_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_allowed(ipaddress.ip_address(address), [])
    with pytest.raises(RefusedAddress, match="not a public address"):
        check_addresses("endpoint.example", 443, [], lambda *_: [address])


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_address_is_called(address: str) -> None:
    assert check_addresses("endpoint.example", 443, [], lambda *_: [address]) == [address]


def test_one_private_address_among_others_is_refused() -> None:
    with pytest.raises(RefusedAddress):
        check_addresses("a.example", 443, [], lambda *_: ["8.8.8.8", "127.0.0.1"])
    with pytest.raises(RefusedAddress, match="no address"):
        check_addresses("a.example", 443, [], lambda *_: [])


def test_network_can_be_allowed() -> None:
    assert is_allowed(ipaddress.ip_address("fec0::1"), [ipaddress.ip_network("fec0::/10")])
    allow = [ipaddress.ip_network("10.0.0.0/8")]
    assert is_allowed(ipaddress.ip_address("10.1.2.3"), allow)
    assert is_allowed(ipaddress.ip_address("::ffff:10.1.2.3"), allow)
    assert not is_allowed(ipaddress.ip_address("127.0.0.1"), allow)


def test_names_of_this_machine_resolve_and_are_refused() -> None:
    with pytest.raises(RefusedAddress):
        check_addresses("localhost", 80, [])
    assert str(embedded(ipaddress.ip_address("2002:7f00:1::"))) == "127.0.0.1"
