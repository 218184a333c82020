"""What is missing between the numbers of each sender.

Pure. ZeroMQ keeps the order of a connection, so a number that is skipped is not coming. After a
reconnection, messages of the connection before may still be read: a number that comes late is
written and counted, though it may be in a gap.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

SENDERS_MAX = 10_000  # the one that was quiet for longest is forgotten

SKIPPED = "not received"
BEFORE = "sent before the first that was received"


class Gap(NamedTuple):
    """Messages of a sender that are not in the topic."""

    sender: bytes
    first: int
    last: int
    reason: str

    @property
    def lost(self) -> int:
        return self.last - self.first + 1


class Numbers:
    """The next number of each sender."""

    def __init__(self, last: Mapping[bytes, int] | None = None) -> None:
        """Continues after the numbers that were received before, if they are known."""
        self._next = OrderedDict((sender, number + 1) for sender, number in (last or {}).items())
        self.late = 0

    def take(self, sender: bytes, number: int) -> Gap | None:
        """A message came; what is missing before it."""
        if number < self._next.get(sender, 0):
            self.late += 1
            return None
        return self._advance(sender, number, number + 1)

    def hear(self, sender: bytes, following: int) -> Gap | None:
        """A heartbeat came, with the number that follows; what is missing before that."""
        if following < self._next.get(sender, 0):
            return None
        return self._advance(sender, following, following)

    def _advance(self, sender: bytes, number: int, following: int) -> Gap | None:
        is_known = sender in self._next
        expected = self._next.get(sender, 0)
        self._next[sender] = following
        self._next.move_to_end(sender)
        if len(self._next) > SENDERS_MAX:
            self._next.popitem(last=False)
        if number == expected:
            return None
        return Gap(sender, expected, number - 1, SKIPPED if is_known else BEFORE)
