"""Analytics: common questions about streams, as functions of frames for `transform`.

    rolling.py         rates, averages, percentiles of the last n minutes, per event or per interval
    comparison.py      an interval next to the previous one, or to the same hour last week
    quantiles.py       percentiles of windows, exact or by sketches
    distinct.py        distinct values of windows, exact or by sketches
    top.py             the first k, exact in two stages, or by Spark's sketch
    heavy_hitters.py   the greatest sums of more items than can be kept
    deduplication.py   each event once, within a horizon
    sessions.py        one row per session: id, duration, first and last values
    anomalies.py       outliers, compared with the last n minutes
    averages.py        exponentially weighted averages, and outliers
    stages.py          aggregations of aggregations, on which several of these are built

They use Spark's aggregations where possible, and bucketed state (`millstream.pipelines.state`)
otherwise: rolling per event, heavy hitters, deduplication, both kinds of anomalies.
"""

from millstream.pipelines.analytics.anomalies import flag_anomalies
from millstream.pipelines.analytics.averages import smooth
from millstream.pipelines.analytics.comparison import compare
from millstream.pipelines.analytics.deduplication import deduplicate
from millstream.pipelines.analytics.distinct import count_distinct, merge_distinct
from millstream.pipelines.analytics.heavy_hitters import heavy_hitters
from millstream.pipelines.analytics.quantiles import merge_percentiles, percentiles
from millstream.pipelines.analytics.rolling import rolling
from millstream.pipelines.analytics.sessions import summarize_sessions
from millstream.pipelines.analytics.top import top_k

__all__ = [
    "compare",
    "count_distinct",
    "deduplicate",
    "flag_anomalies",
    "heavy_hitters",
    "merge_distinct",
    "merge_percentiles",
    "percentiles",
    "rolling",
    "smooth",
    "summarize_sessions",
    "top_k",
]
