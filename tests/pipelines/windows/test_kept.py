"""Late rows that are carried past an operator: its results are the same, and they are whole."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millstream.pipelines.lateness import Lateness
from millstream.pipelines.state.trial import Trial
from millstream.pipelines.windows.kept import WithLate
from millstream.pipelines.windows.measures import Measure
from millstream.pipelines.windows.revisions import RevisedWindows

STAMP = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [("user", pa.string()), ("window_start", STAMP), ("window_end", STAMP), ("_now", STAMP)]
)
LATE = pa.struct([("user", pa.string()), ("text", pa.string())])


def inner() -> RevisedWindows:
    return RevisedWindows(
        SCHEMA, ["user"], [Measure("n", "count", None)], Lateness(), "test", every_us=0
    )


def row(user: str, text: str | None = None) -> dict[str, Any]:
    late = None if text is None else {"user": user, "text": text}
    start, end = (None, None) if late else (0, 10)
    return {"user": user, "window_start": start, "window_end": end, "_now": 0, "late": late}


def feed(trial: Trial, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    schema = trial.operator.inputs["rows"].schema
    return trial.feed({"rows": pa.RecordBatch.from_pylist(rows, schema=schema)})


def test_late_rows_pass_and_results_are_those_of_the_operator_alone() -> None:
    trial, alone = Trial(WithLate(inner(), LATE)), Trial(inner())
    found = feed(trial, [row("ann"), row("ann"), row("ann", "too late"), row("bob", "me too")])
    expected = feed(alone, [row("ann"), row("ann")])
    results, late = found.column("results"), found.column("late")
    assert results.drop_null().to_pylist() == expected.to_struct_array().to_pylist()
    assert {it["text"] for it in late.drop_null().to_pylist()} == {"too late", "me too"}
    assert results.null_count == 2
    assert late.null_count == found.num_rows - 2
    closed = trial.advance(10)
    assert closed.column("results").to_pylist()[0]["_kind"] == "final"
    assert closed.column("late").null_count == closed.num_rows == 1


def test_batch_of_late_rows_alone_changes_nothing() -> None:
    trial = Trial(WithLate(inner(), LATE))
    found = feed(trial, [row("ann", "too late")])
    assert found.column("results").null_count == found.num_rows == 1
    assert all(not store.pages and store.timer_us is None for store in trial.buckets)


def test_it_is_described_as_its_operator_whose_state_it_has() -> None:
    operator = WithLate(inner(), LATE)
    assert (operator.title, operator.kept()) == (inner().title, inner().kept())
    assert operator.identity == inner().identity
