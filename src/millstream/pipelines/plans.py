"""What Spark plans for a frame: which operators work on its stream."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.errors import ConfigError
from millstream.pipelines.columns import WATERMARK_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AGGREGATE = "Aggregate"
CLOSING = "millstream.closing"  # metadata of a column that an aggregate is grouped by: when it ends
BY_ARRIVAL = "millstream.by_arrival"  # metadata of a column: the operator that depends on it
JOIN = "Join"
WATERMARK = "EventTimeWatermark"


class BucketedOperator(NamedTuple):
    """An operator of bucketed state in a plan."""

    number: int
    kept: str  # what its state depends on, as text
    columns: Mapping[str, Sequence[str]]  # of its tables, besides the key and the time


class Expression(NamedTuple):
    """An expression of a frame's columns."""

    text: str  # as SQL, the same in every session
    column: str | None  # if it is nothing but a column: its name


def analyzed(frame: DataFrame) -> Any:
    """The plan of a frame as Spark has understood it, a Java object."""
    return frame._jdf.queryExecution().analyzed()


def inlined(frame: DataFrame) -> Any:
    """The analyzed plan with the named queries of SQL (WITH) in the places that name them."""
    jvm: Any = frame.sparkSession._jvm
    inline = jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False, False)
    return inline.apply(analyzed(frame))


def expression_text(frame: DataFrame, column: Column) -> str:
    """An expression of a frame's columns as SQL, the same in every session."""
    return analyzed_expression(frame, column).text


def analyzed_expression(frame: DataFrame, column: Column) -> Expression:
    """An expression of a frame's columns as Spark has understood it."""
    (alias,) = items(analyzed(frame.select(column.alias("it"))).projectList())
    child = alias.child()
    is_column = str(child.nodeName()) == "AttributeReference"
    return Expression(str(child.sql()), str(child.name()) if is_column else None)


def streaming_operators(plan: Any) -> set[str]:
    """The names of all operators of a plan that work on a stream."""
    found = set()
    if plan.isStreaming():
        found.add(str(plan.nodeName()))
        for child in items(plan.children()):
            found |= streaming_operators(child)
    return found


def leaves(plan: Any) -> list[Any]:
    """The sources of a plan, in its order; one that is used twice is there twice."""
    return items(plan.collectLeaves())


def closing_rules(plan: Any) -> list[str]:
    """When the windows end that Spark computes and that have an allowed lateness, in text."""
    found = [rule for child in items(plan.children()) for rule in closing_rules(child)]
    if plan.isStreaming() and plan.nodeName() == AGGREGATE:
        noted = [it.metadata() for it in items(plan.output())]
        found += [str(it.getString(CLOSING)) for it in noted if it.contains(CLOSING)]
    return found


def stateful_operators(plan: Any) -> list[str]:
    """What the content of a stream's state depends on: its operators that keep state, in the order
    of the plan, as text. Names of results do not matter."""
    found = [it for child in items(plan.children()) for it in stateful_operators(child)]
    name = str(plan.nodeName())
    if not plan.isStreaming():
        return found
    if name == AGGREGATE:
        keys = ", ".join(str(it.sql()) for it in items(plan.groupingExpressions()))
        values = ", ".join(_without_name(it) for it in items(plan.aggregateExpressions()))
        found.append(f"aggregate by ({keys}): {values}")
    elif name == JOIN and all(it.isStreaming() for it in items(plan.children())):
        condition = plan.condition()
        on = str(condition.get().sql()) if condition.isDefined() else "true"
        found.append(f"{plan.joinType().sql()} join on {on}")
    elif name.startswith("Deduplicate"):
        found.append(f"{name} by ({', '.join(str(it.name()) for it in items(plan.keys()))})")
    elif "WithState" in name:
        kept = [it.kept for it in _bucketed(plan)]
        found.append(f"{name}: {', '.join(kept) or 'a function'}")
    return found


def bucketed_operators(plan: Any) -> list[BucketedOperator]:
    """A stream's operators of bucketed state, in the order of the plan, each once."""
    found = [it for child in items(plan.children()) for it in bucketed_operators(child)]
    if plan.isStreaming() and "WithState" in str(plan.nodeName()):
        found += _bucketed(plan)
    return list({it.number: it for it in found}.values())


def _bucketed(plan: Any) -> list[BucketedOperator]:
    """The operator of bucketed state that this node of a plan is, if it is one."""
    from millstream.pipelines.state.operator import OPERATOR

    noted = [it.metadata() for it in items(plan.output())]
    return [parse_operator(str(it.getString(OPERATOR))) for it in noted if it.contains(OPERATOR)]


def parse_operator(description: str) -> BucketedOperator:
    """An operator, from its own description of itself."""
    it = json.loads(description)
    kept = json.dumps([it["identity"], it["buckets"], it["inputs"]])
    return BucketedOperator(it["number"], kept, it["columns"])


def _without_name(expression: Any) -> str:
    is_alias = expression.getClass().getSimpleName() == "Alias"
    return str((expression.child() if is_alias else expression).sql())


def operators_by_arrival(plan: Any) -> set[str]:
    """The names of operators whose results depend on when rows arrive."""
    found = {name for child in items(plan.children()) for name in operators_by_arrival(child)}
    if plan.nodeName().startswith(("MapInArrow", "TransformWithState")):
        noted = [it.metadata() for it in items(plan.output())]
        found |= {str(it.getString(BY_ARRIVAL)) for it in noted if it.contains(BY_ARRIVAL)}
    return found


def items(sequence: Any) -> list[Any]:
    """A sequence of the JVM as a list."""
    return [sequence.apply(index) for index in range(sequence.size())]


def check_not_aggregated(*frames: DataFrame) -> None:
    """Raises `ConfigError` if a stream has been aggregated before it comes to state in buckets.

    What an aggregation gives is at or behind the watermark when it comes, since that is what it
    waited for. State in buckets tells late rows by that same watermark, and would drop results of
    windows whenever it leaps.
    """
    for frame in frames:
        if frame.isStreaming and AGGREGATE in streaming_operators(analyzed(frame)):
            raise ConfigError(
                "this keeps state in buckets, and its input is an aggregate of a stream, whose "
                "rows are behind the watermark when they come and would be taken for late ones: "
                "write the aggregate into a topic, and read that in another pipeline"
            )


def check_comparisons(frame: DataFrame) -> None:
    """Raises `ConfigError` if whole rows of a stream are compared, with the watermark in them."""
    if frame.isStreaming and _compares_watermarks(analyzed(frame)):
        raise ConfigError(
            f"distinct() and dropDuplicates() compare all columns, and {WATERMARK_COLUMN} differs "
            'between batches: name the columns, dropDuplicates(["id"]), or '
            f'frame.drop("{WATERMARK_COLUMN}") before'
        )


def _compares_watermarks(plan: Any) -> bool:
    name = str(plan.nodeName())
    if name in ("Deduplicate", "DeduplicateWithinWatermark", "Distinct"):
        compared = plan.output() if name == "Distinct" else plan.keys()
        names = {str(compared.apply(index).name()) for index in range(compared.size())}
        if WATERMARK_COLUMN in names:
            return True
    children = plan.children()
    return any(_compares_watermarks(children.apply(index)) for index in range(children.size()))
