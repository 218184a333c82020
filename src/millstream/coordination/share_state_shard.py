"""One shard of the share coordinator: the states in one partition of `__share_group_state`.

It stores the state of share partitions (`share_state.py`) for the partition leaders.
Two epochs fence stale requests:

    state epoch     incremented when the group's offset is reset: earlier writes are refused with
                    FENCED_STATE_EPOCH
    leader epoch    incremented when a new leader reads the state: reads and writes of older ones
    are
                    refused with FENCED_LEADER_EPOCH

A write is recorded as an update, and after `updates_per_snapshot` of them as a snapshot. A state
that is not written for `COLD_SNAPSHOT_INTERVAL_MS` gets a snapshot too, because nothing after the
oldest snapshot can be deleted.

A power cut can leave a partition's log shorter than the delivered range (acks=1 is answered
before the flush), and other records get those offsets. So when a shard is loaded, it drops state
beyond the ends of the logs: nothing there was delivered yet.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from millstream.coordination.result import CoordinatorRecord, Result, SetTimer
from millstream.coordination.share_state import (
    DONE,
    NO_COUNT,
    NO_START_OFFSET,
    SharePartitionKey,
    ShareState,
    ShareStateSummary,
    StateBatch,
    StateWrite,
    combine,
    cut,
)
from millstream.coordination.share_state_records import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from millstream.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

COLD_SNAPSHOT_INTERVAL_MS = 60_000  # Kafka: 5 minutes
COLD_SNAPSHOT_TIMER = ("shard", "snapshot-cold")
_FIRST_EPOCH = 0


@dataclass(slots=True)
class _Known:
    """A replayed state."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: list[StateBatch]
    create_timestamp_ms: int
    write_timestamp_ms: int
    update_count: int = 0  # since the snapshot


class ShareStateShard:
    """The states of the share partitions that belong to one partition of the topic."""

    def __init__(
        self,
        *,
        updates_per_snapshot: Callable[[], int],
        partition_count: Callable[[uuid.UUID], int | None],
        recovered_end: Callable[[SharePartitionKey], int | None],
    ) -> None:
        """`recovered_end` returns the end of a partition's log at the broker's start; None if
        nothing can have been lost since the states were written."""
        self._updates_per_snapshot = updates_per_snapshot
        self._partition_count = partition_count
        self._recovered_end = recovered_end
        self._states: dict[SharePartitionKey, _Known] = {}

    # --- records

    def replay(self, record: CoordinatorRecord) -> None:
        key, value = record.key, record.value
        share_key = SharePartitionKey(key.group_id, key.topic_id, key.partition)
        if isinstance(value, ShareUpdateValue):
            self._replay_update(share_key, value)
        elif isinstance(value, ShareSnapshotValue):
            self._replay_snapshot(share_key, value)
        else:
            self._states.pop(share_key, None)

    def _replay_snapshot(self, key: SharePartitionKey, value: ShareSnapshotValue) -> None:
        self._states[key] = _Known(
            snapshot_epoch=value.snapshot_epoch,
            state_epoch=value.state_epoch,
            leader_epoch=value.leader_epoch,
            start_offset=value.start_offset,
            delivery_complete_count=value.delivery_complete_count,
            batches=list(value.state_batches),
            create_timestamp_ms=value.create_timestamp_ms,
            write_timestamp_ms=value.write_timestamp_ms,
        )

    def _replay_update(self, key: SharePartitionKey, value: ShareUpdateValue) -> None:
        known = self._states.get(key)
        if known is None:
            return  # its snapshot was pruned: a tombstone follows
        known.leader_epoch = max(known.leader_epoch, value.leader_epoch)
        if value.start_offset != NO_START_OFFSET:
            known.start_offset = value.start_offset
        known.delivery_complete_count = value.delivery_complete_count
        combine(known.batches, value.state_batches, known.start_offset)
        known.update_count += 1

    def loaded(self, now_ms: int) -> Result[None]:
        """Every record has been replayed. Topics and ends of logs may have gone meanwhile."""
        topic_ids = {key.topic_id for key in self._states}
        gone = self.topics_deleted(
            known for known in topic_ids if self._partition_count(known) is None
        )
        again = SetTimer(COLD_SNAPSHOT_TIMER, now_ms + COLD_SNAPSHOT_INTERVAL_MS)
        return Result((*self._cut_to_logs(now_ms), *gone.records), timers=(again,))

    def handle_timer(self, name: tuple[str, ...], now_ms: int) -> Result[None]:
        again = SetTimer(COLD_SNAPSHOT_TIMER, now_ms + COLD_SNAPSHOT_INTERVAL_MS)
        return Result(tuple(self._cold_snapshots(now_ms)), timers=(again,))

    # --- requests of leaders and the group coordinator

    def initialize(
        self, key: SharePartitionKey, state_epoch: int, start_offset: int, now_ms: int
    ) -> Result[ErrorCode]:
        """InitializeShareGroupState: start at that offset."""
        self._require_partition(key)
        _require_epoch("state epoch", state_epoch)
        known = self._states.get(key)
        if known is not None and known.state_epoch > state_epoch:
            raise _fenced_state(key, state_epoch, known)
        self._require_topic(key)
        if known is not None and (known.state_epoch, known.start_offset) == (
            state_epoch,
            start_offset,
        ):
            return Result(response=ErrorCode.NONE)  # the same request again
        value = ShareSnapshotValue(
            snapshot_epoch=known.snapshot_epoch + 1 if known is not None else _FIRST_EPOCH,
            state_epoch=state_epoch,
            leader_epoch=known.leader_epoch if known is not None else _FIRST_EPOCH,
            start_offset=start_offset,
            # The start is known, so the lag is too, even before the first delivery.
            delivery_complete_count=NO_COUNT if start_offset == NO_START_OFFSET else 0,
            create_timestamp_ms=now_ms,
            write_timestamp_ms=now_ms,
            state_batches=(),
        )
        return Result((CoordinatorRecord(ShareSnapshotKey(*key), value),), ErrorCode.NONE)

    def read(self, key: SharePartitionKey, leader_epoch: int, now_ms: int) -> Result[ShareState]:
        """ReadShareGroupState: the state, for a leader of that epoch."""
        self._require_partition(key)
        _require_epoch("leader epoch", leader_epoch)
        known = self._initialized(key, "read")
        if known.leader_epoch > leader_epoch:
            raise _fenced_leader(key, leader_epoch, known)
        self._require_topic(key)
        state = _state(known)._replace(leader_epoch=leader_epoch)
        if known.leader_epoch == leader_epoch:
            return Result(response=state)
        return Result((self._record(key, known, leader_epoch, (), now_ms),), state)

    def peek(self, key: SharePartitionKey) -> ShareState:
        """Read without fencing, for callers that do not lead the partition."""
        self._require_partition(key)
        return _state(self._initialized(key, "read"))

    def read_summary(self, key: SharePartitionKey) -> ShareStateSummary:
        """ReadShareGroupStateSummary: an uninitialized state has start offset -1."""
        self._require_partition(key)
        self._require_topic(key)
        known = self._states.get(key)
        if known is None:
            return ShareStateSummary()
        return ShareStateSummary(
            known.state_epoch,
            known.leader_epoch,
            known.start_offset,
            known.delivery_complete_count,
        )

    def write(self, write: StateWrite, now_ms: int) -> Result[ErrorCode]:
        """WriteShareGroupState: merge the changes."""
        key = write.key
        self._require_partition(key)
        _require_epoch("leader epoch", write.leader_epoch)
        _require_epoch("state epoch", write.state_epoch)
        known = self._initialized(key, "written")
        if known.leader_epoch > write.leader_epoch:
            raise _fenced_leader(key, write.leader_epoch, known)
        if known.state_epoch > write.state_epoch:
            raise _fenced_state(key, write.state_epoch, known)
        self._require_topic(key)
        record = self._record(
            key,
            known,
            known.leader_epoch,
            write.batches,
            now_ms,
            start_offset=max(write.start_offset, known.start_offset),
            delivery_complete_count=_complete_count(write, known),
        )
        return Result((record,), ErrorCode.NONE)

    def delete(self, key: SharePartitionKey) -> Result[ErrorCode]:
        """DeleteShareGroupState: a no-op if there is no state."""
        self._require_partition(key)
        self._require_topic(key)
        if key not in self._states:
            return Result(response=ErrorCode.NONE)
        return Result((_tombstone(key),), ErrorCode.NONE)

    def topics_deleted(self, topic_ids: Iterable[uuid.UUID]) -> Result[None]:
        """These topics were deleted: delete their state."""
        gone = frozenset(topic_ids)
        return Result(tuple(_tombstone(key) for key in self._states if key.topic_id in gone))

    # --- records that would change a state

    def _record(
        self,
        key: SharePartitionKey,
        known: _Known,
        leader_epoch: int,
        batches: tuple[StateBatch, ...],
        now_ms: int,
        *,
        start_offset: int | None = None,
        delivery_complete_count: int | None = None,
    ) -> CoordinatorRecord:
        """An update, or a snapshot when its time has come."""
        if start_offset is None:
            start_offset = known.start_offset
        if delivery_complete_count is None:
            delivery_complete_count = known.delivery_complete_count
        if known.update_count < self._updates_per_snapshot():
            changed: list[StateBatch] = []
            combine(changed, batches, start_offset)
            update = ShareUpdateValue(
                known.snapshot_epoch,
                leader_epoch,
                start_offset,
                tuple(changed),
                delivery_complete_count,
            )
            return CoordinatorRecord(ShareUpdateKey(*key), update)
        everything = list(known.batches)
        combine(everything, batches, start_offset)
        snapshot = ShareSnapshotValue(
            known.snapshot_epoch + 1,
            known.state_epoch,
            leader_epoch,
            start_offset,
            now_ms,
            now_ms,
            tuple(everything),
            delivery_complete_count,
        )
        return CoordinatorRecord(ShareSnapshotKey(*key), snapshot)

    def _cold_snapshots(self, now_ms: int) -> Iterable[CoordinatorRecord]:
        """Snapshots of what was not written for long, unless nothing at all was written."""
        states = self._states.values()
        if all(known.create_timestamp_ms != known.write_timestamp_ms for known in states):
            return
        for key, known in self._states.items():
            if now_ms - known.write_timestamp_ms < COLD_SNAPSHOT_INTERVAL_MS:
                continue
            value = ShareSnapshotValue(
                known.snapshot_epoch + 1,
                known.state_epoch,
                known.leader_epoch,
                known.start_offset,
                known.create_timestamp_ms,
                now_ms,
                tuple(known.batches),
                known.delivery_complete_count,
            )
            yield CoordinatorRecord(ShareSnapshotKey(*key), value)

    def _cut_to_logs(self, now_ms: int) -> Iterable[CoordinatorRecord]:
        """Snapshots truncated at the ends of the logs."""
        for key, known in self._states.items():
            end = self._recovered_end(key)
            known_end = known.batches[-1].last_offset + 1 if known.batches else known.start_offset
            if end is None or known_end <= end:
                continue
            logger.warning(
                "%s: state up to offset %d, but the log ends at %d: new records there will be "
                "delivered",
                _named(key),
                known_end,
                end,
            )
            batches = cut(known.batches, end)
            done_count = sum(
                batch.last_offset - batch.first_offset + 1
                for batch in batches
                if batch.delivery_state in DONE
            )
            value = ShareSnapshotValue(
                known.snapshot_epoch + 1,
                known.state_epoch,
                known.leader_epoch,
                min(known.start_offset, end),
                now_ms,
                now_ms,
                batches,
                min(known.delivery_complete_count, done_count),
            )
            yield CoordinatorRecord(ShareSnapshotKey(*key), value)

    # --- refusals

    def _initialized(self, key: SharePartitionKey, done: str) -> _Known:
        known = self._states.get(key)
        if known is None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"{_named(key)} is not initialized and cannot be {done}.",
            )
        return known

    def _require_partition(self, key: SharePartitionKey) -> None:
        if key.partition < 0:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "The partition id cannot be a negative number."
            )

    def _require_topic(self, key: SharePartitionKey) -> None:
        count = self._partition_count(key.topic_id)
        if count is None or key.partition >= count:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Unknown partition {key.partition} of topic {key.topic_id}.",
            )


def _complete_count(write: StateWrite, known: _Known) -> int:
    """The number of done offsets from the new start on: a late write may have less."""
    if write.start_offset > known.start_offset:
        return write.delivery_complete_count
    if write.start_offset == known.start_offset:
        return max(write.delivery_complete_count, known.delivery_complete_count)
    return known.delivery_complete_count


def _state(known: _Known) -> ShareState:
    return ShareState(
        known.state_epoch,
        known.leader_epoch,
        known.start_offset,
        known.delivery_complete_count,
        tuple(known.batches),
    )


def _tombstone(key: SharePartitionKey) -> CoordinatorRecord:
    return CoordinatorRecord(ShareSnapshotKey(*key), None)


def _require_epoch(name: str, epoch: int) -> None:
    if epoch < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"The {name} cannot be a negative number.")


def _fenced_state(key: SharePartitionKey, epoch: int, known: _Known) -> ApiError:
    return ApiError(
        ErrorCode.FENCED_STATE_EPOCH,
        f"Stale state epoch {epoch} of {_named(key)}; the current one is {known.state_epoch}.",
    )


def _fenced_leader(key: SharePartitionKey, epoch: int, known: _Known) -> ApiError:
    return ApiError(
        ErrorCode.FENCED_LEADER_EPOCH,
        f"Stale leader epoch {epoch} of {_named(key)}; the current one is {known.leader_epoch}.",
    )


def _named(key: SharePartitionKey) -> str:
    return f"The state of group {key.group_id} in partition {key.partition} of {key.topic_id}"
