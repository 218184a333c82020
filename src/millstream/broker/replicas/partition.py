"""A partition as handlers use it: its replica on this broker, and its leadership.

`Replica` is the log with its offsets. `Leadership` computes the high watermark and last stable
offset and completes appends; it does no I/O. `ReadablePartition` reads up to the visible offsets.
`Partition` validates and appends producers' batches, and notifies watchers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

from millstream.broker.replicas.guards import VerificationGuard, VerificationGuards
from millstream.broker.replicas.in_sync import InSyncSet, ReplicaSettings
from millstream.broker.replicas.leadership import EndedTransaction, Leadership
from millstream.broker.replicas.pending import ACKS_ALL, PendingAppend
from millstream.broker.replicas.readable import ReadablePartition
from millstream.broker.replicas.replica import Replica
from millstream.config.topic import NO_CONDITION
from millstream.coordination.cluster import INTERNAL_TOPICS
from millstream.coordination.replication.follower import FollowerReplica
from millstream.errors import ApiError, ErrorCode
from millstream.records.batch import (
    TRANSACTIONAL_FLAG,
    Buffer,
    iterate_headers,
    parse_header,
)
from millstream.records.record import ControlType, encode_end_transaction
from millstream.records.validation import transform_produced, validate_produced
from millstream.storage.producers import NO_COORDINATOR_EPOCH
from millstream.storage.retention import Candidate
from millstream.storage.versions import ConditionFailed, check_condition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from millstream.broker.replicas.admission import Admission
    from millstream.broker.replicas.flushing import Flusher
    from millstream.clock import Clock
    from millstream.coordination.cluster import PartitionImage
    from millstream.records.batch import BatchHeader
    from millstream.storage.log import Appended, Log

logger = logging.getLogger(__name__)

LOG_APPEND_TIME = "LogAppendTime"
UNKNOWN_FOLLOWERS = frozenset((-1,))  # before the role is known: the high watermark stands still


def _perhaps_ended(log: Log, high_watermark: int) -> tuple[EndedTransaction, ...]:
    """After a restart it is not known which transactions ended past the high watermark. As if one
    of all the log had: what reads committed sees nothing until all of it is committed."""
    last = log.log_end_offset - 1
    return (EndedTransaction(log.log_start_offset, last),) if high_watermark <= last else ()


def _within(offset: int, log: Log) -> int:
    return max(log.log_start_offset, min(offset, log.log_end_offset))


class Watcher(Protocol):
    """Notified when the visible state of a partition changes."""

    def partition_changed(self, partition: Partition) -> None: ...


class ProducerState(NamedTuple):
    """A producer in DescribeProducers; -1 for missing values."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int


class Partition(ReadablePartition):
    """One partition, led by this broker. All calls from the event loop's thread."""

    def __init__(
        self,
        topic: str,
        index: int,
        log: Log,
        *,
        leader_epoch: int,
        flusher: Flusher,
        clock: Clock,
        high_watermark: int | None = None,
        replica_count: int = 1,
    ) -> None:
        """`high_watermark` is the last one known, if there are other replicas: without these, all
        that recovery kept is committed."""
        self.topic = topic
        self.index = index
        self.log = log
        self.topic_id: UUID | None = log.topic_id
        self.is_internal = topic in INTERNAL_TOPICS
        self.replica = Replica(log)
        self.offline_error = None  # set when its directory failed or it is deleted
        self._flusher = flusher
        self._clock = clock
        self._watchers = set()
        self.guards = VerificationGuards()
        self.admission: Admission | None = None  # if a slow consumer can stop producers
        self.archive = None
        self.in_sync: InSyncSet | None = None  # if this broker leads and there are other replicas
        self.following = None
        # Called when the log has grown or the role has changed; None if nobody waits for that.
        self._end_watchers: set[Callable[[Partition], None]] | None = None
        end = log.log_end_offset
        self.leadership = Leadership(
            log,
            epoch=leader_epoch,
            high_watermark=end if high_watermark is None else _within(high_watermark, log),
            in_sync_followers=frozenset() if replica_count == 1 else UNKNOWN_FOLLOWERS,
            replica_count=replica_count,
            ended=() if high_watermark is None else _perhaps_ended(log, high_watermark),
        )

    def begin_epoch(self, leader_epoch: int) -> None:
        """Continue as leader in a later epoch."""
        self.leadership.begin_epoch(leader_epoch)

    # Roles

    def lead(self, image: PartitionImage, settings: ReplicaSettings) -> None:
        """Lead in the epoch of the image, or take over its in-sync set if this is that epoch."""
        if self._has_failed:
            return
        if self.in_sync is not None and image.leader_epoch == self.leader_epoch:
            self.in_sync.committed(image)
            self.notify_watchers()  # fetches of a follower that left the set count again
            return
        followers = frozenset(image.replicas) - {settings.broker_id}
        in_sync = followers.intersection(image.isr)
        if self.offline_error is None and self.following is None:
            self.leadership.begin_epoch(image.leader_epoch)
            self.leadership.set_in_sync(in_sync, len(image.replicas))
        else:
            self._take_over(image, in_sync)
        if followers:
            self.log.assign_epoch(image.leader_epoch)
        now_ms = self._clock.monotonic_ms()
        self.in_sync = InSyncSet(image, self.leadership, self.log, settings, now_ms)
        if self.leadership.needs_flush:
            self._flusher.request(self)
        self.notify_watchers()

    def _take_over(self, image: PartitionImage, in_sync: frozenset[int]) -> None:
        self.following = None
        self.offline_error = None
        before = self.leadership
        self.leadership = Leadership(
            self.log,
            epoch=image.leader_epoch,
            high_watermark=_within(self.high_watermark, self.log),
            changed=self.notify_watchers if self._watchers else None,
            in_sync_followers=in_sync,
            replica_count=len(image.replicas),
            ended=before.ended,
        )
        self.leadership.continue_counting(before)

    def follow(self, leader: int, leader_epoch: int) -> None:
        """Another broker leads in this epoch. The caller fetches from it."""
        if self._has_failed:
            return
        high_watermark = _within(self.high_watermark, self.log)
        self._resign(leader_epoch, f"broker {leader} leads it in epoch {leader_epoch}")
        log = self.log
        self.following = FollowerReplica(
            leader_epoch,
            log.epochs,
            start=log.log_start_offset,
            end=log.log_end_offset,
            flushed_end=log.flushed_offset,
            high_watermark=high_watermark,
        )

    def stop(self, leader_epoch: int, why: str = "it has no leader") -> None:
        """The partition has no leader, or its log cannot be used for now."""
        if not self._has_failed:
            self._resign(leader_epoch, why)

    def replace_log(self, log: Log) -> None:
        """The log was moved, while the partition was stopped."""
        self.log = log
        self.replica = Replica(log)
        self.leadership.replace_log(log)

    def _resign(self, leader_epoch: int, why: str) -> None:
        error = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.topic}-{self.index}: {why}")
        self.in_sync = self.following = None
        self.offline_error = error
        self.leadership.resign(error)
        self.leadership.follow(leader_epoch, _within(self.high_watermark, self.log))
        self.notify_watchers()
        self._log_has_grown()  # followers that wait here get the error

    @property
    def is_only_replica(self) -> bool:
        """Whether it is led without a thought for other replicas."""
        is_led_so = self.leadership.is_alone and self.in_sync is None and self.following is None
        return is_led_so and self.is_led_here

    @property
    def is_led_here(self) -> bool:
        """Whether this broker leads it, be it that its disk has failed."""
        error = self.offline_error
        return error is None or error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER

    @property
    def _has_failed(self) -> bool:
        return self.offline_error is not None and self.is_led_here

    def transactions_ended(self, ended: Iterable[tuple[int, int]]) -> None:
        """End markers were appended to the log of this follower: readers do not see the end of
        these transactions before the markers are committed."""
        for first_offset, marker_offset in ended:
            self.leadership.transaction_ended(first_offset, marker_offset)

    def followed_to(self, high_watermark: int) -> None:
        """The log of this follower was appended to or truncated, or its leader's high watermark
        is known."""
        if self.following is not None:
            self.leadership.follow(self.leader_epoch, high_watermark)

    def read_to_end(self, offset: int, *, max_bytes: int, may_block: bool) -> bytes | bytearray:
        """As `read`, up to the log's end: for followers, and tools that compare replicas."""
        if self._has_failed:
            assert self.offline_error is not None
            raise self.offline_error
        return self.replica.read(
            offset, max_bytes=max_bytes, end_offset=self.log.log_end_offset, may_block=may_block
        )

    def watch_end(self, callback: Callable[[Partition], None]) -> None:
        """Call back when the log has grown or the role has changed."""
        if self._end_watchers is None:
            self._end_watchers = set()
        self._end_watchers.add(callback)

    def unwatch_end(self, callback: Callable[[Partition], None]) -> None:
        if self._end_watchers is not None:
            self._end_watchers.discard(callback)

    def _log_has_grown(self) -> None:
        for callback in tuple(self._end_watchers or ()):
            callback(self)

    # Writing

    def append(
        self,
        records: Buffer,
        *,
        acks: int,
        internal: bool = False,
        zstd_allowed: bool = True,
        verified: bool = False,
    ) -> PendingAppend:
        """Append a producer's batches, or with `internal` a coordinator's own.

        A batch that would open a transaction is refused unless it was `verified` with the
        transaction's coordinator in this turn of the event loop. Raises `ApiError` when they are
        refused; nothing is written then.
        """
        if self.offline_error is not None:
            raise self.offline_error
        log = self.log
        config = log.config
        now_ms = self._clock.now_ms()
        leadership = self.leadership
        if not leadership.is_alone:
            self._check_replicas(acks)
        if internal:
            headers = [header for _, header in iterate_headers(records)]
            for header in headers:
                log.producers.check_epoch(header.producer_id, header.producer_epoch)
        else:
            first_offset = log.append_small(records, leadership.epoch, now_ms)
            if first_offset >= 0:
                pending = PendingAppend(first_offset, log.log_end_offset)
                self._appended(pending, acks, len(records))
                return pending
            headers = validate_produced(records, config, now_ms, zstd_allowed=zstd_allowed)
            if headers[0].producer_id >= 0:
                duplicate = log.check_producer(headers[0], may_open=verified)
                if duplicate is not None:
                    return self._duplicated(PendingAppend(*duplicate), acks)
            produced, header = records, headers[0]
            records, headers = transform_produced(records, headers, config, now_ms)
            if config.millstream_conditional_append != NO_CONDITION:
                answer = self._check_condition(produced, header, acks)
                if answer is not None:
                    return answer
        appended = self._append(records, headers, now_ms)
        pending = PendingAppend(appended[0], appended[1])
        if headers[0].attributes & TRANSACTIONAL_FLAG:
            self._note_transaction(headers[0].producer_id, appended[0])
        if config.message_timestamp_type == LOG_APPEND_TIME:
            pending.log_append_time_ms = now_ms
        self._appended(pending, acks, len(records))
        return pending

    def _check_replicas(self, acks: int) -> None:
        if self.in_sync is not None:
            self.in_sync.check_live()
        if acks == ACKS_ALL:
            self.leadership.check_in_sync()

    def _append(self, records: Buffer, headers: list[BatchHeader], now_ms: int) -> Appended:
        log = self.log
        versions = log.versions  # in which the batch is entered already
        try:
            appended = log.append(
                records, headers, leader_epoch=self.leadership.epoch, now_ms=now_ms
            )
        except BaseException:
            if versions is not None:
                versions.roll_back()
            raise
        if versions is not None:
            versions.keep()
        return appended

    def _check_condition(
        self, produced: Buffer, header: BatchHeader, acks: int
    ) -> PendingAppend | None:
        """None if the batch may be appended; the earlier append if this repeats one. Raises
        `ApiError` if it is refused, or returns the refusal to be sent when it is certain."""
        try:
            repeated = check_condition(self.log, produced, header)
        except ConditionFailed as error:
            end_offset = min(error.end_offset, self.log.log_end_offset)
            pending = PendingAppend(end_offset - 1, end_offset)
            if end_offset <= self.leadership.high_watermark:
                raise
            # As for a duplicate: the records that the refusal is based on have to be durable first.
            self._duplicated(pending, acks)
            if pending.is_done:
                raise
            pending.error = error
            return pending
        return None if repeated is None else self._duplicated(PendingAppend(*repeated), acks)

    def _note_transaction(self, producer_id: int, offset: int) -> None:
        if self.log.producers.open_transaction(producer_id) == offset:  # it begins here
            self.leadership.transaction_began(offset)

    def _appended(self, pending: PendingAppend, acks: int, size_bytes: int) -> None:
        log = self.log
        config = log.config
        must_flush = (acks == ACKS_ALL and config.millstream_acks_all_flush) or (
            log.log_end_offset - log.flushed_offset >= config.flush_messages
        )
        if self.leadership.appended(pending, size_bytes, acks=acks, must_flush=must_flush):
            self._flusher.request(self)
        if self._end_watchers:
            self._log_has_grown()

    def _duplicated(self, duplicate: PendingAppend, acks: int) -> PendingAppend:
        """Answer a duplicate with the original offsets, once they are as durable as requested."""
        must_flush = acks == ACKS_ALL and self.log.config.millstream_acks_all_flush
        if self.leadership.duplicated(duplicate, acks=acks, must_flush=must_flush):
            self._flusher.request(self)
        return duplicate

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether this producer has an open transaction here, so that no verification is needed."""
        return self.log.producers.is_in_transaction(producer_id, producer_epoch)

    def knows(self, producer_id: int) -> bool:
        """Whether there is state of this producer."""
        return producer_id in self.log.producers

    def coordinator_epoch_of(self, producer_id: int) -> int:
        """The highest epoch of a coordinator that ended a transaction of this producer here."""
        producers = self.log.producers
        if producer_id not in producers:
            return NO_COORDINATOR_EPOCH
        return producers[producer_id].coordinator_epoch

    def check_producer_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Refuse a producer that a newer instance has replaced."""
        self.log.producers.check_epoch(producer_id, producer_epoch)

    def take_guard(self, producer_id: int) -> VerificationGuard:
        """Before a coordinator on another broker is asked whether a producer may open a transaction
        here."""
        return self.guards.take(producer_id, self.leader_epoch)

    def is_valid(self, guard: VerificationGuard) -> bool:
        """Whether what the coordinator answered since the guard was taken still holds."""
        return self.guards.is_valid(guard, self.leader_epoch)

    def append_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        committed: bool,
        transaction_version: int,
    ) -> PendingAppend:
        """End the producer's transaction here. Done once the marker is durable.

        Raises `ApiError` for a marker that is too late, or of a coordinator that was replaced.
        """
        if self.offline_error is not None:
            raise self.offline_error
        log = self.log
        log.producers.check_marker(
            producer_id,
            producer_epoch,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
        )
        self.guards.invalidate(producer_id)
        now_ms = self._clock.now_ms()
        marker = encode_end_transaction(
            ControlType.COMMIT if committed else ControlType.ABORT,
            offset=0,
            timestamp=now_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
        )
        first_offset = log.producers.open_transaction(producer_id)
        header = parse_header(marker)
        epoch = self.leadership.epoch
        appended = log.append(marker, [header], leader_epoch=epoch, now_ms=now_ms)
        if first_offset is not None:
            self.leadership.transaction_ended(first_offset, appended.first_offset)
        pending = PendingAppend(appended.first_offset, appended.next_offset)
        self._appended(pending, ACKS_ALL, len(marker))
        return pending

    def producer_states(self) -> list[ProducerState]:
        """The state of all producers of this partition."""
        producers = self.log.producers
        return [
            ProducerState(
                producer_id,
                entry.epoch,
                entry.batches[-1].last_sequence if entry.batches else -1,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
            for producer_id in producers
            for entry in (producers[producer_id],)
        ]

    def go_offline(self, error: ApiError) -> None:
        """Refuse all requests from now on, and fail waiting ones."""
        self.offline_error = error
        self.in_sync = self.following = None
        self.leadership.resign(error)
        self.notify_watchers()
        self._log_has_grown()

    # Where the log starts

    def move_log_start(self, offset: int) -> None:
        """The log starts there at the earliest, as retention of all of it demands."""
        offset = min(offset, self.high_watermark)
        if offset > self.log.log_start_offset:
            self.log.delete_records_before(offset)
            self.leadership.log_start_moved()

    def delete_records_before(self, offset: int) -> int:
        """Move the log's start, -1 meaning to the high watermark. Returns where it is now."""
        if self.offline_error is not None:
            raise self.offline_error
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not in {self.start_offset}..{self.high_watermark} of "
                f"{self.topic}-{self.index}",
            )
        if self.log.config.compact and not self.log.config.delete:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"{self.topic} is compacted: its records are not deleted by offset",
            )
        if self.archive is not None:
            self.check_archive()
            self.archive.move_start(offset)
        self.move_log_start(offset)
        return self.start_offset

    def retention_candidate(self) -> Candidate:
        """The input for retention of this partition."""
        return Candidate(
            self.log, self.high_watermark, self.leadership.log_start_moved, self.archived_offset
        )

    # Watchers

    def watch(self, watcher: Watcher) -> None:
        self._watchers.add(watcher)
        self.leadership.notify(self.notify_watchers)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)
        if not self._watchers:
            self.leadership.notify(None)

    def notify_watchers(self) -> None:
        """The visible state has changed: new records, a new log start, an error."""
        for watcher in tuple(self._watchers):
            try:
                watcher.partition_changed(self)
            except Exception:  # a bug in one watcher must not affect the others
                logger.exception("a watcher of %r failed", self)
