"""Fetches for the partitions of which this broker is a follower: one task for each leader.

    positions that changed ──> Fetch ──> append each, as it is ──> one flush ──> next Fetch

`FollowerReplica` decides what to do with an answer; this carries it out. The fetch offset is the
flushed end, so a partition is fetched again only after its flush. All partitions of an answer are
flushed at once. A partition with an error pauses for `replica.fetch.backoff.ms`; the others go on.
A throttled partition that is behind is not fetched while the quota of its broker is exceeded.
All partitions of a leader are in one fetch session (KIP-227, `FollowerSession`): a round costs as
much as the partitions that were in the last answer, not as all that are followed.

A role change in the middle of an answer is not a problem: the partition has another
`FollowerReplica` then, or none, and the answer is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from millstream.coordination.replication.fetch_session import FollowerSession, SessionRequest
from millstream.coordination.replication.follower import (
    Append,
    AskOffsets,
    Effect,
    FetchAnswer,
    FetchPosition,
    FollowerReplica,
    Retry,
    Truncate,
    Wipe,
)
from millstream.errors import ApiError, ErrorCode, MillstreamError, UnexpectedOffset
from millstream.protocol.replica_fetch import (
    VERSION,
    ReplicaAnswer,
    ReplicaPosition,
    decode_replica_fetch,
    encode_replica_fetch,
)
from millstream.storage.flush import GroupFlush
from millstream.storage.following import append_fetched, check_fetched
from millstream.storage.steps import Steps, run_in_thread
from millstream.storage.truncation import start_at, truncate

if TYPE_CHECKING:
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.metadata.store import MetadataStore
    from millstream.broker.replicas.partition import Partition
    from millstream.broker.replication.throttles import Throttle
    from millstream.broker.tasks import Tasks
    from millstream.clock import Clock
    from millstream.protocol.wire import Buffer
    from millstream.storage.log import Log

logger = logging.getLogger(__name__)

ANSWER_SECONDS_MAX = 30.0  # besides the time for which a leader may hold a fetch
THROTTLED_SECONDS_MAX = 1.0  # then look again: the rate may have changed
CHECKED_INLINE_BYTES_MAX = 65_536  # checking CRCs of more is left to a thread
EARLIEST, LATEST = -2, -1
# Errors while the metadata reach one broker before the other: they pass by themselves.
PASSING_ERRORS = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)


# The leader has evicted the session, or has been restarted; or requests were lost.
SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)

Key: TypeAlias = tuple[UUID, int]  # topic id, partition


class Leader(Protocol):
    """A connection to a leader."""

    async def request(
        self, api: str, version: int, body: bytes, *, timeout_seconds: float
    ) -> memoryview: ...

    async def call(self, api: str, fields: dict[str, Any]) -> Any: ...


class Asked(NamedTuple):
    """A partition in a request, as it was then."""

    partition: Partition
    follower: FollowerReplica
    position: FetchPosition


class Fetcher:
    """Follows one leader."""

    def __init__(
        self,
        leader_id: int,
        leader: Leader,
        *,
        metadata: MetadataStore,
        configs: ConfigManager,
        tasks: Tasks,
        clock: Clock,
        throttle: Throttle,
        on_directory_failed: Callable[[list[Log]], None],
        retake_role: Callable[[Partition], None],
    ) -> None:
        """`retake_role` is called with a partition whose role has changed during a truncation."""
        self._leader_id = leader_id
        self._leader = leader
        self._metadata = metadata
        self._configs = configs
        self._tasks = tasks
        self._clock = clock
        self._throttle = throttle
        self._on_directory_failed = on_directory_failed
        self._retake_role = retake_role
        self._partitions: set[Partition] = set()
        self._to_look_at: dict[Partition, None] = {}  # their positions may have changed
        self._held: dict[Partition, float] = {}  # and when they may be fetched again
        self._session: FollowerSession[Key] = FollowerSession()
        self._asked: dict[Key, Asked] = {}  # what the session has
        self._sent_max_bytes = 0  # of a partition
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, partition: Partition) -> None:
        self._partitions.add(partition)
        self._held.pop(partition, None)
        self._to_look_at[partition] = None
        self._changed.set()
        if self._task is None and not self._is_stopped:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def remove(self, partition: Partition) -> None:
        self._partitions.discard(partition)
        self._to_look_at.pop(partition, None)
        self._held.pop(partition, None)
        self._leave_out(partition)
        self._changed.set()

    async def stop(self) -> None:
        """Wait until nothing is written any more."""
        self._is_stopped = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while not self._is_stopped:
            self._changed.clear()
            try:
                await self._flush(list(self._to_look_at))
                self._find_positions()
                if self._session:
                    await self._fetch()
                else:
                    await self._pause()
            except ApiError as error:  # the leader cannot be reached, or answered nonsense
                logger.info("cannot fetch from broker %d: %s", self._leader_id, error)
                await self._pause(self._backoff_seconds)
            except Exception:  # a defect must not end replication for good
                logger.exception("fetching from broker %d failed", self._leader_id)
                await self._pause(self._backoff_seconds)

    @property
    def _backoff_seconds(self) -> float:
        return self._configs.current.replica_fetch_backoff_ms / 1000

    def _find_positions(self) -> None:
        """Look at the partitions that were added or answered, or that may be fetched again."""
        now = asyncio.get_running_loop().time()
        for partition in [it for it, when in self._held.items() if when <= now]:
            del self._held[partition]
            self._to_look_at[partition] = None
        looked_at, self._to_look_at = self._to_look_at, {}
        throttled_seconds = min(self._throttle.wait_ms() / 1000, THROTTLED_SECONDS_MAX)
        for partition in looked_at:
            follower = partition.following
            if follower is None or partition in self._held:
                self._leave_out(partition)
            elif throttled_seconds and follower.is_behind and self._is_throttled(partition):
                self._held[partition] = now + throttled_seconds
                self._leave_out(partition)
            else:
                self._look_at(partition, follower)

    def _look_at(self, partition: Partition, follower: FollowerReplica) -> None:
        position = follower.next_fetch()
        if position is None:
            self._leave_out(partition)
            self._to_look_at[partition] = None
            return
        key = _key(partition)
        self._asked[key] = Asked(partition, follower, position)
        self._session.fetch(key, position)

    def _leave_out(self, partition: Partition) -> None:
        key = _key(partition)
        asked = self._asked.get(key)
        if asked is not None and asked.partition is partition:
            del self._asked[key]
            self._session.leave_out(key)

    def _is_throttled(self, partition: Partition) -> bool:
        return self._throttle.applies_to(partition.topic, partition.index)

    async def _pause(self, seconds: float | None = None) -> None:
        """Until a partition may be fetched again, or is added."""
        if seconds is None:
            now = asyncio.get_running_loop().time()
            due = [max(when - now, 0.0) for when in self._held.values()]
            seconds = min(due, default=None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    # One request

    async def _fetch(self) -> None:
        config = self._configs.current
        if config.replica_fetch_max_bytes != self._sent_max_bytes:
            self._sent_max_bytes = config.replica_fetch_max_bytes
            self._session.send_again()
        seconds = ANSWER_SECONDS_MAX + config.replica_fetch_wait_max_ms / 1000
        body = self._encode(self._session.next_request())
        try:
            response = decode_replica_fetch(
                await self._leader.request("fetch", VERSION, body, timeout_seconds=seconds)
            )
        except BaseException:
            self._session.lost()
            raise
        self._session.answered(response.session_id, response.error)
        if response.error in SESSION_ERRORS:
            logger.debug("broker %d has closed the fetch session", self._leader_id)
            return  # the next request opens another
        if response.error:
            raise ApiError(_code(response.error), f"broker {self._leader_id} refused the fetch")
        appended = []
        for answer in response.answers:
            found = self._asked.get((answer.topic_id, answer.partition))
            if found is None:
                continue
            self._to_look_at[found.partition] = None
            if answer.records and self._is_throttled(found.partition):
                self._throttle.record(len(answer.records))
            if await self._answered(found, answer):
                appended.append(found.partition)
        await self._flush(appended)

    def _encode(self, request: SessionRequest[Key]) -> bytes:
        config = self._configs.current
        topics: dict[UUID, list[ReplicaPosition]] = {}
        for (topic_id, index), (offset, epoch, last_epoch, start) in request.positions.items():
            position = ReplicaPosition(
                index, epoch, offset, last_epoch, start, config.replica_fetch_max_bytes
            )
            topics.setdefault(topic_id, []).append(position)
        forgotten: dict[UUID, list[int]] = {}
        for topic_id, index in request.forgotten:
            forgotten.setdefault(topic_id, []).append(index)
        broker_id = self._configs.broker_id
        registered = self._metadata.image.brokers.get(broker_id)
        return encode_replica_fetch(
            broker_id,
            -1 if registered is None else registered.epoch,
            topics,
            forgotten,
            session=(request.session_id, request.session_epoch),
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
        )

    async def _answered(self, asked: Asked, answer: ReplicaAnswer) -> bool:
        """Returns whether something was appended."""
        partition, follower, position = asked
        if partition.following is not follower:
            return False
        effect = follower.answered(
            position,
            FetchAnswer(
                answer.error,
                answer.high_watermark,
                answer.log_start_offset,
                answer.diverging,
                answer.records,
            ),
        )
        try:
            return await self._carry_out(asked, effect)
        except (MillstreamError, OSError) as error:
            logger.warning("%r cannot follow broker %d: %s", partition, self._leader_id, error)
            follower.append_failed()
            self._hold(partition)
            return False

    async def _carry_out(self, asked: Asked, effect: Effect) -> bool:
        partition, follower, position = asked
        if isinstance(effect, Append):
            await self._append(asked, effect.records)
            return True
        if isinstance(effect, AskOffsets):
            start, end = await self._ask_offsets(partition, position)
            effect = follower.offsets(position, start, end)
        if isinstance(effect, Truncate):
            await self._truncate(asked, effect)
        elif isinstance(effect, Wipe):
            await self._wipe(asked, effect.start_offset)
        elif isinstance(effect, Retry):
            logger.log(
                logging.DEBUG if effect.error in PASSING_ERRORS else logging.WARNING,
                "%r cannot be fetched from broker %d: %s",
                *(partition, self._leader_id, _code(effect.error).name),
            )
            self._hold(partition)
        else:
            self._moved(asked)
        return False

    def _hold(self, partition: Partition) -> None:
        if partition in self._partitions:
            now = asyncio.get_running_loop().time()
            self._held[partition] = now + self._backoff_seconds

    # What is done with a log

    async def _append(self, asked: Asked, records: Buffer) -> None:
        partition, follower, position = asked
        log = partition.log
        if len(records) > CHECKED_INLINE_BYTES_MAX:
            fetched = await self._tasks.run_blocking(lambda: check_fetched(records))
        else:
            fetched = check_fetched(records)
        if partition.following is not follower:
            return
        now_ms, epoch = self._clock.now_ms(), position.leader_epoch
        try:
            followed = append_fetched(
                log, fetched, fetch_offset=position.offset, leader_epoch=epoch, now_ms=now_ms
            )
        except UnexpectedOffset as error:
            start = error.first_offset
            if log.log_start_offset < log.log_end_offset or start >= position.offset:
                raise
            # The leader starts inside a batch: begin with all of the batch.
            await self._run_steps(asked, start_at(log, start))
            if partition.following is not follower:
                return
            follower.wiped(start)
            followed = append_fetched(
                log, fetched, fetch_offset=start, leader_epoch=epoch, now_ms=now_ms
            )
        partition.transactions_ended(followed.ended)
        follower.appended(log.log_end_offset)
        self._moved(asked)

    async def _truncate(self, asked: Asked, effect: Truncate) -> None:
        partition, follower, _ = asked
        log = partition.log
        if effect.is_below_high_watermark:
            logger.warning(
                "%r is truncated to %d, below its high watermark %d: records that were committed "
                "are lost, as after an unclean election",
                *(partition, effect.offset, follower.high_watermark),
            )
        else:
            logger.info("%r is truncated from %d to %d", partition, follower.end, effect.offset)
        await self._run_steps(asked, truncate(log, effect.offset, now_ms=self._clock.now_ms()))
        follower.truncated(log.log_end_offset)
        self._moved(asked)

    async def _wipe(self, asked: Asked, start_offset: int) -> None:
        partition, follower, _ = asked
        logger.warning(
            "%r has no record that its leader has: starting again at %d", partition, start_offset
        )
        await self._run_steps(
            asked, start_at(partition.log, start_offset, now_ms=self._clock.now_ms())
        )
        follower.wiped(start_offset)
        self._moved(asked)

    async def _run_steps(self, asked: Asked, steps: Steps[None]) -> None:
        """To the end, also if this task is cancelled."""
        work = asyncio.get_running_loop().create_task(
            run_in_thread(steps, self._tasks.run_blocking)
        )
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.gather(work, return_exceptions=True)
            raise
        finally:
            if asked.partition.following is not asked.follower:
                self._retake_role(asked.partition)

    def _moved(self, asked: Asked) -> None:
        """Make the log's start and the high watermark those that the leader has told."""
        partition, follower, _ = asked
        if partition.following is not follower:
            return
        log = partition.log
        start = min(follower.leader_start, follower.high_watermark)
        if start > log.log_start_offset:
            log.delete_records_before(start)
        follower.start_moved(log.log_start_offset)
        partition.followed_to(max(follower.high_watermark, log.log_start_offset))

    async def _flush(self, partitions: list[Partition]) -> None:
        """One flush for all of them."""
        dirty = [it for it in partitions if it.log.flushed_offset < it.log.log_end_offset]
        if dirty:
            flush = GroupFlush.prepare([partition.log for partition in dirty])
            await self._tasks.run_blocking(flush.execute)
            failed = flush.complete(self._clock.now_ms())
            if failed:
                self._on_directory_failed(failed)
        for partition in partitions:
            if partition.following is not None:
                partition.following.flushed(partition.log.flushed_offset)

    async def _ask_offsets(self, partition: Partition, position: FetchPosition) -> tuple[int, int]:
        """Where the leader's log starts and ends."""
        found = []
        for timestamp in (EARLIEST, LATEST):
            response = await self._leader.call(
                "list_offsets",
                {
                    "replica_id": self._configs.broker_id,
                    "isolation_level": 0,
                    "topics": [
                        {
                            "name": partition.topic,
                            "partitions": [
                                {
                                    "partition_index": partition.index,
                                    "current_leader_epoch": position.leader_epoch,
                                    "timestamp": timestamp,
                                }
                            ],
                        }
                    ],
                },
            )
            answer = response.topics[0].partitions[0]
            if answer.error_code:
                raise ApiError(_code(answer.error_code))
            found.append(int(answer.offset))
        return found[0], found[1]


def _key(partition: Partition) -> Key:
    assert partition.topic_id is not None
    return partition.topic_id, partition.index


def _code(value: int) -> ErrorCode:
    """Of a newer broker, perhaps."""
    found = ErrorCode._value2member_map_.get(value)
    return found if isinstance(found, ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR
