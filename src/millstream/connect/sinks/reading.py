"""Reading committed records of several partitions as columns, one request to each leader at a time.

Topics are named by id where the broker can (Fetch v13, Kafka 3.1), so that records of a topic that
was deleted and created again are never taken for those of the old one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

from millstream.client.cluster import Cluster, check
from millstream.client.connection import Connection
from millstream.client.fetching import fetch_batches, is_throttled, last_stable_offset
from millstream.connect.sinks.positions import UNKNOWN, Place, Position
from millstream.errors import ApiError, ErrorCode
from millstream.records.batch import BatchHeader, iterate_headers
from millstream.records.columns import AbortedRange, BinaryBuffers, Columns, decode_columns

FETCH_VERSION_MAX = 17
FETCH_BYTES = 8 * 1024 * 1024
PARTITION_BYTES = 4 * 1024 * 1024
READ_COMMITTED = 1
PURPOSE = "sink"
CLEANUP_POLICY, DELETE_RETENTION = "cleanup.policy", "delete.retention.ms"
DELETE_HORIZON = 0x40  # of a batch that compaction has seen: its first time is something else


class Fetched(NamedTuple):
    """The next records of a partition."""

    place: Place
    columns: Columns | None  # None: no records came
    next_offset: int
    end_offset: int  # the last stable offset
    headers: Sequence[BatchHeader] = ()  # of all batches of the answer

    def position(self, topic_id: str, offset: int) -> Position:
        """An offset in this answer, with what identifies the record before it."""
        for header in reversed(self.headers):
            if header.base_offset < offset <= header.next_offset:
                timestamp = _timestamp(header, self.columns, offset - 1)
                return Position(topic_id, offset, header.leader_epoch, timestamp)
        return Position(topic_id, offset)


def fetch(
    cluster: Cluster, positions: Mapping[Place, Position], *, wait_ms: int = 0
) -> list[Fetched]:
    """The records that follow the positions; raises `ApiError`, e.g. OFFSET_OUT_OF_RANGE."""
    by_leader: dict[int, dict[Place, Position]] = {}
    for place, position in positions.items():
        by_leader.setdefault(cluster.leader(*place), {})[place] = position
    asked = []
    for leader, wanted in by_leader.items():
        connection = cluster.connection(leader, PURPOSE)
        version = connection.version_for("fetch", newest=FETCH_VERSION_MAX)
        # Only one leader may wait for records: the others would wait for it.
        wait = wait_ms if len(by_leader) == 1 else min(wait_ms, 50)
        connection.send_fields("fetch", version, _request(wanted, wait))
        asked.append((connection, wanted))
    return [found for connection, wanted in asked for found in _receive(connection, wanted)]


def _request(wanted: Mapping[Place, Position], wait_ms: int) -> dict[str, Any]:
    topics: dict[str, dict[str, Any]] = {}
    for place, position in wanted.items():
        topic = topics.setdefault(
            place.topic,
            {"topic": place.topic, "topic_id": UUID(position.topic_id), "partitions": []},
        )
        topic["partitions"].append(
            {
                "partition": place.partition,
                "current_leader_epoch": -1,
                "fetch_offset": position.offset,
                "last_fetched_epoch": -1,
                "log_start_offset": -1,
                "partition_max_bytes": PARTITION_BYTES,
            }
        )
    return {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": FETCH_BYTES,
        "isolation_level": READ_COMMITTED,
        "session_epoch": -1,
        "topics": list(topics.values()),
    }


def _receive(connection: Connection, wanted: Mapping[Place, Position]) -> Iterator[Fetched]:
    answer = connection.receive()
    if is_throttled(answer):
        raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "the client's quota is exhausted")
    if answer.error_code is not ErrorCode.NONE:
        raise ApiError(answer.error_code, "fetching")
    names = {position.topic_id: place.topic for place, position in wanted.items()}
    for topic in answer.responses:
        name = getattr(topic, "topic", None) or names[str(topic.topic_id)]
        for partition in topic.partitions:
            place = Place(name, int(partition.partition_index))
            if partition.error_code is not ErrorCode.NONE:
                what = f"fetching {place} from {wanted[place].offset} on"
                check(partition.error_code, what, "fetch")
            yield from _decode(place, wanted[place].offset, partition)


def _decode(place: Place, position: int, partition: Any) -> Iterator[Fetched]:
    records = partition.records or b""
    end_offset = int(partition.last_stable_offset)
    headers = [header for _, header in iterate_headers(records)]
    following = max([position, *(it.next_offset for it in headers)])
    aborted = [
        AbortedRange(int(it.producer_id), int(it.first_offset))
        for it in partition.aborted_transactions or ()
    ]
    if position == following:
        yield Fetched(place, None, position, end_offset)
    while position < following:
        columns = decode_columns(
            records,
            first_offset=position,
            end_offset=following,
            aborted=aborted,
            with_headers=True,
        )
        after = columns.next_offset if columns.next_offset > position else following
        yield Fetched(place, columns, after, end_offset, headers)
        position = after


def _timestamp(header: BatchHeader, columns: Columns | None, offset: int) -> int:
    """Of the record at the offset; records that were aborted or compacted away are not there."""
    if header.is_control:
        return header.max_timestamp  # of its only record
    if columns is not None:
        offsets = memoryview(columns.offsets).cast("q")
        row = bisect_left(offsets, offset, hi=columns.row_count)
        if row < columns.row_count and offsets[row] == offset:
            return int(memoryview(columns.timestamps).cast("q")[row])
    return UNKNOWN


def timestamp_at(cluster: Cluster, place: Place, offset: int) -> int:
    """The timestamp of the record at the offset; `UNKNOWN` if there is none any more."""
    records = fetch_batches(cluster, *place, offset, bytes_max=1).records
    for _, header in iterate_headers(records):
        if header.base_offset <= offset <= header.last_offset:
            columns = decode_columns(records, first_offset=offset, end_offset=offset + 1)
            return _timestamp(header, columns, offset)
        break
    return UNKNOWN


def end_of_epoch(cluster: Cluster, place: Place, epoch: int) -> int:
    """Where the records of a leader epoch, or else those of the last one before it, end; -1 if the
    log has no epoch as late as that."""
    partition = {"partition": place.partition, "current_leader_epoch": -1, "leader_epoch": epoch}
    answer = cluster.ask_leader(
        *place,
        "offset_for_leader_epoch",
        {"replica_id": -1, "topics": [{"topic": place.topic, "partitions": [partition]}]},
        error_of=lambda answer: answer.topics[0].partitions[0].error_code,
    )
    found = answer.topics[0].partitions[0]
    check(found.error_code, f"where epoch {epoch} of {place} ends", "offset_for_leader_epoch")
    return int(found.end_offset)


def stable_end(cluster: Cluster, place: Place) -> int:
    """The last stable offset: committed records end there."""
    return last_stable_offset(cluster, *place)


def delete_retention_seconds(cluster: Cluster, topic: str) -> float | None:
    """How long compaction keeps tombstones; None if the topic is not compacted, or if the settings
    may not be read."""
    found = _settings(cluster, topic, CLEANUP_POLICY, DELETE_RETENTION)
    if "compact" not in found.get(CLEANUP_POLICY, ""):
        return None
    return int(found[DELETE_RETENTION]) / 1000


def loses_rows(cluster: Cluster, topic: str) -> bool:
    """Whether the topic is shortened at its beginning, unless it is compacted only: then rows that
    did not change since are lost. Also if the settings may not be read."""
    return _settings(cluster, topic, CLEANUP_POLICY).get(CLEANUP_POLICY) != "compact"


def _settings(cluster: Cluster, topic: str, *names: str) -> dict[str, str]:
    asked = {
        "resource_type": 2,  # a topic
        "resource_name": topic,
        "configuration_keys": list(names),
    }
    answer = cluster.ask_broker(cluster.broker_ids()[0], "describe_configs", {"resources": [asked]})
    return {it.name: it.value or "" for it in answer.results[0].configs}


def begins_after(cluster: Cluster, place: Place, position: Position, seconds: float) -> bool:
    """Whether the record at the position is there, and was written after a time.

    If so, all tombstones behind it are there, too: compaction removes only older ones.
    """
    connection = cluster.connection(cluster.leader(*place), PURPOSE)
    version = connection.version_for("fetch", newest=FETCH_VERSION_MAX)
    connection.send_fields("fetch", version, _request({place: position}, 0))
    partition = connection.receive().responses[0].partitions[0]
    check(partition.error_code, f"fetching {place} from {position.offset} on", "fetch")
    for _, header in iterate_headers(partition.records or b""):
        was_cleaned = bool(header.attributes & DELETE_HORIZON)
        is_newer = header.base_timestamp > seconds * 1000 and not was_cleaned
        return header.base_offset <= position.offset and is_newer
    return False


def pairs(columns: Columns) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values, as Python objects."""
    count = columns.row_count
    return list(zip(_values(columns.keys, count), _values(columns.values, count), strict=True))


def _values(buffers: BinaryBuffers, count: int) -> list[bytes | None]:
    data, ends = bytes(buffers.data), memoryview(buffers.offsets).cast("i")[: count + 1].tolist()
    found: list[bytes | None] = [data[start:end] for start, end in pairwise(ends)]
    if buffers.null_count:
        assert buffers.validity is not None
        validity = memoryview(buffers.validity)
        for row in range(count):
            if not validity[row >> 3] >> (row & 7) & 1:
                found[row] = None
    return found
