"""`spark.read.format("millstream")` and `spark.readStream.format("millstream")`.

Spark makes these objects anew wherever it needs them: on the driver to plan, in workers to read.
They hold the options and nothing else of value; the brokers and Spark's checkpoint hold the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
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
from millstream.pipelines.offsets import (
    OffsetRange,
    Offsets,
    count_between,
    from_json,
    limit_total,
    plan_tasks,
    to_json,
)
from millstream.pipelines.options import ReadOptions, parse_read_options
from millstream.pipelines.positions import Positions, check_for_loss

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)


class MillstreamSource(DataSource):
    """Topics of a Kafka cluster as DataFrames."""

    @classmethod
    def name(cls) -> str:
        return "millstream"

    def schema(self) -> str:
        from millstream.pipelines.arrow import HEADERS_SCHEMA, RAW_SCHEMA

        value_format = str(self.options.get("valueFormat", "raw")).lower()
        if value_format == "text":
            return "value string"
        if value_format != "raw":
            raise ConfigError(
                f'valueFormat {value_format} needs a schema: .schema("id long, name string")'
            )
        with_headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        return RAW_SCHEMA + (HEADERS_SCHEMA if with_headers else "")

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicReader(_read_options(self.options, schema, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TopicStreamReader(_read_options(self.options, schema, streaming=True))


def _read_options(
    options: Mapping[str, str], schema: StructType, *, streaming: bool
) -> ReadOptions:
    parsed = parse_read_options(options, streaming=streaming)
    if parsed.value_format == "raw":
        if "value" not in schema.names:
            raise ConfigError("a schema is given; say with valueFormat what the values are")
        return parsed
    from millstream.pipelines.typed import typed_options

    return typed_options(parsed, schema)


class RangePartition(InputPartition):
    """One task's range."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def read_range(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task yields for its range."""
    from millstream.pipelines.arrow import raw_batch
    from millstream.pipelines.reading import fetch_columns

    assert isinstance(partition, RangePartition)
    wanted = partition.wanted
    if options.row_schema is not None:
        from millstream.pipelines.typed import typed_batches

        yield from typed_batches(options, wanted)
        return
    for columns in fetch_columns(options, wanted):
        yield raw_batch(wanted.topic, wanted.partition, columns)


def plan(options: ReadOptions, start: Offsets, end: Offsets) -> list[InputPartition]:
    ranges = [
        OffsetRange(topic, partition, start.get((topic, partition), 0), offset)
        for (topic, partition), offset in sorted(end.items())
    ]
    return [RangePartition(it) for it in plan_tasks(ranges, options.min_partitions)]


class TopicReader(DataSourceReader):
    """A batch: from `startingOffsets` to `endingOffsets`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        positions = Positions(self._options)
        try:
            known = positions.partitions()
            start = positions.resolve(self._options.starting, known)
            end = positions.resolve(self._options.ending, known)
            start = check_for_loss(
                start,
                positions.earliest(known),
                fail=self._options.fail_on_data_loss,
                report=logger.warning,
            )
        finally:
            positions.close()
        return plan(self._options, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: whatever has come since the last batch, within the limits."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._clock = SystemClock()
        self._positions_open: Positions | None = None
        self._target: Offsets | None = None  # where availableNow ends
        self._last_batch_ms: int | None = None

    @property
    def _positions(self) -> Positions:
        if self._positions_open is None:
            self._positions_open = Positions(self._options)
        return self._positions_open

    def initialOffset(self) -> dict[str, dict[str, int]]:
        positions = self._positions
        return to_json(positions.resolve(self._options.starting, positions.partitions()))

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._end_now()

    def latestOffset(
        self, start: dict[str, dict[str, int]], limit: ReadLimit
    ) -> dict[str, dict[str, int]]:
        begin = from_json(start)
        latest = self._target if self._target is not None else self._end_now()
        begin |= self._begin_of_new(begin, latest)
        # What has not moved keeps its place, also where a topic was deleted and made anew.
        latest = {it: max(offset, begin.get(it, 0)) for it, offset in latest.items()}
        if isinstance(limit, ReadAllAvailable):
            return to_json(latest)
        if self._waits_for_more(begin, latest):
            return to_json(begin)
        self._last_batch_ms = self._clock.monotonic_ms()
        most = self._options.max_offsets_per_trigger
        return to_json(latest if most is None else limit_total(begin, latest, most))

    def _waits_for_more(self, begin: Offsets, latest: Offsets) -> bool:
        """Whether `minOffsetsPerTrigger` are not there yet, and the last batch is not long ago."""
        least = self._options.min_offsets_per_trigger
        if least is None or count_between(begin, latest) >= least or self._target is not None:
            return False
        now_ms = self._clock.monotonic_ms()
        if self._last_batch_ms is None:
            self._last_batch_ms = now_ms
        return now_ms - self._last_batch_ms < self._options.max_trigger_delay_ms

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        return to_json(self._end_now())

    def _end_now(self) -> Offsets:
        return self._positions.latest(self._positions.partitions())

    def _begin_of_new(self, known: Offsets, latest: Offsets) -> Offsets:
        """Partitions that came since are read from their beginning."""
        return self._positions.earliest([it for it in latest if it not in known])

    def partitions(
        self, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]
    ) -> Sequence[InputPartition]:
        begin, until = from_json(start), from_json(end)
        begin |= self._begin_of_new(begin, until)
        busy = [it for it, offset in until.items() if offset > begin[it]]
        begin |= check_for_loss(
            {it: begin[it] for it in busy},
            self._positions.earliest(busy),
            fail=self._options.fail_on_data_loss,
            report=logger.warning,
        )
        return plan(self._options, begin, until)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)

    def stop(self) -> None:
        if self._positions_open is not None:
            self._positions_open.close()
