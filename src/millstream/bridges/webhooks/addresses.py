"""Which addresses webhooks may go to.

The address of an endpoint comes from somebody else: by default only addresses of the public
internet are called, so that no endpoint makes the bridge call a machine of its own network (SSRF).
The check is made on the addresses that a name resolves to, with each request, and the request goes
to the address that was checked: a name that resolves to another address a moment later gains
nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable

from millstream.errors import MillstreamError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_6TO4 = ipaddress.IPv6Network("2002::/16")
_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")  # what is assigned to the public internet
_COMPATIBLE = ipaddress.IPv6Network("::/96")


class RefusedAddress(MillstreamError):
    """An endpoint at an address that may not be called."""


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(it[4][0]) for it in found))


def check_addresses(
    host: str,
    port: int,
    allow: Iterable[Network],
    lookup: Callable[[str, int], list[str]] = resolve,
) -> list[str]:
    """The addresses of an endpoint; raises `RefusedAddress` if one of them may not be called."""
    found = lookup(host, port)
    allowed = tuple(allow)
    for text in found:
        if not is_allowed(ipaddress.ip_address(text.partition("%")[0]), allowed):
            raise RefusedAddress(
                f"{host} is {text}, which is not a public address; add its network to `allow` if "
                "it may be called"
            )
    if not found:
        raise RefusedAddress(f"{host} has no address")
    return found


def is_allowed(address: Address, allow: Iterable[Network]) -> bool:
    """Whether an address is public, or in one of the networks. An IPv4 address within an IPv6
    address counts as what it is."""
    inner = embedded(address)
    if is_listed(address, allow):
        return True
    if isinstance(inner, ipaddress.IPv6Address) and inner not in _PUBLIC_6:
        return False  # also forms of IPv4 addresses that are not known here
    return all(it.is_global and not it.is_multicast for it in (address, inner))


def is_listed(address: Address, allow: Iterable[Network]) -> bool:
    """Whether an address is in one of the networks."""
    return any(it in network for network in allow for it in (address, embedded(address)))


def embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, or the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    number = int(address)
    if address in _NAT64 or address in _COMPATIBLE:
        return ipaddress.IPv4Address(number & 0xFFFFFFFF)
    if address in _6TO4:
        return ipaddress.IPv4Address(number >> 80 & 0xFFFFFFFF)
    return address
