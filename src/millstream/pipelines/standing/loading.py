"""The queries in a worker: an index of the topic that moves forward by offset.

Each process that runs tasks has an index of its own. A batch names the end of the topic; the index
reads the records up to there, and so all tasks of a batch, and of a repetition of it, use the same
queries. If a batch has an earlier end than the index, or the topic was recreated, the index is
loaded from the beginning.

Records that are refused are logged, and written to the dead-letter topic by the first task of a
batch. A process that starts loads the topic, and may write the letters again; their keys identify
duplicates.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.errors import ConfigError
from millstream.pipelines.offsets import OffsetRange
from millstream.pipelines.reading.dead_letters import DeadLetters
from millstream.pipelines.reading.decoding.results import Failure
from millstream.pipelines.reading.fetching import cluster_of, fetch_columns
from millstream.pipelines.standing.stored import QueryRecord, Refused, StoredQueries
from millstream.pipelines.standing.topic import records_of
from millstream.pipelines.workers import frozen

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.pipelines.reading.options import ReadOptions

logger = logging.getLogger(__name__)

# So many new records, and the garbage collector is made to skip the index. It runs after every
# task, and takes 0.2 s for 100,000 queries.
FROZEN_MIN = 1_000
INDEXES_MAX = 4  # that a process keeps
REFUSED = "refused query"

_indexes: OrderedDict[str, LoadedQueries] = OrderedDict()


@dataclass(frozen=True)
class QuerySource:
    """The topic of queries, and the events that they are for; it is pickled for workers."""

    source_id: str
    topic: str
    options: ReadOptions | None
    schema: pa.Schema
    scans_max: int
    records: tuple[QueryRecord, ...] | None = None  # instead of a topic, in tests


class LoadedQueries:
    """The queries of a topic in this process."""

    def __init__(self, source: QuerySource) -> None:
        self._source = source
        self._topic_id: UUID | None = None
        self._unfrozen = 0  # records whose queries the garbage collector traverses
        self._queries = self._new()

    def _new(self) -> StoredQueries:
        return StoredQueries(self._source.schema, self._source.scans_max)

    def at(self, end: int, *, writes_letters: bool) -> StoredQueries:
        """The queries of the records before this offset."""
        topic_id = self._find_topic()  # always: a recreated topic may have the same end
        if topic_id != self._topic_id or end < self._queries.position:
            self._topic_id = topic_id
            self._queries = self._new()
        if self._queries.position != end:
            self._unfrozen += end - self._queries.position
            if self._unfrozen < FROZEN_MIN:
                self._read(end, writes_letters)
            else:
                self._unfrozen = 0
                with frozen():
                    self._read(end, writes_letters)
                    self._queries.compile()
        return self._queries

    def _find_topic(self) -> UUID | None:
        topic, options = self._source.topic, self._source.options
        if options is None:
            return None
        cluster = cluster_of(options)
        info = cluster.retrying(lambda: cluster.refresh([topic])).get(topic)
        if info is None:
            raise ConfigError(f"topic {topic} of standing queries was deleted: create it again")
        return info.id

    def _read(self, end: int, writes_letters: bool) -> None:
        """Apply the records up to this offset."""
        topic, options = self._source.topic, self._source.options
        if options is None:
            given = self._source.records or ()
            self._report(self._queries.advance(given[self._queries.position : end], end))
            return
        wanted = OffsetRange(topic, 0, self._queries.position, end)
        letters = DeadLetters(options, wanted)
        for columns in fetch_columns(options, wanted):
            refused = self._queries.advance(records_of(columns), columns.next_offset)
            if refused:
                rows = {it: row for row, it in enumerate(memoryview(columns.offsets).cast("q"))}
                self._report(refused)
                if writes_letters:
                    letters.add(columns, [_failure(it, rows) for it in refused])
        letters.flush()
        self._queries.advance((), end)
        suspended = self._queries.suspended_count
        if suspended:
            logger.warning(
                "%s: %d queries are suspended, because no index helps to find them and more than "
                "%d such queries are stored: add a condition with =, IN, a range or a word",
                topic,
                suspended,
                self._source.scans_max,
            )

    def _report(self, refused: list[Refused]) -> None:
        for it in refused:
            logger.warning(
                "%s, offset %d: query %s is refused: %s",
                self._source.topic,
                it.version,
                it.query_id,
                it.reason,
            )


def _failure(refused: Refused, rows: dict[int, int]) -> Failure:
    return Failure(rows[refused.version], REFUSED, refused.reason)


def loaded(source: QuerySource) -> LoadedQueries:
    """That of this process."""
    found = _indexes.get(source.source_id)
    if found is None:
        found = _indexes[source.source_id] = LoadedQueries(source)
    _indexes.move_to_end(source.source_id)
    while len(_indexes) > INDEXES_MAX:
        _indexes.popitem(last=False)
    return found


def is_first_task() -> bool:
    """Whether this is the first task of a batch."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    return context is None or context.partitionId() == 0
