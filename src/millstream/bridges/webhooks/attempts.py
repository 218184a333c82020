"""Requests of webhooks, what an answer means, and when an endpoint is left alone for a while. Pure.

A delivery is two requests at most, the second 5 s after the first. If both fail, the record is
released, and the broker delivers it again after its back-off: 5 min, doubled each time, up to a
day. After ten deliveries, 42 hours later, it is a dead letter.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable
from dataclasses import dataclass

from millstream.bridges.http import cloudevents
from millstream.bridges.http.signatures import ID, SIGNATURE, TIMESTAMP, sign

AGAIN_SECONDS = 5.0
FAILURES_BEFORE_PAUSE = 5
PAUSE_SECONDS = 5.0
PAUSE_SECONDS_MAX = 300.0
RETRY_AFTER_SECONDS_MAX = 3600.0
_OVERLOADED = (429, 502, 503, 504)


class Outcome(enum.Enum):
    """What an answer means."""

    ACCEPTED = "accepted"
    FAILED = "failed"
    OVERLOADED = "overloaded"
    GONE = "gone"  # 410: the endpoint wants no more


@dataclass(frozen=True)
class Answer:
    """The status of an answer, or the error in place of one."""

    status: int = 0
    retry_after: str = ""
    error: str = ""


@dataclass(frozen=True)
class Delivery:
    """A record that goes to an endpoint."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def id(self) -> str:
        """The same with each attempt: receivers recognize repeats by it."""
        return f"{self.topic}-{self.partition}-{self.offset}"


def request_headers(delivery: Delivery, keys: list[bytes], now: int, format: str) -> dict[str, str]:
    """The headers of one attempt, signed for its time."""
    if format == "cloudevents":
        found = cloudevents.request_headers(
            delivery.topic,
            delivery.partition,
            delivery.offset,
            delivery.timestamp_ms,
            delivery.headers,
        )
    else:
        found = {"content-type": content_type(delivery.headers)}
    return found | {
        "user-agent": "millstream",
        ID: delivery.id,
        TIMESTAMP: str(now),
        SIGNATURE: sign(keys, delivery.id, now, delivery.value),
    }


def content_type(headers: Iterable[tuple[str, bytes | None]]) -> str:
    given = next((value for name, value in headers if name.lower() == "content-type"), None)
    text = (given or b"").decode("latin-1")
    return text if text and all(" " <= it <= "~" for it in text) else "application/json"


def judge(answer: Answer) -> Outcome:
    """2xx is success. Redirections are failures: they could lead anywhere."""
    if 200 <= answer.status < 300:
        return Outcome.ACCEPTED
    if answer.status == 410:
        return Outcome.GONE
    return Outcome.OVERLOADED if answer.status in _OVERLOADED else Outcome.FAILED


class Circuit:
    """Leaves an endpoint alone after failures in a row: 5 s, doubled up to 5 min, or as long as the
    endpoint asks for. Time is passed in."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._failures = 0
        self._until = 0.0

    @property
    def failures(self) -> int:
        """In a row."""
        return self._failures

    def note(self, outcome: Outcome, answer: Answer, now: float) -> bool:
        """Take an outcome into account; returns whether the endpoint is paused by it."""
        if outcome is Outcome.ACCEPTED:
            self._failures, self._until = 0, 0.0
            return False
        self._failures += 1
        pause = 0.0
        if self._failures >= FAILURES_BEFORE_PAUSE:
            doubled = PAUSE_SECONDS * 2.0 ** min(self._failures - FAILURES_BEFORE_PAUSE, 10)
            pause = min(doubled, PAUSE_SECONDS_MAX) * self._random.uniform(0.8, 1.2)
        if outcome is Outcome.OVERLOADED:
            pause = max(pause, PAUSE_SECONDS, _asked_for(answer.retry_after))
        if pause == 0.0:
            return False
        self._until = max(self._until, now + pause)
        return True

    def wait_seconds(self, now: float) -> float:
        """How long the endpoint is left alone from now on."""
        return max(0.0, self._until - now)


def _asked_for(retry_after: str) -> float:
    """Retry-After in seconds; dates are not worth their parsing."""
    if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 10:
        return min(float(retry_after), RETRY_AFTER_SECONDS_MAX)
    return 0.0
