"""Which of Spark's output modes fits a pipeline: what it emits of a result that still changes.

    no aggregate                     append   rows are final when they come
    aggregate, output has a key      update   each change takes the place of the row with that key
    aggregate, output has no key     append   once, when the watermark says that it is final
    session windows                  append   Spark knows no other for them
    our windows                      append   their results are final; see windows/definition.py
    state in buckets before it       append   its rows are final; see state/spark.py

`@pipeline(output_mode=...)` overrides it, which transformWithState needs if it updates.

In update mode a row takes the place of the earlier row of its group, and nothing tells the output
that a row is gone. So an aggregate is refused where the stream would differ from the batch, unless
the mode is given:

    rows may go again, by a filter, a join, a null struct    the earlier row would stay
    the key changes with the aggregate                       the row with the earlier key would stay
    the key of a table has only some grouping columns        groups would overwrite each other
    rows are added to the table, although it has a key       it would have a row for each change

The key of a topic may have only some grouping columns: every change is a record of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError
from millstream.pipelines.plans import (
    AGGREGATE,
    WATERMARK,
    inlined,
    items,
    streaming_operators,
)
from millstream.pipelines.running.groups import CHANGING, Groups, find_groups
from millstream.pipelines.running.outputs import rows_of
from millstream.pipelines.spec import ONLY, PipelineSpec, Table
from millstream.pipelines.times.lateness import IS_LATE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SESSIONS = "session_window"
BUCKETS = "TransformWithState"

_MARK = (
    'Keep all rows, and mark those to be deleted: table(..., key=..., delete="gone") with a column '
    "gone = NOT (condition)"
)
_MARK_RECORDS = "Keep all rows, with a column that tells readers which of them pass"


def choose_output_mode(pipeline: PipelineSpec, result: DataFrame | Mapping[str, DataFrame]) -> str:
    """For what the pipeline's function returned: a DataFrame, or one for each output by name.

    An output that is no aggregate gets its rows once in any mode. Raises `ConfigError` where a
    result can never be final, and its output has no key.
    """
    if pipeline.output_mode is not None:
        return pipeline.output_mode
    plans = {name: inlined(_rows(result, name)) for name in pipeline.writes}
    aggregates = {
        name: plan for name, plan in plans.items() if AGGREGATE in streaming_operators(plan)
    }
    if not aggregates:
        return "append"
    if all(
        pipeline.writes[name].key and not _is_appended(plan) for name, plan in aggregates.items()
    ):
        for name, plan in aggregates.items():
            _check_updates(pipeline, name, plan)
        return "update"
    for plan in aggregates.values():
        _check_becomes_final(pipeline, plan)
    return "append"


def _rows(result: DataFrame | Mapping[str, DataFrame], name: str) -> DataFrame:
    """Those of one output."""
    if isinstance(result, Mapping):
        return result[name]
    return result if name == ONLY else rows_of(result, name)


def _check_updates(pipeline: PipelineSpec, name: str, plan: Any) -> None:
    """Raises `ConfigError` if the stream's rows of an output may differ from those of the batch."""
    output = pipeline.writes[name]
    if isinstance(output, Table) and output.mode == "append":
        raise ConfigError(
            f"{pipeline.name} writes an aggregate into table {output.name}, to which rows are "
            "added: it would have a row for each change. Leave out mode: a row then takes the "
            "place of the one with its key. Or write only final rows: a watermark, and "
            'output_mode="append". To add a row for each change, set output_mode="update"'
        )
    for groups in find_groups(plan):
        if groups.removals:
            raise ConfigError(
                f"{pipeline.name} {groups.removals[0]}: rows of {output.name} that no longer pass "
                f"would stay there. {_MARK if isinstance(output, Table) else _MARK_RECORDS}. Or "
                'write only final rows: a watermark, and output_mode="append". To let such rows '
                'stay, set output_mode="update"'
            )
        _check_key(pipeline, name, plan, groups)


def _check_key(pipeline: PipelineSpec, name: str, plan: Any, groups: Groups) -> None:
    output = pipeline.writes[name]
    ids = {str(it.name()): it.exprId().id() for it in items(plan.output())}
    if not ids.keys() >= set(output.key):
        return  # the output names what it lacks
    key = {it: groups.columns.get(ids[it], CHANGING) for it in output.key}
    changing = [it for it, value in key.items() if not value.is_fixed]
    if changing:
        raise ConfigError(
            f"{pipeline.name} writes an aggregate into {output.name} by the key "
            f"{', '.join(changing)}, which changes with the aggregate: the row with the earlier "
            f"key would stay. Choose a key of what it is grouped by ({_grouping(groups)}). "
            'To let such rows stay, set output_mode="update"'
        )
    lacking = groups.lacking(key.values())
    if lacking and isinstance(output, Table):
        raise ConfigError(
            f"{pipeline.name} groups by {_grouping(groups)}, and writes into {output.name} by the "
            f"key {', '.join(output.key)}: groups that differ in {', '.join(lacking)} would "
            "overwrite each other. Add it to the key as it is, a window by its start, or group by "
            "what the key is made of. If no two groups have the same key, or the last of them may "
            'overwrite the others, set output_mode="update"'
        )


def _grouping(groups: Groups) -> str:
    return ", ".join(dict.fromkeys(groups.parts.values())) or "nothing"


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
