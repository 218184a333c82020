"""Anomalies: events that are far from what their key did in the last n minutes. The z-score.

    payments.transform(flag_anomalies, "card", "at", "amount", over="1 hour", threshold=4)

Rows come out as they went in, with

    mean, deviation   of the key's events in the `over` before this one: without itself, or an
                      outlier would vouch for itself, and without those at the same time
    z                 how many deviations it is from the mean; null where there is no telling
    is_anomaly        whether |z| is greater than `threshold`, or all of those before are alike and
                      this one is not; never with fewer than `min_count` events before

It is `sliding_window`, exact and per event, with its policy for stragglers; the deviation is that
of a sample, and right also of values that are large beside how much they differ. A value that is
null has no z, and takes no part. For averages in which the past fades, see averages.py.

Results of windows of a stream are judged likewise, in a pipeline of their own that reads them from
a topic: behind an aggregation, in the same query, they would be late, and are refused. Over history
one call follows the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError
from millstream.pipelines.analytics.averages import check_threshold
from millstream.pipelines.analytics.stages import (
    Lateness,
    check_not_aggregated,
    check_number,
    check_whole,
    late_metric,
)
from millstream.pipelines.columns import as_column
from millstream.pipelines.durations import Duration
from millstream.pipelines.joins.frames import check_choice
from millstream.pipelines.reading.options import WATERMARK_COLUMN
from millstream.pipelines.windows.aggregates import Aggregate
from millstream.pipelines.windows.sliding import KIND, LATENESS, sliding_window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MEAN, DEVIATION, Z, IS_ANOMALY = "mean", "deviation", "z", "is_anomaly"
_COUNT = "_count"


def flag_anomalies(
    frame: DataFrame,
    keys: str | Column | Sequence[str | Column],
    time: str | Column,
    value: str | Column,
    *,
    over: Duration,
    threshold: float = 3.0,
    min_count: int = 10,
    stragglers: Lateness = "drop",
    allowed_lateness: Duration | None = None,
    buckets: int = 16,
    count_as: str | None = None,
) -> DataFrame:
    """Rows with their z-score; see the head of this module. Raises `ConfigError`."""
    from pyspark.sql.functions import abs, coalesce, col, lit, when

    check_choice("stragglers", stragglers, Lateness)
    check_whole("min_count", min_count, 2)
    check_threshold(threshold)
    check_number(frame, value, "an anomaly is one of")
    check_not_aggregated(frame)
    frame = frame.drop(WATERMARK_COLUMN, KIND)  # `_kind` if these are results of windows: final
    for name in (MEAN, DEVIATION, Z, IS_ANOMALY):
        if name in frame.columns:
            raise ConfigError(f"there is a column {name} already: rename it before")
    number = as_column(value).cast("double")
    measures: dict[str, Any] = {
        _COUNT: Aggregate("count", number),
        MEAN: Aggregate("avg", number),
        DEVIATION: Aggregate("stddev", number),
    }
    found = sliding_window(
        frame,
        keys,
        time,
        over,
        preceding=True,
        stragglers=stragglers,
        allowed_lateness=allowed_lateness,
        buckets=buckets,
        count_as=count_as or late_metric("anomalies", over),
        **measures,
    )
    distance = number - col(MEAN)
    z = when(col(DEVIATION) > 0, distance / col(DEVIATION))
    is_far = when(col(DEVIATION) > 0, abs(z) > threshold).otherwise(distance != 0)
    flag = coalesce((col(_COUNT) >= min_count) & is_far, lit(False))
    marks = [] if stragglers == "drop" else [col(KIND), col(LATENESS)]
    shown = [*map(as_column, frame.columns), col(MEAN), col(DEVIATION)]
    return found.select(*shown, z.alias(Z), flag.alias(IS_ANOMALY), *marks)
