"""What a task does: fetch a range of offsets and turn it into Arrow, never into Python objects.

The next request is on its way while the last answer is decoded. Connections outlive a task, since
Spark's Python workers do: a micro-batch of a few records should not pay for a handshake.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from millstream.client.cluster import BACKOFF_SECONDS, BACKOFF_SECONDS_MAX, Cluster
from millstream.errors import ApiError, ErrorCode
from millstream.pipelines.offsets import OffsetRange
from millstream.records.batch import iterate_headers
from millstream.records.columns import AbortedRange, Columns, decode_columns

if TYPE_CHECKING:
    from millstream.client.connection import Connection
    from millstream.pipelines.options import ReadOptions

FETCH_VERSION_MAX = 17
FETCH_WAIT_MS = 500

_clusters: dict[tuple[Any, ...], Cluster] = {}


def cluster_of(options: ReadOptions) -> Cluster:
    """This process's connections to the cluster, kept from task to task."""
    key = (options.bootstrap_servers, options.client_id, options.security)
    cluster = _clusters.get(key)
    if cluster is None:
        cluster = _clusters[key] = Cluster(
            options.bootstrap_servers,
            client_id=options.client_id,
            security=options.security,
            timeout_seconds=options.request_timeout_ms / 1000,
        )
    return cluster


def fetch_columns(options: ReadOptions, wanted: OffsetRange) -> Iterator[Columns]:
    """The range's records, as columns, a fetch at a time."""
    cluster = cluster_of(options)
    position = wanted.start
    deadline = time.monotonic() + options.request_timeout_ms / 1000
    backoff = BACKOFF_SECONDS
    while position < wanted.end:
        try:
            for columns in _fetch_on(cluster, options, wanted, position):
                position = columns.next_offset
                deadline = time.monotonic() + options.request_timeout_ms / 1000
                backoff = BACKOFF_SECONDS
                if columns.row_count:
                    yield columns
            return
        except (OSError, ApiError) as error:
            # A leader that moved or a broker that restarts; go on from where it stopped.
            if isinstance(error, ApiError) and not error.code.retriable:
                raise
            if time.monotonic() + backoff > deadline:
                raise
            cluster.forget_all()
        time.sleep(backoff)
        backoff = min(2 * backoff, BACKOFF_SECONDS_MAX)


def _fetch_on(
    cluster: Cluster, options: ReadOptions, wanted: OffsetRange, position: int
) -> Iterator[Columns]:
    topic = cluster.topic(wanted.topic)
    connection = cluster.connection(cluster.leader(wanted.topic, wanted.partition))
    version = connection.version_for("fetch", newest=FETCH_VERSION_MAX)

    def ask(offset: int) -> None:
        fields = _fetch_request(options, wanted, topic.id, offset)
        connection.send_fields("fetch", version, fields)

    ask(position)
    while position < wanted.end:
        fetched = _answer(connection, wanted)
        records = fetched.records or b""
        following = _next_offset(records, position)
        if following < wanted.end:
            ask(following)
        aborted = [
            AbortedRange(int(it.producer_id), int(it.first_offset))
            for it in fetched.aborted_transactions or ()
        ]
        yield decode_columns(
            records,
            first_offset=position,
            end_offset=wanted.end,
            aborted=aborted if options.read_committed else (),
            with_headers=options.include_headers,
        )
        position = following


def _answer(connection: Connection, wanted: OffsetRange) -> Any:
    answer = connection.receive()
    if answer.error_code is not ErrorCode.NONE:
        raise ApiError(answer.error_code, f"fetching {wanted.topic}-{wanted.partition}")
    fetched = answer.responses[0].partitions[0]
    if fetched.error_code is not ErrorCode.NONE:
        raise ApiError(
            fetched.error_code,
            f"fetching {wanted.topic}-{wanted.partition}, offsets {wanted.start} to {wanted.end}",
        )
    return fetched


def _next_offset(records: Any, position: int) -> int:
    """After the last whole batch."""
    for _, header in iterate_headers(records):
        position = max(position, header.next_offset)
    return position


def _fetch_request(
    options: ReadOptions, wanted: OffsetRange, topic_id: Any, offset: int
) -> dict[str, Any]:
    partition = {
        "partition": wanted.partition,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": options.fetch_bytes_max,
    }
    return {
        "replica_id": -1,
        "max_wait": FETCH_WAIT_MS,
        "min_bytes": 1,
        "max_bytes": options.fetch_bytes_max,
        "isolation_level": 1 if options.read_committed else 0,
        "session_epoch": -1,
        "topics": [{"topic": wanted.topic, "topic_id": topic_id, "partitions": [partition]}],
    }
