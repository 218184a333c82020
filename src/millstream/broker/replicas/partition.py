"""The leader's view of one partition: what is written, what is visible, and who waits.

    log start ...... last stable offset ...... high watermark ......... log end
    |  visible to consumers that read committed   |
    |  visible to all consumers                         |  written, not visible yet  |

An acks=all append is visible, and answered, once a flush covers it; an acks=0 or acks=1 append is
visible at once, unless it stands behind an acks=all append that is not flushed yet. So everything a
consumer has seen of an acks=all producer survives a power cut. `flush.messages` asks for a flush
before the answer too, whatever the acks.

The last stable offset is where the first transaction begins that is open, or whose end marker is
not below the high watermark yet: else a power cut could take back an end that a consumer has seen.
Without any, it is the high watermark.

The in-sync set is this broker alone today; leader epochs and the high watermark are where
replication will find them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from millstream.broker.completion import Completion
from millstream.coordination.cluster import INTERNAL_TOPICS
from millstream.errors import ApiError, CorruptBatch, ErrorCode
from millstream.records.batch import (
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    end_offset_of,
    iterate_headers,
    parse_header,
)
from millstream.records.record import ControlType, encode_end_transaction
from millstream.records.validation import transform_produced, validate_produced
from millstream.storage.retention import Candidate

if TYPE_CHECKING:
    from uuid import UUID

    from millstream.broker.replicas.flushing import Flusher
    from millstream.clock import Clock
    from millstream.storage.log import Log
    from millstream.storage.lookup import TimestampOffset
    from millstream.storage.transactions import AbortedTransaction

ACKS_ALL = -1
ACKS_NONE = 0
ACKS_LEADER = 1
NO_TIMESTAMP = -1
LOG_APPEND_TIME = "LogAppendTime"
NO_EPOCH = -1


class Watcher(Protocol):
    """Notified when the visible state of a partition changes."""

    def partition_changed(self, partition: Partition) -> None: ...


class PendingAppend(Completion):
    """An append that is written, and done once it is as durable as its producer asked."""

    # On the class, since most appends never need to change them.
    log_append_time_ms = NO_TIMESTAMP  # only where message.timestamp.type says so
    bytes_before = 0  # what the partition had appended in its life before this
    error: ApiError | None = None

    def __init__(self, first_offset: int, next_offset: int) -> None:
        self.first_offset = first_offset
        self.next_offset = next_offset

    def __repr__(self) -> str:
        return f"<PendingAppend {self.first_offset}..{self.next_offset}>"

    def fail(self, error: ApiError) -> None:
        """It is done, and not as durable as was asked."""
        self.error = error
        self.finish()

    def __await__(self) -> Generator[Any, None, PendingAppend]:
        """Wait until done. Raises the `ApiError` it failed with."""
        yield from super().__await__()
        if self.error is not None:
            raise self.error
        return self


class _EndedTransaction(NamedTuple):
    first_offset: int
    marker_offset: int


class ProducerState(NamedTuple):
    """What DescribeProducers tells of a producer; -1 for what there is not."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int


class Partition:
    """One log, led by this broker. All calls from the event loop's thread."""

    def __init__(
        self, topic: str, index: int, log: Log, *, leader_epoch: int, flusher: Flusher, clock: Clock
    ) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.topic_id: UUID | None = log.topic_id
        self.is_internal = topic in INTERNAL_TOPICS
        self.leader_epoch = leader_epoch
        self.high_watermark = log.log_end_offset  # all that recovery kept
        self.last_stable_offset = self.high_watermark
        # Appended since the start and below the one or the other: what fetch.min.bytes counts.
        self.visible_bytes = 0
        self.stable_bytes = 0
        self.offline_error: ApiError | None = None  # set when its directory failed or it is deleted
        self._flusher = flusher
        self._clock = clock
        self._appended_bytes = 0
        self._unflushed: deque[PendingAppend] = deque()  # these hold back the high watermark
        self._duplicates: list[PendingAppend] = []  # wait for the flush of what they duplicate
        self._watchers: set[Watcher] = set()
        self._is_held_back = False  # whether there are transactions, open or not durably ended
        # Those that ended in markers from the high watermark on, in their order.
        self._ended: deque[_EndedTransaction] = deque()
        # What had been appended when a transaction, open or among those, began at an offset.
        self._bytes_before: dict[int, int] = {}
        self._find_stable()

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index}>"

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def in_sync_replica_count(self) -> int:
        return 1

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

        A batch that would open a transaction here is refused unless it is `verified` that the
        transaction's coordinator knows of it, in this very turn of the event loop. Raises
        `ApiError` when they are refused; nothing is written then.
        """
        if self.offline_error is not None:
            raise self.offline_error
        log = self.log
        config = log.config
        now_ms = self._clock.now_ms()
        if acks == ACKS_ALL and self.in_sync_replica_count < config.min_insync_replicas:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic}-{self.index} has 1 in-sync replica, fewer than its "
                f"min.insync.replicas of {config.min_insync_replicas}",
            )
        if internal:
            headers = [header for _, header in iterate_headers(records)]
            for header in headers:
                log.producers.check_epoch(header.producer_id, header.producer_epoch)
        else:
            headers = validate_produced(records, config, now_ms, zstd_allowed=zstd_allowed)
            duplicate = self._check_producers(headers, verified)
            if duplicate is not None:
                return self._answer_duplicate(duplicate, acks)
            records, headers = transform_produced(records, headers, config, now_ms)
        appended = log.append(records, headers, leader_epoch=self.leader_epoch, now_ms=now_ms)
        pending = PendingAppend(appended[0], appended[1])
        if headers[0].attributes & TRANSACTIONAL_FLAG:
            self._note_transaction(headers[0].producer_id, appended[0])
        if config.message_timestamp_type == LOG_APPEND_TIME:
            pending.log_append_time_ms = now_ms
        self._settle(pending, acks, len(records))
        return pending

    def _check_producers(self, headers: list[BatchHeader], verified: bool) -> PendingAppend | None:
        for header in headers:
            if header.producer_id >= 0:
                duplicate = self.log.check_producer(header, may_open=verified)
                if duplicate is not None:
                    return PendingAppend(duplicate.first_offset, duplicate.next_offset)
        return None

    def _note_transaction(self, producer_id: int, offset: int) -> None:
        if self.log.producers.open_transaction(producer_id) == offset:  # it begins here
            self._bytes_before[offset] = self._appended_bytes
            self._is_held_back = True

    def _settle(self, pending: PendingAppend, acks: int, size_bytes: int) -> None:
        """Let the append be seen and answered: now, or when a flush covers it."""
        bytes_before = self._appended_bytes
        self._appended_bytes = bytes_before + size_bytes
        log = self.log
        config = log.config
        if (acks == ACKS_ALL and config.millstream_acks_all_flush) or (
            log.log_end_offset - log.flushed_offset >= config.flush_messages
        ):
            pending.bytes_before = bytes_before
            self._unflushed.append(pending)
            self._flusher.request(self)
            return
        pending.is_done = True
        if not self._unflushed:
            self._advance(pending.next_offset, self._appended_bytes)

    def _advance(self, high_watermark: int, visible_bytes: int) -> None:
        """More is visible: to those who read committed too, unless transactions hold it back."""
        self.high_watermark = high_watermark
        self.visible_bytes = visible_bytes
        if self._is_held_back:
            self._find_stable()
        else:
            self.last_stable_offset = high_watermark
            self.stable_bytes = visible_bytes
        if self._watchers:
            self.notify_watchers()

    def _find_stable(self) -> None:
        """Bring the last stable offset up to date with the transactions."""
        high_watermark, ended, bytes_before = self.high_watermark, self._ended, self._bytes_before
        while ended and ended[0].marker_offset < high_watermark:
            bytes_before.pop(ended.popleft().first_offset, None)
        first_open = self.log.producers.first_open_offset
        self._is_held_back = bool(ended) or first_open is not None
        unstable = [it.first_offset for it in ended]
        if first_open is not None:
            unstable.append(first_open)
        first = min(unstable, default=high_watermark)
        if first < high_watermark:
            self.last_stable_offset = max(first, self.log_start_offset)
            self.stable_bytes = bytes_before.get(first, 0)
        else:
            self.last_stable_offset = high_watermark
            self.stable_bytes = self.visible_bytes

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a transaction of this producer is open here: it writes on without a question."""
        return self.log.producers.is_in_transaction(producer_id, producer_epoch)

    def knows(self, producer_id: int) -> bool:
        """Whether this producer has written here, as far as anybody remembers."""
        return producer_id in self.log.producers

    def coordinator_epoch_of(self, producer_id: int) -> int:
        """The highest epoch of a coordinator that ended a transaction of this producer here."""
        producers = self.log.producers
        return producers[producer_id].coordinator_epoch if producer_id in producers else NO_EPOCH

    def check_producer_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Refuse a producer that a newer instance has replaced."""
        self.log.producers.check_epoch(producer_id, producer_epoch)

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
        appended = log.append(marker, [header], leader_epoch=self.leader_epoch, now_ms=now_ms)
        if first_offset is not None:
            self._ended.append(_EndedTransaction(first_offset, appended.first_offset))
        pending = PendingAppend(appended.first_offset, appended.next_offset)
        self._settle(pending, ACKS_ALL, len(marker))
        return pending

    def producer_states(self) -> list[ProducerState]:
        """All producers that this partition remembers."""
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

    def _answer_duplicate(self, duplicate: PendingAppend, acks: int) -> PendingAppend:
        """What was appended before is answered again, once it is durable if that is asked."""
        must_flush = acks == ACKS_ALL and self.log.config.millstream_acks_all_flush
        if must_flush and duplicate.next_offset > self.log.flushed_offset:
            self._duplicates.append(duplicate)
            self._flusher.request(self)
        else:
            duplicate.is_done = True
        return duplicate

    def flushed(self) -> None:
        """A flush has covered everything below the log's flushed offset."""
        flushed_offset = self.log.flushed_offset
        unflushed = self._unflushed
        done: list[PendingAppend] = []
        while unflushed and unflushed[0].next_offset <= flushed_offset:
            done.append(unflushed.popleft())
        if self._duplicates:
            done += [it for it in self._duplicates if it.next_offset <= flushed_offset]
            self._duplicates = [it for it in self._duplicates if it.next_offset > flushed_offset]
        if unflushed:
            high_watermark, visible_bytes = unflushed[0].first_offset, unflushed[0].bytes_before
            self._flusher.request(self)
        else:
            high_watermark, visible_bytes = self.log.log_end_offset, self._appended_bytes
        if high_watermark != self.high_watermark:
            self._advance(high_watermark, visible_bytes)
        for pending in done:
            pending.finish()

    def go_offline(self, error: ApiError) -> None:
        """Refuse everything from now on, and tell all who wait."""
        self.offline_error = error
        waiting = [*self._unflushed, *self._duplicates]
        self._unflushed.clear()
        self._duplicates.clear()
        for pending in waiting:
            pending.fail(error)
        self.notify_watchers()

    # Reading

    def read(
        self, offset: int, *, max_bytes: int, committed: bool = False, may_block: bool = False
    ) -> bytes | bytearray:
        """Whole batches from that offset on, at least one if any is visible.

        Raises `ApiError(OFFSET_OUT_OF_RANGE)`, and `NotCached` unless it may block.
        """
        if self.offline_error is not None:
            raise self.offline_error
        end_offset = self.last_stable_offset if committed else self.high_watermark
        try:
            return self.log.read(
                offset, max_bytes=max_bytes, end_offset=end_offset, may_block=may_block
            )
        except CorruptBatch as error:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error

    def end_of_damage(self, offset: int) -> int:
        """Where reading may go on if it cannot at `offset`, which is the answer if it can.

        Reads the disk; safe in any thread.
        """
        try:
            self.read(offset, max_bytes=1, may_block=True)
        except ApiError as error:
            if error.code is not ErrorCode.CORRUPT_MESSAGE:
                raise
            return min(self.log.end_of_damage(offset), self.high_watermark)
        return offset

    def read_committed(
        self, offset: int, *, max_bytes: int, may_block: bool = False
    ) -> tuple[bytes | bytearray, list[AbortedTransaction]]:
        """As `read`, up to the last stable offset, with the aborted transactions in what was read:
        the client has to skip their records."""
        while True:
            segments = self.log.segments
            records = self.read(offset, max_bytes=max_bytes, committed=True, may_block=may_block)
            if not records or not self.log.aborted_segments:
                return records, []
            aborted = self.log.aborted_transactions(
                offset, end_offset_of(records), may_block=may_block
            )
            # In another thread, compaction or retention may have come between the two.
            if self.log.segments is segments:
                return records, aborted

    def check_leader_epoch(self, epoch: int) -> None:
        """Refuse a client whose idea of the leader is older, or newer, than ours."""
        if epoch == NO_EPOCH or epoch == self.leader_epoch:
            return
        if epoch < self.leader_epoch:
            raise ApiError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"leader epoch {epoch} is over; {self.topic}-{self.index} is at "
                f"{self.leader_epoch}: refresh the metadata",
            )
        raise ApiError(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"leader epoch {epoch} is not known here; {self.topic}-{self.index} is at "
            f"{self.leader_epoch}",
        )

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, its end offset) of the latest epoch up to the one asked for; -1, -1 if none."""
        if epoch == self.leader_epoch:  # nothing need have been written in it yet
            return epoch, self.log.log_end_offset
        return self.log.end_offset_for_epoch(epoch)

    def diverging_epoch(self, last_fetched_epoch: int, offset: int) -> tuple[int, int] | None:
        """Where the client's log and ours part, as (epoch, its end offset); None if they agree."""
        if last_fetched_epoch == NO_EPOCH:
            return None
        epoch, end_offset = self.end_of_epoch(last_fetched_epoch)
        if epoch == NO_EPOCH:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"leader epoch {last_fetched_epoch}, from which the client has read, is not known "
                f"in {self.topic}-{self.index}",
            )
        if epoch < last_fetched_epoch or end_offset < offset:
            return epoch, end_offset
        return None

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record as new or newer, or what a negative timestamp stands for.

        May read the disk; safe in any thread.
        """
        if self.offline_error is not None:
            raise self.offline_error
        try:
            return self.log.offset_for_timestamp(timestamp_ms)
        except CorruptBatch as error:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error

    def delete_records_before(self, offset: int) -> int:
        """Move the log's start, -1 meaning to the high watermark. Returns where it is now."""
        if self.offline_error is not None:
            raise self.offline_error
        if offset == -1:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not in {self.log_start_offset}..{self.high_watermark} of "
                f"{self.topic}-{self.index}",
            )
        if self.log.config.compact and not self.log.config.delete:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"{self.topic} is compacted: its records are not deleted by offset",
            )
        if offset > self.log_start_offset:
            self.log.delete_records_before(offset)
            self._on_log_start_moved()
        return self.log_start_offset

    def retention_candidate(self) -> Candidate:
        """What retention needs to delete what the topic's settings no longer keep."""
        return Candidate(self.log, self.high_watermark, self._on_log_start_moved)

    def _on_log_start_moved(self) -> None:
        self._find_stable()
        self.notify_watchers()

    # Those who wait

    def watch(self, watcher: Watcher) -> None:
        self._watchers.add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def notify_watchers(self) -> None:
        """Something a consumer would see has changed: new records, a new log start, an error."""
        for watcher in tuple(self._watchers):
            watcher.partition_changed(self)
