"""Which of Spark's output modes fits a pipeline: what it emits of a result that still changes.

    no aggregate                     append   rows are final when they come
    aggregate, output has a key      update   each change takes the place of the row with that key
    aggregate, output has no key     append   once, when the watermark says that it is final
    session windows                  append   Spark knows no other for them
    our windows                      append   their results are final; see windows/definition.py

`@pipeline(output_mode=...)` overrides it, which transformWithState needs if it updates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError
from millstream.pipelines.event_time.lateness import IS_LATE
from millstream.pipelines.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AGGREGATE = "Aggregate"
WATERMARK = "EventTimeWatermark"


def choose_output_mode(pipeline: Pipeline, result: DataFrame) -> str:
    """Raises `ConfigError` where the result can never be final, and the output has no key."""
    if pipeline.output_mode is not None:
        return pipeline.output_mode
    plan: Any = result._jdf.queryExecution().analyzed()
    operators = streaming_operators(plan)
    if AGGREGATE not in operators:
        return "append"
    has_key = all(output.key for output in pipeline.writes.values())
    text = plan.toString()
    has_sessions = "session_window" in text
    if has_key and not has_sessions and IS_LATE not in text:
        return "update"
    if WATERMARK not in operators:
        why = "of session windows" if has_sessions else "into an output without a key"
        raise ConfigError(
            f"{pipeline.name} writes an aggregate {why}, and without a watermark it is never "
            'final: add topic(..., watermark=("column", "10 minutes"))'
            + ("" if has_sessions else ', or give the output a key: key="..."')
        )
    return "append"


def streaming_operators(plan: Any) -> set[str]:
    """The names of all operators that work on a stream, in a plan of Spark's (a Java object)."""
    found = set()
    if plan.isStreaming():
        found.add(str(plan.nodeName()))
        children = plan.children()
        for index in range(children.size()):
            found |= streaming_operators(children.apply(index))
    return found
