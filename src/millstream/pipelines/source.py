"""`spark.read.format("millstream")` and `spark.readStream.format("millstream")`.

Spark creates these objects wherever it needs them: on the driver to plan, in workers to read.
They hold the options and nothing else of value; the brokers and Spark's checkpoint hold the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from millstream.clock import SystemClock
from millstream.errors import ConfigError
from millstream.pipelines.columns import WATERMARK_COLUMN
from millstream.pipelines.offsets import (
    OffsetRange,
    Offsets,
    from_json,
    idle_until_ms,
    queries_end,
    to_json,
    topic_ids_in,
    with_idle_until,
    with_queries_end,
    with_topic_ids,
)
from millstream.pipelines.options import GivenOptions
from millstream.pipelines.query_files import batch_watermark_ms
from millstream.pipelines.reading.options import ReadOptions, parse_read_options
from millstream.pipelines.reading.planning import StreamPlanner, plan_batch
from millstream.pipelines.reading.positions import Positions
from millstream.pipelines.workers import freeze_imports, keep_memory
from millstream.pipelines.writing.options import parse_write_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

JsonOffsets: TypeAlias = dict[str, dict[str, Any]]


class MillstreamSource(DataSource):
    """Topics of a Kafka cluster as DataFrames."""

    @classmethod
    def name(cls) -> str:
        return "millstream"

    def schema(self) -> str:
        from millstream.pipelines.reading.arrow import HEADERS_SCHEMA, RAW_SCHEMA

        value_format = str(self.options.get("valueFormat", "raw")).lower()
        if value_format == "text":
            return "value string"
        if value_format == "avro":
            from millstream.pipelines.avro.options import parse_avro_options
            from millstream.pipelines.avro.types import columns_of

            avro = parse_avro_options(GivenOptions(self.options), value_format)
            return columns_of(avro, str(self.options.get("subscribe", "")).strip())
        if value_format != "raw":
            raise ConfigError(
                f'valueFormat {value_format} needs a schema: .schema("id long, name string")'
            )
        with_headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        return RAW_SCHEMA + (HEADERS_SCHEMA if with_headers else "")

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicReader(_read_options(self.options, schema, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = _read_options(self.options, schema, streaming=True)
        if WATERMARK_COLUMN in schema.names and options.checkpoint_location is None:
            raise ConfigError(
                f"the schema names {WATERMARK_COLUMN}, which stands in the query's checkpoint: "
                "give the reader the same checkpointLocation as the writer"
            )
        return TopicStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from millstream.pipelines.writing.writer import TopicWriter

        if overwrite:
            raise ConfigError('a topic cannot be overwritten, only added to: use mode("append")')
        return TopicWriter(parse_write_options(self.options, streaming=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from millstream.pipelines.writing.writer import TopicStreamWriter

        return TopicStreamWriter(parse_write_options(self.options, streaming=True), schema)


def _read_options(
    options: Mapping[str, str], schema: StructType, *, streaming: bool
) -> ReadOptions:
    parsed = parse_read_options(options, streaming=streaming)
    if parsed.value_format == "raw":
        if "value" not in schema.names:
            raise ConfigError("a schema is given; say with valueFormat what the values are")
        return parsed
    from millstream.pipelines.reading.typed import typed_options

    return typed_options(parsed, schema)


class RangePartition(InputPartition):
    """The range of offsets of one task, the id of its topic, and, if the schema names them, the
    watermark of the batch and the end of the queries' topic."""

    def __init__(
        self,
        wanted: OffsetRange,
        topic_id: UUID | None,
        watermark_ms: int | None = None,
        queries_end: int | None = None,
    ) -> None:
        super().__init__(wanted)
        self.wanted = wanted
        self.topic_id = topic_id
        self.watermark_ms = watermark_ms
        self.queries_end = queries_end


class TickPartition(InputPartition):
    """A task whose only row is a tick of an idle source."""

    def __init__(self, time_ms: int) -> None:
        super().__init__(time_ms)
        self.time_ms = time_ms


def read_range(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task yields for its range."""
    from millstream.pipelines.reading.arrow import raw_batch
    from millstream.pipelines.reading.fetching import fetch_columns
    from millstream.pipelines.reading.shredded import decrypted

    if isinstance(partition, TickPartition):
        from millstream.pipelines.reading.typed import idle_row

        yield idle_row(options, partition.time_ms)
        return
    if not isinstance(partition, RangePartition):
        return  # Spark's own, where nothing is to be read
    wanted = partition.wanted
    keep_memory()
    if options.row_schema is not None:
        from millstream.pipelines.reading.typed import TaskConstants, typed_batches
        from millstream.pipelines.row_positions import log_number

        log = log_number(wanted.topic, partition.topic_id, wanted.partition)
        constants = TaskConstants(partition.watermark_ms, log, partition.queries_end)
        yield from typed_batches(options, wanted, constants)
    else:
        for columns in fetch_columns(options, wanted):
            readable = decrypted(options, wanted.topic, columns)
            yield raw_batch(wanted.topic, wanted.partition, readable)
    freeze_imports(f"read {options.value_format}")


class TopicReader(DataSourceReader):
    """A batch: from `startingOffsets` to `endingOffsets`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        positions = Positions(self._options)
        try:
            tasks = plan_batch(self._options, positions)
            ids, queries = positions.topic_ids, positions.queries_end()
            end = None if queries is None else queries.end
            return [RangePartition(it, ids.get(it.topic), None, end) for it in tasks]
        finally:
            positions.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: whatever has come since the last batch, within the limits."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    @cached_property
    def _positions(self) -> Positions:
        return Positions(self._options)

    @cached_property
    def _planner(self) -> StreamPlanner:
        return StreamPlanner(self._options, self._positions, SystemClock())

    def initialOffset(self) -> JsonOffsets:
        initial = to_json(self._planner.initial())
        return with_topic_ids(initial, self._topic_ids)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark takes one limit only; the planner knows them all, and looks at no other."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.fix_target()

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:
        without_limit = isinstance(limit, ReadAllAvailable)
        begin, begin_ids = from_json(start), topic_ids_in(start)
        end = self._planner.next_end(begin, without_limit=without_limit, topic_ids=begin_ids)
        idle_ms = self._planner.idle_until_ms(begin, idle_until_ms(start))
        # While it waits, nothing must change.
        ids = begin_ids if end is begin else self._topic_ids
        # Read after the ends of the events: a query that is older than an event is in it.
        queries = queries_end(start) if end == begin else self._positions.queries_end()
        planned = with_idle_until(with_topic_ids(to_json(end), ids), idle_ms)
        return with_queries_end(planned, queries)

    @property
    def _topic_ids(self) -> Mapping[str, UUID | None]:
        """The ids to be kept with offsets: in pipelines. Others can go back to Spark's connector,
        which would not understand them."""
        return self._positions.topic_ids if self._options.pipeline_input is not None else {}

    def reportLatestOffset(self) -> JsonOffsets | None:
        return to_json(self._planner.latest) or None

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> Sequence[InputPartition]:
        ends = from_json(end)
        ids = topic_ids_in(start), topic_ids_in(end)
        tasks = self._planner.tasks(from_json(start), ends, *ids)
        watermark_ms = self._watermark_ms(ends) if tasks else None
        topic_ids = self._positions.topic_ids
        ticks = [TickPartition(it) for it in self._ticks_ms(start, end)]
        queries = self._positions.planned_queries_end(queries_end(end)) if tasks else None
        return [
            *(RangePartition(it, topic_ids.get(it.topic), watermark_ms, queries) for it in tasks),
            *ticks,
        ]

    def _ticks_ms(self, start: JsonOffsets, end: JsonOffsets) -> list[int]:
        """The time of the tick between these offsets, if there is one."""
        tick_ms = idle_until_ms(end)
        return [] if tick_ms is None or tick_ms == idle_until_ms(start) else [tick_ms]

    def _watermark_ms(self, ends: Offsets) -> int | None:
        """Spark has written it down before it asks for partitions."""
        schema, location = self._options.row_schema, self._options.checkpoint_location
        if location is None or schema is None or WATERMARK_COLUMN not in schema.names:
            return None
        return batch_watermark_ms(location, ends)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)

    def stop(self) -> None:
        self._positions.close()
