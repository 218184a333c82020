"""Fetch, v4-18: read batches of records, waiting for new ones if necessary.

* v7: incremental fetch sessions (KIP-227)
* v9: the client's leader epoch is checked (KIP-320)
* v11: rack id: the leader names an in-sync replica there, and followers are read (KIP-392)
* v12: flexible; last fetched epoch and diverging epoch (KIP-595)
* v13: topic ids
* v16: the current leader of a partition that this broker does not lead (KIP-951)
* v15-18: replica state, for followers: see `_replica_fetch.py`; the directory is not used

The stored bytes go out as they are. One response is bounded by the client's limits, by
`fetch.max.bytes`, by what may wait for this client (`network/memory.py`) and by
`RESPONSE_BYTES_MAX`, so that a consumer that is far behind does not block other clients; responses
are larger while there are no producers. The first batch is always whole. A cold read is answered at
once, even below min.bytes: waiting would mean a second cold read. With read_committed, a response
ends at the last stable offset and names the aborted transactions in it; a fetch that waits counts
only what is stable. Bulk reads of clients based on librdkafka are paced (`fetch_pacing.py`). A
response that would exceed the client's consumer_byte_rate is sent without partitions, and the
connection is muted. A request that only repeats the one before it, with another offset, takes a
fast path (`_repeated_fetch.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Set
from typing import TYPE_CHECKING

from millstream.broker.deferred import Buffers, Deferred
from millstream.broker.handlers._fetch_reading import (
    count_bulk,
    read_records,
    response_bytes_max,
)
from millstream.broker.handlers._leader_hints import (
    ABOUT_THE_LEADER,
    current_leader,
    endpoints_of,
)
from millstream.broker.handlers._quotas import fetch_usage, throttle
from millstream.broker.handlers._repeated_fetch import learn
from millstream.broker.handlers._replica_fetch import replica_fetch
from millstream.broker.replicas.fetch_pacing import BULK_BYTES_MIN
from millstream.broker.replicas.fetch_sessions import NO_SESSION, FetchSession, FetchTarget, summary
from millstream.broker.replicas.partition import Partition
from millstream.broker.services import RequestContext
from millstream.config.replication import RACK_AWARE_SELECTOR
from millstream.errors import ApiError, ErrorCode, NotCached
from millstream.protocol.fetch import (
    CONSUMER_REPLICA_ID,
    FIRST_WITH_ENDPOINTS,
    FIRST_WITH_TOPIC_IDS,
    READ_COMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    decode_fetch_request,
    encode_fetch_response,
)
from millstream.protocol.produce import TopicKey
from millstream.protocol.wire import Buffer, Piece
from millstream.records.batch import NO_LEADER_EPOCH
from millstream.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from millstream.broker.quotas.clients import ClientQuotas, Usage

logger = logging.getLogger("millstream.fetch")

FIRST_WITH_RACK = 11
# As plain numbers, whose hashes are not computed in Python.
_READ = Operation.READ.value
_TOPIC = ResourceType.TOPIC.value


def fetch(context: RequestContext, body: Buffer) -> Buffers | Deferred:
    repeated = context.client.repeated_fetch
    if repeated is not None:
        response = repeated.serve(context, body)
        if response is not None:
            return response
    services, version = context.services, context.api_version
    request = decode_fetch_request(body, version)
    if request.replica_id != CONSUMER_REPLICA_ID:
        return replica_fetch(context, request)
    context.client.repeated_fetch = learn(context, body, request, _take_over)
    now_ms = services.clock.monotonic_ms()
    try:
        session = services.fetch_sessions.open(
            request,
            now_ms,
            uses_topic_ids=version >= FIRST_WITH_TOPIC_IDS,
            owner=context.client.principal,
        )
    except ApiError as error:
        return encode_fetch_response(version, (), error=error.code)
    in_progress = _Fetch(context, request, session)
    if services.throttling.quotas is not None:
        return in_progress.start_metered(services.throttling.quotas)
    return in_progress.start()


def _take_over(context: RequestContext, request: FetchRequest, deferred: Deferred) -> None:
    """Answer a request that has waited on the fast path."""
    session = FetchSession(NO_SESSION, uses_topic_ids=True, owner=context.client.principal)
    session.want(request.topics)
    _Fetch(context, request, session).take_over(deferred)


class _Fetch:
    """A request in progress: look, then answer, read in a thread, or wait and look again."""

    # On the class: few requests need all of it.
    _deferred: Deferred | None = None
    _timer: asyncio.TimerHandle | None = None
    _bytes_found = 0  # size of an answer now
    _must_answer = False
    _is_waiting = False
    _look_scheduled = False
    _held: Set[FetchTarget] = frozenset()  # their records are held back
    _held_seconds = 0.0  # until the first of them may be sent
    _refused: Set[FetchTarget] | None = None  # the client may not read them; None: no authorizer
    _usage: Usage | None = None  # of the client's quota, if it has one

    def __init__(
        self,
        context: RequestContext,
        request: FetchRequest,
        session: FetchSession,
    ) -> None:
        self._context = context
        self._services = context.services
        self._version = context.api_version
        self._request = request
        self._session = session
        self._pacer = context.client.fetch_pacer
        is_aware = self._services.config.replica_selector_class == RACK_AWARE_SELECTOR
        self._rack = request.rack_id if is_aware else None
        self._is_committed = request.isolation_level == READ_COMMITTED
        self._is_incremental = request.session_epoch > 0 and session.id != NO_SESSION
        self._answers: dict[FetchTarget, FetchedPartition] = {}
        self._rights = context.client.rights
        if self._rights is not None:
            session.look_at_all_for(self._rights, self._rights.version)

    def start(self) -> Buffers | Deferred:
        try:
            return self._start()
        except BaseException:  # a defect: the session must not watch partitions for ever
            self._give_up()
            raise

    def start_metered(self, quotas: ClientQuotas) -> Buffers | Deferred:
        """Start, unless the client has exceeded its quota before."""
        self._usage = fetch_usage(self._context, quotas)
        if self._usage is not None:
            throttle_ms = self._usage.excess_ms(self._services.clock.monotonic_ms())
            if throttle_ms:
                return self._throttled(throttle_ms)
        return self.start()

    def _start(self) -> Buffers | Deferred:
        targets = self._resolve()
        if self._pacer is not None:
            now = self._services.loop.time()
            for target in targets:
                self._pacer.fetched(target.key, now)
        self._hold_back(targets)
        try:
            answers = self._read(targets)
        except NotCached:
            self._deferred = Deferred(exclusive=True)
            self._read_in_thread(targets)
            return self._deferred
        self._take(targets, answers)
        if self._is_satisfied():
            return self._finish()
        return self._wait()

    # Looking

    def _resolve(self) -> list[FetchTarget]:
        """The targets to look at, with their partitions if these exist."""
        targets = self._session.resolve(self._services.partitions)
        if self._rights is not None:
            self._refused = {target for target in targets if not self._may_read(target)}
        return targets

    def _may_read(self, target: FetchTarget) -> bool:
        """Whether the client may read the topic now. An unknown id is answered as unknown."""
        name = target.topic
        if not isinstance(name, str):
            topic = self._services.metadata.image.topics_by_id.get(name)
            if topic is None:
                return True
            name = topic.name
        rights = self._rights
        return rights is None or rights.allows(_READ, _TOPIC, name)

    def _hold_back(self, targets: list[FetchTarget]) -> None:
        """Find the partitions whose records this client should not get yet."""
        pacer = self._pacer
        if pacer is None or self._request.max_wait_ms <= 0:
            return
        now = self._services.loop.time()
        held = {target: pacer.hold_seconds(target.key, now) for target in targets}
        self._held = {target for target, seconds in held.items() if seconds}
        self._held_seconds = min((seconds for seconds in held.values() if seconds), default=0.0)

    def _bytes_max(self) -> int:
        """How many bytes of records the response may hold, if it is produced now."""
        bytes_max = response_bytes_max(self._context, self._request.max_bytes)
        if self._usage is None:
            return bytes_max
        return min(bytes_max, int(self._usage.rate.amount_max))

    def _read(
        self, targets: Iterable[FetchTarget], bytes_max: int | None = None
    ) -> list[FetchedPartition]:
        """The answer of each target. Changes no state: with `bytes_max` it may run in a thread, and
        wait for the disk; without, it raises `NotCached` instead."""
        may_block = bytes_max is not None
        remaining = bytes_max
        answers = []
        has_data = False
        refused = self._refused
        for target in targets:
            if refused is not None and target in refused:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                answers.append(FetchedPartition(target.wanted.partition, code))
                continue
            partition = target.partition
            if partition is None:
                answers.append(FetchedPartition(target.wanted.partition, target.not_found))
                continue
            try:
                answer = self._look_at(partition, target)
                if answer is None:
                    if remaining is None:
                        remaining = self._bytes_max()
                    answer = _read_partition(
                        partition,
                        target,
                        remaining,
                        self._is_committed,
                        may_block,
                        self._context.client.takes_files,
                        is_first=not has_data,
                    )
                    size = len(answer.records)
                    has_data = has_data or size > 0
                    remaining -= size
            except ApiError as error:
                answer = FetchedPartition(target.wanted.partition, error.code)
            except OSError as error:
                logger.error("%r cannot be read: %s", partition, error)
                code = ErrorCode.KAFKA_STORAGE_ERROR
                answer = FetchedPartition(target.wanted.partition, code)
            answers.append(answer)
        return answers

    def _look_at(self, partition: Partition, target: FetchTarget) -> FetchedPartition | None:
        """The answer of a partition without records for this client now; None if it may have."""
        wanted = target.wanted
        if partition.offline_error is not None:
            partition.check_readable(may_follow=self._version >= FIRST_WITH_RACK)
        partition.check_leader_epoch(wanted.current_leader_epoch)
        if self._rack and partition.in_sync is not None:
            nearer = self._nearer_replica(partition, wanted.fetch_offset)
            if nearer is not None:
                return self._without_records(partition, wanted)._replace(preferred_replica=nearer)
        high_watermark, stable = partition.high_watermark, partition.last_stable_offset
        is_at_end = wanted.fetch_offset == (stable if self._is_committed else high_watermark)
        if target not in self._held and (
            not is_at_end or wanted.last_fetched_epoch != NO_LEADER_EPOCH
        ):
            return None
        return self._without_records(partition, wanted)

    def _without_records(self, partition: Partition, wanted: FetchPartition) -> FetchedPartition:
        return FetchedPartition(
            wanted.partition,
            ErrorCode.NONE,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.start_offset,
            b"",
            [] if self._is_committed else None,
        )

    def _nearer_replica(self, partition: Partition, offset: int) -> int | None:
        """An in-sync replica in the consumer's rack that has the offset, unless this one is
        (KIP-392)."""
        services, in_sync = self._services, partition.in_sync
        brokers = services.metadata.image.brokers
        if in_sync is None or not partition.log_start_offset <= offset <= partition.high_watermark:
            return None
        near = [
            replica
            for replica in in_sync.image.isr
            if replica in brokers and brokers[replica].rack == self._rack
        ]
        if services.broker_id in near:
            return None
        return next((replica for replica in near if in_sync.end_of(replica) >= offset), None)

    def _take(self, targets: list[FetchTarget], answers: list[FetchedPartition]) -> None:
        """Store the answers; only targets that may have more data stay candidates."""
        candidates, committed = self._session.candidates, self._is_committed
        for target, answer in zip(targets, answers, strict=True):
            partition = target.partition
            has_more = True
            if partition is not None:
                target.bytes_seen = self._bytes_of(partition)
                end = partition.last_stable_offset if committed else partition.high_watermark
                has_more = target.wanted.fetch_offset < end
            self._bytes_found += len(answer.records)
            candidates.pop(target, None)
            if has_more or answer.error:
                candidates[target] = None  # at the end: the others come first the next time
            if answer.error or answer.diverging_epoch is not None or answer.preferred_replica >= 0:
                self._must_answer = True
            self._answers[target] = answer

    def _bytes_of(self, partition: Partition) -> int:
        """Bytes appended and visible to this client."""
        return partition.stable_bytes if self._is_committed else partition.visible_bytes

    def _is_satisfied(self) -> bool:
        request = self._request
        return (
            self._must_answer
            or request.max_wait_ms <= 0
            or self._bytes_found >= request.min_bytes
            or not self._session.targets
        )

    def _read_in_thread(self, targets: list[FetchTarget]) -> None:
        bytes_max = self._bytes_max()

        def read() -> list[FetchedPartition]:
            return self._read(targets, bytes_max)

        def done(future: asyncio.Future[list[FetchedPartition]]) -> None:
            assert self._deferred is not None
            if future.cancelled():
                self._give_up()
                return
            error = future.exception()
            if error is not None:
                logger.error("a cold read failed", exc_info=error)
                self._give_up()
                self._deferred.complete(None)
                return
            self._take(targets, future.result())
            self._deferred.complete(self._finish())

        # A bucket may take long: it must not hold up reads of the disk.
        is_archived = any(
            target.partition is not None
            and target.partition.is_below_log(target.wanted.fetch_offset)
            for target in targets
        )
        pool = self._services.archiving if is_archived else self._services.tasks
        pool.run_blocking(read).add_done_callback(done)

    # Waiting

    def _wait(self) -> Deferred:
        deferred = self._deferred = Deferred(exclusive=True)
        deferred.on_cancel = self._give_up
        self._is_waiting = True
        self._session.on_change = self._changed
        seconds = self._request.max_wait_ms / 1000
        if self._held:
            seconds = min(seconds, self._held_seconds)
        self._timer = self._services.loop.call_later(seconds, self._look_again)
        return deferred

    def _changed(self, target: FetchTarget) -> None:
        """A partition has changed. Look once for all changes of this turn."""
        partition = target.partition
        if partition is None:
            self._must_answer = True
        elif target not in self._held:
            bytes_now = self._bytes_of(partition)
            self._bytes_found += bytes_now - target.bytes_seen
            target.bytes_seen = bytes_now
        if not self._look_scheduled and (
            self._must_answer or self._bytes_found >= self._request.min_bytes
        ):
            self._look_scheduled = True
            self._services.turn.call_at_end(self._look_again)

    def _look_again(self) -> None:
        deferred = self._deferred
        if deferred is None or not self._is_waiting:
            return
        self._stop_waiting()
        targets = self._resolve()
        self._bytes_found = 0
        self._hold_back(targets)
        try:
            answers = self._read(targets)
        except NotCached:
            self._read_in_thread(targets)
            return
        self._take(targets, answers)
        deferred.complete(self._finish())

    def take_over(self, deferred: Deferred) -> None:
        """Complete the response to a request that has waited elsewhere."""
        self._deferred = deferred
        self._is_waiting = True
        deferred.on_cancel = self._give_up
        self._look_again()

    def _stop_waiting(self) -> None:
        self._is_waiting = False
        if self._session.on_change == self._changed:
            self._session.on_change = None
        if self._timer is not None:
            self._timer.cancel()

    def _give_up(self) -> None:
        self._stop_waiting()
        if self._session.id == NO_SESSION:
            self._session.close()

    # Answering

    def _finish(self) -> list[Piece]:
        if self._usage is not None:
            size_bytes = sum(len(answer.records) for answer in self._answers.values())
            now_ms = self._services.clock.monotonic_ms()
            throttle_ms = self._usage.accept(size_bytes, now_ms) if size_bytes else 0
            if throttle_ms:
                return self._throttled(throttle_ms)
        session = self._session
        by_topic: dict[TopicKey, list[FetchedPartition]] = {}
        leaders: set[int] = set()
        for target, answer in self._answers.items():
            self._count(target, answer)
            if answer.error in ABOUT_THE_LEADER and self._version >= FIRST_WITH_ENDPOINTS:
                answer = self._with_leader(target, answer, leaders)
            if not self._is_incremental or target.has_news(answer):
                by_topic.setdefault(target.topic, []).append(answer)
            if session.id != NO_SESSION:
                target.last_answer = summary(answer)
            if len(answer.records) >= BULK_BYTES_MIN:
                now = self._services.loop.time()
                count_bulk(self._context.client, target.key, len(answer.records), now)
        if session.id == NO_SESSION:
            session.close()
        endpoints = endpoints_of(self._context, leaders) if leaders else ()
        return encode_fetch_response(
            self._version, by_topic.items(), session_id=session.id, endpoints=endpoints
        )

    def _count(self, target: FetchTarget, answer: FetchedPartition) -> None:
        partition = target.partition
        if partition is not None:
            partition.fetches += 1
            partition.bytes_out += len(answer.records)
        if answer.error:
            counters = self._services.counters
            if counters is not None:
                topic = None if partition is None else partition.topic
                counters.fetch_failed(topic, answer.error)

    def _throttled(self, throttle_ms: int) -> list[Piece]:
        """Mute the client, which gets no partitions: it will fetch them again."""
        session = self._session
        throttle(self._context, "fetch", throttle_ms)
        session.candidates.update(dict.fromkeys(self._answers))
        if not self._is_incremental:
            self._services.fetch_sessions.close(session)
        return encode_fetch_response(
            self._version, (), session_id=session.id, throttle_ms=throttle_ms
        )

    def _with_leader(
        self, target: FetchTarget, answer: FetchedPartition, leaders: set[int]
    ) -> FetchedPartition:
        """Name the partition's leader, and add it to `leaders`."""
        leader = current_leader(self._context, target.topic, answer.partition)
        if leader is None:
            return answer
        leaders.add(leader[0])
        return answer._replace(current_leader=leader)


def _read_partition(
    partition: Partition,
    target: FetchTarget,
    remaining_bytes: int,
    committed: bool,
    may_block: bool,
    may_send_file: bool,
    *,
    is_first: bool,
) -> FetchedPartition:
    wanted = target.wanted
    diverging = partition.diverging_epoch(wanted.last_fetched_epoch, wanted.fetch_offset)
    records: Piece = b""
    aborted: list[tuple[int, int]] = []
    high_watermark, last_stable_offset = partition.high_watermark, partition.last_stable_offset
    offset, limit = wanted.fetch_offset, min(wanted.max_bytes, remaining_bytes)
    if diverging is None and (limit > 0 or is_first):
        records, aborted = read_records(
            partition, offset, limit, committed, may_block=may_block, may_send_file=may_send_file
        )
        if len(records) > remaining_bytes and not is_first:
            records, aborted = b"", []
    return FetchedPartition(
        wanted.partition,
        ErrorCode.NONE,
        high_watermark,
        last_stable_offset,
        partition.start_offset,
        records,
        aborted if committed else None,
        diverging,
    )
