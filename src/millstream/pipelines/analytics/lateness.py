"""Late rows of the operators of this room: told apart, marked, counted.

An operator gives back what it has done with each row in `_kind`, late ones with `_lateness`, the
seconds that they are behind the watermark. What is dropped is then counted in the query's progress,
each kind under a name of its own, and goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.columns import DROPPED_KIND, as_column
from millstream.pipelines.state.lateness import seconds_behind
from millstream.pipelines.windows.sliding import KIND, LATENESS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KIND_FIELD = pa.field(KIND, pa.string())
LATENESS_FIELD = pa.field(LATENESS, pa.float64())


def with_kind(
    rows: pa.RecordBatch,
    kind: str,
    schema: pa.Schema,
    time: str | None = None,
    watermark_us: int = 0,
) -> pa.RecordBatch:
    """Rows in the columns of `schema`; what they do not have is null, and with a time they have
    their lateness."""
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
    """Raises `ConfigError` if the frame has a column that says what became of its rows already."""
    for name in (KIND, LATENESS):
        if name in frame.columns:
            raise ConfigError(
                f"there is a column {name}, and the result may have one of its own: "
                f'frame.drop("{name}") before, or rename it'
            )


def count_kinds(
    result: DataFrame, columns: Sequence[str], stragglers: str, dropped: Mapping[str, str]
) -> DataFrame:
    """The rows that stay, with these columns; the kinds that are dropped are counted by name.
    Late ones that are diverted stay, and rows then say their kind."""
    from pyspark.sql.functions import col, count_if

    stays = ["final"] if stragglers == "drop" else ["final", "late"]
    for metric, kind in dropped.items():
        if kind not in stays:
            noted = {DROPPED_KIND: kind}
            count = count_if(col(KIND) == kind).alias("dropped", metadata=noted)
            result = result.observe(metric, count)
    shown = [*columns, *([] if stragglers == "drop" else [KIND, LATENESS])]
    return result.where(col(KIND).isin(stays)).select(*map(as_column, shown))
