"""Groups of rows that come and go, against recomputation after every batch."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipelines.joins.weights import WEIGHT
from millstream.pipelines.state.pages import StateMismatch
from millstream.pipelines.state.trial import Trial
from millstream.pipelines.views.aggregate import Grouped, Measure
from millstream.testing.streams import Source, check_operator
from millstream.testing.streams.report import StreamDiffers
from tests.drawing import draws

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("n", pa.int64()),
        ("d", pa.decimal128(10, 2)),
        ("x", pa.float64()),
        ("s", pa.string()),
        (WEIGHT, pa.int64()),
    ]
)
MEASURES = [
    Measure("rows", "count", None),
    Measure("known", "count", "n"),
    Measure("total", "sum", "n"),
    Measure("mean", "avg", "n"),
    Measure("money", "sum", "d"),
    Measure("price", "avg", "d"),
    Measure("least", "min", "s"),
    Measure("greatest", "max", "n"),
    Measure("kinds", "distinct", "s"),
    Measure("length", "sum", "x"),
    Measure("width", "avg", "x"),
]
ROW = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["x", "y", None]),
        "n": st.sampled_from([None, -3, 0, 7]),
        "d": st.sampled_from([None, Decimal("-1.25"), Decimal("99999999.99")]),
        "x": st.sampled_from([None, 0.1, 0.2, 1e17]),
        "s": st.sampled_from([None, "a", "b"]),
    }
)


def to_batch(rows: list[dict[str, Any]]) -> dict[str, pa.RecordBatch]:
    return {"rows": pa.RecordBatch.from_pylist(rows, schema=SCHEMA)}


def recomputed(rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """What SQL says of these rows."""
    found: dict[Any, dict[str, Any]] = {}
    for key in {row["key"] for row in rows}:
        group = [row for row in rows if row["key"] == key]
        values = {
            name: sorted(row[name] for row in group if row[name] is not None)
            for name in ("n", "d", "x", "s")
        }
        n, d, x, s = values.values()
        found[key] = {
            "rows": len(group),
            "known": len(n),
            "total": sum(n) if n else None,
            "mean": sum(n) / len(n) if n else None,
            "money": sum(d) if d else None,
            "price": round(sum(d) / len(d), 6) if d else None,
            "least": s[0] if s else None,
            "greatest": n[-1] if n else None,
            "kinds": len(set(s)),
            "length": pytest.approx(sum(x)) if x else None,
            "width": pytest.approx(sum(x) / len(x)) if x else None,
        }
    return found


class View:
    """The sum of all that the operator has emitted."""

    def __init__(self, operator: Grouped) -> None:
        self.trial = Trial(operator, buckets=2)
        self._rows: Counter[tuple[Any, ...]] = Counter()

    def feed(self, rows: list[dict[str, Any]]) -> None:
        for row in self.trial.feed(to_batch(rows)).to_pylist():
            weight = row.pop(WEIGHT)
            self._rows[tuple(row.items())] += weight

    def rows(self) -> list[dict[str, Any]]:
        assert set(self._rows.values()) <= {0, 1}
        return [dict(row) for row, weight in self._rows.items() if weight]


@settings(max_examples=draws(40))
@given(st.lists(st.tuples(st.lists(ROW, max_size=4), st.lists(st.integers(0, 30), max_size=4))))
def test_sum_of_changes_is_the_recomputation_after_every_batch(
    batches: list[tuple[list[dict[str, Any]], list[int]]],
) -> None:
    """Rows come, and any of those that are there leave."""
    view = View(Grouped(SCHEMA, ["key"], MEASURES))
    there: list[dict[str, Any]] = []
    for added, places in batches:
        removed = [there.pop(place % len(there)) for place in places if there]
        there += added
        view.feed([{**it, WEIGHT: -1} for it in removed] + [{**it, WEIGHT: 1} for it in added])
        found = {row.pop("key"): row for row in view.rows()}
        assert found == recomputed(there)


def test_groups_without_rows_leave_no_state() -> None:
    view = View(Grouped(SCHEMA, ["key"], MEASURES))
    row = {"key": "x", "n": 1, "d": Decimal("0.10"), "x": 0.5, "s": "a"}
    view.feed([{**row, WEIGHT: 1}])
    view.feed([{**row, WEIGHT: -1}])
    assert view.rows() == []
    assert all(store.index is None and not store.pages for store in view.trial.buckets)


def test_large_group_costs_its_counters_only() -> None:
    """However many rows a group has, its state is one row."""
    operator = Grouped(SCHEMA, ["key"], [Measure("total", "sum", "n"), Measure("m", "sum", "d")])
    view = View(operator)
    for number in range(40):
        row = {"key": "x", "n": number, "d": Decimal(number), "x": None, "s": None, WEIGHT: 1}
        view.feed([row] * 100)
    assert sum(map(len, view.trial.buckets[0].pages.values())) < 5_000


def test_state_of_another_expression_is_refused() -> None:
    trial = Trial(Grouped(SCHEMA, ["key"], [Measure("total", "sum", "n", "price * n")]))
    row = {"key": "x", "n": 1, "d": None, "x": None, "s": None, WEIGHT: 1}
    trial.feed(to_batch([row]))
    trial.operator = Grouped(SCHEMA, ["key"], [Measure("total", "sum", "n", "n")])
    with pytest.raises(StateMismatch, match=r"sum\(price \* n\).* operator has .*sum\(n\)"):
        trial.feed(to_batch([row]))


def test_sum_that_does_not_fit_is_an_error() -> None:
    view = View(Grouped(SCHEMA, ["key"], [Measure("total", "sum", "n")]))
    row = {"key": "x", "n": 2**62, "d": None, "x": None, "s": None, WEIGHT: 1}
    with pytest.raises(OverflowError, match="decimal"):
        view.feed([row] * 3)


def weighted(*columns: str) -> Source:
    """Rows with some of the columns."""

    def row(values: dict[str, Any], weight: int) -> dict[str, Any]:
        return {name: values[name] for name in columns} | {WEIGHT: weight}

    return Source(st.builds(row, ROW, st.sampled_from([1, 1, 1, -1, 2])))


def test_stream_of_groups_is_the_batch() -> None:
    check_operator(
        Grouped(SCHEMA, ["key"], MEASURES),
        {"rows": weighted(*SCHEMA.names[:-1])},
        seed=1,
        examples=12,
    )


def test_stream_of_distinct_rows_is_the_batch() -> None:
    check_operator(
        Grouped(SCHEMA, ["key", "s"]), {"rows": weighted("key", "s")}, seed=1, examples=12
    )


class KeepsNoRemoved(Grouped):
    """Broken: as Spark's update mode, it emits the new rows of groups and not the old ones."""

    def process(self, state: Any, rows: Any, watermark_us: int) -> pa.RecordBatch:
        found = super().process(state, rows, watermark_us)
        return found.filter(
            pa.array([it > 0 for it in found.column(WEIGHT).to_pylist()], pa.bool_())
        )


class IgnoresWeights(Grouped):
    """Broken: in the first batch, rows that were removed are added."""

    def process(self, state: Any, rows: Any, watermark_us: int) -> pa.RecordBatch:
        new = rows["rows"]
        ones = pa.array([1] * new.num_rows, pa.int64())
        place = new.schema.get_field_index(WEIGHT)
        added = new.set_column(place, new.schema.field(place), ones)
        is_first = state["groups"].row_count == 0
        return super().process(state, {"rows": added if is_first else new}, watermark_us)


@pytest.mark.parametrize("broken", [KeepsNoRemoved, IgnoresWeights])
def test_broken_operator_is_found(broken: type[Grouped]) -> None:
    operator = broken(SCHEMA, ["key"], [Measure("rows", "count", None)])
    with pytest.raises(StreamDiffers):
        check_operator(operator, {"rows": weighted("key")}, seed=1, examples=50)
