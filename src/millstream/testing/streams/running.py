"""Runs a case on Spark: as a stream, batch by batch, and its rows as one batch.

Each of the case's batches is a file of every input (empty, if the input has no rows in it), and
Spark takes one file of each in a micro-batch. A query runs until something goes wrong, or until all
is done; then another goes on from the checkpoint, and calls its function again, as in a new
process.

The watermark is moved by rows that are let through `withWatermark` and no further: the pipeline
never sees them. All of it happens in a clone of the caller's session, with settings for speed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.errors import ConfigError
from millstream.pipelines.columns import WATERMARK_COLUMN, as_column
from millstream.pipelines.pipeline import Pipeline
from millstream.pipelines.plans import WATERMARK, analyzed, streaming_operators
from millstream.pipelines.running.failures import passes
from millstream.pipelines.running.launching import refuse_connect
from millstream.pipelines.running.output_modes import choose_output_mode
from millstream.pipelines.running.outputs import combine, rows_of, without_watermark
from millstream.pipelines.running.session import spark_settings
from millstream.pipelines.running.tables import hide_added
from millstream.pipelines.spec import ONLY
from millstream.pipelines.standing.matching import mark_queries
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from millstream.pipelines.times import with_watermark_column
from millstream.testing.streams.case import Arrival, Batch, Row
from millstream.testing.streams.checkpoint import lose_commit, planned_batches, set_time
from millstream.testing.streams.comparing import Comparison
from millstream.testing.streams.inputs import Definition, Input, with_offset, with_queries_end
from millstream.testing.streams.sink import ChangedBatch, Delivery, Rows, Sink
from millstream.testing.streams.sink import rows_of as collected

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

END_OF_STREAM = datetime(2200, 1, 1, tzinfo=UTC)  # where the watermark goes when all rows have come
QUERY_SECONDS_MAX = 240
STARTS_MAX = 5
MARKER = "_moves_watermark"
BATCH_COLUMN = "_batch"
SETTINGS_TAKEN = ("checkpointFileManagerClass", "shuffle.partitions")
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
OWN_STATE = "TransformWithState"


class SeenArrival(NamedTuple):
    """A row, the micro-batch that it came in, and the watermark of that batch."""

    arrival: Arrival
    batch_id: int
    watermark: datetime | None


@dataclass(frozen=True)
class Outcome:
    """The results of a run as a stream, by output and batch, and what Spark dropped."""

    batches: dict[str, list[Rows]]  # of each output, by Spark's batches
    changed: list[ChangedBatch]
    arrivals: list[SeenArrival]
    output_mode: str
    dropped_by_spark: int

    def rows(self, output: str = ONLY) -> Rows:
        """All rows of an output, in the order of their batches."""
        return [row for rows in self.batches[output] for row in rows]


def clone_session(spark: SparkSession) -> SparkSession:
    """A session with the same views and functions, whose settings can be changed."""
    from pyspark.sql import SparkSession

    refuse_connect(spark)
    clone = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in spark_settings("local[2]").items():
        if name.endswith(SETTINGS_TAKEN):
            clone.conf.set(name, value)
    clone.conf.set(CHANGELOG, "true")
    return clone


@contextlib.contextmanager
def state_store(session: SparkSession, provider: str) -> Iterator[None]:
    """Have the session keep state in this way for a while."""
    before = str(session.conf.get(STORE_PROVIDER))
    session.conf.set(STORE_PROVIDER, provider)
    try:
        yield
    finally:
        session.conf.set(STORE_PROVIDER, before)


@dataclass
class StreamRun:
    """A stream that is being told, batch after batch."""

    definition: Definition
    session: SparkSession
    place: Path
    delivery: Delivery = "exactly once"
    comparison: Comparison = field(default_factory=Comparison)  # of a batch with its repetition
    has_end: bool = False  # a last row, which moves a watermark that the pipeline makes itself
    dropped_by_spark: int = 0
    _written: list[Batch] = field(default_factory=list)
    _counts: dict[str, int] = field(default_factory=dict)
    _query_ends: dict[str, int] = field(default_factory=dict)
    _output_mode: str = ""
    _is_pending: bool = False  # there is something that no query has done yet

    def __post_init__(self) -> None:
        self.session = clone_session(self.session)  # its settings are changed while others run
        outputs = list(self.pipeline.writes)
        self._sink = Sink(self._checkpoint, outputs, self.delivery, self.comparison)
        for name in self.definition.inputs:
            (self.place / name).mkdir(parents=True)

    @property
    def pipeline(self) -> Pipeline:
        return self.definition.pipeline

    @property
    def _checkpoint(self) -> Path:
        return self.place / "checkpoint"

    def run(self, batches: Sequence[Batch]) -> Outcome:
        """These batches, after those before; all that has come out."""
        for batch in batches:
            self._write(batch)
            if batch.now_ms is not None:
                self._run_at(batch.now_ms)
            if batch.fault is not None:
                self._sink.disarm()
                if batch.crash is not None:
                    self._sink.arm(len(self._written) - 1, batch.crash)
                self._run_query()
            if batch.fault == "lost commit":
                self._is_pending = lose_commit(self._checkpoint) is not None
        if self._is_pending:
            self._sink.disarm()
            self._run_query()
        return self._outcome()

    def _run_at(self, now_ms: int) -> None:
        """Have the batch planned, set its time, and leave it to be repeated."""
        self._sink.arm(len(self._written) - 1, "crash before work")
        self._run_query()
        assert self._sink.crashed_in is not None
        set_time(self._checkpoint, self._sink.crashed_in, now_ms)

    def _write(self, batch: Batch) -> None:
        import pyarrow.parquet as pq

        number = len(self._written)
        inputs = self.definition.inputs
        numbered = (with_offset(it, inputs, self._counts) for it in batch.arrivals)
        batch = replace(batch, arrivals=tuple(numbered))
        batch = with_queries_end(batch, inputs, self._query_ends)
        for name, source in inputs.items():
            rows = [arrival.row for arrival in batch.arrivals if arrival.input == name]
            path = self.place / name / f"{number:05}.parquet"
            hidden = path.with_name(f".{path.name}")
            pq.write_table(_file_table(source, rows, batch.watermark), hidden)
            os.utime(hidden, (number, number))  # Spark takes the oldest first
            hidden.rename(path)
        self._written.append(batch)
        self._is_pending = True

    def _run_query(self) -> None:
        """To its end, or to its crash; again where a busy machine prevented it."""
        from pyspark.errors import StreamingQueryException

        for remaining in reversed(range(STARTS_MAX)):
            query = self._start()
            try:
                if not query.awaitTermination(QUERY_SECONDS_MAX):
                    query.stop()
                    raise TimeoutError(f"{self.pipeline.name} does not end: its query was stopped")
                break
            except StreamingQueryException as error:
                if self._sink.has_crashed:
                    break
                if not passes(error) or not remaining:
                    raise
        self._is_pending = self._sink.has_crashed
        self.dropped_by_spark += dropped_rows(query)

    def _start(self) -> StreamingQuery:
        with state_store(self.session, ROCKSDB):
            frames = {name: self._frame(it) for name, it in self.definition.inputs.items()}
            made = self.pipeline(**frames)
            result = combine(self.pipeline, made)
            operators = streaming_operators(analyzed(result))
            check_watermark(self.definition, operators, has_end=self.has_end)
            self._output_mode = choose_output_mode(self.pipeline, made)
            writer = (
                result.writeStream.foreachBatch(self._sink)
                .outputMode(self._output_mode)
                .option("checkpointLocation", str(self._checkpoint))
                .trigger(availableNow=True)
            )
            if any(it.startswith(OWN_STATE) for it in operators):
                return writer.start()
        return writer.start()  # as the session has it: Spark's own operators are quicker in memory

    def _frame(self, it: Input) -> DataFrame:
        """An input as the pipeline sees it."""
        from pyspark.sql.functions import col

        reader = self.session.readStream.schema(_file_schema(it))
        frame = reader.option("maxFilesPerTrigger", 1).parquet(str(self.place / it.name))
        if WATERMARK_COLUMN in it.schema.names:
            frame = frame.transform(with_watermark_column, str(self._checkpoint))
        watermark = self.pipeline.reads[it.name].watermark
        if watermark is not None:
            # The time is in the condition so that Spark does not move it before the watermark.
            is_mark = col(MARKER) & as_column(watermark[0]).isNotNull()
            frame = frame.withWatermark(*watermark).where(~is_mark)
        marked = _marked(frame.select(*map(as_column, it.schema.names)), it)
        return hide_added(marked, self.pipeline.reads[it.name])

    def _outcome(self) -> Outcome:
        done = sorted(self._sink.batches.items())
        arrivals = []
        begin = 0
        for planned in planned_batches(self._checkpoint):
            end = planned.last_place + 1
            watermark = _moment(planned.watermark_ms)
            for batch in self._written[begin:end]:
                arrivals += [SeenArrival(it, planned.batch_id, watermark) for it in batch.arrivals]
            begin = end
        return Outcome(
            {name: [rows[name] for _, rows in done] for name in self.pipeline.writes},
            self._sink.changed,
            arrivals,
            self._output_mode,
            self.dropped_by_spark,
        )


def check_watermark(definition: Definition, operators: set[str], *, has_end: bool) -> None:
    """Raises `ConfigError` if the watermark is out of the trial's reach."""
    is_declared = any(it.delay_us is not None for it in definition.inputs.values())
    if WATERMARK in operators and not is_declared and not has_end:
        raise ConfigError(
            f"{definition.name} calls withWatermark itself, so nothing tells when all has come: "
            'declare it at the input, Source(rows, watermark=("at", "1 minute")) or '
            "topic(..., watermark=...), or give end=, a last row that moves it past all others"
        )


def dropped_rows(query: StreamingQuery) -> int:
    """Rows that Spark itself took for late."""
    return sum(
        int(operator.numRowsDroppedByWatermark)
        for progress in query.recentProgress
        for operator in progress.stateOperators
    )


def run_batch(
    definition: Definition,
    arrivals: Sequence[SeenArrival],
    session: SparkSession,
    place: Path,
) -> dict[str, Rows]:
    """The pipeline over rows that are all there."""
    frames = {}
    for name, source in definition.inputs.items():
        mine = [them.arrival.row for them in arrivals if them.arrival.input == name]
        table = source.table_of([source.with_all_queries(it) for it in mine])
        frame = _batch_frame(session, table, source.schema, place / f"{name}.parquet")
        frames[name] = hide_added(_marked(frame, source), definition.pipeline.reads[name])
    return collect(definition.pipeline(**frames), list(definition.pipeline.writes))


def run_reference(
    function: Callable[..., Any],
    definition: Definition,
    arrivals: Sequence[SeenArrival],
    session: SparkSession,
    place: Path,
) -> dict[str, Rows]:
    """A function of the user's over the same rows, which also have `_batch` and `_watermark`."""
    import pyarrow as pa
    from pyspark.sql.types import StructType

    frames = {}
    for name, source in definition.inputs.items():
        mine = [them for them in arrivals if them.arrival.input == name]
        table = source.table_of([source.with_all_queries(them.arrival.row) for them in mine])
        batches = pa.array([them.batch_id for them in mine], pa.int64())
        marks = pa.array([them.watermark for them in mine], pa.timestamp("us", tz="UTC"))
        table = table.append_column(BATCH_COLUMN, batches).append_column(WATERMARK_COLUMN, marks)
        fields = [field for field in source.schema.fields if field.name != WATERMARK_COLUMN]
        schema = StructType(fields).add(BATCH_COLUMN, "long").add(WATERMARK_COLUMN, "timestamp")
        frame = _batch_frame(session, table, schema, place / f"{name}.parquet")
        frames[name] = _marked(frame, source)
    return collect(function(**frames), list(definition.pipeline.writes))


def collect(made: Any, outputs: Sequence[str]) -> dict[str, Rows]:
    """What a function made of batches: a frame, a frame for each output, or structs for each."""
    if isinstance(made, Mapping):
        return {name: _rows(without_watermark(made[name])) for name in outputs}
    if list(outputs) == [ONLY]:
        return {ONLY: _rows(without_watermark(made))}
    return {name: _rows(rows_of(without_watermark(made), name)) for name in outputs}


def _rows(frame: DataFrame) -> Rows:
    """All rows; asked for again where a busy machine prevented it."""
    for remaining in reversed(range(STARTS_MAX)):
        try:
            found = collected(frame)
            break
        except Exception as error:
            if not passes(error) or not remaining:
                raise
    return found


def _marked(frame: DataFrame, it: Input) -> DataFrame:
    """The frame, from which `match_queries` knows the standing queries of the input."""
    if it.queries_topic is None:
        return frame
    return mark_queries(frame, it.queries_topic, {}, it.queries)


def _batch_frame(session: SparkSession, table: pa.Table, schema: Any, path: Path) -> DataFrame:
    import pyarrow.parquet as pq

    pq.write_table(table, path)
    return session.read.schema(schema).parquet(str(path))


def _file_schema(it: Input) -> Any:
    from pyspark.sql.types import StructType

    fields = [field for field in it.schema.fields if field.name != WATERMARK_COLUMN]
    return StructType(fields).add(MARKER, "boolean")


def _file_table(it: Input, rows: Sequence[Row], watermark: datetime | None) -> pa.Table:
    """A file of an input; the row that moves the watermark is the last."""
    import pyarrow as pa

    marks: list[Row] = []
    if watermark is not None and it.delay_us is not None and it.time is not None:
        marks.append({it.time: watermark + timedelta(microseconds=it.delay_us)})
    are_marks = pa.array([False] * len(rows) + [True] * len(marks), pa.bool_())
    return it.table_of([*rows, *marks]).append_column(MARKER, are_marks)


def _moment(watermark_ms: int | None) -> datetime | None:
    return None if watermark_ms is None else datetime.fromtimestamp(watermark_ms / 1000, UTC)
