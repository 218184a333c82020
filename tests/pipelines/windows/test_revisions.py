"""Windows whose results change, against a loop over all rows that have come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipelines.lateness import Lateness
from millstream.pipelines.state.pages import StateMismatch
from millstream.pipelines.state.trial import Trial
from millstream.pipelines.windows.measures import Measure
from millstream.pipelines.windows.revisions import RevisedWindows
from tests.drawing import draws

SIZE_US = 10
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("window_start", TIME),
        ("window_end", TIME),
        ("_now", TIME),
        ("amount", pa.float64()),
    ]
)
MEASURES = (
    Measure("n", "count", None),
    Measure("seen", "count", "amount"),
    Measure("spent", "sum", "amount"),
    Measure("mean", "avg", "amount"),
    Measure("least", "min", "amount"),
    Measure("most", "max", "amount"),
)


class Event(NamedTuple):
    user: str | None
    time_us: int
    amount: float | None

    @property
    def end_us(self) -> int:
        return self.time_us // SIZE_US * SIZE_US + SIZE_US

    @property
    def window(self) -> tuple[str | None, int]:
        return self.user, self.end_us


EVENTS = st.builds(
    Event,
    st.sampled_from(["ann", "bob", None]),
    st.integers(0, 50),
    st.none() | st.integers(-80, 80).map(lambda eighths: eighths / 8),
)
BATCHES = st.lists(st.tuples(st.lists(EVENTS, max_size=8), st.integers(0, 15)), max_size=8)
Values = tuple[Any, ...]


def rows(events: Sequence[Event], now_us: int) -> dict[str, pa.RecordBatch]:
    found = [
        {
            "user": it.user,
            "window_start": it.end_us - SIZE_US,
            "window_end": it.end_us,
            "_now": now_us,
            "amount": it.amount,
        }
        for it in events
    ]
    return {"rows": pa.RecordBatch.from_pylist(found, schema=SCHEMA)}


def naive(events: Sequence[Event]) -> Values:
    amounts = [it.amount for it in events if it.amount is not None]
    if not amounts:
        return len(events), 0, None, None, None, None
    total = sum(amounts)
    return len(events), len(amounts), total, total / len(amounts), min(amounts), max(amounts)


def by_window(events: Sequence[Event]) -> dict[tuple[str | None, int], Values]:
    groups: dict[tuple[str | None, int], list[Event]] = {}
    for it in events:
        groups.setdefault(it.window, []).append(it)
    return {window: naive(group) for window, group in groups.items()}


class Result(NamedTuple):
    window: tuple[str | None, int]
    values: Values
    kind: str
    old: Values | None


def results(batch: pa.RecordBatch) -> list[Result]:
    ends = batch.column("window_end").cast(pa.int64()).to_pylist()
    return [
        Result(
            (row["user"], end_us),
            tuple(row[it.name] for it in MEASURES),
            row["_kind"],
            row["_old"] and tuple(row["_old"].values()),
        )
        for row, end_us in zip(batch.drop_columns(["window_end"]).to_pylist(), ends, strict=True)
    ]


def run(
    lateness: Lateness,
    batches: Sequence[tuple[list[Event], int]],
    every_us: int | None = 0,
) -> tuple[list[list[Result]], list[Event]]:
    """The results of each batch, each a second after the last; the events that were on time."""
    window = RevisedWindows(SCHEMA, ["user"], MEASURES, lateness, "test", every_us=every_us)
    trial = Trial(window, buckets=2)
    watermark_us = 0
    found, on_time = [], []
    for number, (events, step_us) in enumerate(batches):
        kept = [it for it in events if it.end_us > watermark_us - lateness.allowed_us]
        on_time += kept
        found.append(results(trial.feed(rows(kept, number * 1_000_000), watermark_us)))
        watermark_us += step_us
    found.append(results(trial.finish()))
    assert all(not store.pages and store.timer_us is None for store in trial.buckets)
    return found, on_time


@settings(max_examples=draws(40))
@given(BATCHES, st.sampled_from([0, 7, 30]))
def test_every_window_is_final_once_with_all_rows_that_were_on_time(
    batches: list[tuple[list[Event], int]], lateness_us: int
) -> None:
    found, on_time = run(Lateness("drop", lateness_us), batches)
    final = [it for batch in found for it in batch if it.kind == "final"]
    assert len(final) == len({it.window for it in final})
    assert {it.window: it.values for it in final} == by_window(on_time)


@settings(max_examples=draws(40))
@given(BATCHES, st.sampled_from([7, 30]), st.sampled_from([None, 0]))
def test_corrections_lead_from_the_old_values_to_those_of_a_batch(
    batches: list[tuple[list[Event], int]], lateness_us: int, every_us: int | None
) -> None:
    found, on_time = run(Lateness("correct", lateness_us), batches, every_us)
    table: dict[tuple[str | None, int], Values] = {}
    settled: set[tuple[str | None, int]] = set()
    for batch in found:
        assert len(batch) == len({it.window for it in batch}), "a window comes once in a batch"
        for it in batch:
            assert (it.kind == "preliminary") <= (it.window not in settled)
            if it.kind == "correction":
                assert it.old == (table[it.window] if it.window in settled else None)
                assert it.old != it.values
            if it.kind != "preliminary":
                settled.add(it.window)
            table[it.window] = it.values
    assert table == by_window(on_time)


@settings(max_examples=draws(40))
@given(BATCHES)
def test_each_change_shows_what_has_come_so_far(batches: list[tuple[list[Event], int]]) -> None:
    found, _ = run(Lateness("drop", 30), batches)
    known: list[Event] = []
    watermark_us = 0
    for (events, step_us), batch in zip(batches, found, strict=False):
        new = [it for it in events if it.end_us > watermark_us - 30]
        known += new
        early = {it.window: it.values for it in batch if it.kind == "preliminary"}
        expected: Mapping[tuple[str | None, int], Values] = by_window(known)
        assert early == {it.window: expected[it.window] for it in new}
        watermark_us += step_us


def test_results_between_which_too_little_time_passes_wait() -> None:
    batches = [([Event("ann", 1, 1.0)], 0)] * 5
    found, _ = run(Lateness(), batches, 2_000_000)
    assert [[(it.kind, it.values[0]) for it in batch] for batch in found] == [
        [("preliminary", 1)],
        [],
        [("preliminary", 3)],
        [],
        [("preliminary", 5)],
        [("final", 5)],
    ]


def test_straggler_that_changes_no_value_is_no_correction() -> None:
    measures = [Measure("most", "max", "amount")]
    trial = Trial(RevisedWindows(SCHEMA, ["user"], measures, Lateness("correct", 50), "test"))
    trial.feed(rows([Event("ann", 1, 5.0)], 0))
    assert trial.advance(10).column("most").to_pylist() == [5.0]
    assert trial.feed(rows([Event("ann", 2, 4.0)], 1)).num_rows == 0
    (row,) = trial.feed(rows([Event("ann", 3, 6.0)], 2)).to_pylist()
    assert (row["_kind"], row["most"], row["_old"]) == ("correction", 6.0, {"most": 5.0})


def test_straggler_of_a_window_without_rows_corrects_nothing_into_something() -> None:
    trial = Trial(RevisedWindows(SCHEMA, ["user"], MEASURES, Lateness("correct", 50), "test"))
    trial.feed(rows([Event("ann", 25, 5.0)], 0), 20)
    (first,) = results(trial.feed(rows([Event("ann", 1, 1.0)], 1), 20))
    assert (first.kind, first.values[0], first.old) == ("correction", 1, None)


def test_rows_of_windows_that_are_no_longer_kept_are_late() -> None:
    """A longer lateness does not bring back the windows that were removed before it was set."""
    trial = Trial(RevisedWindows(SCHEMA, ["user"], MEASURES, Lateness("correct", 10), "test"))
    trial.feed(rows([Event("ann", 5, 1.0), Event("ann", 15, 1.0)], 0), 20)
    trial.operator = RevisedWindows(SCHEMA, ["user"], MEASURES, Lateness("correct", 50), "test")
    found = results(trial.feed(rows([Event("ann", 6, 2.0), Event("ann", 16, 2.0)], 1), 20))
    assert [(it.window, it.kind, it.values[0], it.old) for it in found if it.kind == "late"] == [
        (("ann", 10), "late", None, None)
    ]
    assert [it.values[0] for it in found if it.kind != "late"] == [2]


def test_row_without_a_time_is_late() -> None:
    trial = Trial(RevisedWindows(SCHEMA, ["user"], MEASURES, Lateness(), "test"))
    times = pa.nulls(1, TIME)
    row = rows([Event("ann", 5, 1.0)], 0)["rows"]
    row = row.set_column(1, SCHEMA.field(1), times).set_column(2, SCHEMA.field(2), times)
    assert trial.feed({"rows": row}).column("_kind").to_pylist() == ["late"]


def test_whole_numbers_stay_whole() -> None:
    schema = SCHEMA.set(4, pa.field("amount", pa.int32()))
    operator = RevisedWindows(
        schema, [], [Measure("s", "sum", "amount"), Measure("m", "avg", "amount")],
        Lateness(), "test",
    )  # fmt: skip
    trial = Trial(operator)
    trial.feed({"rows": rows([Event("ann", 1, 1), Event("bob", 2, 2)], 0)["rows"].cast(schema)})
    (row,) = trial.finish().to_pylist()
    assert (row["s"], type(row["s"]), row["m"]) == (3, int, pytest.approx(1.5))


def test_state_of_another_kind_of_aggregate_or_by_another_time_is_refused() -> None:
    """A sum and a maximum are kept in columns of one name and type."""
    lateness = Lateness("correct", 50)
    trial = Trial(
        RevisedWindows(SCHEMA, ["user"], [Measure("x", "sum", "amount")], lateness, "test")
    )
    trial.feed(rows([Event("ann", 1, 5.0)], 0))
    other = [Measure("x", "max", "amount")]
    trial.operator = RevisedWindows(SCHEMA, ["user"], other, lateness, "test")
    with pytest.raises(StateMismatch, match=r"other settings: .*x=sum.* the operator has .*x=max"):
        trial.feed(rows([Event("ann", 1, 5.0)], 1))
    schema = SCHEMA.append(pa.field("price", pa.float64()))
    other = [Measure("x", "sum", "price")]
    trial.operator = RevisedWindows(schema, ["user"], other, lateness, "test")
    priced = rows([Event("ann", 1, 5.0)], 1)["rows"].append_column("price", pa.array([1.0]))
    with pytest.raises(StateMismatch, match=r"x=sum\(amount\).* the operator has .*sum\(price\)"):
        trial.feed({"rows": priced})
    same = [Measure("x", "sum", "amount")]
    trial.operator = RevisedWindows(SCHEMA, ["user"], same, lateness, "test", "seen")
    with pytest.raises(StateMismatch, match=r"settings: .*by time.* operator has .*by seen"):
        trial.feed(rows([Event("ann", 1, 5.0)], 1))
