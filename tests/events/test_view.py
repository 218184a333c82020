"""A view: states, versions and commands, whatever was read before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.errors import MillstreamError
from millstream.events import Event, Origin, UnknownSchema, Upcasters
from millstream.events import view as module
from millstream.events.handler import stored_events
from millstream.events.view import COMMANDS_REMEMBERED, Done, View
from tests.events.seats import Seat, seat

CLAIMED = [Event("claimed", {"by": "ada"}), Event("invoiced")]


def test_view_folds_events_of_each_aggregate_and_remembers_commands() -> None:
    view = View(seat)
    for stored in stored_events("a", 0, CLAIMED, Origin("first")):
        view.apply(stored)
        view.apply(stored)  # read twice
    for stored in stored_events("a", 2, [Event("given back")], Origin("second")):
        view.apply(stored)
    current = view.get("a")
    assert (current.state, current.version) == (Seat(None, 1), 3)
    assert current.find("first") == Done("first", 1, 2)
    assert current.find("second") == Done("second", 3, 3)
    assert current.find("third") is None
    assert (view.get("b").state, view.get("b").version) == (Seat(), 0)


def test_missing_event_is_an_error() -> None:
    view = View(seat)
    with pytest.raises(MillstreamError, match=r"at version 0, but the next event.*version 2"):
        view.apply(stored_events("a", 1, CLAIMED, Origin("first"))[0])


def test_number_of_remembered_commands_is_bounded() -> None:
    view = View(seat)
    for number in range(COMMANDS_REMEMBERED + 1):
        for stored in stored_events("a", number, [Event("noted")], Origin(str(number))):
            view.apply(stored)
    assert view.get("a").find("0") is None
    assert view.get("a").find("1") is not None


def test_aggregate_whose_events_were_deleted_begins_again() -> None:
    view = View(seat)
    first, second = stored_events("a", 0, CLAIMED, Origin("first"))
    new = stored_events("a", 0, [Event("claimed", {"by": "bob"})], Origin("new"))[0]
    view.apply(replace(first, offset=3))
    view.apply(replace(second, offset=4))
    view.apply(replace(first, offset=3))  # it is read again
    assert view.get("a").version == 2
    view.apply(replace(new, offset=9))
    assert (view.get("a").state, view.get("a").version) == (Seat("bob", 1), 1)
    assert view.get("a").find("first") is None


def test_number_of_aggregates_of_a_partition_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGGREGATES_MAX", 1)
    view = View(seat)
    view.apply(stored_events("a", 0, CLAIMED, Origin("first"))[0])
    with pytest.raises(MillstreamError, match="copy the events to a topic with more of them"):
        view.apply(stored_events("b", 0, CLAIMED, Origin("second"))[0])


def test_event_of_an_unknown_schema_is_named() -> None:
    view = View(replace(seat, upcasters=Upcasters(newest={"claimed": 1})))
    newer = stored_events("a", 0, [Event("claimed", {}, 2)], Origin("first"))[0]
    with pytest.raises(UnknownSchema, match="version 1 of a, at offset 7 of partition 3: event"):
        view.apply(replace(newer, partition=3, offset=7))
    assert view.get("a").version == 0
