"""Fetch requests that return whole batches as stored in the log, including markers."""

from __future__ import annotations

from typing import Any, NamedTuple

from millstream.client.cluster import Cluster, check
from millstream.errors import ErrorCode, MillstreamError
from millstream.records.batch import BatchHeader, iterate_headers
from millstream.records.columns import AbortedRange
from millstream.records.record import decode_batch

FETCH_VERSION_MAX = 12  # the last version with topic names instead of ids
FETCH_BYTES = 8 * 1024 * 1024
READ_UNCOMMITTED = 0
READ_COMMITTED = 1
LATEST = -1
EARLIEST = -2
BATCH_DECODED_BYTES_MAX = 1024 * 1024  # of a larger one, the time of its first record


class Fetched(NamedTuple):
    """Part of a partition's log; the last batch may be incomplete."""

    records: memoryview | bytes
    log_start_offset: int
    end_offset: int  # the high watermark
    stable_offset: int  # the last stable offset


class FetchedCommitted(NamedTuple):
    """Part of a partition's log below the last stable offset, and the aborted transactions in it:
    the arguments of `decode_columns`."""

    records: memoryview | bytes
    aborted: list[AbortedRange]
    end_offset: int  # the last stable offset


def fetch_batches(
    cluster: Cluster,
    topic: str,
    partition: int,
    offset: int,
    *,
    bytes_max: int = FETCH_BYTES,
    wait_ms: int = 0,
) -> Fetched:
    """The log from `offset` on, including open transactions.

    Raises OFFSET_OUT_OF_RANGE outside the log. Waits if the client's quota is exhausted.
    """
    found = _fetch(cluster, topic, partition, offset, bytes_max, wait_ms, READ_UNCOMMITTED)
    return Fetched(
        found.records or b"",
        int(found.log_start_offset),
        int(found.high_watermark),
        int(found.last_stable_offset),
    )


def fetch_committed(
    cluster: Cluster,
    topic: str,
    partition: int,
    offset: int,
    *,
    bytes_max: int = FETCH_BYTES,
    wait_ms: int = 0,
) -> FetchedCommitted:
    """The log from `offset` up to the last stable offset, in the same way."""
    found = _fetch(cluster, topic, partition, offset, bytes_max, wait_ms, READ_COMMITTED)
    aborted = [
        AbortedRange(int(it.producer_id), int(it.first_offset))
        for it in found.aborted_transactions or ()
    ]
    return FetchedCommitted(found.records or b"", aborted, int(found.last_stable_offset))


def _fetch(
    cluster: Cluster,
    topic: str,
    partition: int,
    offset: int,
    bytes_max: int,
    wait_ms: int,
    isolation_level: int,
) -> Any:
    fields = fetch_request(
        topic,
        partition,
        offset,
        bytes_max=bytes_max,
        wait_ms=wait_ms,
        isolation_level=isolation_level,
    )
    answer = cluster.ask_leader(
        topic, partition, "fetch", fields, version=FETCH_VERSION_MAX, error_of=_error_of
    )
    check(_error_of(answer), f"fetching {topic}-{partition} from {offset} on", "fetch")
    return answer.responses[0].partitions[0]


def fetch_request(
    topic: str,
    partition: int,
    offset: int,
    *,
    bytes_max: int,
    wait_ms: int = 0,
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[str, Any]:
    """The fields of a Fetch of one partition, up to `FETCH_VERSION_MAX`."""
    asked = {
        "partition": partition,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": bytes_max,
    }
    return {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": bytes_max,
        "isolation_level": isolation_level,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [asked]}],
    }


def log_start_offset(cluster: Cluster, topic: str, partition: int) -> int:
    """The offset of the oldest record that is still there."""
    return _list_offset(cluster, topic, partition, EARLIEST)


def log_end_offset(cluster: Cluster, topic: str, partition: int) -> int:
    """The end of all acknowledged records.

    A fetch returns it too, but a newly elected leader may not know yet how far the log is
    replicated, and then returns less. ListOffsets is answered only when it knows (KIP-207).
    """
    return _list_offset(cluster, topic, partition, LATEST)


def last_stable_offset(cluster: Cluster, topic: str, partition: int) -> int:
    """The offset below which every transaction has ended."""
    return _list_offset(cluster, topic, partition, LATEST, READ_COMMITTED)


def _list_offset(
    cluster: Cluster,
    topic: str,
    partition: int,
    timestamp: int,
    isolation_level: int = READ_UNCOMMITTED,
) -> int:
    asked = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
    fields = {
        "replica_id": -1,
        "isolation_level": isolation_level,
        "topics": [{"name": topic, "partitions": [asked]}],
    }
    answer = cluster.ask_leader(
        topic,
        partition,
        "list_offsets",
        fields,
        error_of=lambda answer: answer.topics[0].partitions[0].error_code,
    )
    found = answer.topics[0].partitions[0]
    check(found.error_code, f"where {topic}-{partition} begins and ends", "list_offsets")
    return int(found.offset)


def is_throttled(answer: Any) -> bool:
    """Whether the client's quota is exhausted: Apache Kafka then answers without an error and
    without the requested partitions, and delays the connection itself."""
    return answer.error_code is ErrorCode.NONE and not answer.responses


def _error_of(answer: Any) -> ErrorCode:
    if answer.error_code is not ErrorCode.NONE:
        whole: ErrorCode = answer.error_code
        return whole
    if is_throttled(answer):
        return ErrorCode.THROTTLING_QUOTA_EXCEEDED
    code: ErrorCode = answer.responses[0].partitions[0].error_code
    return code


def timestamp_in(batches: memoryview, offset: int) -> int | None:
    """The timestamp of the first record at or after the offset."""
    try:
        for position, header in iterate_headers(batches):
            if header.is_control or header.last_offset < offset:
                continue
            return _timestamp_in_batch(
                batches[position : position + header.size_bytes], header, offset
            )
    except MillstreamError:  # damaged, or compressed in an unknown way: its time is not known
        return None
    return None


def _timestamp_in_batch(batch: memoryview, header: BatchHeader, offset: int) -> int:
    if header.is_log_append_time:
        return header.max_timestamp
    if header.base_offset >= offset or len(batch) > BATCH_DECODED_BYTES_MAX:
        return header.base_timestamp
    return next(
        (it.timestamp for it in decode_batch(batch) if it.offset >= offset), header.max_timestamp
    )
