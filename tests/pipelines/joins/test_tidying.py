"""Tables are tidied when they have doubled, and not oftener."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from millstream.pipelines.joins.tidying import tidied_tables, tidy
from millstream.pipelines.state import BucketState, InputSpec, Operator, TableSpec
from millstream.pipelines.state.trial import Trial

SCHEMA = pa.schema([("key", pa.int64())])


class KeepSome(Operator):
    """Appends rows, keeps the greatest `kept` of them when it tidies, and tells that it does."""

    identity = "keep some"
    schema_out = pa.schema([("tidied", pa.int64())])

    def __init__(self, kept: int) -> None:
        self.inputs = {"rows": InputSpec(SCHEMA, ("key",))}
        self.tables = tidied_tables("rows", TableSpec(SCHEMA, ("key",), None))
        self._kept = kept

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        state["rows"].append(rows["rows"])
        sizes = []

        def reduce(all_rows: pa.RecordBatch) -> pa.RecordBatch:
            sizes.append(all_rows.num_rows)
            return all_rows.sort_by("key").slice(max(all_rows.num_rows - self._kept, 0))

        tidy(state, "rows", reduce, rows_min=4)
        return pa.RecordBatch.from_pydict({"tidied": sizes}, schema=self.schema_out)


def sizes_when_tidied(kept: int, count: int) -> list[int | None]:
    """Of a table that gets one row after another; None where it is left alone."""
    trial = Trial(KeepSome(kept), bucket_count=1)
    found = []
    for number in range(count):
        rows = pa.RecordBatch.from_pydict({"key": [number]}, schema=SCHEMA)
        told = trial.feed({"rows": rows}).column("tidied").to_pylist()
        found.append(told[0] if told else None)
    return found


def test_table_is_tidied_when_it_has_doubled() -> None:
    found = sizes_when_tidied(kept=3, count=10)
    assert found == [None, None, None, 4, None, None, 6, None, None, 6]


def test_table_in_which_all_is_needed_is_rewritten_ever_less_often() -> None:
    found = sizes_when_tidied(kept=1000, count=40)
    assert [it for it in found if it] == [4, 8, 16, 32]


def test_table_of_which_nothing_is_left_leaves_no_state() -> None:
    trial = Trial(KeepSome(0), bucket_count=1)
    rows = pa.RecordBatch.from_pydict({"key": [1, 2, 3, 4]}, schema=SCHEMA)
    trial.feed({"rows": rows})
    assert trial.buckets[0].index is None
