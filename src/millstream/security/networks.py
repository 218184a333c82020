"""Networks of addresses, as `10.0.0.0/8` or `2001:db8::/32`, and whether an address is in one."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

Network: TypeAlias = IPv4Network | IPv6Network
Address: TypeAlias = IPv4Address | IPv6Address


def parse_address(host: str) -> Address | None:
    """None if it is not an address. An IPv4 address that is written as IPv6 is IPv4."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it; of names, that is known of `localhost` alone."""
    address = parse_address(host)
    return host == "localhost" if address is None else address.is_loopback


class Networks:
    """A set of addresses and networks."""

    __slots__ = ("_networks",)

    def __init__(self, texts: Iterable[str]) -> None:
        """Raises `ValueError` that names the one that is wrong."""
        self._networks = tuple(_parse(text) for text in texts)

    def __contains__(self, host: object) -> bool:
        if not self._networks:
            return False
        address = parse_address(str(host))
        return address is not None and any(address in network for network in self._networks)


def _parse(text: str) -> Network:
    try:
        return ip_network(text.strip())
    except ValueError as error:
        raise ValueError(f"{text.strip()!r} is not an address or a network: {error}") from None
