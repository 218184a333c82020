"""The topic of events: creating it, appending under a condition, reading what is committed.

It uses `millstream.client` and not an idempotent producer: after a refused batch, producers of
several libraries cannot go on with their sequence numbers. A request whose answer was lost is sent
again. If it was carried out, the version or the event ids of the records reveal that.

States are a function of one log. Requests have the id that the topic had at its first use, so that
a topic that is deleted and created again is not taken for the same.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import UUID

from millstream.client.cluster import Cluster, TopicInfo, check
from millstream.client.fetching import last_stable_offset, log_end_offset, log_start_offset
from millstream.client.security import Security
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ApiError, ConfigError, ErrorCode, MillstreamError
from millstream.events.event import NotAnEvent, StoredEvent, decode_event, encode_event
from millstream.records.batch import iterate_headers
from millstream.records.columns import BinaryColumn, partitions_of
from millstream.records.record import ControlType, Record, decode_batch, encode_batch

SETTING = "millstream.conditional.append"
BACKLOG_POLICY = "millstream.backlog.policy"
TOPIC_ID_VERSION = 13  # of Produce and of Fetch: the first with ids instead of names
METADATA_SECONDS_MAX = 30.0  # how soon other changes of the topic are noticed
FETCH_BYTES = 4 * 1024 * 1024
READ_COMMITTED = 1
ACKS_ALL = -1
TOPIC_RESOURCE = 2
BATCH_BYTES_MAX = 1_000_000

_OFFSETS = struct.Struct("=ii")
_KEEPS_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}


class Conflict(MillstreamError):
    """The broker refused a batch: somebody else was faster."""


class LogChanged(MillstreamError):
    """The topic is no longer the log that was read: it was deleted and created again, or has more
    partitions, or has lost records. Begin with a new `EventLog` and new states."""


class RecordsDeleted(LogChanged):
    """Records were deleted before they were read."""


class Read(NamedTuple):
    """Committed records of a partition, and the offset to go on from."""

    records: list[Record]
    next_offset: int


class EventsRead(NamedTuple):
    """Committed events of a partition, and the offset to go on from."""

    events: list[StoredEvent]
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
        self._first: TopicInfo | None = None

    @classmethod
    def beside(cls, other: EventLog, topic: str) -> EventLog:
        """Another topic of the same cluster, over the same connections."""
        log = cls.__new__(cls)
        log.topic, log.cluster, log._first = topic, other.cluster, None
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
        wanted = {SETTING: "version", "cleanup.policy": "delete", **_KEEPS_ALL}
        create_topics(
            self.cluster, [NewTopic(self.topic, partitions, wanted | dict(settings or {}))]
        )

    def check_conditional(self, *, may_lose_events: bool = False) -> None:
        """Raises `ConfigError` if the topic accepts records whatever their version, as all topics
        of Apache Kafka do, or if its settings delete events."""
        found = self._settings()
        if found.get(SETTING) != "version":
            raise ConfigError(
                f"topic {self.topic} has {SETTING}={found.get(SETTING)}: set it to version, or use "
                "SingleWriter on a cluster that does not have this setting"
            )
        if not may_lose_events:
            self._check_kept(found)

    def check_kept(self) -> None:
        """Raises `ConfigError` if the topic's settings delete events."""
        self._check_kept(self._settings())

    def _check_kept(self, found: Mapping[str, str | None]) -> None:
        policies = (found.get("cleanup.policy") or "").split(",")
        wrong = {}
        if "compact" in policies:  # which keeps only the last event of each aggregate
            wrong["cleanup.policy"] = "delete"
        if "delete" in policies:
            wrong |= {name: it for name, it in _KEEPS_ALL.items() if found.get(name) != it}
        if found.get(BACKLOG_POLICY) == "drop":
            wrong[BACKLOG_POLICY] = "retain"
        if wrong:
            has = ", ".join(f"{name}={found.get(name)}" for name in wrong)
            cure = ", ".join(f"{name}={it}" for name, it in wrong.items())
            raise ConfigError(
                f"topic {self.topic} has {has}, which deletes events; without its events an "
                f"aggregate begins again: set {cure}, or pass may_lose_events=True if that is meant"
            )

    def _settings(self) -> dict[str, str | None]:
        """Those of the topic that matter here; absent ones are unknown to the cluster. Raises
        UNKNOWN_TOPIC_OR_PARTITION at once if the topic does not exist."""
        if self._first is None:  # before its settings are read, which must be those of this topic
            found = self.cluster.retrying(lambda: self.cluster.refresh([self.topic]))
            self._first = found.get(self.topic)
        fields = {
            "resources": [
                {
                    "resource_type": TOPIC_RESOURCE,
                    "resource_name": self.topic,
                    "configuration_keys": [
                        SETTING,
                        "cleanup.policy",
                        BACKLOG_POLICY,
                        *_KEEPS_ALL,
                    ],
                }
            ]
        }
        answer = self.cluster.retrying(
            lambda: self.cluster.any_connection().call("describe_configs", fields)
        )
        check(
            answer.results[0].error_code, f"the settings of topic {self.topic}", "describe_configs"
        )
        self.check_unchanged()
        return {it.name: it.value for it in answer.results[0].configs}

    # Identity

    @property
    def topic_id(self) -> UUID | None:
        """The topic's id, of its first use."""
        return self._topic().id

    @property
    def partition_count(self) -> int:
        """Partitions must not be added later: aggregates would move."""
        return len(self._topic().partitions)

    def check_unchanged(self, *beside: EventLog) -> None:
        """Raises `LogChanged` if the topic was deleted and created again since its first use, or
        has more partitions. One request, also with other topics of the same cluster."""
        logs = (self, *beside)
        for log in logs:
            log._topic()

        def ask() -> None:
            found = self.cluster.refresh([log.topic for log in logs])
            for log in logs:
                if log.topic not in found:
                    raise ApiError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {log.topic}"
                    )
                log._check_same(found[log.topic])

        self.cluster.retrying(ask)

    def _topic(self) -> TopicInfo:
        """The topic as of its first use."""
        if self._first is None:
            self._first = self.cluster.retrying(
                lambda: self.cluster.topic(self.topic, seconds_old_max=0)
            )
        return self._first

    def _check_same(self, now: TopicInfo) -> None:
        first = self._topic()
        if now.id != first.id:
            raise LogChanged(
                f"topic {self.topic} was deleted and created again (id {first.id}, now {now.id}): "
                "what was read from it is of the deleted one; begin with a new EventLog, or a new "
                "SingleWriter"
            )
        if len(now.partitions) != len(first.partitions):
            raise LogChanged(
                f"topic {self.topic} had {len(first.partitions)} partitions and has "
                f"{len(now.partitions)}: keys are in other partitions now, without their earlier "
                "records; copy the topic to one with as many partitions, and use that"
            )

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
            "topic_data": [{"topic_id": self.topic_id, "partition_data": data}],
        }
        answer = self._ask_leader(
            partition,
            "produce",
            fields,
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
                    yield self._decoded(record, partition)
            if read.next_offset == start:
                return  # an open transaction begins here
            start = read.next_offset

    def events_since(self, partition: int, offset: int) -> Iterator[EventsRead]:
        """All that was acknowledged before this call, from an offset on.

        Asks the partition's leader at least once, also if there is nothing new: a topic that was
        created again has an end like any other.
        """
        end = self.end_offset(partition)
        while True:
            read = self.read(partition, offset)
            events = [self._decoded(record, partition) for record in read.records]
            yield EventsRead(events, read.next_offset)
            if read.next_offset >= end or read.next_offset == offset:
                return  # at the end, or an open transaction begins here
            offset = read.next_offset

    def _decoded(self, record: Record, partition: int) -> StoredEvent:
        try:
            return decode_event(record, partition)
        except NotAnEvent as error:
            where = f"_partition = {partition} and _offset = {record.offset}"
            raise NotAnEvent(
                f"{self.topic}: {error}. Something else writes to this topic. Remove the record: "
                f'millstream excise --topic {self.topic} --where "{where}"'
            ) from None

    def has_record(self, partition: int, offset: int) -> bool:
        """Whether a committed record that was read is still there. Raises `LogChanged` outside the
        log."""
        if offset >= last_stable_offset(self.cluster, self.topic, partition):
            return True  # a new leader does not show it yet
        found = self.read(partition, offset, bytes_max=1)  # a batch, however large
        return any(it.offset == offset for it in found.records)

    def read(
        self, partition: int, offset: int, *, wait_ms: int = 0, bytes_max: int = FETCH_BYTES
    ) -> Read:
        """The committed records of the next batches; none at the end."""
        asked = {
            "partition": partition,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": bytes_max,
        }
        fields = {
            "replica_id": -1,
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": bytes_max,
            "isolation_level": READ_COMMITTED,
            "session_epoch": -1,
            "topics": [{"topic_id": self.topic_id, "partitions": [asked]}],
        }
        answer = self._ask_leader(partition, "fetch", fields, error_of=_error_of)
        if _error_of(answer) is ErrorCode.OFFSET_OUT_OF_RANGE:
            raise self._why_out_of_range(partition, offset)
        check(_error_of(answer), f"reading {self.topic}-{partition} from {offset} on", "fetch")
        found = answer.responses[0].partitions[0]
        aborted = [
            (int(it.first_offset), int(it.producer_id)) for it in found.aborted_transactions or ()
        ]
        return committed(bytes(found.records or b""), offset, aborted)

    def _why_out_of_range(self, partition: int, offset: int) -> LogChanged:
        start, end = self.start_offset(partition), self.end_offset(partition)
        if offset < start:
            return RecordsDeleted(
                f"{self.topic}-{partition} starts at offset {start}: its records from offset "
                f"{offset} on were deleted, by retention or DeleteRecords, before they were read"
            )
        return LogChanged(
            f"{self.topic}-{partition} ends at offset {end}, but was read up to {offset}: the "
            "cluster has lost records; begin with a new EventLog"
        )

    def _ask_leader(
        self,
        partition: int,
        api: str,
        fields: Mapping[str, Any],
        *,
        error_of: Callable[[Any], ErrorCode],
    ) -> Any:
        """Ask about the topic by its id. If the leader does not know the id, the next attempt finds
        out whether the topic has another one now."""

        def ask() -> Any:
            self._check_same(self.cluster.topic(self.topic, seconds_old_max=METADATA_SECONDS_MAX))
            leader = self.cluster.leader(self.topic, partition)
            connection = self.cluster.connection(leader)
            if connection.version_for(api) < TOPIC_ID_VERSION:
                raise ApiError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"broker {leader} does not support ids of topics in {api} (version "
                    f"{TOPIC_ID_VERSION}), which event sourcing needs: upgrade it",
                )
            answer = connection.call(api, fields, version=TOPIC_ID_VERSION)
            code = error_of(answer)
            if code.retriable:
                raise ApiError(code, f"broker {leader} answers {api} with {code.name}")
            return answer

        return self.cluster.retrying(ask)


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
