"""Sessions whose results change, against sessions of all rows that have come, made in a loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipelines.lateness import Lateness
from millstream.pipelines.state.pages import StateMismatch
from millstream.pipelines.state.trial import Trial
from millstream.pipelines.windows.measures import Measure
from millstream.pipelines.windows.sessions import RevisedSessions
from tests.drawing import draws

GAP_US = 5
FOR_EVER_US = 10_000
STAMP = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("user", pa.string()), ("_time", STAMP), ("_now", STAMP), ("amount", pa.float64())]
)
MEASURES = (
    Measure("n", "count", None),
    Measure("spent", "sum", "amount"),
    Measure("mean", "avg", "amount"),
    Measure("most", "max", "amount"),
)


class Event(NamedTuple):
    user: str | None
    time_us: int
    amount: float | None


Place = tuple[str | None, int]  # whose session, and its start
Values = tuple[Any, ...]


class Session(NamedTuple):
    end_us: int
    values: Values


EVENTS = st.builds(
    Event,
    st.sampled_from(["ann", "bob", None]),
    st.integers(0, 60),
    st.none() | st.integers(-80, 80).map(lambda eighths: eighths / 8),
)
BATCHES = st.lists(st.tuples(st.lists(EVENTS, max_size=6), st.integers(0, 12)), max_size=8)


def values_of(events: Sequence[Event]) -> Values:
    amounts = [it.amount for it in events if it.amount is not None]
    if not amounts:
        return len(events), None, None, None
    return len(events), sum(amounts), sum(amounts) / len(amounts), max(amounts)


def sessions_of(events: Sequence[Event]) -> dict[Place, Session]:
    found: dict[Place, Session] = {}
    for user in {it.user for it in events}:
        group: list[Event] = []
        for it in [*sorted((it for it in events if it.user == user), key=lambda it: it.time_us)]:
            if group and it.time_us > group[-1].time_us + GAP_US:
                found[user, group[0].time_us] = as_session(group)
                group = []
            group.append(it)
        found[user, group[0].time_us] = as_session(group)
    return found


def as_session(group: Sequence[Event]) -> Session:
    return Session(group[-1].time_us + GAP_US, values_of(group))


class Result(NamedTuple):
    place: Place
    session: Session
    kind: str
    old: Values | None


def results(batch: pa.RecordBatch) -> list[Result]:
    bounds = [
        batch.column(it).cast(pa.int64()).to_pylist() for it in ("window_start", "window_end")
    ]
    rows = batch.drop_columns(["window_start", "window_end"]).to_pylist()
    return [
        Result(
            (row["user"], start_us),
            Session(end_us, tuple(row[it.name] for it in MEASURES)),
            row["_kind"],
            row["_old"] and tuple(row["_old"].values()),
        )
        for row, start_us, end_us in zip(rows, *bounds, strict=True)
    ]


class Stream:
    """Batches through the operator; a table as a sink would keep it."""

    def __init__(self, lateness: Lateness, every_us: int | None = None) -> None:
        operator = RevisedSessions(SCHEMA, ["user"], MEASURES, GAP_US, lateness, every_us=every_us)
        self.trial = Trial(operator, buckets=2)
        self.lateness = lateness
        self.watermark_us = 0
        self.on_time: list[Event] = []
        self.table: dict[Place, Session] = {}
        self.settled: set[Place] = set()
        self.batches = 0

    def feed(self, events: Sequence[Event]) -> list[Result]:
        return self.take(self.process(events))

    def process(self, events: Sequence[Event]) -> pa.RecordBatch:
        kept_us = GAP_US + self.lateness.allowed_us
        kept = [it for it in events if it.time_us + kept_us > self.watermark_us]
        self.on_time += kept
        rows = [
            {
                "user": it.user,
                "_time": it.time_us,
                "_now": self.batches * 1_000_000,
                "amount": it.amount,
            }
            for it in kept
        ]
        self.batches += 1
        batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        return self.trial.feed({"rows": batch}, self.watermark_us)

    def finish(self) -> list[Result]:
        found = self.take(self.trial.finish())
        assert all(not store.pages and store.timer_us is None for store in self.trial.buckets)
        return found

    def take(self, batch: pa.RecordBatch) -> list[Result]:
        found = results(batch)
        places = [it.place for it in found]
        assert len(places) == len(set(places)), "a session comes once in a batch"
        for it in found:
            was_final = it.place in self.settled
            before = self.table.get(it.place)
            if it.kind in ("correction", "withdrawn"):
                assert it.old == (before.values if was_final and before else None)
            if it.kind == "withdrawn":
                del self.table[it.place]  # it was there
                self.settled.discard(it.place)
                continue
            assert (it.kind == "correction") or not was_final
            assert it.session != before or it.kind == "final"
            self.table[it.place] = it.session
            if it.kind != "preliminary":
                self.settled.add(it.place)
        return found


@settings(max_examples=draws(60))
@given(BATCHES, st.sampled_from([None, 0, 2_000_000]))
def test_corrections_lead_to_the_sessions_of_all_rows(
    batches: list[tuple[list[Event], int]], every_us: int | None
) -> None:
    stream = Stream(Lateness("correct", FOR_EVER_US), every_us)
    for events, step_us in batches:
        stream.feed(events)
        if every_us == 0:
            assert stream.table == sessions_of(stream.on_time), "each change is shown"
        stream.watermark_us += step_us
    stream.finish()
    assert stream.table == sessions_of(stream.on_time)


@settings(max_examples=draws(60))
@given(BATCHES, st.sampled_from([None, 0]), st.sampled_from([0, 7]))
def test_sessions_of_rows_in_time_are_final_once(
    batches: list[tuple[list[Event], int]], every_us: int | None, lateness_us: int
) -> None:
    stream = Stream(Lateness("drop", lateness_us), every_us)
    finals = []
    for events, step_us in batches:
        in_time = [it for it in events if it.time_us >= stream.watermark_us - lateness_us]
        finals += [it for it in stream.feed(in_time) if it.kind == "final"]
        stream.watermark_us += step_us
    finals += [it for it in stream.finish() if it.kind == "final"]
    assert len(finals) == len({it.place for it in finals})
    assert {it.place: it.session for it in finals} == sessions_of(stream.on_time)


@settings(max_examples=draws(40))
@given(BATCHES)
def test_rows_too_late_for_any_correction_are_forgotten_with_their_sessions(
    batches: list[tuple[list[Event], int]],
) -> None:
    stream = Stream(Lateness("correct", 9), 0)
    for events, step_us in batches:
        stream.feed(events)
        stream.watermark_us += step_us
    stream.finish()
    assert sum(it.values[0] for it in stream.table.values()) == len(stream.on_time)


def test_straggler_between_two_sessions_makes_one_of_them() -> None:
    stream = Stream(Lateness("correct", 100))
    stream.feed([Event("ann", 0, 1.0), Event("ann", 9, 2.0), Event("bob", 1, 8.0)])
    stream.watermark_us = 20
    assert {(it.place, it.kind) for it in stream.feed([])} == {
        (("ann", 0), "final"),
        (("ann", 9), "final"),
        (("bob", 1), "final"),
    }
    assert stream.feed([Event("ann", 5, 4.0)]) == [
        Result(("ann", 9), Session(14, (None,) * 4), "withdrawn", (1, 2.0, 2.0, 2.0)),
        Result(("ann", 0), Session(14, (3, 7.0, 7 / 3, 4.0)), "correction", (1, 1.0, 1.0, 1.0)),
    ]


def test_session_that_begins_earlier_than_it_was_shown_is_shown_again_at_once() -> None:
    stream = Stream(Lateness(), 60_000_000)
    assert [it.kind for it in stream.feed([Event("ann", 10, 1.0)])] == ["preliminary"]
    assert stream.feed([Event("ann", 11, 1.0)]) == [], "at most every minute"
    (gone, shown) = stream.feed([Event("ann", 8, 1.0)])
    assert (gone.place, gone.kind, gone.old) == (("ann", 10), "withdrawn", None)
    assert (shown.place, shown.kind, shown.session.values[0]) == (("ann", 8), "preliminary", 3)


def test_straggler_that_is_alone_is_a_correction_of_nothing() -> None:
    stream = Stream(Lateness("correct", 100))
    stream.watermark_us = 50
    (only,) = stream.feed([Event("ann", 0, 1.0)])
    assert (only.kind, only.old, only.session.values[0]) == ("correction", None, 1)


def test_rows_of_sessions_that_are_no_longer_kept_are_late() -> None:
    """A longer lateness does not bring back the sessions that were removed before it was set."""
    stream = Stream(Lateness("correct", 10))
    stream.watermark_us = 100
    stream.feed([Event("ann", 90, 1.0)])
    longer = Lateness("correct", 1000)
    stream.trial.operator = RevisedSessions(SCHEMA, ["user"], MEASURES, GAP_US, longer)
    stream.lateness = longer
    kinds = [it.kind for it in results(stream.process([Event("ann", 50, 1.0)]))]
    assert kinds == ["late"]


def test_state_of_another_kind_of_aggregate_or_by_another_time_is_refused() -> None:
    """A sum and a maximum are kept in columns of one name and type."""
    lateness = Lateness("correct", 100)
    stream = Stream(lateness)
    stream.feed([Event("ann", 0, 1.0)])
    others = [it._replace(kind="max") if it.kind == "sum" else it for it in MEASURES]
    stream.trial.operator = RevisedSessions(SCHEMA, ["user"], others, GAP_US, lateness)
    with pytest.raises(StateMismatch, match=r"other settings: .*=sum"):
        stream.feed([Event("ann", 1, 1.0)])
    stream.trial.operator = RevisedSessions(
        SCHEMA, ["user"], MEASURES, GAP_US, lateness, time="seen"
    )
    with pytest.raises(StateMismatch, match=r"settings: .*by time.* operator has .*by seen"):
        stream.feed([Event("ann", 1, 1.0)])
