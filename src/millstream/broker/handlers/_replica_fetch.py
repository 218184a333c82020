"""Fetch of other brokers that follow partitions of this one, and of tools that compare replicas.

Followers (replica id from 0 on; from v15 on with the epoch of the broker) read to the log's end.
Their fetch offset is their flushed end: it moves the high watermark. A follower whose log left ours
gets the epoch at which it did, and no records. A fetch waits until the log of one of its partitions
has grown. Followers have fetch sessions (`replica_sessions.py`): a fetch names only the partitions
whose position has changed, and looks only at those of which there is something new.

A throttled partition has no records for a follower that is not in sync while the quota of this
broker is exceeded (`broker/replication/throttles.py`).

Tools (replica id -2) read to the log's end of any replica, and move nothing. The quotas of clients
apply to them, and to all that only claim to be a follower.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from millstream.broker.deferred import Buffers, Deferred
from millstream.broker.handlers._leader_hints import (
    ABOUT_THE_LEADER,
    current_leader,
    endpoints_of,
)
from millstream.broker.handlers._quotas import fetch_usage, throttle
from millstream.broker.handlers._rights import may_cluster, require_topic
from millstream.broker.replicas.fetch_sessions import NO_SESSION, FetchTarget, summary
from millstream.broker.replicas.partition import Partition
from millstream.broker.replicas.replica_sessions import ReplicaSession
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode, NotCached
from millstream.protocol.fetch import (
    FIRST_WITH_ENDPOINTS,
    FIRST_WITH_TOPIC_IDS,
    FetchedPartition,
    FetchRequest,
    encode_fetch_response,
)
from millstream.protocol.produce import TopicKey
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from millstream.broker.quotas.clients import Usage

logger = logging.getLogger("millstream.fetch")

RESPONSE_BYTES_MAX = 4 * 1024 * 1024  # the event loop does nothing else while it reads them


def replica_fetch(context: RequestContext, request: FetchRequest) -> Buffers | Deferred:
    """Only followers that may act for the cluster have sessions."""
    services, version = context.services, context.api_version
    now_ms = services.clock.monotonic_ms()
    uses_topic_ids = version >= FIRST_WITH_TOPIC_IDS
    new = partial(ReplicaSession, replica_id=request.replica_id, now_ms=services.clock.monotonic_ms)
    if request.replica_id < 0 or not may_cluster(context, Operation.CLUSTER_ACTION):
        session = new(NO_SESSION, uses_topic_ids=uses_topic_ids)
        session.want(request.topics)
        return ReplicaFetch(context, request, session).start()
    cache = services.fetch_sessions
    try:
        owner = (context.client.principal, request.replica_id)
        session = cache.open_as(new, request, now_ms, uses_topic_ids, owner)
    except ApiError as error:
        return encode_fetch_response(version, (), error=error.code)
    if session.replica_epoch != request.replica_epoch:
        session.replica_epoch = request.replica_epoch
        cache.close_former(request.replica_id, request.replica_epoch)
    return ReplicaFetch(context, request, session).start()


class ReplicaFetch:
    """A request in progress: look, then answer, read in a thread, or wait and look again."""

    _timer: asyncio.TimerHandle | None = None
    _look_scheduled = False
    _usage: Usage | None = None  # of the client's quota, if it has one

    def __init__(
        self, context: RequestContext, request: FetchRequest, session: ReplicaSession
    ) -> None:
        self._context = context
        self._services = context.services
        self._request = request
        self._session = session
        self._is_follower = request.replica_id >= 0
        self._is_incremental = request.session_epoch > 0 and session.id != NO_SESSION
        self._deferred: Deferred | None = None
        self._errors: dict[FetchTarget, FetchedPartition] = {}  # errors and diverging epochs
        self._answers: dict[FetchTarget, FetchedPartition] = {}
        self._throttle = context.services.throttles.leader
        self._held: set[FetchTarget] = set()  # throttled: without records now

    def start(self) -> Buffers | Deferred:
        quotas = self._services.throttling.quotas
        if quotas is not None:
            self._usage = fetch_usage(self._context, quotas)
        if self._usage is not None:
            throttle_ms = self._usage.excess_ms(self._services.clock.monotonic_ms())
            if throttle_ms:
                return self._throttled(throttle_ms)
        try:
            return self._start()
        except BaseException:  # a defect: the session must not watch partitions for ever
            self._give_up()
            raise

    def _start(self) -> Buffers | Deferred:
        session, rights = self._session, self._context.client.rights
        session.begin(self._request, rights, None if rights is None else rights.version)
        if not self._services.metadata.is_live:
            session.look_at_all()  # another broker may lead by now
        targets = session.resolve(self._services.partitions)
        for target in targets:
            try:
                diverging = self._note_position(target)
            except ApiError as error:
                self._errors[target] = FetchedPartition(target.wanted.partition, error.code)
            else:
                if diverging is not None:
                    assert target.partition is not None
                    found = _found(target.partition, b"")
                    self._errors[target] = found._replace(diverging_epoch=diverging)
        self._hold_back(targets)
        try:
            answers = self._read(targets, None)
        except NotCached:
            self._deferred = Deferred(exclusive=True)
            self._read_in_thread(targets)
            return self._deferred
        self._take(targets, answers)
        if self._is_satisfied():
            return self._finish()
        return self._wait()

    def _note_position(self, target: FetchTarget) -> tuple[int, int] | None:
        """Check the position of the replica, and move the high watermark. Returns where its log
        left ours, if it did."""
        self._require_right(target)
        partition, wanted = target.partition, target.wanted
        if partition is None:
            raise ApiError(target.not_found)
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

    def _require_right(self, target: FetchTarget) -> None:
        """Brokers must be allowed to act for the cluster, tools to read the topic."""
        if self._is_follower:
            if not may_cluster(self._context, Operation.CLUSTER_ACTION):
                raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            return
        require_topic(self._context, Operation.READ, target.topic)

    def _refuse(self, targets: list[FetchTarget]) -> None:
        """Look at the rights again: they may have changed while the fetch waited."""
        for target in targets:
            try:
                self._require_right(target)
            except ApiError as error:
                self._errors[target] = FetchedPartition(target.wanted.partition, error.code)

    # Throttling

    def _hold_back(self, targets: list[FetchTarget]) -> None:
        """Find the partitions whose records this follower should not get now."""
        self._held.clear()
        if self._is_follower and self._throttle.wait_ms():
            self._held.update(filter(self._is_throttled, targets))

    def _is_throttled(self, target: FetchTarget) -> bool:
        partition = target.partition
        if target in self._errors or partition is None or partition.in_sync is None:
            return False
        return not self._is_in_sync(target) and self._throttle.applies_to(
            partition.topic, partition.index
        )

    def _is_in_sync(self, target: FetchTarget) -> bool:
        in_sync = None if target.partition is None else target.partition.in_sync
        return in_sync is not None and self._request.replica_id in in_sync.image.isr

    # Reading

    def _read(self, targets: list[FetchTarget], bytes_max: int | None) -> list[FetchedPartition]:
        """With `bytes_max` it may run in a thread, and wait for the disk."""
        may_block = bytes_max is not None
        remaining = self._bytes_max() if bytes_max is None else bytes_max
        answers = []
        is_first = True
        for target in targets:
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
        self, target: FetchTarget, limit: int, may_block: bool, *, is_first: bool
    ) -> FetchedPartition:
        wanted, partition = target.wanted, target.partition
        if partition is None:
            return FetchedPartition(wanted.partition, target.not_found)
        try:
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
            logger.error("%r cannot be read: %s", partition, error)
            return FetchedPartition(wanted.partition, ErrorCode.KAFKA_STORAGE_ERROR)
        return _found(partition, records)

    def _read_in_thread(self, targets: list[FetchTarget]) -> None:
        bytes_max = self._bytes_max()

        def done(future: asyncio.Future[list[FetchedPartition]]) -> None:
            assert self._deferred is not None
            error = None if future.cancelled() else future.exception()
            if future.cancelled() or error is not None:
                logger.error("a cold read failed", exc_info=error)
                self._give_up()
                self._deferred.complete(None)
            else:
                self._take(targets, future.result())
                self._deferred.complete(self._finish())

        read = partial(self._read, targets, bytes_max)
        self._services.tasks.run_blocking(read).add_done_callback(done)

    def _take(self, targets: list[FetchTarget], answers: list[FetchedPartition]) -> None:
        """Store the answers. What is at the end and in sync is not looked at again until it
        changes; a thread may have read it before it changed."""
        for target, answer in zip(targets, answers, strict=True):
            self._answers[target] = answer
            partition = target.partition
            is_at_end = may_rest = False
            if partition is not None and not answer.error and answer.diverging_epoch is None:
                is_at_end = target.wanted.fetch_offset == partition.log.log_end_offset
                is_current = summary(_found(partition, b"")) == summary(answer)
                may_rest = is_at_end and is_current and self._is_in_sync(target)
            self._session.looked_at(target, may_rest=may_rest, is_at_end=is_at_end)

    def _is_satisfied(self) -> bool:
        request = self._request
        if self._errors or request.max_wait_ms <= 0 or not self._session.targets:
            return True
        answers = self._answers.values()
        found = sum(len(answer.records) for answer in answers)
        return found >= request.min_bytes or any(answer.error for answer in answers)

    # Waiting

    def _wait(self) -> Deferred:
        deferred = self._deferred = Deferred(exclusive=True)
        deferred.on_cancel = self._give_up
        self._session.on_change = self._changed
        wait_ms = self._request.max_wait_ms
        if self._held:
            wait_ms = min(wait_ms, self._throttle.wait_ms())
        self._timer = self._services.loop.call_later(wait_ms / 1000, self._look_again)
        return deferred

    def _changed(self, target: FetchTarget) -> None:
        if not self._look_scheduled and target not in self._held:
            self._look_scheduled = True
            self._services.turn.call_at_end(self._look_again)

    def _look_again(self) -> None:
        self._look_scheduled = False
        if self._timer is None or self._deferred is None or self._deferred.is_done:
            return
        self._stop_waiting()
        targets = self._session.resolve(self._services.partitions)
        self._refuse(targets)
        self._hold_back(targets)
        try:
            answers = self._read(targets, None)
        except NotCached:
            self._read_in_thread(targets)
            return
        self._take(targets, answers)
        self._deferred.complete(self._finish())

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._session.on_change == self._changed:
            self._session.on_change = None

    def _give_up(self) -> None:
        self._stop_waiting()
        if self._session.id == NO_SESSION:
            self._session.close()

    # Answering

    def _finish(self) -> Buffers:
        session, version = self._session, self._context.api_version
        now_ms = self._services.clock.monotonic_ms()
        if self._usage is not None:
            size_bytes = sum(len(answer.records) for answer in self._answers.values())
            throttle_ms = self._usage.accept(size_bytes, now_ms) if size_bytes else 0
            if throttle_ms:
                return self._throttled(throttle_ms)
        by_topic: dict[TopicKey, list[FetchedPartition]] = {}
        leaders: set[int] = set()
        for target, answer in self._answers.items():
            if answer.error in ABOUT_THE_LEADER and version >= FIRST_WITH_ENDPOINTS:
                leader = current_leader(self._context, target.topic, answer.partition)
                if leader is not None:
                    leaders.add(leader[0])
                    answer = answer._replace(current_leader=leader)
            elif self._is_follower and not answer.error:
                self._note_answered(target, answer, now_ms)
            if not self._is_incremental or target.has_news(answer):
                by_topic.setdefault(target.topic, []).append(answer)
            target.last_answer = summary(answer)
        session.answered_ms = now_ms
        if session.id == NO_SESSION:
            session.close()
        endpoints = endpoints_of(self._context, leaders) if leaders else ()
        return encode_fetch_response(
            version, by_topic.items(), session_id=session.id, endpoints=endpoints
        )

    def _note_answered(self, target: FetchTarget, answer: FetchedPartition, now_ms: int) -> None:
        partition = target.partition
        if partition is None:
            return  # deleted while a thread read it
        if partition.in_sync is not None:
            partition.in_sync.answered(self._request.replica_id, now_ms)
        if answer.records and self._throttle.is_on and self._is_throttled(target):
            self._throttle.record(len(answer.records))

    def _throttled(self, throttle_ms: int) -> Buffers:
        """Mute the client, which gets no partitions: it will fetch them again."""
        session = self._session
        throttle(self._context, "fetch", throttle_ms)
        session.candidates.update(dict.fromkeys(self._answers))
        if not self._is_incremental:
            self._services.fetch_sessions.close(session)
        return encode_fetch_response(
            self._context.api_version, (), session_id=session.id, throttle_ms=throttle_ms
        )


def _found(partition: Partition, records: bytes | bytearray) -> FetchedPartition:
    return FetchedPartition(
        partition.index,
        ErrorCode.NONE,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset,
        records,
    )
