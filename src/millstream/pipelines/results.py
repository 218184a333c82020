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
"dropped" under the name of a metric (`observe_dropped`), and removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.columns import as_column
from millstream.pipelines.state.lateness import seconds_behind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# What happens with rows that are late for a result; joins and most analytics correct nothing.
Stragglers: TypeAlias = Literal["drop", "divert", "correct"]
DropOrDivert: TypeAlias = Literal["drop", "divert"]

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


def observe_dropped(
    frame: DataFrame,
    metric: str,
    count: Column,
    kind: str = LATE,
    others: Mapping[str, Column] | None = None,
) -> DataFrame:
    """The frame, with a count of dropped rows in the query's progress, under the name `metric`; and
    other counts beside it. The rows are not removed: there may be several kinds."""
    dropped = count.alias(DROPPED, metadata={DROPPED_KIND: kind})
    more = [it.alias(name) for name, it in (others or {}).items()]
    return frame.observe(metric, dropped, *more)


def keep_results(
    result: DataFrame, columns: Sequence[str], stragglers: str, dropped: Mapping[str, str]
) -> DataFrame:
    """The rows that stay, with these columns; the kinds in `dropped` are counted by metric. Late
    rows that are diverted stay, and the result then has the columns of its vocabulary."""
    from pyspark.sql.functions import col, count_if

    stays = [ARRIVAL, FINAL] if stragglers == "drop" else [ARRIVAL, FINAL, LATE]
    for metric, kind in dropped.items():
        if kind not in stays:
            result = observe_dropped(result, metric, count_if(col(KIND) == kind), kind)
    shown = [*columns, *([] if stragglers == "drop" else [KIND, LATENESS])]
    return result.where(col(KIND).isin(stays)).select(*map(as_column, shown))
