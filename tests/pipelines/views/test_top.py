"""The first rows of groups, against sorting after every batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipelines.joins.weights import WEIGHT
from millstream.pipelines.state.trial import Trial
from millstream.pipelines.views.top import TopRows
from millstream.testing.streams import Source, check_operator
from millstream.testing.streams.report import StreamDiffers
from tests.drawing import draws

SCHEMA = pa.schema(
    [("group", pa.string()), ("item", pa.int64()), ("value", pa.int64()), (WEIGHT, pa.int64())]
)
ROW = st.fixed_dictionaries(
    {
        "group": st.sampled_from(["x", "y"]),
        "item": st.integers(1, 4),
        "value": st.sampled_from([None, 1, 2, 3]),
    }
)


def first(rows: list[dict[str, Any]], k: int, *, smallest: bool) -> list[tuple[Any, ...]]:
    """By sorting all of them."""
    found = []
    for group in ("x", "y"):
        sign = 1 if smallest else -1
        ordered = sorted(
            (row for row in rows if row["group"] == group),
            key=lambda it: (it["value"] is None, sign * (it["value"] or 0), it["item"]),
        )
        found += [
            (group, row["item"], row["value"], rank) for rank, row in enumerate(ordered[:k], 1)
        ]
    return found


@settings(max_examples=draws(40))
@given(
    st.lists(st.tuples(st.lists(ROW, max_size=5), st.lists(st.integers(0, 30), max_size=5))),
    st.integers(1, 3),
    st.booleans(),
)
def test_sum_of_changes_is_the_top_after_every_batch(
    batches: list[tuple[list[dict[str, Any]], list[int]]], k: int, smallest: bool
) -> None:
    trial = Trial(TopRows(SCHEMA, ["group"], "value", k, smallest=smallest), buckets=2)
    view: Counter[tuple[Any, ...]] = Counter()
    there: list[dict[str, Any]] = []
    for added, places in batches:
        removed = [there.pop(place % len(there)) for place in places if there]
        there += added
        rows = [{**it, WEIGHT: -1} for it in removed] + [{**it, WEIGHT: 1} for it in added]
        batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        for row in trial.feed({"rows": batch}).to_pylist():
            weight = row.pop(WEIGHT)
            view[tuple(row.values())] += weight
        assert set(view.values()) <= {0, 1}
        expected = Counter(first(there, k, smallest=smallest))
        assert {row: n for row, n in view.items() if n} == expected


WEIGHTED = Source(
    st.builds(lambda row, weight: {**row, WEIGHT: weight}, ROW, st.sampled_from([1, 1, -1, 2]))
)


@pytest.mark.parametrize("groups", [["group"], []])
def test_stream_of_first_rows_is_the_batch(groups: list[str]) -> None:
    operator = TopRows(SCHEMA, groups, "value", 2)
    check_operator(operator, {"rows": WEIGHTED}, seed=1, examples=12)


class ForgetsTheRest(TopRows):
    """Broken: keeps only the first rows, so that nothing moves up when one of them leaves."""

    def process(self, state: Any, rows: Any, watermark_us: int) -> pa.RecordBatch:
        kept = rows["rows"].filter(
            pa.array([it is not None and it > 1 for it in rows["rows"]["value"].to_pylist()])
        )
        is_first = state["rows"].row_count == 0
        return super().process(state, rows if is_first else {"rows": kept}, watermark_us)


def test_broken_operator_is_found() -> None:
    operator = ForgetsTheRest(SCHEMA, ["group"], "value", 2)
    with pytest.raises(StreamDiffers):
        check_operator(operator, {"rows": WEIGHTED}, seed=1, examples=50)
