"""Fetch, v4-18: read batches of records, waiting for new ones if necessary.

* v7: incremental fetch sessions (KIP-227)
* v9: the client's leader epoch is checked (KIP-320)
* v11: rack id (not used: there are no replicas elsewhere to prefer)
* v12: flexible; last fetched epoch and diverging epoch (KIP-595)
* v13: topic ids
* v15-18: replica state and directory, for followers (not used)

The stored bytes go out as they are. One response is bounded by the client's limits, by
`fetch.max.bytes`, by what may wait for this client (`network/memory.py`) and by
`RESPONSE_BYTES_MAX`, so that a consumer that is far behind does not block other clients; responses
are larger while there are no producers. The first batch is always whole. A cold read is answered at
once, even below min.bytes: waiting would mean a second cold read. With read_committed, a response
ends at the last stable offset and names the aborted transactions in it; a fetch that waits counts
only what is stable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from millstream.broker.deferred import Buffers, Deferred
from millstream.broker.replicas.fetch_sessions import NO_SESSION, FetchSession, FetchTarget, summary
from millstream.broker.replicas.partition import Partition
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode, NotCached
from millstream.protocol.fetch import (
    FIRST_WITH_TOPIC_IDS,
    READ_COMMITTED,
    FetchedPartition,
    FetchRequest,
    decode_fetch_request,
    encode_fetch_response,
)
from millstream.protocol.produce import TopicKey
from millstream.protocol.wire import Buffer

logger = logging.getLogger("millstream.fetch")

RESPONSE_BYTES_MAX = 1024 * 1024
# If there was no producer for that long: fewer round trips, each of which may wait for a CPU.
QUIET_AFTER_MS = 1000
QUIET_RESPONSE_BYTES_MAX = 4 * 1024 * 1024


def fetch(context: RequestContext, body: Buffer) -> Buffers | Deferred:
    services, version = context.services, context.api_version
    request = decode_fetch_request(body, version)
    now_ms = services.clock.monotonic_ms()
    try:
        session = services.fetch_sessions.open(
            request,
            now_ms,
            uses_topic_ids=version >= FIRST_WITH_TOPIC_IDS,
        )
    except ApiError as error:
        return encode_fetch_response(version, (), error=error.code)
    return _Fetch(context, request, session).start()


class _Fetch:
    """A request in progress: look, then answer, read in a thread, or wait and look again."""

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
        self._is_committed = request.isolation_level == READ_COMMITTED
        self._is_incremental = request.session_epoch > 0 and session.id != NO_SESSION
        self._deferred: Deferred | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._bytes_found = 0  # size of an answer now
        self._answers: dict[FetchTarget, FetchedPartition] = {}
        self._must_answer = False
        self._is_waiting = False
        self._look_scheduled = False

    def start(self) -> Buffers | Deferred:
        try:
            return self._start()
        except BaseException:  # a defect: the session must not watch partitions for ever
            self._give_up()
            raise

    def _start(self) -> Buffers | Deferred:
        targets = self._resolve()
        try:
            answers = self._read(targets, self._bytes_max(), may_block=False)
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
        session, table = self._session, self._services.partitions
        targets = list(session.candidates)
        for target in targets:
            if target.partition is None:
                try:
                    partition = table.find(target.topic, target.wanted.partition)
                except ApiError as error:
                    target.not_found = error.code
                else:
                    session.bind(target, partition)
        return targets

    def _bytes_max(self) -> int:
        """How many bytes of records the response may hold, if it is produced now."""
        services = self._services
        now_ms = services.clock.monotonic_ms()
        is_quiet = now_ms - services.load.last_produce_ms >= QUIET_AFTER_MS
        return min(
            max(self._request.max_bytes, 0),
            services.config.fetch_max_bytes,
            self._context.response_bytes_max(),
            QUIET_RESPONSE_BYTES_MAX if is_quiet else RESPONSE_BYTES_MAX,
        )

    def _read(
        self, targets: Iterable[FetchTarget], bytes_max: int, *, may_block: bool
    ) -> list[FetchedPartition]:
        """The answer of each target. Changes no state, so it may run in a thread."""
        remaining = bytes_max
        answers = []
        has_data = False
        for target in targets:
            partition = target.partition
            if partition is None:
                answers.append(FetchedPartition(target.wanted.partition, target.not_found))
                continue
            try:
                answer = _read_partition(
                    partition,
                    target,
                    remaining,
                    self._is_committed,
                    may_block,
                    is_first=not has_data,
                )
            except ApiError as error:
                answer = FetchedPartition(target.wanted.partition, error.code)
            except OSError as error:
                logger.error("%r cannot be read: %s", partition, error)
                code = ErrorCode.KAFKA_STORAGE_ERROR
                answer = FetchedPartition(target.wanted.partition, code)
            has_data = has_data or bool(answer.records)
            remaining -= len(answer.records)
            answers.append(answer)
        return answers

    def _take(self, targets: list[FetchTarget], answers: list[FetchedPartition]) -> None:
        """Store the answers; only targets that may have more data stay candidates."""
        candidates = self._session.candidates
        for target, answer in zip(targets, answers, strict=True):
            partition = target.partition
            if partition is not None:
                target.bytes_seen = self._bytes_of(partition)
            self._bytes_found += len(answer.records)
            candidates.pop(target, None)
            if answer.error or partition is None or self._has_more(partition, target):
                candidates[target] = None  # at the end: the others come first the next time
            if answer.error or answer.diverging_epoch is not None:
                self._must_answer = True
            self._answers[target] = answer

    def _bytes_of(self, partition: Partition) -> int:
        """Bytes appended and visible to this client."""
        return partition.stable_bytes if self._is_committed else partition.visible_bytes

    def _has_more(self, partition: Partition, target: FetchTarget) -> bool:
        committed = self._is_committed
        end_offset = partition.last_stable_offset if committed else partition.high_watermark
        return target.wanted.fetch_offset < end_offset

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
            return self._read(targets, bytes_max, may_block=True)

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

        self._services.tasks.run_blocking(read).add_done_callback(done)

    # Waiting

    def _wait(self) -> Deferred:
        deferred = self._deferred = Deferred(exclusive=True)
        deferred.on_cancel = self._give_up
        self._is_waiting = True
        self._session.on_change = self._changed
        self._timer = self._services.loop.call_later(
            self._request.max_wait_ms / 1000, self._look_again
        )
        return deferred

    def _changed(self, target: FetchTarget) -> None:
        """A partition has changed. Look once at the end of this turn, for all changes."""
        partition = target.partition
        if partition is None:
            self._must_answer = True
        else:
            bytes_now = self._bytes_of(partition)
            self._bytes_found += bytes_now - target.bytes_seen
            target.bytes_seen = bytes_now
        if not self._look_scheduled and (
            self._must_answer or self._bytes_found >= self._request.min_bytes
        ):
            self._look_scheduled = True
            self._services.loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        deferred = self._deferred
        if deferred is None or not self._is_waiting:
            return
        self._stop_waiting()
        targets = self._resolve()
        self._bytes_found = 0
        try:
            answers = self._read(targets, self._bytes_max(), may_block=False)
        except NotCached:
            self._read_in_thread(targets)
            return
        self._take(targets, answers)
        deferred.complete(self._finish())

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

    def _finish(self) -> list[Buffer]:
        session = self._session
        by_topic: dict[TopicKey, list[FetchedPartition]] = {}
        for target, answer in self._answers.items():
            if not self._is_incremental or target.has_news(answer):
                by_topic.setdefault(target.topic, []).append(answer)
            target.last_answer = summary(answer)
        if session.id == NO_SESSION:
            session.close()
        return encode_fetch_response(self._version, by_topic.items(), session_id=session.id)


def _read_partition(
    partition: Partition,
    target: FetchTarget,
    remaining_bytes: int,
    committed: bool,
    may_block: bool,
    *,
    is_first: bool,
) -> FetchedPartition:
    wanted = target.wanted
    partition.check_leader_epoch(wanted.current_leader_epoch)
    diverging = partition.diverging_epoch(wanted.last_fetched_epoch, wanted.fetch_offset)
    records: Buffer = b""
    aborted: list[tuple[int, int]] | None = [] if committed else None
    high_watermark, last_stable_offset = partition.high_watermark, partition.last_stable_offset
    offset, limit = wanted.fetch_offset, min(wanted.max_bytes, remaining_bytes)
    if diverging is None and (limit > 0 or is_first):
        if committed:
            records, transactions = partition.read_committed(
                offset, max_bytes=limit, may_block=may_block
            )
            aborted = [
                (transaction.producer_id, transaction.first_offset) for transaction in transactions
            ]
        else:
            records = partition.read(offset, max_bytes=limit, may_block=may_block)
        if len(records) > remaining_bytes and not is_first:
            records, aborted = b"", [] if committed else None
    return FetchedPartition(
        wanted.partition,
        ErrorCode.NONE,
        high_watermark,
        last_stable_offset,
        partition.log_start_offset,
        records,
        aborted,
        diverging,
    )
