"""Aggregates: replaying and upcasting."""

from __future__ import annotations

import pytest

from millstream.errors import MillstreamError
from millstream.events.aggregate import Aggregate, Upcasters
from millstream.events.event import Event
from tests.events.seats import Seat, decide, evolve, seat


def test_state_is_the_fold_of_the_events() -> None:
    claimed = Event("claimed", {"by": "ada"})
    assert seat.replay([]) == Seat()
    assert seat.replay([claimed, Event("given back"), claimed]) == Seat("ada", 2)
    assert seat.replay([Event("given back")], Seat("ada", 2)) == Seat(None, 2)


def test_old_events_are_upcast_step_by_step() -> None:
    upcasters = Upcasters(
        {
            ("claimed", 1): lambda old: Event("claimed", {"name": old.data["who"]}, 2),
            ("claimed", 2): lambda old: Event("claimed", {"by": old.data["name"]}, 3),
        }
    )
    renamed = Aggregate("seat", Seat(), decide, evolve, 2, upcasters)
    for old in (
        Event("claimed", {"who": "ada"}, 1),
        Event("claimed", {"name": "ada"}, 2),
        Event("claimed", {"by": "ada"}, 3),
    ):
        assert renamed.replay([old]) == Seat("ada", 1)


def test_circle_of_upcasters_is_refused() -> None:
    upcasters = Upcasters({("a", 1): lambda old: Event("a", old.data, 1)})
    with pytest.raises(MillstreamError, match="form a circle"):
        upcasters.upcast(Event("a"))
