"""Records that did not decode, counted in the query's progress.

Spark shows no numbers of a Python source's own, but it shows those that a query observes: the
reader hands out bad records as rows with an `_error`, they are counted, and go no further.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.pipelines.columns import IDLE_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OBSERVED = "millstream"


def count_failures(frame: DataFrame, name: str = OBSERVED) -> DataFrame:
    """The rows that decoded, without the column `_error`; the progress of a query on them has

        observedMetrics[name] = {"records": all that were read, "failed": those that did not decode}

    `frame` was read with a schema that names `_error string`.
    """
    from pyspark.sql.functions import col, count, count_if, lit

    records = count_if(~col(IDLE_COLUMN)) if IDLE_COLUMN in frame.columns else count(lit(1))
    observed = frame.observe(name, records.alias("records"), count("_error").alias("failed"))
    return observed.where("_error is null").drop("_error")
