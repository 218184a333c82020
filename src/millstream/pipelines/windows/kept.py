"""Windows in bucketed state on Spark: their results, and optionally late rows from the same read.

`definition(frame)` and `definition.late(frame)` are two streams, and Spark reads the source for
each. `definition.with_late(frame)` is one: whole late rows pass through the operator in a column of
their own. Rows have two structs, of which one is null:

    results   the columns of `definition(frame)`
    late      the columns of `definition.late(frame)`

This is the form that a pipeline with two outputs returns.

The operator itself finds late rows too (revisions.py). They are counted in the progress: with
stragglers="drop" together with all late rows, otherwise as `late.tumbling 1 minute.expired`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millstream.pipelines.columns import as_column
from millstream.pipelines.results import KIND, LATE, OLD, drop_late
from millstream.pipelines.state import BucketState, InputSpec, Operator
from millstream.pipelines.state.tables import concat
from millstream.pipelines.times.lateness import IS_LATE
from millstream.pipelines.windows.kinds import Session
from millstream.pipelines.windows.revisions import MakeOperator, windows_operator
from millstream.pipelines.windows.sessions import sessions_operator
from millstream.pipelines.windows.spec import WindowSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ROWS = "rows"
_RESULTS, _LATE = "results", "late"
EXPIRED = "expired"


class WithLate(Operator):
    """An operator of one input, past which late rows are carried. Those have a `late`, a struct."""

    def __init__(self, inner: Operator, late: pa.DataType) -> None:
        (spec,) = inner.inputs.values()
        self.identity = inner.identity
        self.earlier = inner.earlier
        self.settles = inner.settles
        self.title = inner.title
        self.inputs = {_ROWS: InputSpec(spec.schema.append(pa.field(_LATE, late)), spec.keys)}
        self.tables = inner.tables
        self.schema_out = pa.schema(
            [pa.field(_RESULTS, pa.struct(list(inner.schema_out))), pa.field(_LATE, late)]
        )
        self._inner = inner

    def kept(self) -> Mapping[str, str]:
        return self._inner.kept()

    def process(
        self, state: BucketState, rows: Mapping[str, pa.RecordBatch], watermark_us: int
    ) -> pa.RecordBatch:
        given = rows[_ROWS]
        is_late = given.column(_LATE).is_valid()
        on_time = given.filter(pc.invert(is_late)).drop_columns([_LATE])
        results = self._inner.process(state, {_ROWS: on_time}, watermark_us)
        late = given.column(_LATE).filter(is_late)
        nothing = pa.nulls(len(late), self.schema_out.field(_RESULTS).type)
        passed = pa.RecordBatch.from_arrays([nothing, late], schema=self.schema_out)
        return concat([self._of_results(results), passed])

    def on_timer(self, state: BucketState, watermark_us: int) -> pa.RecordBatch:
        return self._of_results(self._inner.on_timer(state, watermark_us))

    def _of_results(self, results: pa.RecordBatch) -> pa.RecordBatch:
        nothing = pa.nulls(results.num_rows, self.schema_out.field(_LATE).type)
        arrays = [results.to_struct_array(), nothing]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema_out)


def kept_windows(window: WindowSpec, assigned: DataFrame) -> DataFrame:
    """The results of a stream whose rows have their windows."""
    from pyspark.sql.functions import col

    from millstream.pipelines.state.spark import arrow_schema, run_operator

    if window.lateness.stragglers != "drop":
        assigned = assigned.where(~col(IS_LATE))  # another output has them
    columns, make = _operator(window, assigned)
    frame = assigned.select(*columns)
    found = run_operator(make(arrow_schema(frame.schema)), {_ROWS: frame}, window.buckets)
    result = _drop_late(window, found, col(KIND) == LATE)
    return result if window.lateness.corrects else result.drop(OLD)


def kept_with_late(window: WindowSpec, assigned: DataFrame, late: Column) -> DataFrame:
    """Results and late rows of a stream whose rows have their windows; `late` are the columns of
    late rows."""
    from pyspark.sql.functions import coalesce, col, lit, when

    from millstream.pipelines.state.spark import arrow_schema, run_operator

    columns, make = _operator(window, assigned)
    frame = assigned.select(*columns, when(as_column(IS_LATE), late).alias(_LATE))
    schema = arrow_schema(frame.schema)
    place = schema.get_field_index(_LATE)
    operator = WithLate(make(schema.remove(place)), schema.field(place).type)
    found = run_operator(operator, {_ROWS: frame}, window.buckets)
    is_late = coalesce(col(f"{_RESULTS}.{KIND}") == LATE, lit(False))
    result = _drop_late(window, found, is_late)
    shown = col(_RESULTS) if window.lateness.corrects else col(_RESULTS).dropFields(OLD)
    return result.select(shown.alias(_RESULTS), _LATE)


def _drop_late(window: WindowSpec, found: DataFrame, is_late: Column) -> DataFrame:
    """Late rows that the operator found are in no other output, so they are counted whatever the
    policy is; under a name of their own if it is not to count late rows."""
    lateness = window.lateness
    if lateness.stragglers == "drop":
        return drop_late(found, is_late, lateness)
    counting = replace(lateness, stragglers="drop", count_as=f"{lateness.count_as}.{EXPIRED}")
    return drop_late(found, is_late, counting, kind=EXPIRED)


def _operator(window: WindowSpec, frame: DataFrame) -> tuple[list[Column], MakeOperator]:
    of_kind = sessions_operator if isinstance(window.kind, Session) else windows_operator
    return of_kind(window, frame)
