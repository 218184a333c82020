"""The graph of a pipeline, from Spark's plan of it: sources, watermarks, state, sinks.

The graph is Spark's analysed plan of the frame that the pipeline's function returns, without the
steps that keep nothing. State that is never removed is marked.

Three kinds of steps are recognized by metadata in the plan: our operators by that of their output
column (`OPERATOR` in state/operator.py), the detection of late rows by `RULE` (times/lateness.py),
and dropped rows by their count, which is named `dropped` in every metric.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.pipelines.columns import WATERMARK_DELAY
from millstream.pipelines.durations import duration_text
from millstream.pipelines.plans import analyzed, items
from millstream.pipelines.results import DROPPED, DROPPED_KIND
from millstream.pipelines.spec import PipelineSpec, Table, Topic
from millstream.pipelines.state.operator import OPERATOR
from millstream.pipelines.times.lateness import RULE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOREVER = "forever: nothing removes it"
_PASSED = 10**12  # any watermark that needs more than 32 bits, in milliseconds


@dataclass(frozen=True)
class Step:
    """A step of the plan. `details` are names and texts; the last detail of a step with state is
    how long the state is kept."""

    title: str
    inputs: tuple[Step, ...] = ()
    details: tuple[tuple[str, str], ...] = ()
    has_state: bool = False
    grows: bool = False  # its state is never removed

    def walk(self) -> Iterator[Step]:
        """All steps, inputs first."""
        for it in self.inputs:
            yield from it.walk()
        yield self


@dataclass(frozen=True)
class Flow:
    """The steps to the outputs with these names."""

    outputs: tuple[str, ...]
    last: Step


@dataclass(frozen=True)
class Explanation:
    pipeline: PipelineSpec
    output_mode: str
    flows: tuple[Flow, ...]

    @property
    def steps(self) -> list[Step]:
        return [step for flow in self.flows for step in flow.last.walk()]


def explain_frames(
    pipeline: PipelineSpec, spark: SparkSession, made: Any, result: DataFrame, mode: str
) -> Explanation:
    """The graph of what the pipeline's function has returned, `made`, which is `result` as one
    frame."""
    plans = Plans(spark, pipeline, mode)
    if isinstance(made, Mapping):
        flows = [Flow((name,), plans.steps(made[name])) for name in pipeline.writes]
    else:
        flows = [Flow(tuple(pipeline.writes), plans.steps(result))]
    return Explanation(pipeline, mode, tuple(flows))


def delivery(outputs: Iterable[Topic | Table]) -> str:
    """What makes each batch count exactly once in these outputs, after any crash."""
    kinds = [type(it) for it in outputs]
    if Topic not in kinds:
        return "the store's transaction: rows, and how far the topics were read"
    if Table in kinds:
        return "the store's transaction, which decides for the topics' transactions, too"
    return "the brokers' transactions, all of a batch with one decision"


class Plans:
    """Reads Spark's plans (Java objects) for one pipeline."""

    def __init__(self, spark: SparkSession, pipeline: PipelineSpec, output_mode: str) -> None:
        self._jvm: Any = spark._jvm
        self._topics = {it.name: it for it in pipeline.reads.values()}
        self._output_mode = output_mode
        self._readers = {
            "StreamingRelationV2": self._source,
            "EventTimeWatermark": self._watermark,
            "Aggregate": self._aggregate,
            "Join": self._join,
            "Union": self._union,
            "Deduplicate": self._deduplicate,
            "DeduplicateWithinWatermark": self._deduplicate,
            "TransformWithStateInPySpark": self._python_state,
            "TransformWithStateInPandas": self._python_state,
            "FlatMapGroupsInPandasWithState": self._python_state,
            "Project": self._project,
            "CollectMetrics": self._metrics,
        }

    def steps(self, frame: DataFrame) -> Step:
        return self._step(analyzed(frame))

    def _step(self, plan: Any) -> Step:
        name = str(plan.nodeName())
        if not plan.isStreaming():
            return Step("rows that do not change (read again in every batch)")
        inputs = tuple(self._step(it) for it in items(plan.children()))
        reader = self._readers.get(name)
        if reader is not None:
            return reader(plan, inputs)
        if not inputs:
            return Step(f"source {name}")
        return inputs[0] if len(inputs) == 1 else Step(name, inputs)

    def _source(self, plan: Any, inputs: tuple[Step, ...]) -> Step:
        options = plan.extraOptions()
        topic = self._topics.get(str(options.get("subscribe")))
        if topic is None:
            return Step(f"source {plan.sourceName()}")
        return Step(f"topic {topic.name}", details=tuple(source_details(topic)))

    def _watermark(self, plan: Any, inputs: tuple[Step, ...]) -> Step:
        (output,) = [it for it in items(plan.output()) if it.name() == plan.eventTime().name()]
        delay = duration_text(int(output.metadata().getLong(WATERMARK_DELAY)) * 1000)
        return Step(f"watermark on {plan.eventTime().name()}, {delay} behind the newest", inputs)

    def _aggregate(self, plan: Any, inputs: tuple[Step, ...]) -> Step:
        keys = items(plan.groupingExpressions())
        outputs = items(plan.aggregateExpressions())
        names = [key_name(it, outputs) for it in keys]
        computed = [it for it in outputs if it.name() not in names]
        passing = [name for it, name in zip(keys, names, strict=True) if bears_watermark(it)]
        until = f"until the watermark passes {passing[0]}" if passing else FOREVER
        if self._output_mode == "complete":
            until = "forever, because each batch writes all of it"
        details = [
            ("computes", ", ".join(plain_sql(it) for it in computed)),
            ("state", "a row for each key"),
            ("kept", until),
        ]
        title = f"aggregate by {', '.join(names)}" if names else "aggregate of all rows"
        return Step(
            title, inputs, tuple(it for it in details if it[1]), True, bool(names) and not passing
        )

    def _deduplicate(self, plan: Any, inputs: tuple[Step, ...]) -> Step:
        keys = items(plan.keys())
        title = f"one row for each {', '.join(it.name() for it in keys)}"
        marked = [it.name() for it in items(plan.output()) if bears_watermark(it)]
        passing = [it.name() for it in keys if bears_watermark(it)]
        if str(plan.nodeName()) == "DeduplicateWithinWatermark":
            passing = marked
        until = f"until the watermark passes {passing[0]}" if passing else FOREVER
        details = (("state", "the keys that have come"), ("kept", until))
        return Step(title, inputs, details, True, not passing)

    def _join(self, plan: Any, inputs: tuple[Step, ...]) -> Step:
        kind = str(plan.joinType().sql()).lower()
        condition = plan.condition()
        on = " and ".join(terms_of(condition.get())) if condition.isDefined() else "all rows"
        if not (plan.left().isStreaming() and plan.right().isStreaming()):
            return Step(f"{kind} join with rows that do not change", inputs, (("on", on),))
        kept = [self._side_kept(plan, is_left) for is_left in (True, False)]
        details = [
            ("on", on),
            ("state", "the rows of both sides"),
            ("kept", f"left {kept[0] or FOREVER}; right {kept[1] or FOREVER}"),
        ]
        return Step(f"{kind} join", inputs, tuple(details), True, None in kept)

    def _side_kept(self, join: Any, is_left: bool) -> str | None:
        """How long rows of a side are kept, as Spark computes it; None: forever."""
        side, other = (join.left(), join.right()) if is_left else (join.right(), join.left())
        helper = self._jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
        passed = self._jvm.scala.Option.apply(_PASSED)
        found = helper.getStateValueWatermark(
            side.outputSet(), other.outputSet(), join.condition(), passed
        )
        own = {it.name() for it in items(side.output()) if bears_watermark(it)}
        if found.isDefined():
            behind_ms = _PASSED - 1 - int(found.get())
            behind = f" is {duration_text(behind_ms * 1000)} past" if behind_ms > 0 else " passes"
            return f"until the watermark{behind} {', '.join(sorted(own))}"
        if not join.condition().isDefined():
            return None
        compared = equal_columns(join.condition().get())
        return next((f"until the watermark passes {it}" for it in sorted(own & compared)), None)

    def _union(self, plan: Any, inputs: tuple[Step, ...]) -> Step:
        return Step("all of these rows", inputs)

    def _python_state(self, plan: Any, inputs: tuple[Step, ...]) -> Step:
        inputs = inputs[:1]  # the other is its initial state, which is empty
        for column in items(plan.output()):
            if column.metadata().contains(OPERATOR):
                return operator_step(json.loads(column.metadata().getString(OPERATOR)), inputs)
        return Step("state in Python", inputs, (("kept", "as its code decides"),), True)

    def _project(self, plan: Any, inputs: tuple[Step, ...]) -> Step:
        (given,) = inputs
        known = {it.name() for it in items(items(plan.children())[0].output())}
        for column in items(plan.output()):
            if column.metadata().contains(RULE) and column.name() not in known:
                return Step(f"late rows are found: {column.metadata().getString(RULE)}", inputs)
        return given

    def _metrics(self, plan: Any, inputs: tuple[Step, ...]) -> Step:
        name = str(plan.name())
        for count in items(plan.metrics()):
            if count.name() == DROPPED:
                noted = count.metadata()
                kind = noted.getString(DROPPED_KIND) if noted.contains(DROPPED_KIND) else "late"
                return Step(f'{kind} rows are dropped, and counted as "{name}"', inputs)
        return inputs[0]


def source_details(topic: Topic) -> Iterator[tuple[str, str]]:
    yield "format", topic.read_format
    yield "from", f"{topic.start_at}, at the first start"
    if topic.schema is not None:
        where = (
            f"to topic {topic.dead_letters}"
            if topic.bad_records == "deadletter"
            else topic.bad_records
        )
        yield "bad records", where


def operator_step(description: Mapping[str, Any], inputs: tuple[Step, ...]) -> Step:
    """A step with bucketed state, from the operator's own description."""
    details = [(f"keys of {name}", ", ".join(keys)) for name, keys in description["inputs"].items()]
    details.append(("state", f"{description['buckets']} buckets of keys, in Python"))
    details += [(f"kept, {name}", kept) for name, kept in description["tables"].items()]
    details += description.get("details", {}).items()
    union = inputs[0].inputs if len(inputs) == 1 and len(description["inputs"]) > 1 else inputs
    grows = any(kept.startswith("forever") for kept in description["tables"].values())
    return Step(description["title"], union or inputs, tuple(details), True, grows)


def key_name(key: Any, outputs: list[Any]) -> str:
    """The name of a key among the output columns, or else its expression."""
    text = plain_sql(key)
    for it in outputs:
        if it.nodeName() == "Alias" and plain_sql(it.child()) == text:
            return str(it.name())
    return str(key.name()) if key.nodeName() == "AttributeReference" else text


def plain_sql(expression: Any) -> str:
    return str(expression.sql()).replace("`", "")


def terms_of(condition: Any) -> list[str]:
    """The terms of a condition."""
    if str(condition.nodeName()) == "And":
        return terms_of(condition.left()) + terms_of(condition.right())
    text = re.sub(r"CAST\((.*) AS TIMESTAMP\)", r"\1", plain_sql(condition))
    return [text[1:-1] if text.startswith("(") else text]


def bears_watermark(expression: Any) -> bool:
    """Whether the column has a watermark in Spark's plan. A column that is computed from one with a
    watermark has none, not even the start of a window."""
    is_named = expression.nodeName() in ("AttributeReference", "Alias")
    return is_named and bool(expression.metadata().contains(WATERMARK_DELAY))


def equal_columns(condition: Any) -> set[str]:
    """The columns that a condition compares for equality with one of the other side."""
    kind = str(condition.nodeName())
    if kind == "And":
        return equal_columns(condition.left()) | equal_columns(condition.right())
    if kind == "EqualTo":
        return {it.name() for it in items(condition.references().toSeq())}
    return set()
