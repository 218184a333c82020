"""One partition as one share group consumes it, at the broker that leads the partition.

The window (`coordination.sharing`) makes the decisions; this class does the I/O:

    load       the state is read from the persister; a group that begins here gets its start offset
               from share.auto.offset.reset, and that is persisted before the first record leaves
    write      acknowledgements are answered when the persister has them. All that arrive during a
               write go into the next one: one flush serves many members
    time       one timer, for the next lock that runs out or delayed record that becomes due
    dead       failed records wait for their dead letters; everything else continues
    letters

Waiting fetches are notified when records may be available.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from millstream.broker.error_codes import SHARE_STATE_GONE, to_member_error
from millstream.config.groups import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    share_reset_timestamp_ms,
)
from millstream.coordination.share_state import (
    NO_START_OFFSET,
    DeliveryState,
    SharePartitionKey,
    StateBatch,
)
from millstream.coordination.sharing.acquisition import Acquired, Wish, acquire
from millstream.coordination.sharing.changes import Change
from millstream.coordination.sharing.limits import Limits
from millstream.coordination.sharing.runs import Run
from millstream.coordination.sharing.window import Dying, ShareWindow
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.broker.replicas.partition import Partition
    from millstream.broker.sharing.dead_letters import DeadLetter
    from millstream.broker.sharing.reading import LogRead
    from millstream.broker.tasks import Tasks
    from millstream.clock import Clock
    from millstream.config.groups import GroupConfig
    from millstream.coordination.share_state import ShareState
    from millstream.storage.lookup import TimestampOffset

logger = logging.getLogger(__name__)

LETTERS_AT_ONCE = 500
NO_TIME = -1
LETTER_RETRY_SECONDS = 0.5
LETTER_RETRY_SECONDS_MAX = 30.0

Done: TypeAlias = Callable[[ApiError | None], None]


class Persister(Protocol):
    """Stores the state of share partitions."""

    async def initialize(
        self, key: SharePartitionKey, state_epoch: int, start_offset: int
    ) -> None: ...

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState: ...

    async def write(
        self,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None: ...


class DeadLetterWriter(Protocol):
    """Writes the dead letters of a group; they are durable when `write` returns."""

    async def write(
        self, group_id: str, partition: Partition, letters: Sequence[DeadLetter]
    ) -> None: ...


class WaitingFetch(Protocol):
    """A fetch that waits for records."""

    def look_again(self) -> None:
        """Something has changed: look at all partitions at the end of this turn of the loop."""

    def look_now(self) -> None:
        """Look at all partitions at once."""


class OldRecords(Protocol):
    """What is archived of partitions."""

    async def wait_until_loaded(self, partition: Partition) -> None:
        """Raises `ApiError` if it takes too long to find out what is archived."""

    async def offset_for_timestamp(
        self, partition: Partition, timestamp_ms: int
    ) -> TimestampOffset | None:
        """In the archive or in the log. Raises `ApiError`."""


class LeaderListener(Protocol):
    """Notified when a share leader ends or becomes idle."""

    def leader_ended(self, leader: ShareLeader) -> None: ...

    def leader_rests(self, leader: ShareLeader) -> None: ...


class InFlight(NamedTuple):
    """Consecutive records with the same state, for tools."""

    first_offset: int
    last_offset: int
    state: DeliveryState
    delivery_count: int
    member_id: str | None  # that holds them
    is_delayed: bool
    remaining_ms: int  # of the lock or of the delay


class ShareLeader:
    """All calls from the event loop's thread."""

    def __init__(
        self,
        key: SharePartitionKey,
        partition: Partition,
        listener: LeaderListener,
        *,
        tasks: Tasks,
        clock: Clock,
        persister: Persister,
        group_config: Callable[[str], GroupConfig],
        dead_letters: DeadLetterWriter,
        archiving: OldRecords,
    ) -> None:
        """`group_config` returns the same object until the group's settings may have changed."""
        self.key = key
        self.partition = partition
        self.window: ShareWindow | None = None  # None while the state is loading
        self.error: ApiError | None = None  # set when it has ended: a new leader must be made
        self.is_reading = False  # a thread is reading the log for it
        self._is_skipping = False  # it looks for the end of damage to the log
        self.bytes_per_record = 0.0  # as last seen in the log
        self._tasks = tasks
        self._clock = clock
        self._persister = persister
        self._group_config = group_config
        self._dead_letters = dead_letters
        self._archiving = archiving
        self._listener = listener
        self._leader_epoch = partition.leader_epoch
        self._state_epoch = 0
        self._limits = Limits()
        self._limits_config: GroupConfig | None = None  # that they were taken from
        self._warned_of_refused_delays = False
        self._waiting: dict[WaitingFetch, None] = {}
        self._queue: list[tuple[Change, Done | None]] = []
        self._is_writing = False
        self._is_burying = False
        self._timer: asyncio.Handle | None = None
        self._timer_at_ms = 0

    def __repr__(self) -> str:
        return f"<ShareLeader {self.key.group_id} {self.partition.topic}-{self.partition.index}>"

    # Life

    def start(self) -> None:
        self.partition.watch(self)
        self._tasks.start(self._load())

    async def _load(self) -> None:
        try:
            await self._read_state()
        except ApiError as error:
            # What is archived may not be known yet: members try again.
            is_temporary = error.code in (
                ErrorCode.OFFSET_NOT_AVAILABLE,
                ErrorCode.KAFKA_STORAGE_ERROR,
            )
            self.end(error if is_temporary else to_member_error(error))
        except Exception:
            logger.exception("failed to load %r", self)
            self.end(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the share state was not loaded"))

    async def _read_state(self) -> None:
        persister = self._persister
        state = await persister.read(self.key, self._leader_epoch)
        self._state_epoch = state.state_epoch
        start_offset = state.start_offset
        batches = self._to_monotonic(state.batches)
        log_end = self.partition.high_watermark
        if start_offset == NO_START_OFFSET:
            start_offset = await self._begin()
        elif start_offset > log_end:
            logger.warning(
                "%r: the log ends at %d, before the group's offset %d: continuing from there",
                self,
                log_end,
                start_offset,
            )
            # The persister ignores offsets before its start offset.
            await persister.initialize(self.key, self._state_epoch, log_end)
            start_offset, batches = log_end, []
        if self.error is None:
            self.window = ShareWindow.restored(start_offset, batches, self._current_limits())
            self._changed()
            # As in Kafka, the first partition that is loaded answers a fetch of several: it does
            # not wait for the others, even if they are loaded in the same turn of the loop.
            for fetch in tuple(self._waiting):
                fetch.look_now()

    async def _begin(self) -> int:
        """Determine the start of the group. It is persisted at once, or a crash could move it past
        records that were delivered but not acknowledged."""
        start_offset = await self._first_offset()
        await self._persister.write(
            self.key,
            state_epoch=self._state_epoch,
            leader_epoch=self._leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=0,
            batches=(),
        )
        return start_offset

    async def _first_offset(self) -> int:
        """By share.auto.offset.reset."""
        partition = self.partition
        strategy = self._group_config(self.key.group_id).share_auto_offset_reset
        timestamp = share_reset_timestamp_ms(strategy, self._clock.now_ms())
        if timestamp == EARLIEST_TIMESTAMP:
            await self._archiving.wait_until_loaded(partition)
            return partition.start_offset
        if timestamp != LATEST_TIMESTAMP:
            found = await self._archiving.offset_for_timestamp(partition, timestamp)
            if found is not None and found.offset < partition.high_watermark:
                return found.offset
        return partition.high_watermark

    def end(self, error: ApiError) -> None:
        """Stop: the state has another owner, or the partition was deleted."""
        if self.error is not None:
            return
        self.error = error
        self.partition.unwatch(self)
        if self._timer is not None:
            self._timer.cancel()
        self._listener.leader_ended(self)
        # A write that is under way completes or is fenced. The next one must not be made: if the
        # state was deleted and created again, it would change the new state.
        self._refuse_queued(error)
        self._wake()

    def _refuse_queued(self, error: ApiError) -> None:
        queued, self._queue = self._queue, []
        for _, done in queued:
            if done is not None:
                done(error)

    def partition_changed(self, partition: Partition) -> None:
        if partition.offline_error is not None:
            self.end(partition.offline_error)
        else:
            self._wake()

    # The settings and the clocks

    def settings_changed(self) -> None:
        """The group's settings may have changed: there may be room for more records."""
        self._wake()

    def _current_limits(self) -> Limits:
        """The group's limits, by the settings in force."""
        config = self._group_config(self.key.group_id)
        if config is not self._limits_config:
            self._limits_config = config
            self._limits = Limits(
                lock_duration_ms=config.share_record_lock_duration_ms,
                record_locks_max=config.share_partition_max_record_locks,
                delivery_count_max=config.share_delivery_count_limit,
                can_renew=config.share_renew_acknowledge_enable,
                has_dead_letters=bool(config.errors_deadletterqueue_topic_name),
                backoff_ms=config.share_retry_backoff_ms,
                backoff_max_ms=config.share_retry_backoff_max_ms,
                backoff_multiplier=config.share_retry_backoff_multiplier,
                delayed_max=config.share_retry_max_delayed_records,
            )
        return self._limits

    def _to_monotonic(self, batches: Iterable[StateBatch]) -> list[StateBatch]:
        """Persisted due times use the wall clock, those of the window the monotonic clock.

        A due time beyond the longest back-off is capped: the clock or the setting has changed.
        """
        monotonic_ms = self._clock.monotonic_ms()
        ahead_ms = self._clock.now_ms() - monotonic_ms
        latest_ms = monotonic_ms + self._current_limits().backoff_max_ms
        shifted = (_shifted(batch, -ahead_ms) for batch in batches)
        return [batch._replace(due_ms=min(batch.due_ms, latest_ms)) for batch in shifted]

    def _to_wall_clock(self, batches: Iterable[StateBatch]) -> list[StateBatch]:
        ahead_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        return [_shifted(batch, ahead_ms) for batch in batches]

    # Requests of members

    @property
    def can_acquire(self) -> bool:
        """Whether there are records that could be acquired."""
        window = self.window
        if window is None or window.next_fetch_offset >= self.partition.high_watermark:
            return False  # the common case for fetches of many partitions
        window = self._open_window()
        if window is None or self.is_reading or self._is_skipping:
            return False
        return window.can_acquire

    def _open_window(self) -> ShareWindow | None:
        """The window, updated to the current settings and to where records begin."""
        window = self.window
        if window is None or self.error is not None:
            return None
        window.limits = self._current_limits()
        start_offset = self.partition.known_start_offset
        if start_offset is not None and start_offset > window.start_offset:
            window.log_starts_at(start_offset)
        return window

    def acquire(self, wish: Wish, read: LogRead) -> list[Acquired]:
        """Acquire records of this read for a member."""
        window = self._open_window()
        if window is None:
            return []
        acquired = acquire(
            window,
            wish,
            read.offset,
            read.batches,
            self._clock.monotonic_ms(),
            aborted=read.aborted,
        )
        self._arm()
        return acquired

    def skip_damage(self) -> None:
        """The log is damaged at the next records: skip them."""
        if not self._is_skipping:
            self._is_skipping = True
            self._tasks.start(self._skip_damage())

    async def _skip_damage(self) -> None:
        window = self._open_window()
        try:
            if window is not None:
                first = window.next_fetch_offset
                end = await self._tasks.run_blocking(self.partition.end_of_damage, first)
                if end > first:
                    logger.error(
                        "%r: the log is damaged: skipping offsets %d to %d",
                        self,
                        first,
                        end - 1,
                    )
                    window.give_up(first, end - 1)
        except (ApiError, OSError) as error:  # the next read gets the error
            logger.warning("%r: cannot find the end of the damaged range: %s", self, error)
        finally:
            self._is_skipping = False
        self._changed()

    def acknowledge(
        self, member_id: str, ranges: Iterable[tuple[int, int, int]], done: Done
    ) -> None:
        """Acknowledge records as (first offset, last offset, type); calls `done` when durable."""
        window = self._open_window()
        if window is None:
            done(self.error or ApiError(ErrorCode.INVALID_RECORD_STATE, "no records are in flight"))
            return
        try:
            change = window.acknowledge(member_id, ranges, self._clock.monotonic_ms())
        except ApiError as error:
            done(error)
            return
        if change.runs:
            self._enqueue(change, done)
        else:  # renewed, or already done
            self._arm()
            done(None)

    def release(self, member_id: str) -> None:
        """The member left: release its records."""
        window = self._open_window()
        if window is not None:
            change = window.release(member_id, self._clock.monotonic_ms())
            if change.runs:
                self._enqueue(change)

    def describe(self) -> list[StateBatch]:
        return [] if self.window is None else self._to_wall_clock(self.window.describe())

    def in_flight(self) -> list[InFlight] | None:
        """Every record of the window with the member that holds it; None while it is loading."""
        if self.window is None:
            return None
        now_ms = self._clock.monotonic_ms()
        return [
            InFlight(
                run.first,
                run.last,
                run.state,
                run.delivery_count,
                run.member_id if run.state is DeliveryState.ACQUIRED else None,
                bool(run.due_ms),
                max(0, until_ms - now_ms) if (until_ms := _ends_at(run)) else NO_TIME,
            )
            for run in self.window.runs
        ]

    # Waiting fetches

    def watch(self, fetch: WaitingFetch) -> None:
        self._waiting[fetch] = None
        if self._timer is not None and self._timer_at_ms <= self._clock.monotonic_ms():
            # The loop is late, or somebody has advanced the clock.
            self._timer.cancel()
            self._timer = self._tasks.loop.call_soon(self._tick)

    def unwatch(self, fetch: WaitingFetch) -> None:
        self._waiting.pop(fetch, None)

    def _wake(self) -> None:
        for fetch in tuple(self._waiting):
            fetch.look_again()

    def reading_ended(self) -> None:
        self.is_reading = False
        self._wake()

    # Writing

    @property
    def is_writing(self) -> bool:
        return self._is_writing

    @property
    def is_at_rest(self) -> bool:
        """Whether no record is locked and nothing is to be written: it can be unloaded. Also true
        while it is loading."""
        window = self.window
        return (window is None or window.is_at_rest) and not self._is_writing

    def _enqueue(self, change: Change, done: Done | None = None) -> None:
        self._queue.append((change, done))
        if not self._is_writing:
            self._is_writing = True
            self._tasks.start(self._write_queue())

    async def _write_queue(self) -> None:
        try:
            while self._queue and self.error is None:
                queued, self._queue = self._queue, []
                await self._write(queued)
        finally:
            self._is_writing = False
        if self.is_at_rest:
            self._listener.leader_rests(self)

    async def _write(self, queued: Sequence[tuple[Change, Done | None]]) -> None:
        assert self.window is not None
        changes = [change for change, _ in queued]
        error: ApiError | None = None
        try:
            write = self.window.prepare_write(changes)
            await self._persister.write(
                self.key,
                state_epoch=self._state_epoch,
                leader_epoch=self._leader_epoch,
                start_offset=write.start_offset,
                delivery_complete_count=write.delivery_complete_count,
                batches=self._to_wall_clock(write.batches),
            )
        except ApiError as refusal:
            error = to_member_error(refusal)
        except Exception:
            logger.exception("%r: failed to write the share state", self)
            error = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "the share state was not written")
        if error is None:
            for change in changes:
                self.window.commit(change)
        else:
            self._roll_back(changes)
        for _, done in queued:
            if done is not None:
                done(error)
        if error is not None and error.code in (
            *SHARE_STATE_GONE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ):
            self.end(error)
        self._changed()

    def _roll_back(self, changes: Iterable[Change]) -> None:
        assert self.window is not None
        now_ms = self._clock.monotonic_ms()
        for change in changes:
            timed_out = self.window.rollback(change, now_ms)
            if timed_out.batches:
                self._queue.append((timed_out, None))  # the current writer continues with it

    def _changed(self) -> None:
        """The window has changed: update the timer, dead letters and waiting fetches."""
        if self.error is not None or self.window is None:
            return
        if self.window.delay_was_refused and not self._warned_of_refused_delays:
            self._warned_of_refused_delays = True
            logger.warning(
                "%r: more released records than share.retry.max.delayed.records (%d): the others "
                "are redelivered without delay",
                self,
                self._limits.delayed_max,
            )
        if self.window.dying_count and not self._is_burying:
            self._is_burying = True
            self._tasks.start(self._bury())
        self._arm()
        self._wake()

    # Time

    def _arm(self) -> None:
        """Schedule `tick` for the window's next deadline."""
        deadline_ms = None if self.window is None else self.window.next_deadline_ms()
        if deadline_ms is None or self.error is not None:
            return
        if self._timer is not None:
            if self._timer_at_ms <= deadline_ms:
                return  # it comes earlier, and looks for the next deadline then
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        delay_ms = max(deadline_ms - self._clock.monotonic_ms(), 0)
        self._timer = self._tasks.loop.call_later(delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        window = self._open_window()
        if window is None:
            return
        change = window.tick(self._clock.monotonic_ms())
        if change.batches:
            self._enqueue(change)
        self._changed()

    # Dead letters

    async def _bury(self) -> None:
        """Write dead letters, then archive their records."""
        retry_seconds = LETTER_RETRY_SECONDS
        try:
            while self.error is None and self.window is not None and self.window.dying_count:
                dying = _at_most(LETTERS_AT_ONCE, self.window.dying())
                try:
                    await self._write_letters(dying)
                except ApiError:  # already logged; the records are kept
                    await asyncio.sleep(retry_seconds)
                    retry_seconds = min(2 * retry_seconds, LETTER_RETRY_SECONDS_MAX)
                    continue
                retry_seconds = LETTER_RETRY_SECONDS
                for run in dying:
                    change = self.window.bury(run.first_offset, run.last_offset)
                    if change.batches:
                        self._enqueue(change)
                self._wake()
        finally:
            self._is_burying = False

    async def _write_letters(self, dying: Iterable[Dying]) -> None:
        from millstream.broker.sharing.dead_letters import MESSAGES, DeadLetter

        letters = [
            DeadLetter(offset, run.delivery_count, run.reason, MESSAGES[run.reason])
            for run in dying
            for offset in range(run.first_offset, run.last_offset + 1)
        ]
        await self._dead_letters.write(self.key.group_id, self.partition, letters)


def _shifted(batch: StateBatch, by_ms: int) -> StateBatch:
    return batch._replace(due_ms=max(batch.due_ms + by_ms, 1)) if batch.due_ms else batch


def _at_most(count: int, dying: Iterable[Dying]) -> list[Dying]:
    """The first so many of them."""
    some: list[Dying] = []
    for run in dying:
        if count <= 0:
            break
        last_offset = min(run.last_offset, run.first_offset + count - 1)
        some.append(run._replace(last_offset=last_offset))
        count -= last_offset - run.first_offset + 1
    return some


def _ends_at(run: Run) -> int:
    """When the lock or the delay of these records ends; 0 if there is none."""
    return run.lock_end_ms if run.state is DeliveryState.ACQUIRED else run.due_ms
