"""Fetch of other brokers that follow partitions of this one, and of tools that compare replicas.

Followers (replica id from 0 on; from v15 on with the epoch of the broker) read to the log's end.
Their fetch offset is their flushed end: it moves the high watermark. A follower whose log left ours
gets the epoch at which it did, and no records. A fetch waits until the log of one of its partitions
has grown. There are no sessions: the answer has session id 0, and the follower sends all of its
partitions each time.

A throttled partition has no records for a follower that is not in sync while the quota of this
broker is exceeded (`broker/replication/throttles.py`).

Tools (replica id -2) read to the log's end of any replica, and move nothing. The quotas of clients
apply to them, and to all that only claim to be a follower.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, NamedTuple

from millstream.broker.deferred import Buffers, Deferred
from millstream.broker.handlers._leader_hints import (
    ABOUT_THE_LEADER,
    current_leader,
    endpoints_of,
)
from millstream.broker.handlers._quotas import fetch_usage, throttle
from millstream.broker.handlers._rights import may_cluster, require_topic
from millstream.broker.replicas.partition import Partition
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode, NotCached
from millstream.protocol.fetch import (
    FIRST_WITH_ENDPOINTS,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    encode_fetch_response,
)
from millstream.protocol.produce import TopicKey
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from millstream.broker.quotas.clients import Usage

logger = logging.getLogger("millstream.fetch")

RESPONSE_BYTES_MAX = 4 * 1024 * 1024  # the event loop does nothing else while it reads them


class _Target(NamedTuple):
    topic: TopicKey
    wanted: FetchPartition


class ReplicaFetch:
    """A request in progress."""

    _timer: asyncio.TimerHandle | None = None
    _look_scheduled = False
    _usage: Usage | None = None  # of the client's quota, if it has one

    def __init__(self, context: RequestContext, request: FetchRequest) -> None:
        self._context = context
        self._services = context.services
        self._request = request
        self._is_follower = request.replica_id >= 0
        self._deferred: Deferred | None = None
        self._watched: list[Partition] = []
        self._targets = [_Target(topic, it) for topic, wanted in request.topics for it in wanted]
        self._errors: dict[_Target, FetchedPartition] = {}  # errors and diverging epochs
        self._throttle = context.services.throttles.leader
        self._held: set[_Target] = set()  # throttled: without records now

    def start(self) -> Buffers | Deferred:
        quotas = self._services.throttling.quotas
        if quotas is not None:
            self._usage = fetch_usage(self._context, quotas)
        if self._usage is not None:
            throttle_ms = self._usage.excess_ms(self._services.clock.monotonic_ms())
            if throttle_ms:
                return self._throttled(throttle_ms)
        return self._start()

    def _start(self) -> Buffers | Deferred:
        for target in self._targets:
            try:
                diverging = self._note_position(target)
            except ApiError as error:
                self._errors[target] = FetchedPartition(target.wanted.partition, error.code)
            else:
                if diverging is not None:
                    self._errors[target] = self._found(target, b"")._replace(
                        diverging_epoch=diverging
                    )
        self._hold_back()
        try:
            answers = self._read(None)
        except NotCached:
            self._deferred = Deferred(exclusive=True)
            self._read_in_thread()
            return self._deferred
        if self._is_satisfied(answers):
            return self._finish(answers)
        return self._wait()

    def _note_position(self, target: _Target) -> tuple[int, int] | None:
        """Check the position of the replica, and move the high watermark. Returns where its log
        left ours, if it did."""
        self._require_right(target)
        partition, wanted = self._find(target), target.wanted
        if not self._is_follower:
            return None
        if partition.offline_error is not None:
            raise partition.offline_error
        partition.check_leader_epoch(wanted.current_leader_epoch)
        if partition.in_sync is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition!r} has no followers")
        partition.in_sync.check_live()
        if wanted.fetch_offset < partition.log_start_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        diverging = partition.diverging_epoch(wanted.last_fetched_epoch, wanted.fetch_offset)
        if diverging is None:
            if wanted.fetch_offset > partition.log.log_end_offset:
                raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
            partition.in_sync.fetched(
                self._request.replica_id,
                self._request.replica_epoch,
                wanted.fetch_offset,
                self._services.clock.monotonic_ms(),
            )
        return diverging

    def _require_right(self, target: _Target) -> None:
        """Brokers must be allowed to act for the cluster, tools to read the topic."""
        if self._is_follower:
            if not may_cluster(self._context, Operation.CLUSTER_ACTION):
                raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            return
        require_topic(self._context, Operation.READ, target.topic)

    def _refuse(self) -> None:
        """Look at the rights again: they may have changed while the fetch waited."""
        for target in self._targets:
            try:
                self._require_right(target)
            except ApiError as error:
                self._errors[target] = FetchedPartition(target.wanted.partition, error.code)

    # Throttling

    def _hold_back(self) -> None:
        """Find the partitions whose records this follower should not get now."""
        self._held.clear()
        if self._is_follower and self._throttle.wait_ms():
            self._held.update(filter(self._is_throttled, self._targets))

    def _is_throttled(self, target: _Target) -> bool:
        if target in self._errors:
            return False
        with contextlib.suppress(ApiError):
            partition = self._find(target)
            in_sync = partition.in_sync
            return (
                in_sync is not None
                and self._request.replica_id not in in_sync.image.isr
                and self._throttle.applies_to(partition.topic, partition.index)
            )
        return False

    def _record_throttled(self, answers: list[FetchedPartition]) -> None:
        for target, answer in zip(self._targets, answers, strict=True):
            if answer.records and self._is_throttled(target):
                self._throttle.record(len(answer.records))

    def _find(self, target: _Target) -> Partition:
        return self._services.partitions.find(target.topic, target.wanted.partition)

    # Reading

    def _read(self, bytes_max: int | None) -> list[FetchedPartition]:
        """With `bytes_max` it may run in a thread, and wait for the disk."""
        may_block = bytes_max is not None
        remaining = self._bytes_max() if bytes_max is None else bytes_max
        answers = []
        is_first = True
        for target in self._targets:
            answer = self._errors.get(target)
            if answer is None:
                limit = min(target.wanted.max_bytes, remaining)
                answer = self._read_one(target, limit, may_block, is_first=is_first)
                remaining -= len(answer.records)
                is_first = is_first and not answer.records
            answers.append(answer)
        return answers

    def _bytes_max(self) -> int:
        bytes_max = min(
            max(self._request.max_bytes, 0),
            self._context.response_bytes_max(),
            RESPONSE_BYTES_MAX,
        )
        if self._usage is None:
            return bytes_max
        return min(bytes_max, int(self._usage.rate.amount_max))

    def _read_one(
        self, target: _Target, limit: int, may_block: bool, *, is_first: bool
    ) -> FetchedPartition:
        wanted = target.wanted
        try:
            partition = self._find(target)
            if self._is_follower:
                if partition.offline_error is not None:
                    raise partition.offline_error
                partition.check_leader_epoch(wanted.current_leader_epoch)
            records: bytes | bytearray = b""
            if target not in self._held and (limit > 0 or is_first):
                records = partition.read_to_end(
                    wanted.fetch_offset, max_bytes=max(limit, 0), may_block=may_block
                )
                if len(records) > limit and not is_first:
                    records = b""
        except ApiError as error:
            return FetchedPartition(wanted.partition, error.code)
        except OSError as error:
            logger.error("%s-%d cannot be read: %s", target.topic, wanted.partition, error)
            return FetchedPartition(wanted.partition, ErrorCode.KAFKA_STORAGE_ERROR)
        return self._found(target, records)

    def _found(self, target: _Target, records: bytes | bytearray) -> FetchedPartition:
        partition = self._find(target)
        return FetchedPartition(
            target.wanted.partition,
            ErrorCode.NONE,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
            records,
        )

    def _read_in_thread(self) -> None:
        bytes_max = self._bytes_max()

        def done(future: asyncio.Future[list[FetchedPartition]]) -> None:
            assert self._deferred is not None
            error = None if future.cancelled() else future.exception()
            if future.cancelled() or error is not None:
                logger.error("a cold read failed", exc_info=error)
                self._deferred.complete(None)
            else:
                self._deferred.complete(self._finish(future.result()))

        self._services.tasks.run_blocking(lambda: self._read(bytes_max)).add_done_callback(done)

    def _is_satisfied(self, answers: list[FetchedPartition]) -> bool:
        request = self._request
        if self._errors or request.max_wait_ms <= 0 or not answers:
            return True
        found = sum(len(answer.records) for answer in answers)
        return found >= request.min_bytes or any(answer.error for answer in answers)

    # Waiting

    def _wait(self) -> Deferred:
        deferred = self._deferred = Deferred(exclusive=True)
        deferred.on_cancel = self._stop_waiting
        for target in self._targets:
            if target not in self._held:
                partition = self._find(target)
                partition.watch_end(self._changed)
                self._watched.append(partition)
        wait_ms = self._request.max_wait_ms
        if self._held:
            wait_ms = min(wait_ms, self._throttle.wait_ms())
        seconds = wait_ms / 1000
        self._timer = self._services.loop.call_later(seconds, self._look_again)
        return deferred

    def _changed(self, partition: Partition) -> None:
        if not self._look_scheduled:
            self._look_scheduled = True
            self._services.turn.call_at_end(self._look_again)

    def _look_again(self) -> None:
        self._look_scheduled = False
        if self._timer is None or self._deferred is None or self._deferred.is_done:
            return
        self._stop_waiting()
        self._refuse()
        self._hold_back()
        try:
            answers = self._read(None)
        except NotCached:
            self._read_in_thread()
            return
        self._deferred.complete(self._finish(answers))

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._watched:
            partition.unwatch_end(self._changed)
        self._watched.clear()

    # Answering

    def _finish(self, answers: list[FetchedPartition]) -> Buffers:
        version = self._context.api_version
        by_topic: dict[TopicKey, list[FetchedPartition]] = {}
        leaders: set[int] = set()
        now_ms = self._services.clock.monotonic_ms()
        if self._usage is not None:
            size_bytes = sum(len(answer.records) for answer in answers)
            throttle_ms = self._usage.accept(size_bytes, now_ms) if size_bytes else 0
            if throttle_ms:
                return self._throttled(throttle_ms)
        if self._is_follower and self._throttle.is_on:
            self._record_throttled(answers)
        for target, answer in zip(self._targets, answers, strict=True):
            if answer.error in ABOUT_THE_LEADER and version >= FIRST_WITH_ENDPOINTS:
                leader = current_leader(self._context, target.topic, answer.partition)
                if leader is not None:
                    leaders.add(leader[0])
                    answer = answer._replace(current_leader=leader)
            elif self._is_follower and not answer.error:
                with contextlib.suppress(ApiError):  # deleted while a thread read it
                    in_sync = self._find(target).in_sync
                    if in_sync is not None:
                        in_sync.answered(self._request.replica_id, now_ms)
            by_topic.setdefault(target.topic, []).append(answer)
        endpoints = endpoints_of(self._context, leaders) if leaders else ()
        return encode_fetch_response(version, by_topic.items(), endpoints=endpoints)

    def _throttled(self, throttle_ms: int) -> Buffers:
        """Mute the client, which gets no partitions: it will fetch them again."""
        throttle(self._context, "fetch", throttle_ms)
        return encode_fetch_response(self._context.api_version, (), throttle_ms=throttle_ms)
