"""The topic of standing queries: its settings, its records, and reading them.

The topic has one partition, so that offsets order all queries. It is compacted, and keeps records
that were replaced for `HISTORY_MS`: as long as that, a batch can be repeated with the queries that
were in force, and a refused record does not displace the version before it. Its records have the
broker's time, so that a query is in force from the moment when it was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.client.topics import NewTopic
from millstream.connect.dead_letters import bytes_at
from millstream.errors import ConfigError
from millstream.pipelines.standing.stored import QueryRecord

if TYPE_CHECKING:
    from millstream.pipelines.reading.options import ReadOptions
    from millstream.records.columns import Columns

HISTORY_MS = 7 * 24 * 60 * 60 * 1000
SETTINGS = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "min.compaction.lag.ms": str(HISTORY_MS),
}


def new_topic(name: str) -> NewTopic:
    return NewTopic(name, 1, SETTINGS)


def reading_options(options: Mapping[str, str], topic: str) -> ReadOptions:
    """How queries are read, with the broker and the security of these options of a reader."""
    from millstream.pipelines.reading.options import parse_read_options

    kafka = {name: value for name, value in options.items() if name.lower().startswith("kafka.")}
    if not kafka:
        raise ConfigError(
            'the options of the queries have no broker: {"kafka.bootstrap.servers": "host:9092"}'
        )
    parsed = parse_read_options({**kafka, "subscribe": topic}, streaming=False)
    # A topic whose oldest records were deleted still has the newest of each query.
    return replace(parsed, fail_on_data_loss=False, queries_topic=topic)


def records_of(columns: Columns) -> Iterator[QueryRecord]:
    """Fetched records."""
    offsets = memoryview(columns.offsets).cast("q")
    timestamps = memoryview(columns.timestamps).cast("q")
    for row in range(columns.row_count):
        yield QueryRecord(
            offsets[row],
            timestamps[row],
            bytes_at(columns.keys, row),
            bytes_at(columns.values, row),
        )
