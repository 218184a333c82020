"""A ShareFetch in progress: acquire available records, or wait for some.

A fetch looks at its partitions, reads the log where records could be acquired, and if that is
enough (min bytes) acquires them and answers. Otherwise it waits, and looks again when a leader has
news (records, releases, room in its window) or the time is over. It answers no sooner than its
acknowledgements are durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from millstream.broker.deferred import Buffers, Deferred
from millstream.broker.sharing.acknowledging import Acknowledging, PartitionId, RequireRight
from millstream.broker.sharing.reading import LogRead, bytes_to_read, read_log
from millstream.coordination.sharing.acquisition import Wish
from millstream.errors import ApiError, ErrorCode, NotCached
from millstream.protocol.share_fetch import (
    RECORD_LIMIT,
    SharedPartition,
    ShareFetchRequest,
    encode_share_fetch_response,
)

if TYPE_CHECKING:
    from millstream.broker.sharing.leader import ShareLeader
    from millstream.broker.sharing.partitions import SharePartitions

logger = logging.getLogger(__name__)

RESPONSE_BYTES_MAX = 1024 * 1024  # others wait less while one fetches much
LOOKS_AT_ONCE = 16  # at batches without records to deliver, before other tasks run

_ABOUT_THE_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class ShareFetching:
    """A request that fetches from the partitions given."""

    def __init__(
        self,
        leaders: SharePartitions,
        request: ShareFetchRequest,
        partitions: Sequence[PartitionId],
        acknowledging: Acknowledging,
        *,
        require_right: RequireRight,
        response_bytes_max: Callable[[], int],
    ) -> None:
        assert request.group_id is not None
        assert request.member_id is not None
        self._share_partitions = leaders
        self._loop = leaders.tasks.loop
        self._response_bytes_max = response_bytes_max
        self._request = request
        self._group_id = request.group_id
        self._member_id = request.member_id
        self._partitions = partitions
        self._acknowledging = acknowledging
        self._require_right = require_right
        self._answers: dict[PartitionId, SharedPartition] = {}
        self._watched: dict[PartitionId, ShareLeader] = {}
        self._deferred: Deferred | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._time_is_over = request.max_wait_ms <= 0
        self._look_scheduled = False
        self._is_reading = False
        self._is_answered = False
        config = leaders.config(request.group_id)
        self._lock_duration_ms = config.share_record_lock_duration_ms
        self._committed = config.share_isolation_level == "read_committed"
        self._bytes_max = min(max(request.max_bytes, 0), RESPONSE_BYTES_MAX)
        self._bytes_min = min(request.min_bytes, self._bytes_max)

    def start(self) -> Buffers | Deferred:
        """The answer, or a Deferred."""
        if self._look() and self._acknowledging.is_done:
            return self._answer()
        deferred = self._deferred = Deferred(exclusive=True)
        deferred.on_cancel = self._stop
        if self._is_answered:
            self._acknowledging.when_done(self._complete)
        elif not self._is_reading:
            self._wait()
        return deferred

    # Looking

    def _look(self) -> bool:
        """Acquire available records. Returns whether the answer is complete, apart from
        acknowledgements."""
        for _ in range(LOOKS_AT_ONCE):
            leaders = self._leaders()
            reads = self._read(leaders)
            if reads is None:  # in a thread
                return False
            enough = sum(len(read.data) for _, read in reads) >= self._bytes_min
            if reads and (enough or self._time_is_over):
                self._acquire(reads)
                if not self._has_records() and not self._time_is_over:
                    continue  # none of these can be delivered; later ones may be
            break
        self._is_answered = self._has_records() or self._all_failed() or self._time_is_over
        return self._is_answered

    def _leaders(self) -> list[ShareLeader]:
        """The leaders of partitions where records could be acquired."""
        leaders: list[ShareLeader] = []
        for partition in self._partitions:
            known = self._answers.get(partition)
            if known is not None and known.error:
                continue
            try:
                self._require_right(partition[0])
                leader = self._leader(partition)
            except ApiError as error:
                self._fail(partition, error)
                continue
            if leader.can_acquire:
                leaders.append(leader)
        return leaders

    def _leader(self, partition: PartitionId) -> ShareLeader:
        """The partition's leader, which this fetch now watches.

        A leader that has ended is replaced, unless it failed to load.
        """
        leader = self._watched.get(partition)
        if leader is None or leader.error is not None:
            if leader is not None and leader.error is not None and leader.window is None:
                raise leader.error
            leader = self._share_partitions.open(self._group_id, *partition)
            self._watched[partition] = leader
            leader.watch(self)
        return leader

    def _read(self, leaders: Sequence[ShareLeader]) -> list[tuple[ShareLeader, LogRead]] | None:
        """Records from the log, or None if a thread must read it.

        Each partition gets an even share of the bytes. A larger batch is returned only as the first
        of the response. That bounds the response; no partition starves, as they take turns.
        """
        if self._request.max_records <= 0 or not self._bytes_max:
            return []
        reads: list[tuple[ShareLeader, LogRead]] = []
        bytes_max = min(self._bytes_max, self._response_bytes_max())
        share_bytes = max(bytes_max // max(len(leaders), 1), 1)
        for leader in leaders:
            try:
                read = self._reading(leader, share_bytes)(may_block=False)
            except NotCached:
                self._read_in_thread(leader, share_bytes)
                if not reads:
                    return None
                continue
            except (ApiError, OSError) as error:
                self._fail_reading(leader, error)
                continue
            if read.batches and (not reads or len(read.data) <= share_bytes):
                reads.append((leader, read))
        return reads

    def _reading(self, leader: ShareLeader, share_bytes: int) -> Callable[..., LogRead]:
        """The arguments of the next read: a thread must not access the window."""
        assert leader.window is not None
        bytes_max = bytes_to_read(self._request.max_records, leader.bytes_per_record, share_bytes)
        return partial(
            read_log,
            leader.partition,
            leader.window.next_fetch_offset,
            bytes_max,
            committed=self._committed,
        )

    def _read_in_thread(self, leader: ShareLeader, share_bytes: int) -> None:
        """Read the disk in a thread; one at a time per leader."""
        leader.is_reading = self._is_reading = True
        assert leader.window is not None
        partition, offset = leader.partition, leader.window.next_fetch_offset
        read = partial(self._reading(leader, share_bytes), may_block=True)

        def done(future: asyncio.Future[LogRead]) -> None:
            self._is_reading = False
            try:
                if not future.cancelled() and not self._is_answered:
                    self._take_read(leader, future)
            finally:
                leader.reading_ended()
                self.look_now()  # whatever happened: nothing else would answer this fetch

        self._share_partitions.run_reading(partition, offset, read).add_done_callback(done)

    def _take_read(self, leader: ShareLeader, future: asyncio.Future[LogRead]) -> None:
        try:
            read = future.result()
        except (ApiError, OSError) as error:
            self._fail_reading(leader, error)
        except Exception:
            logger.exception("%r cannot be read", leader.partition)
            defect = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the log could not be read")
            self._fail((leader.key.topic_id, leader.key.partition), defect)
        else:
            if read.batches:  # else they were deleted meanwhile
                self._acquire([(leader, read)])

    def _acquire(self, reads: Sequence[tuple[ShareLeader, LogRead]]) -> None:
        request = self._request
        remaining = request.max_records
        for leader, read in reads:
            if remaining <= 0:
                break
            span = read.batches[-1].last_offset - read.batches[0].first_offset + 1
            leader.bytes_per_record = len(read.data) / span
            wish = Wish(
                self._member_id,
                remaining,
                request.batch_size,
                request.acquire_mode == RECORD_LIMIT,
            )
            acquired = leader.acquire(wish, read)
            if acquired:
                remaining -= sum(last - first + 1 for first, last, _ in acquired)
                key = leader.key
                records = read.part(acquired)
                leader.partition.bytes_out += len(records)
                self._answers[key.topic_id, key.partition] = SharedPartition(
                    key.partition, records=records, acquired=acquired
                )

    def _fail_reading(self, leader: ShareLeader, error: ApiError | OSError) -> None:
        if isinstance(error, OSError):
            logger.error("%r cannot be read: %s", leader.partition, error)
            error = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        if error.code is ErrorCode.CORRUPT_MESSAGE:
            leader.skip_damage()
        elif error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:  # retention was faster: look again
            self._fail((leader.key.topic_id, leader.key.partition), error)

    def _fail(self, partition: PartitionId, error: ApiError) -> None:
        leader = (0, 0)
        if error.code in _ABOUT_THE_LEADER:
            leader = self._share_partitions.current_leader(*partition)
        self._answers[partition] = SharedPartition(
            partition[1], error.code, error.message, leader=leader
        )

    def _has_records(self) -> bool:
        return any(answer.records for answer in self._answers.values())

    def _all_failed(self) -> bool:
        return len(self._answers) == len(self._partitions)

    # Waiting

    def _wait(self) -> None:
        self._timer = self._loop.call_later(self._request.max_wait_ms / 1000, self._time_out)

    def _time_out(self) -> None:
        self._time_is_over = True
        self.look_now()

    def look_again(self) -> None:
        """A leader has changed. Look once at the end of this turn, for all changes."""
        if self._deferred is not None and not self._look_scheduled and not self._is_answered:
            self._look_scheduled = True
            self._loop.call_soon(self.look_now)

    def look_now(self) -> None:
        self._look_scheduled = False
        if self._deferred is None or self._is_answered or self._is_reading:
            return
        if self._has_records():
            self._is_answered = True
        elif not self._look():
            if self._timer is None and not self._is_reading:
                self._wait()
            return
        self._stop_waiting()
        self._acknowledging.when_done(self._complete)

    def _stop_waiting(self) -> None:
        for leader in self._watched.values():
            leader.unwatch(self)
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _stop(self) -> None:
        """The client is gone: stop."""
        self._is_answered = True
        self._stop_waiting()

    # Answering

    def _complete(self, _: Acknowledging) -> None:
        assert self._deferred is not None
        self._deferred.complete(self._answer())

    def _answer(self) -> Buffers:
        self._stop_waiting()
        for topic_id, _ in self._partitions:
            self._share_partitions.fetch_requests[topic_id] += 1
        return encode_answer(self._answers, self._acknowledging, self._lock_duration_ms)


def encode_answer(
    answers: dict[PartitionId, SharedPartition],
    acknowledging: Acknowledging,
    lock_duration_ms: int,
) -> Buffers:
    """The fetched records and the results of the acknowledgements."""
    for partition, error in acknowledging.results.items():
        answer = answers.get(partition, SharedPartition(partition[1]))
        if error is not None:
            answer = answer._replace(
                acknowledge_error=error.code, acknowledge_message=error.message
            )
        answers[partition] = answer
    topics: dict[UUID, list[SharedPartition]] = {}
    for (topic_id, _), answer in answers.items():
        topics.setdefault(topic_id, []).append(answer)
    return encode_share_fetch_response(topics.items(), lock_duration_ms=lock_duration_ms)
