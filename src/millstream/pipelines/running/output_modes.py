"""Which of Spark's output modes fits a pipeline: what it emits of a result that still changes.

    no aggregate                     append   rows are final when they come
    aggregate, output has a key      update   each change takes the place of the row with that key
    aggregate, output has no key     append   once, when the watermark says that it is final
    session windows                  append   Spark knows no other for them
    our windows                      append   their results are final; see windows/definition.py
    state in buckets before it       append   its rows are final; see state/spark.py

`@pipeline(output_mode=...)` overrides it, which transformWithState needs if it updates.

An aggregate whose changing values are filtered is refused in update mode, unless it is given: a row
that no longer passes would stay in the output, and the stream would differ from the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError
from millstream.pipelines.plans import (
    AGGREGATE,
    WATERMARK,
    analyzed,
    filters_changing_rows,
    streaming_operators,
)
from millstream.pipelines.spec import PipelineSpec
from millstream.pipelines.times.lateness import IS_LATE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SESSIONS = "session_window"
BUCKETS = "TransformWithState"


def choose_output_mode(pipeline: PipelineSpec, result: DataFrame | Mapping[str, DataFrame]) -> str:
    """For what the pipeline's function returned: a DataFrame, or one for each output by name.

    An output that is no aggregate gets its rows once in any mode. Raises `ConfigError` where a
    result can never be final, and its output has no key.
    """
    if pipeline.output_mode is not None:
        return pipeline.output_mode
    branches = result if isinstance(result, Mapping) else dict.fromkeys(pipeline.writes, result)
    plans = {name: analyzed(it) for name, it in branches.items()}
    aggregates = {
        name: plan for name, plan in plans.items() if AGGREGATE in streaming_operators(plan)
    }
    if not aggregates:
        return "append"
    if all(
        pipeline.writes[name].key and not _is_appended(plan) for name, plan in aggregates.items()
    ):
        for name, plan in aggregates.items():
            _check_rows_stay(pipeline, name, plan)
        return "update"
    for plan in aggregates.values():
        _check_becomes_final(pipeline, plan)
    return "append"


def _check_rows_stay(pipeline: PipelineSpec, name: str, plan: Any) -> None:
    """In update mode a row that no longer passes a filter is not written: the old one stays."""
    if not filters_changing_rows(plan):
        return
    output = pipeline.writes[name]
    raise ConfigError(
        f"{pipeline.name} filters an aggregate by a value that changes: rows of {output.name} that "
        "no longer pass would stay there. Keep all rows, and mark those to be deleted: "
        'table(..., key=..., delete="gone") with a column gone = NOT (condition). Or write only '
        'final rows: a watermark, and output_mode="append". To let such rows stay, set '
        'output_mode="update"'
    )


def _is_appended(plan: Any) -> bool:
    text = plan.toString()
    return any(sign in text for sign in (SESSIONS, IS_LATE, BUCKETS))


def _check_becomes_final(pipeline: PipelineSpec, plan: Any) -> None:
    if WATERMARK in streaming_operators(plan):
        return
    has_sessions = SESSIONS in plan.toString()
    why = "of session windows" if has_sessions else "into an output without a key"
    raise ConfigError(
        f"{pipeline.name} writes an aggregate {why}, and without a watermark it is never "
        'final: add topic(..., watermark=("column", "10 minutes"))'
        + ("" if has_sessions else ', or give the output a key: key="..."')
    )
