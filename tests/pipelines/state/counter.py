"""An operator for tests: the rows that the watermark has passed, and how many their key had."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from millstream.pipelines.state import BucketState, InputSpec, Operator, StateTableSpec
from millstream.pipelines.state.keys import key_codes
from millstream.pipelines.state.tables import times_of


class HoldAndCount(Operator):
    """Holds rows until the watermark has passed them, then emits them, numbered by key."""

    identity = "hold and count"

    def __init__(self, schema: pa.Schema, keys: tuple[str, ...], time: str) -> None:
        counted = pa.schema([*(schema.field(name) for name in keys), ("count", pa.int64())])
        self.inputs = {"rows": InputSpec(schema, keys)}
        self.tables = {
            "held": StateTableSpec(schema, keys, time),
            "counts": StateTableSpec(counted, keys, None),
        }
        self.schema_out = counted
        self.keys = keys
        self.time = time

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        state["held"].append(rows["rows"])
        return self.on_timer(state, watermark_us)

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        held = state["held"]
        due = held.select(last_us=watermark_us)
        held.expire(watermark_us + 1)
        left_us = times_of(held.select(), self.time)
        state.wake_at(int(left_us.min()) if len(left_us) else None)
        names = ["_hash", *self.keys]
        before = state["counts"].take(due.select(names))
        schema = self.tables["counts"].page_schema
        ones = pa.RecordBatch.from_arrays(
            [*due.select(names).columns, pa.array(np.ones(due.num_rows, np.int64))], schema=schema
        )
        rows = pa.concat_batches([before, ones])
        codes = key_codes(rows, self.keys)
        _, first = np.unique(codes, return_index=True)
        sums = np.bincount(codes, rows.column("count").to_numpy()).astype(np.int64)
        after = rows.take(pa.array(first)).set_column(
            schema.get_field_index("count"), "count", pa.array(sums)
        )
        state["counts"].append(after.cast(schema))
        return after.select(self.schema_out.names).cast(self.schema_out)
