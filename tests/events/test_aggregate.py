"""Aggregates: replaying and upcasting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.errors import ConfigError, MillstreamError
from millstream.events.aggregate import Aggregate, Refusal, UnknownSchema, Upcasters
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
    upcasters = Upcasters(
        {
            ("a", 1): lambda old: Event("b", old.data, 1),
            ("b", 1): lambda old: Event("a", old.data, 1),
        }
    )
    with pytest.raises(MillstreamError, match="form a circle"):
        upcasters.upcast(Event("a"))


def test_upcaster_that_does_not_make_the_next_schema_is_refused() -> None:
    upcasters = Upcasters({("a", 1): lambda old: Event("a", old.data, 3)})
    with pytest.raises(MillstreamError, match="has returned schema 3: it must return schema 2"):
        upcasters.upcast(Event("a"))


def keep(old: Event) -> Event:
    return Event(old.type, old.data, old.schema + 1)


@pytest.mark.parametrize(
    "upcasters",
    [
        Upcasters({("a", 1): keep}),
        Upcasters({("a", 1): keep}, newest={"a": 2}),
        Upcasters(newest={"a": 2}),
    ],
)
def test_event_newer_than_the_code_is_refused(upcasters: Upcasters) -> None:
    assert upcasters.upcast(Event("a", {}, 2)) == Event("a", {}, 2)
    with pytest.raises(UnknownSchema, match="event a has schema 3, but 2 is the newest"):
        upcasters.upcast(Event("a", {}, 3))


def test_event_older_than_the_upcasters_is_refused() -> None:
    for upcasters in (Upcasters({("a", 2): keep}), Upcasters(newest={"a": 3})):
        with pytest.raises(UnknownSchema, match="add a step from schema 1"):
            upcasters.upcast(Event("a"))


@pytest.mark.parametrize(
    ("steps", "newest", "message"),
    [
        ([1, 3], {}, "are from the schemas 1, 3: one from each schema from 1 to 3"),
        ([1], {"a": 3}, "each schema from 1 to 2"),
        ([1, 2], {"a": 2}, "each schema from 1 to 1"),
    ],
)
def test_gap_of_upcasters_is_refused(
    steps: list[int], newest: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Upcasters({("a", schema): keep for schema in steps}, newest)


def deciding(returned: object, upcasters: Upcasters | None = None) -> Aggregate[int, str]:
    return Aggregate(
        "made",
        0,
        lambda state, command: returned,  # type: ignore[arg-type, return-value]
        lambda state, event: state,
        upcasters=upcasters or Upcasters(),
    )


def test_any_iterable_of_events_is_a_decision() -> None:
    one = Event("one")
    for returned in ([one], (one,), (it for it in [one])):
        assert deciding(returned).decision(0, "x") == (one,)
    assert deciding([]).decision(0, "x") == ()
    assert deciding(Refusal("no")).decision(0, "x") == Refusal("no")


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (None, "None: it must return the events, an empty list"),
        (Event("one"), "an object of type Event: it must"),
        ([Event("one"), Refusal("no")], "type Refusal among its events"),
        ("one", "type str among its events"),
    ],
)
def test_decision_that_is_none_is_refused(returned: object, what: str) -> None:
    with pytest.raises(MillstreamError, match=f"decide of made has returned .*{what}"):
        deciding(returned).decision(0, "x")


def yielding(before: list[Event], returned: object) -> Iterator[Event]:
    yield from before
    return returned  # type: ignore[return-value]


@pytest.mark.parametrize("before", [[], [Event("one")]])
def test_refusal_that_a_generator_returns_is_a_refusal(before: list[Event]) -> None:
    decision = deciding(yielding(before, Refusal("taken"))).decision(0, "x")
    assert decision == Refusal("taken")


def test_events_that_a_generator_returns_are_refused() -> None:
    with pytest.raises(MillstreamError, match=r"yields its events, and has returned .* type list"):
        deciding(yielding([], [Event("one")])).decision(0, "x")


def test_event_that_could_not_be_read_is_not_decided() -> None:
    upcasters = Upcasters({("one", 1): keep})
    assert deciding([Event("one", {}, 1)], upcasters).decision(0, "x")
    with pytest.raises(UnknownSchema, match="has schema 3"):
        deciding([Event("one", {}, 3)], upcasters).decision(0, "x")
