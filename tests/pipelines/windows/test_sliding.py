"""Sliding windows against a loop that looks at every pair of events."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipelines.lateness import Lateness
from millstream.pipelines.state.trial import Trial
from millstream.pipelines.windows.emission import Emit
from millstream.pipelines.windows.measures import Measure
from millstream.pipelines.windows.sliding import SlidingWindow
from tests.drawing import draws

INTERVAL_US = 10
SCHEMA = pa.schema(
    [("user", pa.string()), ("time", pa.timestamp("us", tz="UTC")), ("amount", pa.float64())]
)
MEASURES = (
    Measure("n", "count", None),
    Measure("seen", "count", "amount"),
    Measure("spent", "sum", "amount"),
    Measure("mean", "avg", "amount"),
    Measure("least", "min", "amount"),
    Measure("most", "max", "amount"),
    Measure("p30", "percentile", "amount", 0.3),
)
NAMES = [it.name for it in MEASURES]


class Event(NamedTuple):
    user: str | None
    time_us: int
    amount: float | None


FINAL = Emit("final")

EVENTS = st.builds(
    Event,
    st.sampled_from(["ann", None]),
    st.integers(0, 40),
    st.none() | st.integers(-100, 100).map(lambda cents: cents / 10),
)
BATCHES = st.lists(st.tuples(st.lists(EVENTS, max_size=8), st.integers(0, 15)), max_size=8)


def columns(events: Sequence[Event]) -> dict[str, pa.RecordBatch]:
    arrays = [
        pa.array([it.user for it in events], pa.string()),
        pa.array([it.time_us for it in events], pa.int64()).cast(SCHEMA.field("time").type),
        pa.array([it.amount for it in events], pa.float64()),
    ]
    return {"events": pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)}


def operator(lateness: Lateness, emit: Emit = FINAL, *, preceding: bool = False) -> SlidingWindow:
    return SlidingWindow(
        SCHEMA,
        ["user"],
        "time",
        INTERVAL_US,
        MEASURES,
        lateness,
        SCHEMA.names,
        emit=emit,
        preceding=preceding,
    )


def naive(event: Event, events: Sequence[Event], *, preceding: bool = False) -> tuple[Any, ...]:
    """Every aggregate of one event's window, by definition."""
    last_us = event.time_us - preceding
    window = [
        it
        for it in events
        if it.user == event.user and event.time_us - INTERVAL_US <= it.time_us <= last_us
    ]
    amounts = sorted(it.amount for it in window if it.amount is not None)
    if not amounts:
        return len(window), 0, None, None, None, None, None
    place = (len(amounts) - 1) * 0.3
    low, high = amounts[math.floor(place)], amounts[math.ceil(place)]
    total = math.fsum(amounts)
    return (
        len(window),
        len(amounts),
        pytest.approx(total, abs=1e-9),
        pytest.approx(total / len(amounts), abs=1e-9),
        amounts[0],
        amounts[-1],
        pytest.approx(low + (high - low) * (place % 1), abs=1e-9),
    )


class Result(NamedTuple):
    event: Event
    values: tuple[Any, ...]
    kind: str
    old: tuple[Any, ...] | None
    lateness: float | None


def results(rows: pa.RecordBatch) -> list[Result]:
    times = rows.column("time").cast(pa.int64()).to_pylist()
    return [
        Result(
            Event(row["user"], time_us, row["amount"]),
            tuple(row[name] for name in NAMES),
            row["_kind"],
            row["_old"] and tuple(row["_old"].values()),
            row["_lateness"],
        )
        for row, time_us in zip(rows.drop_columns("time").to_pylist(), times, strict=True)
    ]


def assert_results(
    found: Sequence[Result], events: Sequence[Event], *, preceding: bool = False
) -> None:
    """One result for each event, and the right one."""
    assert Counter(it.event for it in found) == Counter(events)
    for it in found:
        assert it.values == naive(it.event, events, preceding=preceding), it


def run(
    lateness: Lateness,
    batches: Sequence[tuple[list[Event], int]],
    emit: Emit = FINAL,
    *,
    preceding: bool = False,
) -> tuple[list[list[Result]], list[Event], list[Event]]:
    """The results of each batch; the events that were on time, and the late ones."""
    trial = Trial(operator(lateness, emit, preceding=preceding), buckets=2)
    watermark_us = 0
    found, on_time, late = [], [], []
    for events, step_us in batches:
        horizon_us = watermark_us - lateness.allowed_us
        late += [it for it in events if it.time_us <= horizon_us]
        on_time += [it for it in events if it.time_us > horizon_us]
        found.append(results(trial.feed(columns(events), watermark_us)))
        watermark_us += step_us
    found.append(results(trial.finish()))
    assert all(not store.pages and store.timer_us is None for store in trial.buckets)
    return found, on_time, late


@settings(max_examples=draws(60))
@given(BATCHES, st.sampled_from([0, 5, INTERVAL_US, 35]), st.booleans())
def test_final_results_are_those_of_a_batch_however_the_stream_is_cut(
    batches: list[tuple[list[Event], int]], lateness_us: int, preceding: bool
) -> None:
    found, on_time, late = run(Lateness("divert", lateness_us), batches, preceding=preceding)
    everything = [it for batch in found for it in batch]
    finals = [it for it in everything if it.kind == "final"]
    assert_results(finals, on_time, preceding=preceding)
    assert Counter(it.event for it in everything if it.kind == "late") == Counter(late)
    assert {it.kind for it in everything} <= {"final", "late"}


@settings(max_examples=draws(60))
@given(BATCHES, st.sampled_from([5, INTERVAL_US, 35]), st.booleans())
def test_corrections_lead_to_the_results_of_a_batch(
    batches: list[tuple[list[Event], int]], lateness_us: int, preceding: bool
) -> None:
    """Whoever replaces old values by new ones ends with what a batch computes."""
    found, on_time, _ = run(Lateness("correct", lateness_us), batches, preceding=preceding)
    table: Counter[tuple[Event, tuple[Any, ...]]] = Counter()
    for it in (it for batch in found for it in batch if it.kind != "late"):
        assert it.kind in ("final", "correction")
        if it.old is not None:
            assert it.old != it.values
            table[it.event, it.old] -= 1
            assert table[it.event, it.old] >= 0
        table[it.event, it.values] += 1
    left = [
        Result(event, values, "", None, None)
        for (event, values), count in table.items()
        for _ in range(count)
    ]
    assert_results(left, on_time, preceding=preceding)


@settings(max_examples=draws(60))
@given(BATCHES, st.booleans())
def test_preliminary_results_contain_all_rows_so_far(
    batches: list[tuple[list[Event], int]], preceding: bool
) -> None:
    lateness = Lateness("divert", INTERVAL_US)
    found, on_time, _ = run(lateness, batches, Emit("change"), preceding=preceding)
    finals = [it for batch in found for it in batch if it.kind == "final"]
    assert_results(finals, on_time, preceding=preceding)
    known: list[Event] = []
    latest: dict[Event, tuple[Any, ...]] = {}
    for (events, _), batch in zip(batches, found, strict=False):
        late = Counter(it.event for it in batch if it.kind == "late")
        new = list((Counter(events) - late).elements())
        known += new
        early = [it for it in batch if it.kind == "preliminary"]
        assert set(new) <= {it.event for it in early}
        for it in early:
            assert it.values == naive(it.event, known, preceding=preceding)
        latest |= {it.event: it.values for it in early}
    for event, values in latest.items():
        assert values == naive(event, on_time, preceding=preceding)


@settings(max_examples=draws(60))
@given(BATCHES, st.sampled_from([0, INTERVAL_US]), st.booleans())
def test_result_at_arrival_comes_once_by_what_has_come_so_far(
    batches: list[tuple[list[Event], int]], lateness_us: int, preceding: bool
) -> None:
    lateness = Lateness("divert", lateness_us)
    found, on_time, late = run(lateness, batches, Emit("arrival"), preceding=preceding)
    everything = [it for batch in found for it in batch]
    assert Counter(it.event for it in everything if it.kind == "arrival") == Counter(on_time)
    assert Counter(it.event for it in everything if it.kind == "late") == Counter(late)
    known: list[Event] = []
    for batch in found:
        arrived = [it for it in batch if it.kind == "arrival"]
        known += [it.event for it in arrived]
        for it in arrived:
            assert it.values == naive(it.event, known, preceding=preceding)


def test_result_comes_when_the_watermark_makes_it_final_and_not_later() -> None:
    trial = Trial(operator(Lateness("drop", 7)))
    trial.feed(columns([Event("ann", 20, 1.0), Event("ann", 25, 2.0)]), 0)
    assert trial.advance(26).num_rows == 0
    assert [it.event.time_us for it in results(trial.advance(27))] == [20]
    assert trial.advance(31).num_rows == 0
    assert [it.event.time_us for it in results(trial.advance(32))] == [25]


@pytest.mark.parametrize("preceding", [False, True])
def test_straggler_has_a_result_of_its_own(preceding: bool) -> None:
    trial = Trial(operator(Lateness("correct", 100), preceding=preceding))
    trial.feed(columns([Event("ann", 100, 1.0)]), 90)
    trial.advance(105)
    (found,) = results(trial.feed(columns([Event("ann", 102, 2.0)]), 105))
    assert (found.event.time_us, found.kind, found.old) == (102, "correction", None)
    assert found.values[0] == (1 if preceding else 2)


def test_earlier_event_changes_the_preliminary_result_of_a_later_one() -> None:
    trial = Trial(operator(Lateness("drop", INTERVAL_US), Emit("change")))
    trial.feed(columns([Event("ann", 25, 1.0)]), 0)
    changed = results(trial.feed(columns([Event("ann", 15, 2.0)]), 0))
    assert sorted((it.event.time_us, it.values[0]) for it in changed) == [(15, 1), (25, 2)]
    unchanged = results(trial.feed(columns([Event("ann", 14, 2.0)]), 0))
    assert [it.event.time_us for it in unchanged if it.event.time_us == 25] == []


def test_lateness_is_in_seconds_and_an_event_without_time_is_late() -> None:
    trial = Trial(operator(Lateness("divert", 0)))
    no_time = columns([Event("ann", 0, 1.0)])["events"].set_column(
        1, SCHEMA.field("time"), pa.array([None], SCHEMA.field("time").type)
    )
    late = results(trial.feed(columns([Event("ann", 500_000, 1.0)]), 2_000_000))
    assert [(it.kind, it.lateness) for it in late] == [("late", 1.5)]
    rows = trial.feed({"events": no_time}, 2_000_000).to_pylist()
    assert [(it["_kind"], it["_lateness"]) for it in rows] == [("late", None)]


def test_sum_does_not_depend_on_the_rows_around_the_window() -> None:
    """A running sum of doubles would: 1e16 + 0.1 forgets the 0.1."""
    events = [Event("ann", 1, 1e16), Event("ann", 30, 0.1), Event("ann", 35, 0.2)]
    found, *_ = run(Lateness("divert", 0), [(events, 100)])
    spent = {it.event.time_us: it.values[2] for batch in found for it in batch}
    assert spent == {1: 1e16, 30: 0.1, 35: 0.1 + 0.2}


def test_collect_gathers_the_window_in_the_order_of_time() -> None:
    measures = [Measure("within", "collect", "amount")]
    window = SlidingWindow(
        SCHEMA, ["user"], "time", INTERVAL_US, measures, Lateness("drop", 0), ["time"]
    )
    trial = Trial(window)
    trial.feed(columns([Event("ann", 7, 3.0), Event("ann", 1, 1.0), Event("ann", 12, 4.0)]))
    assert sorted(trial.finish().column("within").to_pylist()) == [[1.0], [1.0, 3.0], [3.0, 4.0]]


def test_many_events_have_the_windows_of_duckdb() -> None:
    """Twenty batches, in disorder, of keys with few events and with many."""
    import duckdb

    rng = random.Random(3)
    events = [
        Event(f"user-{int(rng.paretovariate(0.3)) % 300}", time_us // 3, rng.randrange(1000) / 8)
        for time_us in range(6000)
    ]
    events.sort(key=lambda it: it.time_us + rng.uniform(0, 9))
    trial = Trial(operator(Lateness("drop", 10)), buckets=5)
    found = [
        trial.feed(columns(events[begin : begin + 300]), events[begin].time_us - 10)
        for begin in range(0, 6000, 300)
    ]
    found.append(trial.finish())
    table = pa.Table.from_batches([it.drop_columns(["_kind", "_old", "_lateness"]) for it in found])
    orders = pa.Table.from_batches(columns(events).values())
    assert orders.num_rows == table.num_rows == 6000
    query = """
        select "user", epoch_us("time") as time_us, amount, count(*) over w as n,
            count(amount) over w as seen, sum(amount) over w as spent, avg(amount) over w as mean,
            min(amount) over w as least, max(amount) over w as most,
            quantile_cont(amount, 0.3) over w as p30
        from orders window w as (partition by "user" order by epoch_us("time")
            range between 10 preceding and current row) order by all
    """
    expected = duckdb.sql(query).fetchall()
    ours = duckdb.sql('select * replace (epoch_us("time") as "time") from "table" order by all')
    for mine, theirs in zip(ours.fetchall(), expected, strict=True):
        assert mine[:-1] == theirs[:-1], "amounts are in eighths: sums are exact in any order"
        assert mine[-1] == pytest.approx(theirs[-1])


EVERY_SCHEMA = SCHEMA.append(pa.field("_now", pa.timestamp("us", tz="UTC")))


@settings(max_examples=draws(60))
@given(
    st.lists(st.lists(EVENTS, max_size=5), max_size=8), st.sampled_from([0, 1, 3]), st.booleans()
)
def test_results_every_so_often_show_what_has_changed_since_the_last_time(
    batches: list[list[Event]], every: int, preceding: bool
) -> None:
    """A batch is a second; nothing is final before the end."""
    measures = MEASURES[:1]
    window = SlidingWindow(
        EVERY_SCHEMA,
        ["user"],
        "time",
        INTERVAL_US,
        measures,
        Lateness("drop", 100),
        SCHEMA.names,
        emit=Emit("every", every * 1_000_000),
        preceding=preceding,
    )
    trial = Trial(window, buckets=1)
    known: list[Event] = []
    table: list[tuple[Event, int]] = []
    last_shown: int | None = None
    for number, events in enumerate(batches):
        now = pa.array([number * 1_000_000] * len(events), EVERY_SCHEMA.field("_now").type)
        rows = columns(events)["events"].append_column("_now", now)
        found = trial.feed({"events": rows.cast(EVERY_SCHEMA)})
        known += events
        before, table = table, [(it, naive(it, known, preceding=preceding)[0]) for it in known]
        if not events or (last_shown is not None and number - last_shown < every):
            assert not found.num_rows
            table = before
            continue
        last_shown = number
        shown = Counter(
            (Event(row["user"], time_us, row["amount"]), row["n"])
            for row, time_us in zip(
                found.drop_columns("time").to_pylist(),
                found.column("time").cast(pa.int64()).to_pylist(),
                strict=True,
            )
        )
        assert shown == Counter(table) - Counter(before)
        assert set(found.column("_kind").to_pylist()) <= {"preliminary"}
    assert trial.finish().num_rows == len(known)
    assert all(not store.pages and store.timer_us is None for store in trial.buckets)
