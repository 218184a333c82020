"""Failed authentications by address: who guesses passwords has to wait longer and longer.

Each address may fail some times without consequences; failures are forgotten one by one. Beyond
that its guesses take turns, some time apart, whether on one connection or on a thousand. A guess is
any token that a password can be tried with (`SaslExchange.guess_at`), also if it is right. Other
addresses do not wait. Nor do users who have logged in from this address before, until they fail
that often themselves: guessing there cannot keep them out.

Memory is bounded: addresses that have not failed for longest are forgotten first, and so are users
who have not logged in for longest.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address

from millstream.security.networks import parse_address

TOLERATED = 10  # failures of an address without consequences
FAILURES_MAX = TOLERATED + 6  # more are not counted: an address that has stopped soon waits no more
FORGOTTEN_AFTER_MS = 10_000  # each failure
STEP_MIN_MS = 100  # between two authentications, doubled with each failure
STEP_MAX_MS = 5_000
WAIT_MAX_MS = 30_000  # those that would wait longer are refused
ADDRESSES_MAX = 10_000
USERS_MAX = 10_000  # who have logged in, each at one address


class TooManyFailures(Exception):
    """So many wait at this address that no more are let in."""


class _Failures:
    """Of an address, or of a user there."""

    __slots__ = ("_count", "_counted_ms", "free_ms")

    def __init__(self, now_ms: int) -> None:
        self._count = 0
        self._counted_ms = now_ms  # up to which failures have been forgotten
        self.free_ms = now_ms  # when the next guess may be answered

    def count(self, now_ms: int) -> int:
        past = (now_ms - self._counted_ms) // FORGOTTEN_AFTER_MS
        if past > 0:
            self._count = max(0, self._count - past)
            self._counted_ms += past * FORGOTTEN_AFTER_MS
        return self._count

    def add(self, now_ms: int) -> None:
        self._count = min(self.count(now_ms) + 1, FAILURES_MAX)


class FailedAttempts:
    """Times are monotonic."""

    def __init__(self, addresses_max: int = ADDRESSES_MAX, users_max: int = USERS_MAX) -> None:
        self._addresses: OrderedDict[str, _Failures] = OrderedDict()
        self._addresses_max = addresses_max
        self._users: OrderedDict[tuple[str, str], _Failures] = OrderedDict()  # who have logged in
        self._users_max = users_max

    def __len__(self) -> int:
        return len(self._addresses)

    def wait_ms(self, host: str, user: str, now_ms: int) -> int:
        """Take a turn: how long a guess at this user's password has to wait for its answer.
        Raises `TooManyFailures`."""
        network = network_of(host)
        address = self._addresses.get(network)
        if address is None:
            return 0
        excess = address.count(now_ms) - TOLERATED
        if excess <= 0 or self._is_welcome(network, user, now_ms):
            return 0
        begins_ms = max(now_ms, address.free_ms)
        if begins_ms - now_ms > WAIT_MAX_MS:
            raise TooManyFailures
        # Those that wait will probably fail too: so each turn is as long as the wait before it.
        step_ms = max(STEP_MIN_MS << excess, begins_ms - now_ms)
        address.free_ms = begins_ms + min(step_ms, STEP_MAX_MS)
        return begins_ms - now_ms

    def _is_welcome(self, network: str, user: str, now_ms: int) -> bool:
        failures = self._users.get((network, user))
        return failures is not None and failures.count(now_ms) < TOLERATED

    def failed(self, host: str, user: str, now_ms: int) -> None:
        network = network_of(host)
        address = self._addresses.get(network)
        if address is None:
            if len(self._addresses) >= self._addresses_max:
                self._addresses.popitem(last=False)
            address = self._addresses[network] = _Failures(now_ms)
        self._addresses.move_to_end(network)
        address.add(now_ms)
        if (failures := self._users.get((network, user))) is not None:
            failures.add(now_ms)

    def succeeded(self, host: str, user: str, now_ms: int) -> None:
        """Takes back no failure: somebody with a password of their own may guess at others'."""
        key = network_of(host), user
        if key in self._users:
            self._users.move_to_end(key)
            return
        if len(self._users) >= self._users_max:
            self._users.popitem(last=False)
        self._users[key] = _Failures(now_ms)


def network_of(host: str) -> str:
    """The address, or for IPv6 the /64 network, which usually belongs to one machine."""
    if ":" not in host:
        return host
    address = parse_address(host)
    if address is None:
        return host
    return address.exploded[:19] if isinstance(address, IPv6Address) else str(address)
