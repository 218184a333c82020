"""Watching a topic: the records of a key, of keys with a prefix, or that match a predicate, as they
come.

    with watch("orders", "localhost:9092", key="alice") as changes:
        for change in changes:
            print(change.value, changes.position)

A watch starts at the end of the topic, or at a position, which is text: `changes.position` after
the last change that the program has handled. A program that keeps it continues there, so it gets
every change at least once. It joins no group and commits nothing. Committed records only.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from millstream.client.cluster import BACKOFF_SECONDS, BACKOFF_SECONDS_MAX, Cluster
from millstream.client.offsets import log_bounds
from millstream.client.security import security_settings
from millstream.connect.sinks.positions import Place, Position
from millstream.connect.sinks.reading import Fetched, fetch
from millstream.errors import ApiError, ConfigError, ErrorCode, MillstreamError
from millstream.query.columns import record_array, table_schema
from millstream.query.sandbox import open_sandbox
from millstream.query.values import ValueColumns, given_columns
from millstream.records.arrow import binary_array, header_parts, number_array
from millstream.records.columns import Columns

CLIENT_ID = "millstream-watch"
WAIT_MS = 500
PARTITIONS_SECONDS = 30.0  # how soon partitions that are added are noticed
RETRY_SECONDS = 60.0
MEMORY_LIMIT_MB = 512
TABLE = "records"


class WatchFailed(MillstreamError):
    """The watch cannot go on; the message says why, and what to do."""


class TopicReplaced(WatchFailed):
    """The topic was deleted, and perhaps created again: its positions mean nothing."""


@dataclass(frozen=True)
class Change:
    """A record that matches."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None  # None: the key was deleted
    headers: tuple[tuple[str, bytes | None], ...]


def watch(
    topic: str,
    bootstrap_servers: str = "localhost:9092",
    *,
    key: str | bytes | None = None,
    prefix: str | bytes | None = None,
    where: str = "",
    schema: str = "",
    position: str | None = None,
    from_beginning: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Watch:
    """The changes of a topic, as an iterator that waits for the next one.

    `key`, `prefix` of keys, and `where`, an SQL predicate over the columns of queries, must all
    hold, if given. `schema`: the columns of values that `where` uses, like "amount double".
    """
    cluster = Cluster(
        bootstrap_servers,
        client_id=CLIENT_ID,
        security=security_settings(settings or {}),
        missing_topic_seconds=1.0,
    )
    try:
        matcher = Matcher(_as_bytes(key), _as_bytes(prefix), where, schema)
        return Watch(cluster, topic, matcher, position, from_beginning=from_beginning)
    except BaseException:
        cluster.close()
        raise


class Matcher:
    """Which records of a batch match."""

    def __init__(self, key: bytes | None, prefix: bytes | None, where: str, schema: str) -> None:
        self._key, self._prefix = key, prefix
        self._columns = given_columns(schema) if schema else ValueColumns()
        self._where = where.strip()
        self._table_schema = table_schema(self._columns.schema, where)
        self._decoder = self._columns.decoder(skips_failures=True)(
            frozenset(self._table_schema.names)
        )
        if self._where:
            self._rows({it.name: pa.array([], it.type) for it in self._table_schema})

    def rows(self, topic: str, partition: int, columns: Columns) -> list[int]:
        """The numbers of the records that match, rising."""
        keys = binary_array(columns.keys, columns.row_count)
        mask = None
        if self._key is not None:
            mask = pc.fill_null(pc.equal(keys, pa.scalar(self._key, pa.binary())), False)
        if self._prefix is not None:
            begins = pc.fill_null(pc.starts_with(keys, pattern=self._prefix), False)
            mask = begins if mask is None else pc.and_(mask, begins)
        kept = list(range(columns.row_count))
        if mask is not None:
            kept = [number for number, it in enumerate(mask.to_pylist()) if it]
        if not self._where or not kept:
            return kept
        values = self._decoder.decode(topic, partition, columns, lambda: None)
        arrays = {
            name: values[name] if name in values else record_array(name, topic, partition, columns)
            for name in self._table_schema.names
        }
        matching = set(self._rows(arrays))
        return [it for it in kept if it in matching]

    def _rows(self, arrays: Mapping[str, pa.Array]) -> list[int]:
        """The numbers of the rows for which the predicate holds. Raises `ConfigError`."""
        import duckdb

        count = len(next(iter(arrays.values())))
        numbered = {**arrays, "#row": pa.array(range(count), pa.int64())}
        table = pa.table(numbered)
        try:
            with open_sandbox({TABLE: table}, memory_limit_mb=MEMORY_LIMIT_MB, threads=1) as it:
                found = it.execute(f'select "#row" from {TABLE} where (\n{self._where}\n)')
                return sorted(row for (row,) in found.fetchall())
        except duckdb.Error as error:
            raise ConfigError(f"the predicate {self._where!r}: {str(error).strip()}") from error


class Watch:
    """An iterator of changes; see the module. One thread at a time, but any may `close` it."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        matcher: Matcher,
        position: str | None = None,
        *,
        from_beginning: bool = False,
    ) -> None:
        self.topic = topic
        self.warnings: list[str] = []
        self._cluster, self._matcher = cluster, matcher
        self._stop = threading.Event()
        self._waiting: deque[tuple[Change, Place, int]] = deque()
        info = cluster.retrying(lambda: cluster.topic(topic))
        if info.id is None:
            raise WatchFailed("the brokers give topics no ids; a watch needs Kafka 3.1 or newer")
        self._topic_id = str(info.id)
        self._fetched: dict[Place, int] = {}  # the next offset to fetch
        self._done: dict[Place, int] = {}  # the next offset after what was returned
        places = [Place(topic, it.number) for it in info.partitions]
        bounds = log_bounds(
            cluster, [(it.topic, it.partition) for it in places], read_committed=True
        )
        known = self._parse(position)
        for place in places:
            start, end = bounds[place.topic, place.partition]
            new = start if from_beginning or known else end
            self._fetched[place] = self._done[place] = known.get(place.partition, new)
        self._refreshed_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        self._cluster.close()

    def close(self) -> None:
        """End the iteration, within half a second."""
        self._stop.set()

    @property
    def position(self) -> str:
        """Where to continue, after the last change that was returned."""
        offsets = {str(place.partition): offset for place, offset in sorted(self._done.items())}
        return json.dumps({"topic": self.topic, "id": self._topic_id, "offsets": offsets})

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        while not self._waiting:
            if self._stop.is_set():
                raise StopIteration
            self.poll()
        change, place, following = self._waiting.popleft()
        self._done[place] = following
        return change

    def poll(self, wait_ms: int = WAIT_MS) -> int:
        """Fetch once, waiting at most so long for records; the number of changes that wait."""
        give_up_at = time.monotonic() + RETRY_SECONDS
        backoff = BACKOFF_SECONDS
        while not self._stop.is_set():
            self._add_partitions()
            positions = {
                place: Position(self._topic_id, offset) for place, offset in self._fetched.items()
            }
            try:
                for fetched in fetch(self._cluster, positions, wait_ms=wait_ms):
                    self._take(fetched)
                break
            except (OSError, ApiError) as error:
                if isinstance(error, ApiError):
                    self._handle(error)
                self._cluster.forget_all()
                if time.monotonic() + backoff > give_up_at:
                    raise WatchFailed(f"{self.topic} could not be read: {error}") from error
                self._stop.wait(backoff)
                backoff = min(2 * backoff, BACKOFF_SECONDS_MAX)
        return len(self._waiting)

    def _take(self, fetched: Fetched) -> None:
        place = fetched.place
        columns = fetched.columns
        rows = []
        if columns is not None and columns.row_count:
            rows = self._matcher.rows(self.topic, place.partition, columns)
            for change in _changes(self.topic, place.partition, columns, rows):
                self._waiting.append((change, place, change.offset + 1))
        self._fetched[place] = fetched.next_offset
        if not rows and not any(it is place or it == place for _, it, _ in self._waiting):
            self._done[place] = fetched.next_offset

    def _handle(self, error: ApiError) -> None:
        """Skip records that are gone; raise what will not pass."""
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._skip_deleted()
        elif error.code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            self._check_topic()
        elif not error.code.retriable:
            raise error

    def _skip_deleted(self) -> None:
        bounds = log_bounds(self._cluster, [(it.topic, it.partition) for it in self._fetched])
        self._check_topic()
        for place, offset in self._fetched.items():
            start, end = bounds[place.topic, place.partition]
            if offset < start:
                self.warnings.append(
                    f"{place}: offsets {offset} to {start - 1} were deleted before they were seen"
                )
                self._fetched[place] = self._done[place] = start
            elif offset > end:
                raise WatchFailed(
                    f"{place} ends at offset {end}, before {offset}: records were lost"
                )

    def _check_topic(self) -> None:
        found = self._cluster.retrying(lambda: self._cluster.refresh([self.topic]))
        if self.topic not in found or str(found[self.topic].id) != self._topic_id:
            again = " and created again" if self.topic in found else ""
            raise TopicReplaced(
                f"topic {self.topic} was deleted{again}; start the watch without a position"
            )

    def _add_partitions(self) -> None:
        if time.monotonic() - self._refreshed_at < PARTITIONS_SECONDS:
            return
        self._refreshed_at = time.monotonic()
        try:
            info = self._cluster.topic(self.topic, seconds_old_max=0)
        except (OSError, ApiError):
            return  # the fetch reports it
        if str(info.id) == self._topic_id:
            for it in info.partitions:
                self._fetched.setdefault(Place(self.topic, it.number), 0)
                self._done.setdefault(Place(self.topic, it.number), 0)

    def _parse(self, position: str | None) -> dict[int, int]:
        """The offsets of a position, by partition. Raises `WatchFailed`."""
        if position is None:
            return {}
        try:
            given = json.loads(position)
            topic, topic_id = str(given["topic"]), str(given["id"])
            offsets = {int(number): int(it) for number, it in given["offsets"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise WatchFailed(f"{position!r} is not the position of a watch") from None
        if topic != self.topic:
            raise WatchFailed(f"the position is one of topic {topic}, not of {self.topic}")
        if topic_id != self._topic_id:
            raise TopicReplaced(
                f"topic {self.topic} was deleted and created again; start the watch without a "
                "position"
            )
        return offsets


def _changes(topic: str, partition: int, columns: Columns, rows: list[int]) -> Iterator[Change]:
    if not rows:
        return
    count = columns.row_count
    keys, values = (binary_array(it, count) for it in (columns.keys, columns.values))
    offsets = number_array(pa.int64(), columns.offsets, count)
    times_ms = number_array(pa.int64(), columns.timestamps, count)
    names, contents = header_parts(columns)
    assert columns.headers is not None
    bounds = memoryview(columns.headers.offsets).cast("i")
    for row in rows:
        headers = tuple(
            (names[it].as_py().decode("utf-8", errors="replace"), contents[it].as_py())
            for it in range(bounds[row], bounds[row + 1])
        )
        yield Change(
            topic,
            partition,
            offsets[row].as_py(),
            times_ms[row].as_py(),
            keys[row].as_py(),
            values[row].as_py(),
            headers,
        )


def _as_bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
