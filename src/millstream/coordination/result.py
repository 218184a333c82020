"""What a state machine answers: records to write, a response, timers to set.

A coordinator never changes its state while it decides. It returns the records that *would* change
it; the shell appends them to the shard's partition of the internal topic, replays them into the
state, and lets the response go once they are below the high watermark. A restart replays the same
records from the log, so there is one path into every state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class CoordinatorRecord:
    """One record of an internal topic, as dataclasses; `value=None` is a tombstone."""

    key: Any
    value: Any | None


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call the shard's `handle_timer(name, now_ms)` at `deadline_ms`; replaces one of that name."""

    name: tuple[str, ...]
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    name: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A response to a request that had to wait (JoinGroup, SyncGroup): `token` names the waiter."""

    token: object
    response: Any


@dataclass(frozen=True, slots=True)
class Result(Generic[Response]):
    """The outcome of one event.

    `response` is None when the request waits: the shell keeps it under the token it passed in,
    until some later result carries an `Answer` for that token.
    """

    records: tuple[CoordinatorRecord, ...] = ()
    response: Response | None = None
    answers: tuple[Answer, ...] = ()
    timers: tuple[SetTimer | CancelTimer, ...] = field(default=())
