"""What a task does: fetch a range of offsets and turn it into Arrow, never into Python objects.

The next request is on its way while the last answer is decoded. Connections outlive a task, since
Spark's Python workers do: a micro-batch of a few records should not pay for a handshake.

Brokers that restart, leaders that move and quotas that are used up are waited for, as long as the
reader has patience (the option `kafka.default.api.timeout.ms`), counted from the last answer with
records in it. Records that are no longer there, because retention was faster, are data lost: see
`failOnDataLoss`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from millstream.client.cluster import BACKOFF_SECONDS, BACKOFF_SECONDS_MAX, Cluster, check
from millstream.client.fetching import is_throttled
from millstream.errors import ApiError, CorruptBatch, ErrorCode
from millstream.pipelines.offsets import OffsetRange
from millstream.pipelines.reading.positions import Positions, make_cluster, report_loss
from millstream.protocol.messages import encode_request
from millstream.protocol.wire import INT64
from millstream.records.batch import iterate_headers
from millstream.records.columns import AbortedRange, Columns, decode_columns

if TYPE_CHECKING:
    from millstream.pipelines.reading.options import ReadOptions

FETCH_VERSION_MAX = 17
# A log may end in a hole that compaction left: nothing comes, though its end is further on.
EMPTY_ANSWERS_MAX = 3
# Stands where the offset belongs, in a request that is encoded once for many.
OFFSET_MARK = 0x4D494C4C53545245

_clusters: dict[tuple[Any, ...], Cluster] = {}


def cluster_of(options: ReadOptions) -> Cluster:
    """This process's connections to the cluster, kept from task to task."""
    key = (
        options.bootstrap_servers,
        options.client_id,
        options.security,
        options.patience_ms,
        options.request_timeout_ms,
    )
    cluster = _clusters.get(key)
    if cluster is None:
        cluster = _clusters[key] = make_cluster(options)
    return cluster


def fetch_columns(options: ReadOptions, wanted: OffsetRange) -> Iterator[Columns]:
    """The range's records, as columns, a fetch at a time."""
    cluster = cluster_of(options)
    position = wanted.start
    if options.archive is not None:
        from millstream.pipelines.reading.archived import archived_columns

        topic_id = cluster.topic(wanted.topic).id
        if topic_id is not None:
            position = yield from archived_columns(options, wanted, topic_id)
    patience = _Patience(options.patience_ms / 1000)
    while position < wanted.end:
        try:
            for columns in _fetch_on(cluster, options, wanted, position, patience):
                position = columns.next_offset
                patience.renew()
                if columns.row_count:
                    yield columns
            return
        except (OSError, ApiError) as error:
            if isinstance(error, ApiError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                resumed = _skip_lost(cluster, options, wanted._replace(start=position))
                if resumed > position:
                    position = resumed
                    continue
            elif isinstance(error, ApiError) and not error.code.retriable:
                raise
            # A leader that moved or a broker that restarts; go on from where it stopped.
            cluster.forget_all()
            patience.wait(error, wanted._replace(start=position))


class _Patience:
    """Waits between attempts, longer and longer, until it ends."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    def renew(self) -> None:
        self._deadline = time.monotonic() + self._seconds
        self._backoff = BACKOFF_SECONDS

    def wait_for_quota(self, seconds: float) -> None:
        """As long as the broker says."""
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise ApiError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                "the client's quota is used up, or less than a batch; raise its consumer_byte_rate "
                "and request_percentage",
            )
        time.sleep(min(seconds, remaining))

    def wait(self, error: OSError | ApiError, wanted: OffsetRange) -> None:
        if time.monotonic() + self._backoff > self._deadline:
            message = (
                f"{wanted.topic}-{wanted.partition} could not be read from offset {wanted.start} "
                f"on for {self._seconds:g} s: {error}. See to the brokers, or be more patient: "
                "kafka.default.api.timeout.ms"
            )
            if isinstance(error, ApiError):
                raise ApiError(error.code, message) from error
            raise ConnectionError(message) from error
        time.sleep(self._backoff)
        self._backoff = min(2 * self._backoff, BACKOFF_SECONDS_MAX)


def _skip_lost(cluster: Cluster, options: ReadOptions, wanted: OffsetRange) -> int:
    """Where to read on when the log does not have `wanted.start` any more."""
    here = (wanted.topic, wanted.partition)
    positions = Positions(options, cluster)
    begins, ends = positions.earliest([here])[here], positions.log_ends([here])[here]
    if begins <= wanted.start <= ends:
        return wanted.start  # a leader that had not heard of it yet
    until = min(begins, wanted.end) if begins > wanted.start else wanted.end
    report_loss(
        options,
        f"records of {wanted.topic}-{wanted.partition} were deleted while they were read: offsets "
        f"{wanted.start} to {until - 1} (the log now has {begins} to {ends})",
        "Raise retention.ms or retention.bytes of the topic",
    )
    return until


def _fetch_on(
    cluster: Cluster,
    options: ReadOptions,
    wanted: OffsetRange,
    position: int,
    patience: _Patience,
) -> Iterator[Columns]:
    topic = cluster.topic(wanted.topic)
    connection = cluster.connection(cluster.leader(wanted.topic, wanted.partition))
    version = connection.version_for("fetch", newest=FETCH_VERSION_MAX)
    before, after = _fetch_request(options, wanted, topic.id, version)
    empty_answers = 0

    def ask(offset: int) -> None:
        connection.send("fetch", version, [before, INT64.pack(offset), after])

    try:
        ask(position)
        while position < wanted.end:
            answer = connection.receive()
            if is_throttled(answer):
                patience.wait_for_quota(answer.throttle_time.total_seconds())
                ask(position)
                continue
            fetched = _partition_in(answer, wanted)
            records = fetched.records or b""
            following = _next_offset(records, position)
            if following == position:
                empty_answers += 1
                following = _after_nothing(options, wanted, fetched, position, empty_answers)
            else:
                empty_answers = 0
            if following < wanted.end:
                ask(following)
            if records:
                yield from _decode(options, wanted, fetched, position, following)
            position = following
    finally:
        if not connection.is_idle:  # given up half-way: its answer is not the next one's
            cluster.forget_all()


def _decode(
    options: ReadOptions, wanted: OffsetRange, fetched: Any, position: int, following: int
) -> Iterator[Columns]:
    """The records up to `following`: at once, or in parts where that is too much for columns."""
    aborted = [
        AbortedRange(int(it.producer_id), int(it.first_offset))
        for it in fetched.aborted_transactions or ()
    ]
    end = min(following, wanted.end)
    while position < end:
        try:
            columns = decode_columns(
                fetched.records,
                first_offset=position,
                end_offset=end,
                aborted=aborted if options.read_committed else (),
                with_headers=options.include_headers,
            )
        except CorruptBatch as error:
            raise CorruptBatch(
                f"{wanted.topic}-{wanted.partition} cannot be read from offset {position} on: "
                f"{error}. To go on without that batch, delete all records up to it (Kafka's "
                "DeleteRecords) and set failOnDataLoss=false"
            ) from error
        yield columns
        if columns.next_offset == position:
            break  # the rest is a hole that compaction left
        position = columns.next_offset


def _after_nothing(
    options: ReadOptions, wanted: OffsetRange, fetched: Any, position: int, empty_answers: int
) -> int:
    """Where to read on after an answer without a whole batch in it."""
    end = int(fetched.last_stable_offset if options.read_committed else fetched.high_watermark)
    if empty_answers < EMPTY_ANSWERS_MAX:
        return position
    if end >= wanted.end:
        return wanted.end
    raise ApiError(
        ErrorCode.OFFSET_NOT_AVAILABLE,
        f"{wanted.topic}-{wanted.partition} can be read up to offset {end} only, not {wanted.end}",
    )


def _partition_in(answer: Any, wanted: OffsetRange) -> Any:
    if answer.error_code is not ErrorCode.NONE:
        raise ApiError(answer.error_code, f"fetching {wanted.topic}-{wanted.partition}")
    fetched = answer.responses[0].partitions[0]
    if fetched.error_code is not ErrorCode.NONE:
        what = f"fetching {wanted.topic}-{wanted.partition}"
        check(fetched.error_code, f"{what}, offsets {wanted.start} to {wanted.end}", "fetch")
    return fetched


def _next_offset(records: Any, position: int) -> int:
    """After the last whole batch."""
    for _, header in iterate_headers(records):
        position = max(position, header.next_offset)
    return position


def _fetch_request(
    options: ReadOptions, wanted: OffsetRange, topic_id: Any, version: int
) -> tuple[bytes, bytes]:
    """What stands before and after the offset: all else is the same in every request of a task."""
    partition = {
        "partition": wanted.partition,
        "current_leader_epoch": -1,
        "fetch_offset": OFFSET_MARK,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": options.fetch_bytes_max,
    }
    fields = {
        "replica_id": -1,
        "max_wait": options.fetch_wait_ms,
        "min_bytes": 1,
        "max_bytes": options.fetch_bytes_max,
        "isolation_level": 1 if options.read_committed else 0,
        "session_epoch": -1,
        "topics": [{"topic": wanted.topic, "topic_id": topic_id, "partitions": [partition]}],
    }
    before, mark, after = encode_request("fetch", version, fields).rpartition(
        INT64.pack(OFFSET_MARK)
    )
    assert mark
    return before, after
