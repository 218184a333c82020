"""Events and commands, and how events are stored as records of a Kafka topic.

key                       the aggregate's id, UTF-8
value                     the event's data, JSON
millstream-version        1 for the first event of the aggregate
millstream-event-id       unique; events of a repeated command have the ids of the first time
event-type, event-schema  what upcasting needs
causation-id              the command or event that caused it
correlation-id            the request or process that it belongs to
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4, uuid5

from millstream.errors import MillstreamError
from millstream.records.record import Header, Record

VERSION_HEADER = "millstream-version"
EVENT_ID_HEADER = "millstream-event-id"
TYPE_HEADER = "event-type"
SCHEMA_HEADER = "event-schema"
CAUSATION_HEADER = "causation-id"
CORRELATION_HEADER = "correlation-id"

_NAMESPACE = UUID("a5e2a6b4-6a3f-4f0e-8f3e-6d1c7a3f8e21")


class NotAnEvent(MillstreamError):
    """A record of an event topic that was not written as an event."""


@dataclass(frozen=True, slots=True)
class Event:
    """A fact: what `decide` returns and `evolve` gets. `data` is anything that JSON can express;
    `schema` is the version of its form."""

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    schema: int = 1


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event in the log: with its aggregate, its version and where it came from."""

    aggregate_id: str
    version: int
    event: Event
    event_id: str
    causation_id: str
    correlation_id: str
    timestamp_ms: int = -1
    partition: int = -1
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a command comes from. A command that is sent again must have the same id: then it is
    carried out once. The correlation id is that of the first command of a process."""

    command_id: str = field(default_factory=lambda: str(uuid4()))
    correlation_id: str = ""

    def __post_init__(self) -> None:
        if not self.correlation_id:
            object.__setattr__(self, "correlation_id", self.command_id)

    @classmethod
    def caused_by(cls, stored: StoredEvent, reaction: str) -> Origin:
        """Of a command that reacts to an event; the same for every reading of the event."""
        command_id = str(uuid5(_NAMESPACE, f"{stored.event_id}/{reaction}"))
        return cls(command_id, stored.correlation_id)

    def event_id(self, index: int) -> str:
        """Of the command's n-th event: the same whenever the command is decided again."""
        return f"{self.command_id}/{index}"


def encode_event(stored: StoredEvent, index: int, timestamp_ms: int) -> Record:
    """The record; `index` is its place in the batch."""
    headers: tuple[Header, ...] = (
        (VERSION_HEADER, str(stored.version).encode()),
        (EVENT_ID_HEADER, stored.event_id.encode()),
        (TYPE_HEADER, stored.event.type.encode()),
        (SCHEMA_HEADER, str(stored.event.schema).encode()),
        (CAUSATION_HEADER, stored.causation_id.encode()),
        (CORRELATION_HEADER, stored.correlation_id.encode()),
    )
    value = json.dumps(stored.event.data, separators=(",", ":"), allow_nan=False).encode()
    key = stored.aggregate_id.encode()
    return Record(index, timestamp_ms, key, value, headers)


def decode_event(record: Record, partition: int) -> StoredEvent:
    """Raises `NotAnEvent`."""
    headers = {name: value for name, value in record.headers if value is not None}
    try:
        if record.key is None or record.value is None:
            raise ValueError("it has no key or no value")
        event = Event(
            headers[TYPE_HEADER].decode(),
            json.loads(record.value),
            int(headers[SCHEMA_HEADER]),
        )
        return StoredEvent(
            record.key.decode(),
            int(headers[VERSION_HEADER]),
            event,
            headers[EVENT_ID_HEADER].decode(),
            headers[CAUSATION_HEADER].decode(),
            headers[CORRELATION_HEADER].decode(),
            record.timestamp,
            partition,
            record.offset,
        )
    except KeyError as error:
        problem = f"it has no header {error}"
    except ValueError as error:
        problem = str(error)
    raise NotAnEvent(f"record {partition}:{record.offset} is not an event: {problem}")
