"""Anomalies: events with a large z-score, compared with their key's last n minutes.

    payments.transform(flag_anomalies, "amount", key="card", time="at", over="1 hour", threshold=4)

Rows have, in addition to their columns,

    mean, deviation   of the key's events in the time `over` before this one, without itself (an
                      outlier would hide itself) and without those at the same time
    z                 the distance from the mean in deviations; null if it is unknown
    is_anomaly        whether |z| is greater than `threshold`, or all values before are equal and
                      this one differs; false with fewer than `min_count` events before

Each row is emitted once: when the event arrives, by what is known then (`emit="arrival"`), or when
no row that is on time can change it (`emit="final"`). It is computed by a sliding window, with its
policy for late rows. The deviation is that of a sample, and is accurate also if values are large
compared with their differences. A value that is null or not finite has no z, and is ignored. For
averages in which the past fades, see averages.py.

To find anomalies among results of windows of a stream, write these to a topic, and read it in
another pipeline: after an aggregation in the same query they would be late, and are refused. In a
batch, one call can follow the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.errors import ConfigError
from millstream.pipelines.analytics.averages import check_threshold
from millstream.pipelines.analytics.rolling import rows_once
from millstream.pipelines.analytics.stages import (
    check_number,
    check_whole,
    lateness_of,
)
from millstream.pipelines.columns import WATERMARK_COLUMN, as_column, listed
from millstream.pipelines.durations import Duration, duration_us
from millstream.pipelines.lateness import DropOrDivert
from millstream.pipelines.results import KIND, LATENESS
from millstream.pipelines.windows.aggregates import Aggregate
from millstream.pipelines.windows.emission import parse_emit
from millstream.pipelines.windows.per_event import Sliding

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MEAN, DEVIATION, Z, IS_ANOMALY = "mean", "deviation", "z", "is_anomaly"
_JUDGED, _COUNT, _LEAST, _MOST = "_judged", "_count", "_least", "_most"


def flag_anomalies(
    frame: DataFrame,
    value: str | Column,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column] = (),
    over: Duration,
    threshold: float = 3.0,
    min_count: int = 10,
    stragglers: DropOrDivert = "drop",
    allowed_lateness: Duration | None = None,
    emit: str = "arrival",
    buckets: int = 16,
    count_as: str | None = None,
) -> DataFrame:
    """Rows with their z-score; see the head of this module. Raises `ConfigError`."""
    from pyspark.sql.functions import col

    over_us = duration_us(over, "over")
    lateness = lateness_of(stragglers, allowed_lateness, count_as, "anomalies", over_us)
    check_whole("min_count", min_count, 2)
    check_threshold(threshold)
    check_number(frame, value, "an anomaly is one of")
    parse_emit(emit, ("arrival", "final"))
    frame = frame.drop(WATERMARK_COLUMN, KIND)  # `_kind` if these are results of windows: final
    for name in (MEAN, DEVIATION, Z, IS_ANOMALY):
        if name in frame.columns:
            raise ConfigError(f"there is a column {name} already: rename it before")
    judged = {
        _COUNT: Aggregate("count", _JUDGED),
        _LEAST: Aggregate("min", _JUDGED),
        _MOST: Aggregate("max", _JUDGED),
        MEAN: Aggregate("avg", _JUDGED),
        DEVIATION: Aggregate("stddev", _JUDGED),
    }
    window = Sliding(
        over_us,
        tuple(listed(key)),
        time,
        judged,
        lateness,
        emit,
        preceding=True,
        buckets=buckets,
    )
    numbered = frame.withColumn(_JUDGED, _finite(as_column(value).cast("double")))
    found = rows_once(window, numbered)
    marks = [] if stragglers == "drop" else [col(KIND), col(LATENESS)]
    columns = _judgement(threshold, min_count)
    return found.select(*map(as_column, frame.columns), *columns, *marks)


def _finite(number: Column) -> Column:
    """The number, or null if it is not finite: one such value would make the mean useless. (For
    Spark, NaN is greater than infinity.)"""
    from pyspark.sql.functions import abs, lit, when

    return when(abs(number) < lit(float("inf")), number)


def _judgement(threshold: float, min_count: int) -> list[Column]:
    """The columns of the result, from those of the sliding window.

    If all values are equal, their mean is that value: a sum divided by a count is rounded, and each
    value would differ from it a little.
    """
    from pyspark.sql.functions import abs, coalesce, col, lit, when

    number, count = col(_JUDGED), col(_COUNT)
    are_alike = col(_LEAST) == col(_MOST)
    mean = when(are_alike, col(_LEAST)).otherwise(col(MEAN))
    deviation = when(are_alike & (count > 1), lit(0.0)).otherwise(col(DEVIATION))
    z = when(deviation > 0, (number - mean) / deviation)
    is_far = when(are_alike, number != mean).otherwise(abs(z) > threshold)
    flag = coalesce((count >= min_count) & is_far, lit(False))
    return [mean.alias(MEAN), deviation.alias(DEVIATION), z.alias(Z), flag.alias(IS_ANOMALY)]
