"""A watermark that advances while its source is idle.

Spark's watermark is the newest time of all partitions of a source, so an idle partition holds up
nothing. But if several sources are combined, the slowest watermark counts, and that of an idle
source stops: the windows and joins of all sources wait.

The reader of a topic with `idleAfter` emits ticks while the topic is idle (reading/idleness.py).
`with_idle_watermark` lets them advance the watermark, and removes them. Pipelines do this for
topics that are declared with `idle_after`. Rows that arrive later, and are older than a tick by
more than the watermark's delay, are late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.pipelines.columns import IDLE_COLUMN, as_column, check_time
from millstream.pipelines.durations import Duration, duration_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_idle_watermark(frame: DataFrame, time: str, delay: Duration) -> DataFrame:
    """`frame.withWatermark(time, delay)`, which advances with the ticks of an idle topic. `frame`
    was read with `_idle boolean` in its schema, which is removed."""
    check_time(frame, time)
    delay_us = duration_us(delay, "delay", zero_allowed=True)
    if IDLE_COLUMN not in frame.columns:
        raise ConfigError(
            f"there is no column {IDLE_COLUMN}, which marks ticks: read the topic with "
            f'"{IDLE_COLUMN} boolean" in the schema and the options idleAfter and idleColumn, or '
            "declare it with topic(..., idle_after=...)"
        )
    marked = frame.withWatermark(time, f"{delay_us} microseconds")
    # The time is in the condition so that Spark does not move it before the watermark.
    is_tick = as_column(IDLE_COLUMN) & as_column(time).isNotNull()
    return marked.where(~is_tick).drop(IDLE_COLUMN)
