"""What a pipeline will do, as a graph, without running it: sources, watermarks, state, sinks.

The graph is Spark's analysed plan of what the pipeline's function returns, without the steps that
keep nothing. No broker is asked: a session is enough, and schemas that are declared. What is odd
about a plan comes from here as well, as for a query that is started: Spark's own check of what it
supports, and which state nothing ever takes away.

Operators of ours are told by what they note at the column that leaves them (`OPERATOR` in
state/spark.py), late rows by what `is_late` notes (`RULE` in times/lateness.py), and rows that
are dropped by their count, which is called `dropped` in every metric.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from millstream.pipelines.columns import WATERMARK_DELAY
from millstream.pipelines.durations import duration_text
from millstream.pipelines.plans import analyzed
from millstream.pipelines.results import DROPPED_KIND
from millstream.pipelines.running.launching import apply_to_streams
from millstream.pipelines.running.output_modes import choose_output_mode
from millstream.pipelines.running.outputs import combine
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.spec import PipelineSpec, Table, Topic
from millstream.pipelines.state.operator import OPERATOR
from millstream.pipelines.times.lateness import RULE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOBODY = "127.0.0.1:9092"  # options name a broker, and nobody asks it
FOR_EVER = "for ever: nothing takes it away"
_DROPPED = "dropped"  # what counts of rows that are dropped are called, whatever their metric is
_PASSED = 10**12  # any watermark that needs more than 32 bits, in milliseconds


@dataclass(frozen=True)
class Step:
    """Something that rows pass through. `details` are names and texts; of what has state, the last
    detail says how long it is kept."""

    title: str
    inputs: tuple[Step, ...] = ()
    details: tuple[tuple[str, str], ...] = ()
    has_state: bool = False
    grows: bool = False  # its state only ever gets larger

    def walk(self) -> Iterator[Step]:
        """All steps, those that come first before the others."""
        for it in self.inputs:
            yield from it.walk()
        yield self


@dataclass(frozen=True)
class Flow:
    """The way of rows to the outputs with these names."""

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


def explain(pipeline: PipelineSpec, spark: SparkSession, settings: Settings) -> Explanation:
    """Raises `ConfigError`, or what Spark raises, for a pipeline that would not start."""
    if settings.is_embedded:
        settings = replace(settings, broker=NOBODY)
    made = apply_to_streams(pipeline, spark, settings, {})
    result = combine(pipeline, made)
    mode = choose_output_mode(pipeline, made)
    check_supported(spark, result, mode)
    plans = Plans(spark, pipeline, mode)
    if isinstance(made, Mapping):
        flows = [Flow((name,), plans.steps(made[name])) for name in pipeline.writes]
    else:
        flows = [Flow(tuple(pipeline.writes), plans.steps(result))]
    return Explanation(pipeline, mode, tuple(flows))


def check_supported(spark: SparkSession, result: DataFrame, mode: str) -> None:
    """What Spark would say of the plan when the query starts, said now."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors.exceptions.captured import convert_exception

    jvm: Any = spark._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    output_mode = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(analyzed(result), output_mode())
    except Py4JJavaError as error:
        raise convert_exception(error.java_exception) from None


def delivery(outputs: Iterable[Topic | Table]) -> str:
    """What makes a batch count once in these outputs, whoever is killed when."""
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
        until = f"until the watermark passes {passing[0]}" if passing else FOR_EVER
        if self._output_mode == "complete":
            until = "for ever, since each batch writes all of it"
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
        until = f"until the watermark passes {passing[0]}" if passing else FOR_EVER
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
            ("kept", f"left {kept[0] or FOR_EVER}; right {kept[1] or FOR_EVER}"),
        ]
        return Step(f"{kind} join", inputs, tuple(details), True, None in kept)

    def _side_kept(self, join: Any, is_left: bool) -> str | None:
        """How long rows of a side are kept, by Spark's own reckoning; None: for ever."""
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
        inputs = inputs[:1]  # the other is its initial state, which is none
        for column in items(plan.output()):
            if column.metadata().contains(OPERATOR):
                return operator_step(json.loads(column.metadata().getString(OPERATOR)), inputs)
        return Step("state in Python", inputs, (("kept", "as its code says"),), True)

    def _project(self, plan: Any, inputs: tuple[Step, ...]) -> Step:
        (given,) = inputs
        known = {it.name() for it in items(items(plan.children())[0].output())}
        for column in items(plan.output()):
            if column.metadata().contains(RULE) and column.name() not in known:
                return Step(f"late rows are told: {column.metadata().getString(RULE)}", inputs)
        return given

    def _metrics(self, plan: Any, inputs: tuple[Step, ...]) -> Step:
        name = str(plan.name())
        for count in items(plan.metrics()):
            if count.name() == _DROPPED:
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


def operator_step(told: Mapping[str, Any], inputs: tuple[Step, ...]) -> Step:
    """A step in bucketed state, as it describes itself."""
    details = [(f"keys of {name}", ", ".join(keys)) for name, keys in told["inputs"].items()]
    details.append(("state", f"{told['buckets']} buckets of keys, in Python"))
    details += [(f"kept, {name}", kept) for name, kept in told["tables"].items()]
    union = inputs[0].inputs if len(inputs) == 1 and len(told["inputs"]) > 1 else inputs
    grows = any(kept.startswith("for ever") for kept in told["tables"].values())
    return Step(told["title"], union or inputs, tuple(details), True, grows)


def items(sequence: Any) -> list[Any]:
    """What is in a Scala Seq."""
    return [sequence.apply(index) for index in range(sequence.size())]


def key_name(key: Any, outputs: list[Any]) -> str:
    """What a key is called among the columns that come out, or else how it is computed."""
    text = plain_sql(key)
    for it in outputs:
        if it.nodeName() == "Alias" and plain_sql(it.child()) == text:
            return str(it.name())
    return str(key.name()) if key.nodeName() == "AttributeReference" else text


def plain_sql(expression: Any) -> str:
    return str(expression.sql()).replace("`", "")


def terms_of(condition: Any) -> list[str]:
    """What must hold, term by term."""
    if str(condition.nodeName()) == "And":
        return terms_of(condition.left()) + terms_of(condition.right())
    text = re.sub(r"CAST\((.*) AS TIMESTAMP\)", r"\1", plain_sql(condition))
    return [text[1:-1] if text.startswith("(") else text]


def bears_watermark(expression: Any) -> bool:
    """Whether Spark knows of this column that the watermark passes it. Of what is computed from
    such a column it does not, not even of a window's start."""
    is_named = expression.nodeName() in ("AttributeReference", "Alias")
    return is_named and bool(expression.metadata().contains(WATERMARK_DELAY))


def equal_columns(condition: Any) -> set[str]:
    """The columns that a condition compares with one of the other side for equality."""
    kind = str(condition.nodeName())
    if kind == "And":
        return equal_columns(condition.left()) | equal_columns(condition.right())
    if kind == "EqualTo":
        return {it.name() for it in items(condition.references().toSeq())}
    return set()
