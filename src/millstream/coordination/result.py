"""The result of a state machine: records to write, a response, timers to set.

A coordinator never changes its state while it decides. It returns the records that *would* change
it; the runtime appends them to the shard's partition of the internal topic, replays them into the
state, and lets the response go once they are below the high watermark. A restart replays the same
records from the log, so there is one path into every state.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    """A response to a waiting request (JoinGroup, SyncGroup), identified by `token`."""

    token: object
    response: Any


@dataclass(frozen=True, slots=True)
class Result(Generic[Response]):
    """The outcome of one event.

    `response` is None when the request waits: the runtime keeps it under the token it passed in,
    until some later result carries an `Answer` for that token.
    """

    records: tuple[CoordinatorRecord, ...] = ()
    response: Response | None = None
    answers: tuple[Answer, ...] = ()
    timers: tuple[SetTimer | CancelTimer, ...] = field(default=())


class ResultBuilder:
    """Collects what an event brings about, over several helper methods."""

    def __init__(self) -> None:
        self._records: list[CoordinatorRecord] = []
        self._answers: list[Answer] = []
        self._timers: list[SetTimer | CancelTimer] = []

    def write(self, key: Any, value: Any | None) -> None:
        self._records.append(CoordinatorRecord(key, value))

    def extend(self, records: tuple[CoordinatorRecord, ...]) -> None:
        self._records.extend(records)

    def answer(self, token: object, response: Any) -> None:
        self._answers.append(Answer(token, response))

    def set_timer(self, name: tuple[str, ...], deadline_ms: int) -> None:
        self._timers.append(SetTimer(name, deadline_ms))

    def cancel_timer(self, name: tuple[str, ...]) -> None:
        self._timers.append(CancelTimer(name))

    def result(self, response: Response | None = None) -> Result[Response]:
        return Result(tuple(self._records), response, tuple(self._answers), tuple(self._timers))


def combine(results: Iterable[Result[Any]]) -> Result[None]:
    """Several results as one, in order; their responses are dropped."""
    parts = list(results)
    return Result(
        records=tuple(record for part in parts for record in part.records),
        answers=tuple(answer for part in parts for answer in part.answers),
        timers=tuple(timer for part in parts for timer in part.timers),
    )
