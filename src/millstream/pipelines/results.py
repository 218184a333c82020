"""The vocabulary of results: the columns that operators add to rows, and the kinds of rows.

    _kind         final         nothing that is on time can change the result any more
                  arrival       the one result of an event, by what is known when it arrives
                  preliminary   the result so far
                  correction    a result that replaces a final one; `_old` has the replaced values
                  withdrawn     a result that no longer holds: two sessions became one
                  duplicate     a copy of an earlier row
                  late          a row that came too late for a result
    _old          the aggregates that a correction replaces
    _lateness     of a late row, the seconds that its time is behind the watermark
    window_start, window_end

An operator emits each row with its kind. Dropped rows are counted in the query's progress, as
"dropped" under the name of a metric, and removed: late rows by `drop_late`, which all operators
use, and others, like duplicates, by `keep_results`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.columns import as_column
from millstream.pipelines.lateness import Lateness, seconds_behind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KIND: Final = "_kind"
OLD: Final = "_old"
LATENESS: Final = "_lateness"
START: Final = "window_start"
END: Final = "window_end"

FINAL: Final = "final"
ARRIVAL: Final = "arrival"
PRELIMINARY: Final = "preliminary"
CORRECTION: Final = "correction"
WITHDRAWN: Final = "withdrawn"
DUPLICATE: Final = "duplicate"
LATE: Final = "late"

KIND_FIELD = pa.field(KIND, pa.string())
LATENESS_FIELD = pa.field(LATENESS, pa.float64())
DROPPED: Final = "dropped"
DROPPED_KIND: Final = "millstream.dropped"  # metadata of a count: the kind of the dropped rows


def with_kind(
    rows: pa.RecordBatch,
    kind: str,
    schema: pa.Schema,
    time: str | None = None,
    watermark_us: int = 0,
) -> pa.RecordBatch:
    """Rows with the columns of `schema` and a kind. Columns that they do not have are null. With a
    time, they have their lateness."""
    columns = []
    for field in schema:
        if field.name == KIND:
            columns.append(pa.repeat(pa.scalar(kind), rows.num_rows))
        elif field.name == LATENESS and time is not None:
            columns.append(seconds_behind(rows, time, watermark_us))
        elif field.name in rows.schema.names:
            columns.append(rows.column(field.name))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_no_kind(frame: DataFrame) -> None:
    """Raise `ConfigError` if the frame has a column that the result may have."""
    for name in (KIND, LATENESS):
        if name in frame.columns:
            raise ConfigError(
                f"there is already a column {name}, and the result may have one: "
                f'frame.drop("{name}") before, or rename it'
            )


def drop_late(
    frame: DataFrame,
    is_late: Column,
    lateness: Lateness,
    *,
    count: Column | None = None,
    kind: str = LATE,
    others: Mapping[str, Column] | None = None,
) -> DataFrame:
    """The rows that are not late. Late rows are counted in the query's progress, unless another
    output has them. `is_late` is never null; `count` is the number of late rows, if one row stands
    for several; `kind` is their name in `explain`; `others` are counts beside it."""
    from pyspark.sql.functions import count_if

    if lateness.stragglers == "drop":
        counted = count_if(is_late) if count is None else count
        frame = _observe_dropped(frame, lateness.count_as, counted, kind, others)
    return frame.where(~is_late)


def keep_results(
    result: DataFrame,
    columns: Sequence[str],
    lateness: Lateness,
    duplicates_as: str | None = None,
) -> DataFrame:
    """Results with these columns, from rows with a `_kind`. Duplicates are counted and removed.
    Diverted late rows stay, and all rows then have `_kind` and `_lateness`."""
    from pyspark.sql.functions import col, count_if

    kind = col(KIND)
    if duplicates_as is not None:
        duplicates = count_if(kind == DUPLICATE)
        result = _observe_dropped(result, duplicates_as, duplicates, DUPLICATE)
        result = result.where(kind != DUPLICATE)
    if lateness.stragglers == "drop":
        return drop_late(result, kind == LATE, lateness).select(*map(as_column, columns))
    return result.select(*map(as_column, [*columns, KIND, LATENESS]))


def _observe_dropped(
    frame: DataFrame,
    metric: str,
    count: Column,
    kind: str,
    others: Mapping[str, Column] | None = None,
) -> DataFrame:
    dropped = count.alias(DROPPED, metadata={DROPPED_KIND: kind})
    more = [it.alias(name) for name, it in (others or {}).items()]
    return frame.observe(metric, dropped, *more)
