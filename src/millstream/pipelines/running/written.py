"""Rows that a pipeline writes, counted in the query's progress, by output and kind.

    observedMetrics["millstream written"] = {"alerts.rows": 7, "alerts.late": 0, ...}

Late rows are those that an operator diverted, and corrections replace a result that was final; both
have a `_kind` (results.py). A step that only counts is at the end of the plan: it keeps no state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.pipelines.results import CORRECTION, KIND, LATE
from millstream.pipelines.spec import ONLY, PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WRITTEN = "written by millstream"  # observations of readers begin with "millstream"


def count_written(pipeline: PipelineSpec, result: DataFrame) -> DataFrame:
    """The rows of all outputs (see `outputs.combine`), counted."""
    counts = []
    for name, output in pipeline.writes.items():
        counts += _counts(result, name, output.name if name == ONLY else name)
    return result.observe(WRITTEN, *counts)


def _counts(result: DataFrame, name: str, shown: str) -> list[Column]:
    from pyspark.sql.functions import col, count, count_if, lit

    if name == ONLY:
        prefix, columns = "", result.columns
        rows = count(lit(1))
    else:
        prefix, columns = f"`{name}`.", result.select(f"`{name}`.*").columns
        rows = count(f"`{name}`")
    counts = [rows.alias(f"{shown}.rows")]
    if KIND in columns:
        kind = col(f"{prefix}`{KIND}`")
        counts.append(count_if(kind == LATE).alias(f"{shown}.late"))
        counts.append(count_if(kind == CORRECTION).alias(f"{shown}.corrections"))
    return counts
