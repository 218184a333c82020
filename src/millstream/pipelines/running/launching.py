"""From a declared pipeline to a running query: readers, the function, an output mode, a sink.

Everything is checked before the first batch: the session, the checkpoint, the topics, the frame
that the function returns. The session is the caller's, and is not changed.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError, MillstreamError
from millstream.pipelines.columns import (
    ERROR_COLUMN,
    IDLE_COLUMN,
    WATERMARK_COLUMN,
    check_time,
)
from millstream.pipelines.durations import duration_us
from millstream.pipelines.offsets import EARLIEST, Offsets, to_json
from millstream.pipelines.options import GivenOptions
from millstream.pipelines.plans import (
    analyzed,
    bucketed_operators,
    closing_rules,
    operators_by_arrival,
    stateful_operators,
)
from millstream.pipelines.reading.counting import OBSERVED, count_failures
from millstream.pipelines.reading.options import TRIGGER_OPTIONS, parse_read_options
from millstream.pipelines.reading.positions import Positions
from millstream.pipelines.running.checkpoint import Checkpoint
from millstream.pipelines.running.generations import choose_generation, refuse_lost_records
from millstream.pipelines.running.in_step import InStep, with_cuts
from millstream.pipelines.running.locking import locked
from millstream.pipelines.running.output_modes import choose_output_mode
from millstream.pipelines.running.outputs import combine, explained_counts
from millstream.pipelines.running.publishing import Control, explained, publish
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.running.sharing import (
    INPUT_OPTION,
    inputs_of,
    repeated_inputs,
    share,
)
from millstream.pipelines.running.sinks import make_sink
from millstream.pipelines.running.tables import as_table, hide_added, mark_bad_keys, reader_schema
from millstream.pipelines.running.topics import check_topics
from millstream.pipelines.running.written import count_written
from millstream.pipelines.spec import PipelineSpec, Topic
from millstream.pipelines.standing.matching import mark_queries
from millstream.pipelines.state.stored_columns import GENERATIONS_PROPERTY, Generations
from millstream.pipelines.times.idleness import with_idle_watermark
from millstream.pipelines.versions.deploying import Deployed, find_deployed
from millstream.pipelines.versions.halting import REST_SECONDS, HaltWatch, look_at
from millstream.views.generations import FIRST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

SOURCE = "millstream"
BATCH_RECORDS_MAX = 1_000_000  # of a topic, so that the first batch over a large one is bounded


def launch(
    pipeline: PipelineSpec,
    spark: SparkSession,
    settings: Settings,
    *,
    once: bool = False,
    allow_new_checkpoint: bool = False,
    remove_views: bool = False,
    rebuild_views: bool = False,
    control: Control | None = None,
) -> StreamingQuery:
    """Start the pipeline's query; it runs in the background, and `control` can start it again.

    If its views are others than those that readers read, the earlier ones are maintained beside it
    until it has caught up, unless the query only takes what is there now.
    """
    refuse_connect(spark)
    make_active(spark)
    deployed = find_deployed(pipeline, settings)
    if deployed is not None:
        return start(
            deployed.pipeline, spark, settings, deployed, once, allow_new_checkpoint, control
        )
    chosen = choose_generation(
        pipeline, settings, remove_views=remove_views, rebuild_views=rebuild_views
    )
    earlier = None
    if chosen.earlier is not None and not once:
        earlier = start_beside(chosen.earlier, spark, settings)
    query = start(chosen.pipeline, spark, settings, None, once, allow_new_checkpoint, control)
    if earlier is not None:
        stop_together(query, earlier)
    return query


def start(
    pipeline: PipelineSpec,
    spark: SparkSession,
    settings: Settings,
    deployed: Deployed | None,
    once: bool,
    allow_new_checkpoint: bool,
    control: Control | None = None,
) -> StreamingQuery:
    """Start the query of a version or generation."""
    in_step = None
    if pipeline.in_step_with and not once:
        in_step = InStep(pipeline, settings)
        pipeline = with_cuts(pipeline, settings)
    location = checkpoint_location(pipeline, settings)
    refuse_running_twin(pipeline, spark)
    topic_ids = check_topics(settings, [pipeline])
    with locked(location, is_required=False) as lock:
        checkpoint = Checkpoint(spark, location)
        checkpoint.claim(pipeline, topic_ids)
        starting = fixed_starting(pipeline, settings, checkpoint)
        if checkpoint.is_new():
            options = {it: read_options(pipeline, t, settings) for it, t in pipeline.reads.items()}
            refuse_lost_records(pipeline, options, starting)
        tables = table_ends(pipeline, settings)
        made = apply_to_streams(pipeline, spark, settings, starting, tables)
        result = combine(pipeline, made)
        mode = choose_output_mode(pipeline, made)  # before tables are created
        checkpoint.check_state(pipeline, stateful_operators(analyzed(result)))
        sink = make_sink(
            pipeline,
            result,
            settings,
            checkpoint,
            allow_new_checkpoint=allow_new_checkpoint,
            roles=None if deployed is None else deployed.roles,
        )
        if deployed is not None:
            deployed.publish(operators_by_arrival(analyzed(result)))
        checkpoint.check_windows(closing_rules(analyzed(result)))
        checkpoint.align_sources(pipeline, inputs_of(result))
        counted = count_written(pipeline, result) if settings.publish_status else result
        writer = (
            counted.writeStream.queryName(pipeline.identity)
            .option("checkpointLocation", location)
            .outputMode(mode)
            .foreachBatch(sink)
        )
        set_trigger(writer, settings, once)
        if in_step is not None:
            in_step.begin()
        numbered = checkpoint.number_columns(bucketed_operators(analyzed(result)))
        with generations_in_tasks(spark, numbered):
            query = writer.start()
        if in_step is not None:
            in_step.during(query)
        lock.hold_during(query)
        if deployed is not None:
            watch(deployed, query, settings)
    publish(
        pipeline,
        settings,
        query,
        once=once,
        control=control,
        explain=explained(pipeline, spark, made, result, mode),
        is_deployed=deployed is not None,
    )
    return query


@contextmanager
def generations_in_tasks(
    spark: SparkSession, generations: Mapping[int, Generations]
) -> Iterator[None]:
    """Pass the generations of the columns of state to the tasks of queries that start meanwhile: a
    query keeps the properties of the thread that starts it."""
    context = spark.sparkContext
    before: Any = context.getLocalProperty(GENERATIONS_PROPERTY)  # None removes it
    context.setLocalProperty(GENERATIONS_PROPERTY, json.dumps(generations))
    try:
        yield
    finally:
        context.setLocalProperty(GENERATIONS_PROPERTY, before)


def set_trigger(writer: DataStreamWriter, settings: Settings, once: bool) -> None:
    if once:
        writer.trigger(availableNow=True)
    elif settings.trigger is not None:
        writer.trigger(processingTime=settings.trigger)


def start_beside(
    earlier: PipelineSpec, spark: SparkSession, settings: Settings
) -> StreamingQuery | None:
    """Maintain the views that readers read, unless another query does. If that fails, they stay
    as they are until the new ones are there."""
    try:
        return start(earlier, spark, settings, None, False, False)
    except MillstreamError as error:
        logger.warning("%s is not maintained here: %s", earlier.identity, error)
        return None


def stop_together(query: StreamingQuery, earlier: StreamingQuery) -> None:
    """Stop the query of the earlier views when the other one ends; it may have ended before."""

    def wait() -> None:
        with suppress(Exception):  # it failed, or the session was stopped: it has ended
            query.awaitTermination()
        with suppress(Exception):
            earlier.stop()

    threading.Thread(target=wait, name=f"beside-{earlier.name}", daemon=True).start()


def watch(deployed: Deployed, query: StreamingQuery, settings: Settings) -> None:
    """Let operators halt the query."""
    rest_seconds = REST_SECONDS
    if settings.trigger is not None:  # rows may follow with the next trigger
        trigger_us = duration_us(settings.trigger, "trigger", zero_allowed=True)
        rest_seconds += 2 * trigger_us / 1_000_000
    version = deployed.pipeline.version
    HaltWatch(
        deployed.store_url,
        deployed.pipeline.name,
        version,
        deployed.halt_file,
        look_at(query),
        rest_seconds=rest_seconds,
    ).start()


def checkpoint_location(pipeline: PipelineSpec, settings: Settings) -> str:
    return f"{settings.required_checkpoint().rstrip('/')}/{pipeline.identity}"


def refuse_connect(spark: SparkSession) -> None:
    from pyspark.sql import SparkSession as Classic

    if type(spark).__module__.startswith("pyspark.sql.connect") or not isinstance(spark, Classic):
        raise ConfigError(
            "pipelines do not run in a Spark Connect session, because their sinks work in the "
            "driver's own process: use a classic session (SparkSession.builder.master(...)), or "
            'read with spark.readStream.format("millstream")'
        )


def make_active(spark: SparkSession) -> None:
    """Make the session active in this thread: Spark looks for writers in the active session, and
    only the thread that created a session has one."""
    classic = spark._get_j_spark_session_class(spark._jvm)
    classic.setActiveSession(spark._jsparkSession)


def refuse_running_twin(pipeline: PipelineSpec, spark: SparkSession) -> None:
    if any(query.name == pipeline.identity for query in spark.streams.active):
        raise ConfigError(
            f"a query named {pipeline.identity} is running in this session: stop it first, or run "
            f'a {pipeline.name}.variant("another-name", writes=...) beside it'
        )


def fixed_starting(
    pipeline: PipelineSpec, settings: Settings, checkpoint: Checkpoint
) -> dict[str, Offsets]:
    """The first offsets of inputs that start at a time or at the end, fixed by the first start."""
    moving = {
        parameter: it
        for parameter, it in pipeline.reads.items()
        if it.start_at == "latest" or isinstance(it.start_at, datetime)
    }
    if not moving:
        return {}
    kept = checkpoint.starting() or earlier_starting(pipeline, settings, checkpoint)
    starting = {}
    for parameter, it in moving.items():
        options = read_options(pipeline, it, settings) | starting_options(it.name, it.start_at)
        parsed = parse_read_options(options, streaming=True)
        positions = Positions(parsed)
        try:
            known = positions.partitions()
            found = kept.get(parameter) or positions.resolve(parsed.starting, known)
        finally:
            positions.close()
        # Partitions that came since are read from their beginning, as in a query that runs.
        starting[parameter] = {partition: found.get(partition, EARLIEST) for partition in known}
    if checkpoint.starting().keys() != starting.keys():
        checkpoint.keep_starting(starting)
    return starting


def earlier_starting(
    pipeline: PipelineSpec, settings: Settings, checkpoint: Checkpoint
) -> dict[str, Offsets]:
    """Where earlier generations of the pipeline's views began."""
    for number in range(pipeline.generation - 1, FIRST - 1, -1):
        earlier = replace(pipeline, generation=number)
        found = checkpoint.at(checkpoint_location(earlier, settings)).starting()
        if found:
            return found
    return {}


def apply_to_streams(
    pipeline: PipelineSpec,
    spark: SparkSession,
    settings: Settings,
    starting: Mapping[str, Offsets],
    tables: Offsets | None = None,
) -> Any:
    """The result of the pipeline's function for its inputs; `combine` checks it.

    `tables` are the ends of the topics that are loaded first.
    """

    def read(parameter: str, *, is_shared: bool = False) -> DataFrame:
        return read_stream(
            pipeline,
            spark,
            parameter,
            settings,
            starting.get(parameter),
            None if parameter in pipeline.loaded_first else tables,
            is_shared=is_shared,
        )

    frames = {parameter: read(parameter) for parameter in pipeline.reads}
    with explained_counts(pipeline):
        made = pipeline(**frames)
    repeated = repeated_inputs(made)
    if not repeated:
        return made
    shared = {parameter: read(parameter, is_shared=True) for parameter in repeated}
    return pipeline(**frames | shared)


def table_ends(pipeline: PipelineSpec, settings: Settings) -> Offsets:
    """Where the topics that are loaded first end now."""
    first = pipeline.loaded_first.values()
    if first and len(first) == len(pipeline.reads):
        raise ConfigError(
            f"pipeline {pipeline.name}: all of its topics are to be loaded first; leave out "
            "load_first where there is nothing that waits"
        )
    ends: Offsets = {}
    for it in first:
        positions = Positions(
            parse_read_options(read_options(pipeline, it, settings), streaming=True)
        )
        try:
            ends |= positions.latest(positions.partitions())
        finally:
            positions.close()
    return ends


def read_stream(
    pipeline: PipelineSpec,
    spark: SparkSession,
    parameter: str,
    settings: Settings,
    starting: Offsets | None = None,
    tables: Offsets | None = None,
    *,
    is_shared: bool = False,
) -> DataFrame:
    """An input as a stream; records that do not decode are counted in the query's progress.

    `tables` are the ends up to which the query reads other topics first. If it is shared, it can be
    used several times and is read once.
    """
    topic = with_columns(pipeline.reads[parameter])
    schema = reader_schema(topic)
    options = read_options(pipeline, topic, settings)
    limit_batches(options)
    if tables:
        options["loadFirst"] = json.dumps(to_json(tables))
        options.setdefault("checkpointLocation", checkpoint_location(pipeline, settings))
    if starting is None:
        options |= starting_options(topic.name, topic.start_at)
    else:
        options["startingOffsets"] = json.dumps(to_json(starting))
    if topic.idle_after is not None and schema is not None:
        schema = idle_schema(schema)
        options |= idle_options(topic)
    if schema is not None and WATERMARK_COLUMN in schema.names:
        options.setdefault("checkpointLocation", checkpoint_location(pipeline, settings))
    options[INPUT_OPTION] = parameter
    parse_read_options(options, streaming=True)  # Spark reports errors only when the query runs
    reader = spark.readStream.format(SOURCE).options(**options)
    if schema is None:
        frame = load(reader)
    elif topic.bad_records == "fail" or ERROR_COLUMN in schema.names:
        frame = mark_bad_keys(load(reader.schema(schema)), topic)
    else:
        frame = mark_bad_keys(load(reader.schema(with_error_column(schema))), topic)
        frame = count_failures(frame, f"{OBSERVED}.{parameter}")
    if is_shared:
        frame = share(frame)
    frame = as_table(frame, topic)
    if topic.queries:
        frame = mark_queries(frame, topic.queries, options)
    frame = frame if topic.watermark is None else with_watermark(frame, topic)
    return hide_added(frame, topic)


def limit_batches(options: dict[str, str]) -> None:
    """Limit the size of a batch, unless the options of the topic do."""
    if not {it.lower() for it in options} & {"maxoffsetspertrigger", "minoffsetspertrigger"}:
        options["maxOffsetsPerTrigger"] = str(BATCH_RECORDS_MAX)


def with_watermark(frame: DataFrame, topic: Topic) -> DataFrame:
    assert topic.watermark is not None
    column, delay = topic.watermark
    try:
        check_time(frame, column)
        delay_us = duration_us(delay, "its delay", zero_allowed=True)
    except ConfigError as error:
        raise ConfigError(f"topic {topic.name}: watermark={topic.watermark!r}: {error}") from None
    if topic.idle_after is not None:
        return with_idle_watermark(frame, column, delay)
    return frame.withWatermark(column, f"{delay_us} microseconds")


def idle_schema(schema: StructType) -> StructType:
    from pyspark.sql.types import BooleanType, StructField, StructType

    return StructType([*schema.fields, StructField(IDLE_COLUMN, BooleanType())])


def idle_options(topic: Topic) -> dict[str, str]:
    assert topic.watermark is not None
    assert topic.idle_after is not None
    idle_us = duration_us(topic.idle_after, f"topic {topic.name}: idle_after")
    return {"idleAfter": f"{max(idle_us // 1000, 1)}ms", "idleColumn": topic.watermark[0]}


def load(reader: Any) -> DataFrame:
    """`reader.load()`; raises `ConfigError` if Spark's Python has no millstream."""
    try:
        frame: DataFrame = reader.load()
    except Exception as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            raise ConfigError(
                "the Python of Spark's workers has no millstream: import millstream.pipelines, or "
                f"set PYSPARK_PYTHON before the session is created (this one is {sys.executable}); "
                "in an existing session: millstream.pipelines.register(spark)"
            ) from error
        raise
    return frame


def with_error_column(schema: StructType) -> StructType:
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType([*schema.fields, StructField(ERROR_COLUMN, StringType())])


def read_history(
    pipeline: PipelineSpec,
    spark: SparkSession,
    settings: Settings,
    starting: str | datetime | Mapping[int, int] | None,
) -> dict[str, DataFrame]:
    """The inputs as batches, by parameter."""
    check_topics(settings, [pipeline])
    frames = {}
    for parameter, declared in pipeline.reads.items():
        it = with_columns(declared)
        reader = spark.read.format(SOURCE)
        schema = reader_schema(it)
        if schema is not None:
            reader = reader.schema(schema)
        begin = starting or ("earliest" if it.start_at == "latest" else it.start_at)
        options = read_options(pipeline, it, settings) | starting_options(it.name, begin)
        for_streams = {name.lower() for name in TRIGGER_OPTIONS}
        options = {n: v for n, v in options.items() if n.lower() not in for_streams}
        if it.schema is not None and it.bad_records == "deadletter":
            # The stream writes them.
            options = {n: v for n, v in options.items() if n != "deadLetterTopic"}
            options["mode"] = "drop"
        rows = mark_bad_keys(load(reader.options(**options)), it)
        rows = as_table(rows, it)
        rows = mark_queries(rows, it.queries, options) if it.queries else rows
        frames[parameter] = hide_added(rows, it)
    return frames


def with_columns(topic: Topic) -> Topic:
    """The topic, with the columns of its Avro schema if it names none."""
    if topic.schema is not None or topic.read_format != "avro":
        return topic
    from millstream.pipelines.avro.options import parse_avro_options
    from millstream.pipelines.avro.types import columns_of

    avro = parse_avro_options(GivenOptions(topic.options), "avro")
    return replace(topic, schema=columns_of(avro, topic.name))


def read_options(pipeline: PipelineSpec, topic: Topic, settings: Settings) -> dict[str, str]:
    options = {**settings.kafka_options(), "subscribe": topic.name}
    if topic.read_format != "raw":
        options["valueFormat"] = topic.read_format
    if topic.schema is not None:
        options |= {
            "mode": topic.bad_records,
            "pipeline": pipeline.name,
            "pipelineVersion": pipeline.version,
        }
        if topic.bad_records == "deadletter":
            options["deadLetterTopic"] = topic.dead_letters
    if topic.queries:
        options["queriesTopic"] = topic.queries
    return options | dict(topic.options)


def starting_options(name: str, starting: str | datetime | Mapping[int, int]) -> dict[str, str]:
    if isinstance(starting, str):
        return {"startingOffsets": starting}
    if isinstance(starting, datetime):
        return {
            "startingTimestamp": str(round(starting.timestamp() * 1000)),
            "startingOffsetsByTimestampStrategy": "latest",
        }
    offsets = to_json({(name, partition): offset for partition, offset in starting.items()})
    return {"startingOffsets": json.dumps(offsets)}
