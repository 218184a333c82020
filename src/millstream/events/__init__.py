"""Event sourcing: aggregates as pure functions, commands that can be refused, events in a topic."""

from millstream.events.aggregate import Aggregate, Refusal, UnknownSchema, Upcasters
from millstream.events.event import Event, NotAnEvent, Origin, StoredEvent
from millstream.events.handler import Accepted, CommandHandler, TooManyConflicts
from millstream.events.log import EventLog, LogChanged
from millstream.events.single_writer import SingleWriter

__all__ = [
    "Accepted",
    "Aggregate",
    "CommandHandler",
    "Event",
    "EventLog",
    "LogChanged",
    "NotAnEvent",
    "Origin",
    "Refusal",
    "SingleWriter",
    "StoredEvent",
    "TooManyConflicts",
    "UnknownSchema",
    "Upcasters",
]
