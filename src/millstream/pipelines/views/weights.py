"""The input of a maintained view as rows with weights.

rows with `_weight`            as they are
a topic with `table_key`       the changes of its table
any other rows                 each is added: weight 1
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.pipelines.columns import POSITION_COLUMN, WATERMARK_COLUMN
from millstream.pipelines.joins.changes import changes
from millstream.pipelines.joins.frames import check_comparable
from millstream.pipelines.joins.table_table import OP
from millstream.pipelines.joins.weights import WEIGHT
from millstream.pipelines.plans import check_not_aggregated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_weights(frame: DataFrame, buckets: int) -> DataFrame:
    """The rows with `_weight` as the last column. Raises `ConfigError` if they cannot be compared,
    or are an aggregate of Spark, which emits no removed rows."""
    from pyspark.sql.functions import lit

    check_not_aggregated(frame)
    frame = frame.drop(WATERMARK_COLUMN, OP)
    if WEIGHT in frame.columns:
        frame = frame.select(*(name for name in frame.columns if name != WEIGHT), WEIGHT)
    elif POSITION_COLUMN in frame.columns:
        frame = changes(frame, buckets=buckets)
    else:
        frame = frame.withColumn(WEIGHT, lit(1).cast("bigint"))
    check_comparable(frame)
    return frame
