"""Limits on the memory of responses: in total and per connection.

A response waits in memory until the client has read it. A connection handles its next request only
while less than its `allowance` waits for its client:

    allowance = (bytes_max - held by all) / 8, at most connection_bytes_max, at least MINIMUM_BYTES

So the connections that come first cannot take everything: whatever they hold, an eighth of the
rest is there for the next one (the dynamic thresholds of switches with shared memory). The minimum
keeps the broker free of deadlocks: a client that reads gets one response at a time even while
clients that do not read hold all the rest. A client whose responses have all been sent is never
held back.

A fetch asks for its allowance before it reads, so a response exceeds it by one batch at the most.
A range of a file counts like memory until it is sent: what the socket does not take is read.
All responses together take at most `bytes_max` and, for every connection, the minimum or one batch.
"""

from __future__ import annotations

MINIMUM_BYTES = 64 * 1024
ALLOWANCE_DIVISOR = 8


class ResponseMemory:
    """Counts the bytes of responses that clients have not read, over all connections."""

    __slots__ = ("_bytes_max", "_connection_bytes_max", "allowance", "held_bytes")

    def __init__(self, bytes_max: int, connection_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._connection_bytes_max = connection_bytes_max
        self.held_bytes = 0
        self.allowance = 0  # how many bytes may wait for one client
        self.add(0)

    def add(self, size_bytes: int) -> None:
        """Count more bytes, or fewer."""
        self.held_bytes += size_bytes
        # Computed here because it is read for every request and changes only for slow clients.
        share = (self._bytes_max - self.held_bytes) // ALLOWANCE_DIVISOR
        self.allowance = max(MINIMUM_BYTES, min(self._connection_bytes_max, share))

    @property
    def is_short(self) -> bool:
        """Whether it is time to close connections whose clients do not read."""
        return self.held_bytes * 2 > self._bytes_max
