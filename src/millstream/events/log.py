"""The topic of events: creating it, appending under a condition, reading what is committed.

It uses `millstream.client` and not an idempotent producer: after a refused batch, producers of
several libraries cannot go on with their sequence numbers. A request whose answer was lost is sent
again. If it was carried out, the version or the event ids of the records reveal that.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from millstream.client.cluster import Cluster, check
from millstream.client.fetching import log_end_offset, log_start_offset
from millstream.client.security import Security
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ConfigError, ErrorCode, MillstreamError
from millstream.events.event import StoredEvent, decode_event, encode_event
from millstream.records.batch import iterate_headers
from millstream.records.columns import BinaryColumn, partitions_of
from millstream.records.record import ControlType, Record, decode_batch, encode_batch

SETTING = "millstream.conditional.append"
PRODUCE_VERSION = 9
FETCH_VERSION = 12
FETCH_BYTES = 4 * 1024 * 1024
READ_COMMITTED = 1
ACKS_ALL = -1
TOPIC_RESOURCE = 2
BATCH_BYTES_MAX = 1_000_000

_OFFSETS = struct.Struct("=ii")


class Conflict(MillstreamError):
    """The broker refused a batch: somebody else was faster."""


class Read(NamedTuple):
    """Committed records of a partition, and the offset to go on from."""

    records: list[Record]
    next_offset: int


class EventLog:
    """A topic whose records are events. One thread at a time."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        security: Security | Mapping[str, str] | None = None,
    ) -> None:
        self.topic = topic
        self.cluster = Cluster(bootstrap_servers, client_id="millstream-events", security=security)
        self._partition_count = 0

    @classmethod
    def beside(cls, other: EventLog, topic: str) -> EventLog:
        """Another topic of the same cluster, over the same connections."""
        log = cls.__new__(cls)
        log.topic, log.cluster, log._partition_count = topic, other.cluster, 0
        return log

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the cluster."""
        self.cluster.close()

    def create(self, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """Create the topic, with conditional append and without retention, if it does not exist."""
        wanted = {SETTING: "version", "cleanup.policy": "delete", "retention.ms": "-1"}
        create_topics(
            self.cluster, [NewTopic(self.topic, partitions, wanted | dict(settings or {}))]
        )

    def check_conditional(self) -> None:
        """Raises `ConfigError` if the topic accepts records whatever their version, as all topics
        of Apache Kafka do."""
        fields = {
            "resources": [
                {
                    "resource_type": TOPIC_RESOURCE,
                    "resource_name": self.topic,
                    "configuration_keys": [SETTING],
                }
            ]
        }
        answer = self.cluster.retrying(
            lambda: self.cluster.any_connection().call("describe_configs", fields)
        )
        check(
            answer.results[0].error_code, f"the settings of topic {self.topic}", "describe_configs"
        )
        found = {it.name: it.value for it in answer.results[0].configs}
        if found.get(SETTING) != "version":
            raise ConfigError(
                f"topic {self.topic} has {SETTING}={found.get(SETTING)}: set it to version, or use "
                "SingleWriter on a cluster that does not have this setting"
            )

    @property
    def partition_count(self) -> int:
        """Partitions must not be added later: aggregates would move."""
        if not self._partition_count:
            topic = self.cluster.retrying(lambda: self.cluster.topic(self.topic))
            self._partition_count = len(topic.partitions)
        return self._partition_count

    def partition_of(self, aggregate_id: str) -> int:
        """As the Java client chooses it."""
        key = aggregate_id.encode()
        keys = BinaryColumn(1, 0, None, _OFFSETS.pack(0, len(key)), key)
        chosen: int = memoryview(partitions_of(keys, self.partition_count)).cast("B").cast("i")[0]
        return chosen

    def end_offset(self, partition: int) -> int:
        """The end of all acknowledged records."""
        return log_end_offset(self.cluster, self.topic, partition)

    def start_offset(self, partition: int) -> int:
        """The first offset of a partition that is not deleted."""
        return log_start_offset(self.cluster, self.topic, partition)

    # Writing

    def append(self, partition: int, events: Sequence[StoredEvent]) -> int:
        """Append all or none; returns the first offset.

        Raises `Conflict`. If the answer to a first attempt was lost, the conflict may be with these
        events themselves: the log has their ids then, which `CommandHandler` looks for.
        """
        now_ms = int(time.time() * 1000)
        records = [encode_event(stored, index, now_ms) for index, stored in enumerate(events)]
        return self.append_batch(partition, encode_batch(records))

    def append_batch(self, partition: int, batch: bytes) -> int:
        """Append a batch; returns its first offset. Raises `Conflict`."""
        if len(batch) > BATCH_BYTES_MAX:
            raise MillstreamError(
                f"the events of one command have {len(batch)} bytes, more than {BATCH_BYTES_MAX}"
            )
        data = [{"index": partition, "records": batch}]
        fields = {
            "transactional_id": None,
            "acks": ACKS_ALL,
            "timeout": int(self.cluster.request_timeout_seconds * 1000),
            "topic_data": [{"name": self.topic, "partition_data": data}],
        }
        answer = self.cluster.ask_leader(
            self.topic,
            partition,
            "produce",
            fields,
            version=PRODUCE_VERSION,
            error_of=lambda it: it.responses[0].partition_responses[0].error_code,
        )
        response = answer.responses[0].partition_responses[0]
        if response.error_code is ErrorCode.POLICY_VIOLATION:
            raise Conflict(response.error_message or "refused")
        check(response.error_code, f"appending to {self.topic}-{partition}", "produce")
        return int(response.base_offset)

    # Reading

    def events(self, partition: int, start: int, end: int) -> Iterator[StoredEvent]:
        """Committed events from one offset to another."""
        while start < end:
            read = self.read(partition, start)
            for record in read.records:
                if record.offset < end:
                    yield decode_event(record, partition)
            if read.next_offset == start:
                return  # an open transaction begins here
            start = read.next_offset

    def read(self, partition: int, offset: int, *, wait_ms: int = 0) -> Read:
        """The committed records of the next batches; none at the end."""
        asked = {
            "partition": partition,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": FETCH_BYTES,
        }
        fields = {
            "replica_id": -1,
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": FETCH_BYTES,
            "isolation_level": READ_COMMITTED,
            "session_epoch": -1,
            "topics": [{"topic": self.topic, "partitions": [asked]}],
        }
        answer = self.cluster.ask_leader(
            self.topic, partition, "fetch", fields, version=FETCH_VERSION, error_of=_error_of
        )
        check(_error_of(answer), f"reading {self.topic}-{partition} from {offset} on", "fetch")
        found = answer.responses[0].partitions[0]
        aborted = [
            (int(it.first_offset), int(it.producer_id)) for it in found.aborted_transactions or ()
        ]
        return committed(bytes(found.records or b""), offset, aborted)


def committed(data: bytes, offset: int, aborted: Sequence[tuple[int, int]]) -> Read:
    """The records in whole batches, from `offset` on, without those of aborted transactions, which
    are given as (first offset, producer id)."""
    records: list[Record] = []
    waiting = sorted(aborted, reverse=True)
    skipped: set[int] = set()
    for position, header in iterate_headers(data):
        while waiting and waiting[-1][0] <= header.last_offset:
            skipped.add(waiting.pop()[1])
        if header.is_control:
            record = decode_batch(data, position)[0] if header.record_count else None
            if record is not None and ControlType.from_key(record.key) is ControlType.ABORT:
                skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            records += [it for it in decode_batch(data, position) if it.offset >= offset]
        offset = max(offset, header.next_offset)
    return Read(records, offset)


def _error_of(answer: Any) -> ErrorCode:
    if answer.error_code is not ErrorCode.NONE:
        whole: ErrorCode = answer.error_code
        return whole
    if not answer.responses:
        return ErrorCode.THROTTLING_QUOTA_EXCEEDED
    code: ErrorCode = answer.responses[0].partitions[0].error_code
    return code
