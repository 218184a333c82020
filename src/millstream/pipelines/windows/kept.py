"""Windows in bucketed state, on Spark: their results, and with them, of one read, their stragglers.

`definition(frame)` and `definition.late(frame)` are two streams, and Spark reads the source for
each. `definition.with_late(frame)` is one: late rows go to the operator beside the others, whole,
and come out of it as they are, in a column of their own. Rows have two structs, of which one is
null:

    results   what `definition(frame)` has
    late      what `definition.late(frame)` has

which is what a pipeline with two outputs returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millstream.pipelines.columns import as_column
from millstream.pipelines.results import OLD
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


class WithLate(Operator):
    """An operator of one input, past which late rows are carried. Those have a `late`, a struct."""

    def __init__(self, inner: Operator, late: pa.DataType) -> None:
        (spec,) = inner.inputs.values()
        self.identity = inner.identity
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


def kept_windows(window: WindowSpec, on_time: DataFrame) -> DataFrame:
    """The results on a stream whose rows are assigned and on time."""
    from millstream.pipelines.state.spark import arrow_schema, run_operator

    columns, make = _operator(window, on_time)
    frame = on_time.select(*columns)
    result = run_operator(make(arrow_schema(frame.schema)), {_ROWS: frame}, window.buckets)
    return result if window.stragglers == "correct" else result.drop(OLD)


def kept_with_late(window: WindowSpec, assigned: DataFrame, late: Column) -> DataFrame:
    """Results and late rows of a stream whose rows are assigned; `late`: what is shown of them."""
    from pyspark.sql.functions import col, when

    from millstream.pipelines.state.spark import arrow_schema, run_operator

    columns, make = _operator(window, assigned)
    frame = assigned.select(*columns, when(as_column(IS_LATE), late).alias(_LATE))
    schema = arrow_schema(frame.schema)
    place = schema.get_field_index(_LATE)
    operator = WithLate(make(schema.remove(place)), schema.field(place).type)
    result = run_operator(operator, {_ROWS: frame}, window.buckets)
    shown = col(_RESULTS) if window.stragglers == "correct" else col(_RESULTS).dropFields(OLD)
    return result.select(shown.alias(_RESULTS), _LATE)


def _operator(window: WindowSpec, frame: DataFrame) -> tuple[list[Column], MakeOperator]:
    of_kind = sessions_operator if isinstance(window.kind, Session) else windows_operator
    return of_kind(window, frame)
