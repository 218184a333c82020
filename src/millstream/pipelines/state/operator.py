"""What an author of an operator writes: a pure class, and no line about storing or Spark.

    class CountPerKey(Operator):
        identity = "count per key"

        def __init__(self, schema): ...
            self.inputs = {"events": InputSpec(schema, ("user",))}
            self.tables = {"events": TableSpec(schema, ("user",), "time")}
            self.schema_out = pa.schema([("user", pa.string()), ("count", pa.int64())])

        def process(self, state, rows, watermark_us):
            events = state["events"]
            events.append(rows["events"])
            ...
            return pa.RecordBatch.from_pydict(..., schema=self.schema_out)

It is called once per batch for each bucket that has rows, or whose timer is due. All it may know is
what it is given: the same calls must yield the same rows, since Spark repeats batches. Rows of all
inputs come with `_hash`, fit to be appended to a table as they are. Rows that must meet have the
same key: inputs name as many columns, of types that compare.

As a batch, it is called once with all rows and no watermark, then with `END_OF_TIME`: whatever it
was waiting for will not come.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping

import pyarrow as pa

from millstream.pipelines.durations import duration_text
from millstream.pipelines.state.bucket import BucketState, BucketStore, InputSpec
from millstream.pipelines.state.keys import HASH_FIELD
from millstream.pipelines.state.tables import TableSpec

OPERATOR = "millstream.operator"  # where a plan of Spark's has what an operator tells of itself


class Operator(ABC):
    """One stateful step of a stream. Instances travel to Spark's workers by pickle."""

    identity: str  # the settings that state depends on; state of another identity is refused
    title: str = ""  # what people are shown instead, if anything
    inputs: Mapping[str, InputSpec]
    tables: Mapping[str, TableSpec]
    schema_out: pa.Schema

    @abstractmethod
    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        """New rows of every input (none: an empty batch), in any order."""

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        """The watermark has reached what `state.wake_at` asked for."""
        return self.nothing

    def kept(self) -> Mapping[str, str]:
        """How long the rows of each table are kept, as people are told."""
        times = {name: spec.time for name, spec in self.tables.items()}
        return {
            name: "for ever" if time is None else "until the watermark is past them"
            for name, time in times.items()
        }

    def describe(self, bucket_count: int) -> str:
        """What a plan says of it, as JSON; `running/explaining.py` reads it."""
        return json.dumps(
            {
                "title": self.title or _readable(self.identity),
                "buckets": bucket_count,
                "inputs": {name: spec.keys for name, spec in self.inputs.items()},
                "tables": self.kept(),
            }
        )

    @property
    def nothing(self) -> pa.RecordBatch:
        """No rows, with the right columns."""
        return pa.RecordBatch.from_pylist([], schema=self.schema_out)

    def no_rows(self) -> dict[str, pa.RecordBatch]:
        """No rows of any input."""
        return {
            name: pa.RecordBatch.from_pylist([], schema=pa.schema([HASH_FIELD, *spec.schema]))
            for name, spec in self.inputs.items()
        }


def run_bucket(
    operator: Operator,
    bucket_count: int,
    store: BucketStore,
    rows: Mapping[str, pa.RecordBatch] | None,
    watermark_us: int,
) -> pa.RecordBatch:
    """One call of an operator: open the bucket, process rows (None: wake), write what changed."""
    state = BucketState(operator, bucket_count, store)
    if rows is None:
        state.wake_at(None)
        result = operator.on_timer(state, watermark_us)
    else:
        result = operator.process(state, rows, watermark_us)
    state.finish(watermark_us)
    return result


def _readable(identity: str) -> str:
    """With durations as people write them."""
    return re.sub(r"\b(\d+) us\b", lambda found: duration_text(int(found[1])), identity)
