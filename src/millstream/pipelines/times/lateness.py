"""Which rows are late: decided once, before Spark's operators see them.

Spark drops rows by the watermark of the batch *before* the last, and reports only their number. But
the watermark of the current batch is in the checkpoint before the batch is planned. A pipeline's
reader puts it into every row of a topic that is declared with `watermark=`, as the column
`_watermark`; any reader of topics does if the schema names it; `with_watermark_column` does so for
other sources. It only grows, and is the same when a batch is repeated, so decisions by it are
repeatable. It is never behind the watermark that Spark drops by: Spark drops no row that is on time
here.

The operator defines the deadline of a row:

    tumbling, hopping, calendar   the end of the window, for each window of the row
    session                       time + gap
    sliding                       time
    joins                         time + how far behind it a match may be

A row is late if its deadline is at or behind the watermark. A row without a time is late: it
belongs to no window. A batch has no watermark, and none of its rows is late.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.pipelines.columns import WATERMARK_COLUMN, as_column, check_time
from millstream.pipelines.durations import Duration, duration_us
from millstream.pipelines.hidden import hide_again, show_watermark
from millstream.pipelines.query_files import watermark_ms_of
from millstream.pipelines.results import LATENESS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

LATE = "_late"
IS_LATE = "_is_late"  # of a row for a window; not in results
RULE = "millstream.late"  # metadata of a column that marks late rows: the rule
_BATCH_ID = "streaming.sql.batchId"


def mark_late(frame: DataFrame, deadline: Duration, *, time: str | Column) -> DataFrame:
    """The rows with `_late`, whether `time + deadline` is at or behind the watermark, and with
    `_lateness`, the seconds that `time` is behind it; null if there is no watermark."""
    from pyspark.sql.functions import timestamp_micros, unix_micros

    check_time(frame, time)
    moment = as_column(time)
    waiting_us = duration_us(deadline, "deadline", zero_allowed=True)
    due = timestamp_micros(unix_micros(moment) + waiting_us)
    shown = show_watermark(frame)
    marked = shown.withColumns(
        {
            LATE: with_rule(is_late(shown, moment, due), LATE, f"time + {deadline}"),
            LATENESS: lateness(shown, moment),
        }
    )
    return hide_again(marked, frame)


def is_late(frame: DataFrame, time: Column, deadline: Column) -> Column:
    """Never null. Raises `ConfigError` if the frame is a stream and does not show `_watermark`."""
    from pyspark.sql.functions import coalesce, lit

    if not frame.isStreaming:
        return time.isNull()
    return time.isNull() | coalesce(deadline <= watermark(frame), lit(False))


def with_rule(late: Column, name: str, deadline: str) -> Column:
    """The column that marks late rows, with the rule as metadata for `explain`."""
    return late.alias(name, metadata={RULE: f"{deadline} at or behind the watermark"})


def lateness(frame: DataFrame, time: Column) -> Column:
    """Seconds behind the watermark."""
    from pyspark.sql.functions import lit, unix_micros

    if not frame.isStreaming:
        return lit(None).cast("double")
    behind_us = unix_micros(watermark(frame)) - unix_micros(time)
    return behind_us.cast("double") / lit(1e6)


def watermark(frame: DataFrame) -> Column:
    """The column with the batch's watermark. Raises `ConfigError` if there is none."""
    from pyspark.sql.functions import col

    if WATERMARK_COLUMN not in frame.columns:
        raise ConfigError(
            f"a stream needs the column {WATERMARK_COLUMN} to find late rows: declare "
            'topic(..., schema=..., watermark=("at", "10 minutes")) for all inputs; after a '
            f'function in Python, keep it: frame.select("*", "{WATERMARK_COLUMN}") before; without '
            f'a pipeline, add "{WATERMARK_COLUMN} timestamp" to the schema of the reader, or, with '
            "another source, frame.transform(with_watermark_column, checkpoint)"
        )
    return col(WATERMARK_COLUMN)


def with_watermark_column(frame: DataFrame, checkpoint: str) -> DataFrame:
    """The rows with `_watermark`, for streams of any source; `checkpoint` is the checkpoint of the
    query that will run this, readable by tasks. Call it before `withWatermark`, which it would
    undo. It passes rows through Python; the reader of topics does the same at no cost."""
    from pyspark.sql.functions import lit
    from pyspark.sql.types import StructType

    if not frame.isStreaming:
        return frame.withColumn(WATERMARK_COLUMN, lit(None).cast("timestamp"))
    schema = StructType([*frame.schema.fields]).add(WATERMARK_COLUMN, "timestamp")

    def fill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return fill_watermark(batches, checkpoint)

    return frame.mapInArrow(fill, schema)


def fill_watermark(batches: Iterator[pa.RecordBatch], checkpoint: str) -> Iterator[pa.RecordBatch]:
    """In a task: the batches with the watermark of the micro-batch that the task belongs to."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    batch_id = None if context is None else context.getLocalProperty(_BATCH_ID)
    if batch_id is None:
        raise ConfigError(f"{WATERMARK_COLUMN}: this is not a task of a streaming query")
    watermark_ms = watermark_ms_of(checkpoint, int(batch_id))
    watermark_us = None if watermark_ms is None else watermark_ms * 1000
    value = pa.scalar(watermark_us, pa.timestamp("us", tz="UTC"))
    for batch in batches:
        yield batch.append_column(WATERMARK_COLUMN, pa.repeat(value, batch.num_rows))
