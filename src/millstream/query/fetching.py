"""Reading a range of offsets of one partition, as columns.

The next request is on its way while the last answer is decoded. Requests start small and grow, so
that a query with a LIMIT does not fetch megabytes for ten rows.

Brokers that restart and leaders that move are waited for. Records that retention or DeleteRecords
removed during the query are skipped, with a warning. A topic that was deleted, or deleted and
created again, ends the query: Fetch names it by its id where the broker can (v13, Kafka 3.1).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import UUID

from millstream.client.cluster import BACKOFF_SECONDS, BACKOFF_SECONDS_MAX, Cluster, check
from millstream.client.connection import Connection
from millstream.client.fetching import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    is_throttled,
)
from millstream.client.offsets import log_bounds
from millstream.errors import ApiError, CorruptBatch, ErrorCode, MillstreamError
from millstream.query.ranges import ScanRange
from millstream.records.batch import iterate_headers
from millstream.records.columns import AbortedRange, Columns, decode_columns

FETCH_VERSION_MAX = 17
FETCH_BYTES_FIRST = 256 * 1024
FETCH_BYTES_MAX = 4 * 1024 * 1024
WAIT_MS = 100
# A log may end in offsets that compaction removed: nothing comes, though its end is further on. A
# broker that waits for remote storage answers in the same way, for a while.
EMPTY_ANSWERS_MAX = 20
RETRY_SECONDS = 30.0
MISSING_SECONDS = 2.0  # a new topic is not known to all brokers at once

_MISSING = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class QueryFailed(MillstreamError):
    """The query cannot be answered; the message says why, and what to do."""


class Source(NamedTuple):
    """A topic as a query reads it."""

    topic: str
    topic_id: UUID | None
    read_committed: bool = True


class Step(NamedTuple):
    """A part of a range that has been read."""

    columns: Columns | None  # None if no records are in it
    next_offset: int
    size_bytes: int


class RangeReader:
    """Reads one range after the other over one connection; one thread at a time."""

    def __init__(
        self,
        cluster: Cluster,
        source: Source,
        *,
        with_headers: bool = False,
        stop: threading.Event | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._cluster = cluster
        self._source = source
        self._with_headers = with_headers
        self._stop = stop or threading.Event()
        self._warn = warn
        self._fetch_bytes = FETCH_BYTES_FIRST

    def read(self, wanted: ScanRange) -> Iterator[Step]:
        """The committed records of the range, or all of them, until `stop` is set."""
        position = wanted.first
        give_up_at = time.monotonic() + RETRY_SECONDS
        backoff = BACKOFF_SECONDS
        while position < wanted.end and not self._stop.is_set():
            try:
                for step in self._stream(wanted, position):
                    position = step.next_offset
                    give_up_at, backoff = time.monotonic() + RETRY_SECONDS, BACKOFF_SECONDS
                    yield step
                return
            except (OSError, ApiError) as error:
                if _code(error) is ErrorCode.OFFSET_OUT_OF_RANGE:
                    position = self._skip_deleted(wanted, position)
                elif _code(error) in _MISSING:
                    give_up_at = min(give_up_at, time.monotonic() + MISSING_SECONDS)
                elif isinstance(error, ApiError) and not error.code.retriable:
                    raise
                self._cluster.forget_all()
                if time.monotonic() + backoff > give_up_at:
                    raise self._given_up(error, wanted, position) from error
                self._stop.wait(backoff)
                backoff = min(2 * backoff, BACKOFF_SECONDS_MAX)
                self._check_topic(give_up_at)

    def _stream(self, wanted: ScanRange, position: int) -> Iterator[Step]:
        """Steps until the range has ended; raises what brokers answer."""
        leader = self._cluster.leader(self._source.topic, wanted.partition)
        connection = self._cluster.connection(leader)
        empty_answers = 0
        try:
            self._ask(connection, wanted.partition, position)
            while position < wanted.end and not self._stop.is_set():
                answer = connection.receive()
                if is_throttled(answer):
                    self._stop.wait(answer.throttle_time.total_seconds())
                    self._ask(connection, wanted.partition, position)
                    continue
                fetched = self._partition_in(answer, wanted.partition, position)
                records = fetched.records or b""
                following = _next_offset(records, position)
                empty_answers = empty_answers + 1 if following == position else 0
                if empty_answers == EMPTY_ANSWERS_MAX:
                    following = self._after_nothing(fetched, wanted, position)
                self._fetch_bytes = min(2 * self._fetch_bytes, FETCH_BYTES_MAX)
                if following < wanted.end:
                    self._ask(connection, wanted.partition, following)
                if following > position:
                    yield from self._decode(fetched, wanted, position, following)
                position = following
        finally:
            self._drain(connection)

    def _drain(self, connection: Connection) -> None:
        """Take the answer to the request that is in flight: it is not the next one's."""
        try:
            while not connection.is_idle:
                connection.receive_body()
        except (OSError, MillstreamError):
            self._cluster.forget_all()

    def _ask(self, connection: Connection, partition: int, offset: int) -> None:
        source = self._source
        version = connection.version_for("fetch", newest=FETCH_VERSION_MAX)
        asked = {
            "partition": partition,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": self._fetch_bytes,
        }
        fields = {
            "replica_id": -1,
            "max_wait": WAIT_MS,
            "min_bytes": 1,
            "max_bytes": self._fetch_bytes,
            "isolation_level": READ_COMMITTED if source.read_committed else READ_UNCOMMITTED,
            "session_epoch": -1,
            "topics": [{"topic": source.topic, "topic_id": source.topic_id, "partitions": [asked]}],
        }
        connection.send_fields("fetch", version, fields)

    def _partition_in(self, answer: Any, partition: int, position: int) -> Any:
        what = f"fetching {self._source.topic}-{partition} from {position} on"
        check(answer.error_code, what, "fetch")
        fetched = answer.responses[0].partitions[0]
        check(fetched.error_code, what, "fetch")
        return fetched

    def _decode(
        self, fetched: Any, wanted: ScanRange, position: int, following: int
    ) -> Iterator[Step]:
        """The records up to `following`: at once, or in parts where that is too much."""
        records = fetched.records or b""
        aborted = [
            AbortedRange(int(it.producer_id), int(it.first_offset))
            for it in fetched.aborted_transactions or ()
        ]
        end = min(following, wanted.end)
        size_bytes = len(records)
        while position < end:
            try:
                columns = decode_columns(
                    records,
                    first_offset=position,
                    end_offset=end,
                    aborted=aborted if self._source.read_committed else (),
                    with_headers=self._with_headers,
                )
            except CorruptBatch as error:
                raise QueryFailed(
                    f"{self._source.topic}-{wanted.partition} cannot be read from offset "
                    f"{position} on: {error}"
                ) from error
            after = columns.next_offset if columns.next_offset > position else end
            yield Step(columns if columns.row_count else None, after, size_bytes)
            position, size_bytes = after, 0

    def _after_nothing(self, fetched: Any, wanted: ScanRange, position: int) -> int:
        """Where to continue after several answers without a record."""
        committed = self._source.read_committed
        end = int(fetched.last_stable_offset if committed else fetched.high_watermark)
        if end >= wanted.end:
            self._warn(
                f"{self._source.topic}-{wanted.partition}: the broker had no records at offsets "
                f"{position} to {wanted.end - 1}; if they were not compacted away, start the query "
                "again"
            )
            return wanted.end
        raise ApiError(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            f"{self._source.topic}-{wanted.partition} can be read up to offset {end} only",
        )

    # When something is no longer there

    def _skip_deleted(self, wanted: ScanRange, position: int) -> int:
        """The new start of the log, if it has moved; raises `QueryFailed` if the log was cut."""
        place = (self._source.topic, wanted.partition)
        self._cluster.forget_all()
        start, end = log_bounds(self._cluster, [place])[place]
        self._check_topic(time.monotonic())
        if position > end:
            raise QueryFailed(
                f"{place[0]}-{place[1]} now ends at offset {end}, before {position}: records were "
                "lost while they were read"
            )
        if start > position:
            until = min(start, wanted.end)
            self._warn(
                f"{place[0]}-{place[1]}: offsets {position} to {until - 1} were deleted while the "
                "query was running, and are missing from its result"
            )
            return until
        return position

    def _check_topic(self, give_up_at: float) -> None:
        """Raise `QueryFailed` if the topic is gone, or is another one of the same name."""
        name, known = self._source.topic, self._source.topic_id
        found = self._cluster.retrying(lambda: self._cluster.refresh([name])).get(name)
        if found is None and time.monotonic() >= give_up_at:
            raise QueryFailed(f"topic {name} was deleted while the query was running")
        if found is not None and known is not None and found.id != known:
            raise QueryFailed(
                f"topic {name} was deleted and created again while the query was running; start "
                "the query again to read the new topic"
            )

    def _given_up(
        self, error: OSError | ApiError, wanted: ScanRange, position: int
    ) -> MillstreamError:
        if _code(error) in _MISSING:
            return QueryFailed(
                f"topic {self._source.topic} was deleted while the query was running"
            )
        return QueryFailed(
            f"{self._source.topic}-{wanted.partition} could not be read from offset {position} on "
            f"for {RETRY_SECONDS:g} s: {error}"
        )


def _code(error: OSError | ApiError) -> ErrorCode | None:
    return error.code if isinstance(error, ApiError) else None


def _next_offset(records: Any, position: int) -> int:
    """After the last whole batch."""
    for _, header in iterate_headers(records):
        position = max(position, header.next_offset)
    return position
