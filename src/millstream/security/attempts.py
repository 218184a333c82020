"""Failed authentications by address: who guesses passwords has to wait longer and longer.

Each address may fail some times without consequences; failures are forgotten one by one. Beyond
that its authentications take turns, some time apart, whether on one connection or on a thousand:
guessing gets slow, and a client with the right password behind the same address still gets in.
Nobody else waits, and no user is locked out.

Memory is bounded: addresses that have not failed for longest are forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

TOLERATED = 10  # failures of an address without consequences
FAILURES_MAX = TOLERATED + 6  # more are not counted: an address that has stopped soon waits no more
FORGOTTEN_AFTER_MS = 10_000  # each failure
STEP_MIN_MS = 100  # between two authentications, doubled with each failure
STEP_MAX_MS = 5_000
WAIT_MAX_MS = 30_000  # those that would wait longer are refused
ADDRESSES_MAX = 10_000


class TooManyFailures(Exception):
    """So many wait at this address that no more are let in."""


class _Address:
    __slots__ = ("counted_ms", "failures", "free_ms")

    def __init__(self, now_ms: int) -> None:
        self.failures = 0
        self.counted_ms = now_ms  # up to which failures have been forgotten
        self.free_ms = now_ms  # when the next authentication may begin


class FailedAttempts:
    """Times are monotonic."""

    def __init__(self, addresses_max: int = ADDRESSES_MAX) -> None:
        self._addresses: OrderedDict[str, _Address] = OrderedDict()
        self._addresses_max = addresses_max

    def __len__(self) -> int:
        return len(self._addresses)

    def wait_ms(self, host: str, now_ms: int) -> int:
        """Take a turn: how long an authentication from this address has to wait before it begins.
        Raises `TooManyFailures`."""
        address = self._addresses.get(network_of(host))
        if address is None:
            return 0
        self._forget(address, now_ms)
        excess = address.failures - TOLERATED
        if excess <= 0:
            return 0
        begins_ms = max(now_ms, address.free_ms)
        if begins_ms - now_ms > WAIT_MAX_MS:
            raise TooManyFailures
        address.free_ms = begins_ms + min(STEP_MIN_MS << excess, STEP_MAX_MS)
        return begins_ms - now_ms

    def failed(self, host: str, now_ms: int) -> None:
        network = network_of(host)
        address = self._addresses.get(network)
        if address is None:
            if len(self._addresses) >= self._addresses_max:
                self._addresses.popitem(last=False)
            address = self._addresses[network] = _Address(now_ms)
        self._addresses.move_to_end(network)
        self._forget(address, now_ms)
        address.failures = min(address.failures + 1, FAILURES_MAX)

    def succeeded(self, host: str) -> None:
        """Takes back one failure only: a user of this address may be guessing at another's."""
        address = self._addresses.get(network_of(host))
        if address is not None and address.failures:
            address.failures -= 1

    def _forget(self, address: _Address, now_ms: int) -> None:
        past = (now_ms - address.counted_ms) // FORGOTTEN_AFTER_MS
        if past > 0:
            address.failures = max(0, address.failures - past)
            address.counted_ms += past * FORGOTTEN_AFTER_MS


def network_of(host: str) -> str:
    """The address, or for IPv6 the /64 network, which usually belongs to one machine."""
    if ":" not in host:
        return host
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped is not None else address.exploded[:19]
    return host
