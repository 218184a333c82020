"""Events as records: everything comes back, and anything else is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.events.event import (
    Event,
    NotAnEvent,
    Origin,
    StoredEvent,
    decode_event,
    encode_event,
)
from millstream.records.record import Record

STORED = StoredEvent("seat-1", 3, Event("claimed", {"by": "Adä"}, 2), "c/0", "c", "r", 17, 4, 9)


def test_event_comes_back_from_its_record() -> None:
    record = encode_event(STORED, 0, 17)
    assert dict(record.headers)["millstream-version"] == b"3"
    assert decode_event(replace(record, offset=9), 4) == STORED


def test_record_of_somebody_else_is_named() -> None:
    record = encode_event(STORED, 0, 17)
    for wrong, reason in (
        (replace(record, headers=()), "no header 'event-type'"),
        (replace(record, value=None), "no value"),
        (replace(record, value=b"{"), "Expecting"),
        (Record(5, 0, None, b"{}"), "no key"),
    ):
        with pytest.raises(NotAnEvent, match=f"is not an event: .*{reason}"):
            decode_event(wrong, 0)


def test_command_that_is_decided_again_has_the_same_event_ids() -> None:
    origin = Origin("c", "r")
    assert [origin.event_id(index) for index in (0, 1)] == ["c/0", "c/1"]
    assert Origin("c").correlation_id == "c"
    assert Origin().command_id != Origin().command_id


def test_reaction_to_an_event_keeps_its_correlation_and_has_the_same_id_each_time() -> None:
    origin = Origin.caused_by(STORED, "invoice")
    assert origin == Origin.caused_by(STORED, "invoice")
    assert origin.correlation_id == "r"
    assert origin.command_id != Origin.caused_by(STORED, "ship").command_id
