"""The base class of operators: pure, without storage and without Spark.

    class CountPerKey(Operator):
        identity = "count per key"

        def __init__(self, schema): ...
            self.inputs = {"events": InputSpec(schema, ("user",))}
            self.tables = {"events": StateTableSpec(schema, ("user",), "time")}
            self.schema_out = pa.schema([("user", pa.string()), ("count", pa.int64())])

        def process(self, state, rows, watermark_us):
            events = state["events"]
            events.append(rows["events"])
            ...
            return pa.RecordBatch.from_pydict(..., schema=self.schema_out)

An operator is called once per batch for each bucket that has rows, or whose timer is due. It may
use only its arguments: the same calls must yield the same rows, because Spark repeats batches. Rows
of all inputs have `_hash`, and can be appended to a table as they are. Rows that must be processed
together have the same key: the inputs name the same number of columns, of comparable types.

As a batch, it is called once with all rows and no watermark, then with `END_OF_TIME`: nothing more
will arrive.
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
from millstream.pipelines.state.stored_columns import NO_GENERATIONS, Generations
from millstream.pipelines.state.tables import StateTableSpec

OPERATOR = "millstream.operator"  # metadata in Spark's plan with the description of an operator


class Operator(ABC):
    """One stateful step of a stream. Instances are pickled for Spark's workers."""

    identity: str  # the settings that the content of the state depends on; others are refused
    earlier: tuple[str, ...] = ()  # the identities that earlier versions gave the same settings
    settles: str = ""  # when each row gets its result, if only the state tells which have theirs
    title: str = ""  # shown to users instead of the identity
    by_arrival: str = ""  # its function, if its results depend on when rows arrive
    inputs: Mapping[str, InputSpec]
    tables: Mapping[str, StateTableSpec]
    schema_out: pa.Schema

    @abstractmethod
    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        """Process new rows of every input (an empty batch if there are none), in any order."""

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        """The watermark has reached the time of `state.wake_at`."""
        return self.nothing

    def kept(self) -> Mapping[str, str]:
        """How long the rows of each table are kept, as text."""
        times = {name: spec.time for name, spec in self.tables.items()}
        return {
            name: "forever" if time is None else "until the watermark is past them"
            for name, time in times.items()
        }

    def details(self) -> Mapping[str, str]:
        """More lines for `explain`, by name."""
        return {}

    def describe(self, bucket_count: int, number: int = 0) -> str:
        """A description for Spark's plan, as JSON; `running/plan_steps.py` and
        `running/state_columns.py` read it. `number` distinguishes the operators of a plan."""
        return json.dumps(
            {
                "number": number,
                "identity": self.identity,
                "title": self.title or _readable(self.identity),
                "buckets": bucket_count,
                "inputs": {name: spec.keys for name, spec in self.inputs.items()},
                "tables": self.kept(),
                "columns": {name: spec.other_columns for name, spec in self.tables.items()},
                "details": self.details(),
            }
        )

    @property
    def nothing(self) -> pa.RecordBatch:
        """No rows, with the columns of the output."""
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
    generations: Generations = NO_GENERATIONS,
) -> pa.RecordBatch:
    """Call an operator once: open the bucket, process rows (None: the timer), write changes."""
    state = BucketState(operator, bucket_count, store, generations)
    if rows is None:
        state.wake_at(None)
        result = operator.on_timer(state, watermark_us)
    else:
        result = operator.process(state, rows, watermark_us)
    state.finish(watermark_us)
    return result


def _readable(identity: str) -> str:
    """The identity with readable durations."""
    return re.sub(r"\b(\d+) us\b", lambda found: duration_text(int(found[1])), identity)
