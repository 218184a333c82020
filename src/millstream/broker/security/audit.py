"""The audit: who did what, or was refused it, and who failed to authenticate.

Events go to the logger `kafka.authorizer.logger`, as Kafka's do (denied: INFO, allowed: DEBUG), and
with `millstream.audit.log` to a file or a topic, as JSON:

    {"time": "2026-01-31T12:00:00.000Z", "event": "authorization", "broker": 1, "count": 3,
     "principal": "User:alice", "host": "10.0.0.7", "operation": "WRITE", "resourceType": "TOPIC",
     "resourceName": "orders", "allowed": false}
    {"time": ..., "event": "authentication", "broker": 1, "count": 1, "host": "10.0.0.7",
     "listener": "SASL_SSL", "mechanism": "PLAIN", "principal": null, "reason": ...}
    {"time": ..., "event": "dropped", "broker": 1, "count": 120}

Nothing waits for the audit. Equal events of one interval are one line with their count and the time
of the first. If there are more different ones than `EVENTS_MAX`, or a batch of them cannot be
written, they are dropped, and how many is written as soon as possible.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from millstream.errors import MillstreamError
from millstream.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from millstream.broker.tasks import Tasks
    from millstream.clock import Clock

logger = logging.getLogger(__name__)
audit_logger = logging.getLogger("kafka.authorizer.logger")

INTERVAL_SECONDS = 0.5
NAME_LENGTH_MAX = 512  # clients choose the names that they ask for, and their own
BATCH_BYTES_MAX = 512 * 1024  # of lines that are written at once
CLOSE_SECONDS_MAX = 5.0
EVENTS_MAX = 5_000  # different ones in an interval, or while the last ones are being written
# Reading the audit's own topic is not recorded: each event would be another.
_READING = (Operation.READ, Operation.DESCRIBE)

Line: TypeAlias = tuple[bytes, int]
"""With the number of events in it."""

Write: TypeAlias = Callable[[list[bytes]], Awaitable[None]]
"""Appends lines. Raises `OSError` or `MillstreamError`."""


class Decision(NamedTuple):
    """A decision of the authorizer."""

    principal: str
    host: str
    operation: int
    resource_type: int
    resource_name: str
    allowed: bool

    def fields(self) -> dict[str, Any]:
        return {
            "principal": self.principal,
            "host": self.host,
            "operation": Operation(self.operation).name,
            "resourceType": ResourceType(self.resource_type).name,
            "resourceName": self.resource_name,
            "allowed": self.allowed,
        }

    def text(self) -> str:
        """Kafka's words."""
        kind = ResourceType(self.resource_type).name.title().replace("_", "")
        return (
            f"Principal = {self.principal} is {'Allowed' if self.allowed else 'Denied'} "
            f"operation = {Operation(self.operation).name} from host = {self.host} "
            f"on resource = {kind}:LITERAL:{self.resource_name}"
        )


class FailedAuthentication(NamedTuple):
    """A client did not prove who it is."""

    host: str
    listener: str
    mechanism: str
    principal: str | None  # who it said to be, if it did
    reason: str  # for the log, without secrets

    def fields(self) -> dict[str, Any]:
        return self._asdict()

    def text(self) -> str:
        who = self.principal or "Unknown"
        return (
            f"Principal = {who} failed to authenticate from host = {self.host} with "
            f"{self.mechanism} on listener = {self.listener}: {self.reason}"
        )


class Audit:
    """Collects events, and writes them in the background. Belongs to the event loop's thread."""

    def __init__(
        self, tasks: Tasks, clock: Clock, broker_id: int, *, with_allowed: bool = False
    ) -> None:
        self._tasks = tasks
        self._clock = clock
        self._broker_id = broker_id
        self._with_allowed = with_allowed
        self._write: Write | None = None
        self.own_topic: str | None = None
        self._events: dict[Decision | FailedAuthentication, tuple[int, int]] = {}  # time, count
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_writing = False
        self.wants_allowed = False
        self.look_at_levels()
        self.denied_count = 0
        self.failed_authentication_count = 0

    def write_to(self, write: Write) -> None:
        """Also write events as lines, from now on."""
        self._write = write

    def look_at_levels(self) -> None:
        """The levels of loggers may have changed."""
        self.wants_allowed = self._with_allowed or audit_logger.isEnabledFor(logging.DEBUG)

    def decided(
        self,
        principal: str,
        host: str,
        operation: int,
        resource_type: int,
        name: str,
        *,
        allowed: bool,
    ) -> None:
        if not allowed:
            self.denied_count += 1
        elif (
            name == self.own_topic and resource_type == ResourceType.TOPIC and operation in _READING
        ):
            return
        self._note(Decision(principal, host, operation, resource_type, _cut(name), allowed))

    def authentication_failed(self, event: FailedAuthentication) -> None:
        self.failed_authentication_count += 1
        principal = None if event.principal is None else _cut(event.principal)
        self._note(
            event._replace(
                mechanism=_cut(event.mechanism), principal=principal, reason=_cut(event.reason)
            )
        )

    def _note(self, event: Decision | FailedAuthentication) -> None:
        known = self._events.get(event)
        if known is not None:
            self._events[event] = known[0], known[1] + 1
        elif len(self._events) >= EVENTS_MAX:
            self._dropped += 1
        else:
            self._events[event] = self._clock.now_ms(), 1
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._timer is None and not self._is_writing:
            self._timer = self._tasks.loop.call_later(INTERVAL_SECONDS, self._flush)

    def _flush(self) -> None:
        self._timer = None
        self._is_writing = True
        self._tasks.start(self._write_out())

    async def close(self) -> None:
        """Write what is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._tasks.loop.time() + CLOSE_SECONDS_MAX
        while self._is_writing and self._tasks.loop.time() < deadline:
            await asyncio.sleep(0.005)
        if self._events or self._dropped:
            await self._write_out()

    async def _write_out(self) -> None:
        self.look_at_levels()
        events, self._events = self._events, {}
        dropped, self._dropped = self._dropped, 0
        for event, (_, count) in events.items():
            is_allowed = isinstance(event, Decision) and event.allowed
            times = "" if count == 1 else f" ({count} times)"
            level = logging.DEBUG if is_allowed else logging.INFO
            # Names come from clients: a line's end in one must not look like another event.
            text = json.dumps(event.text(), ensure_ascii=False)[1:-1]
            audit_logger.log(level, "%s%s", text, times)
        try:
            if self._write is not None:
                lines = [(self._line(event, *noted), noted[1]) for event, noted in events.items()]
                if dropped:
                    line = self._encoded("dropped", self._clock.now_ms(), dropped, {})
                    lines.append((line, dropped))
                await self._write_lines(self._write, lines)
        finally:
            self._is_writing = False
            if self._events:
                self._flush_soon()

    async def _write_lines(self, write: Write, lines: Iterable[Line]) -> None:
        """In batches: one that cannot be written does not take others with it."""
        for batch in _batches(lines):
            try:
                await write([line for line, _ in batch])
            except (OSError, MillstreamError) as error:
                lost = sum(count for _, count in batch)
                self._dropped += lost
                logger.error("the audit cannot be written, %d events lost: %s", lost, error)

    def _line(self, event: Decision | FailedAuthentication, time_ms: int, count: int) -> bytes:
        name = "authorization" if isinstance(event, Decision) else "authentication"
        return self._encoded(name, time_ms, count, event.fields())

    def _encoded(self, name: str, time_ms: int, count: int, fields: dict[str, Any]) -> bytes:
        time = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        head = {"time": time.replace("+00:00", "Z"), "event": name, "broker": self._broker_id}
        return json.dumps(head | {"count": count} | fields, ensure_ascii=False).encode()


def _cut(name: str) -> str:
    return name if len(name) <= NAME_LENGTH_MAX else name[:NAME_LENGTH_MAX] + "..."


def _batches(lines: Iterable[Line]) -> Iterator[list[Line]]:
    batch: list[Line] = []
    size = 0
    for line in lines:
        if batch and size + len(line[0]) > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line[0])
    if batch:
        yield batch
