"""A watermark that moves on when its source has nothing to say.

Spark's watermark is the newest time of all partitions of a source, so a partition that is idle
holds up nobody. But of several sources with watermarks of their own the slowest counts, and one
that is idle stands still: windows and joins of all the others wait for it, for ever.

`with_heartbeat` lets ticks of the wall clock through the watermark, and no further: a source that
has been idle for `idle_after` is taken to have come as far as that long ago. Rows that come later
all the same are late, like others. It is for times that follow the wall clock; replaying history,
everything would be late: there, use a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.pipelines.columns import as_column, check_time
from millstream.pipelines.durations import Duration, duration_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TICK = "_tick"


def with_heartbeat(
    frame: DataFrame, time: str, delay: Duration, idle_after: Duration = "5 minutes"
) -> DataFrame:
    """`frame.withWatermark(time, delay)`, which moves on while the source is idle."""
    from pyspark.sql.functions import col, lit, timestamp_micros, unix_micros

    check_time(frame, time)
    delay_us = duration_us(delay, "delay", zero_allowed=True)
    idle_us = duration_us(idle_after, "idle_after")
    if not frame.isStreaming:
        return frame
    if idle_us < delay_us:
        raise ConfigError(
            f"idle_after {str(idle_after)!r} is shorter than the delay {str(delay)!r}: a source "
            "would be idle while its rows may still be on their way. Make it as long at least"
        )
    ticks = frame.sparkSession.readStream.format("rate").option("rowsPerSecond", 1).load()
    moment = timestamp_micros(unix_micros("timestamp") - (idle_us - delay_us))
    columns = [
        (moment if field.name == time else lit(None)).cast(field.dataType).alias(field.name)
        for field in frame.schema
    ]
    both = frame.withColumn(_TICK, lit(False)).unionAll(ticks.select(*columns, lit(True)))
    marked = both.withWatermark(time, f"{delay_us} microseconds")
    # The time is in the condition so that Spark does not move it before the watermark.
    return marked.where(~(col(_TICK) & as_column(time).isNotNull())).drop(_TICK)
