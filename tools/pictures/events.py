"""The twelve events: of ann and bob, in the order in which they come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
DELAY = "5 minutes"  # of the watermark


class Event(NamedTuple):
    number: int
    user: str
    kind: str  # joins take views and buys for two streams
    minute: int  # after noon, when it happened
    amount: int

    @property
    def time(self) -> datetime:
        return at(self.minute)


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


def minute_of(time: datetime) -> float:
    """Of what Spark hands out in a session whose time zone is UTC."""
    minutes = (time.astimezone(UTC) - NOON) / timedelta(minutes=1)
    return int(minutes) if minutes == int(minutes) else round(minutes, 3)


EVENTS = (
    Event(1, "ann", "view", 2, 3),
    Event(2, "bob", "buy", 4, 5),
    Event(3, "ann", "buy", 8, 2),
    Event(4, "ann", "view", 9, 4),
    Event(5, "bob", "view", 12, 6),
    Event(6, "ann", "view", 5, 1),  # out of order, and in time
    Event(7, "bob", "buy", 16, 3),
    Event(8, "ann", "buy", 22, 7),
    Event(9, "ann", "view", 7, 5),  # a straggler
    Event(10, "bob", "view", 24, 2),
    Event(11, "bob", "buy", 33, 4),
    Event(12, "ann", "view", 26, 8),
)


class Clock(NamedTuple):
    """What a device's clock does to the times that it tells."""

    fast_minutes: int


CLOCKS = {"ann": Clock(-6), "bob": Clock(4)}
SENT_AFTER_MINUTES = 2
UNDER_WAY_MINUTES = 1
HELD_BACK = {9: 9}  # events that were sent, and came this much later

# The rows of the picture of patterns, one every minute.
PAYMENTS = (6, 3, 5, 4, 4, 1, 8, 5, 1)
