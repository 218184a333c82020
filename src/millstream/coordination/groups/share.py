"""The state of a share group (KIP-932), from its records, and queries on it.

Its members share partitions, so none has to be given up: the *group epoch* is bumped whenever
something changes that the assignment depends on, the target assignment is recomputed and gets its
number, and each member moves to it with its next heartbeat. To the outside a group with members is
Stable, one without is Empty.

This module only holds state: `replay` changes it, one record at a time, and nothing else does.
`share_groups.py` decides. The last compared metadata is not in the records; a reload drops it
without harm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol
from uuid import UUID

from millstream.coordination.group_records import (
    OffsetCommitValue,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from millstream.coordination.groups.assignors import NO_PARTITIONS, Assignment
from millstream.coordination.groups.group import (
    GroupKind,
    OffsetCommitter,
    PartitionValidator,
)
from millstream.coordination.groups.share_member import (
    ShareMember,
    assignment_of,
    topic_partitions,
)
from millstream.coordination.groups.share_state_partitions import NO_STATE, StatePartitions
from millstream.coordination.result import CoordinatorRecord, Result
from millstream.errors import ApiError, ErrorCode

SHARE_PROTOCOL_TYPE = "share"


class GroupEvents(Protocol):
    """Handles timers of the group: implemented by `share_groups.ShareGroups`."""

    def loaded(self, group: ShareGroup, now_ms: int) -> Result[None]: ...

    def timer_fired(self, group: ShareGroup, name: tuple[str, ...], now_ms: int) -> Result[Any]: ...


class ShareGroup:
    """One share group. Implements `Group`."""

    kind = GroupKind.SHARE
    protocol_type = SHARE_PROTOCOL_TYPE

    def __init__(self, group_id: str, events: GroupEvents) -> None:
        self.group_id = group_id
        self._events = events
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assignment_timestamp_ms = 0
        self.members: dict[str, ShareMember] = {}
        self.target: dict[str, Assignment] = {}
        self.state: StatePartitions = NO_STATE
        # Derived from the members:
        self.subscribers: Counter[str] = Counter()  # of each topic, by name
        # Caches:
        self.compared_version = -1  # of the metadata whose hash was last compared
        self._covered: dict[UUID, set[int]] | None = None  # None: not computed yet

    # --- records ---------------------------------------------------------------------------------

    def replay(self, key: Any, value: Any | None) -> None:
        """Apply a record; a tombstone of what is not there is ignored."""
        match key:
            case ShareGroupMetadataKey():
                if value is not None:
                    self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case ShareGroupMemberMetadataKey():
                self._replay_subscription(key.member_id, value)
            case ShareGroupCurrentMemberAssignmentKey():
                if value is not None or key.member_id in self.members:
                    self._put(self._member_or_new(key.member_id).with_assignment_of(value))
            case ShareGroupTargetAssignmentMemberKey():
                self._covered = None
                if value is None:
                    self.target.pop(key.member_id, None)
                else:
                    self.target[key.member_id] = assignment_of(value.topic_partitions)
            case ShareGroupTargetAssignmentMetadataKey():
                self.assignment_epoch = -1 if value is None else value.assignment_epoch
                self.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp_ms
            case ShareGroupStatePartitionMetadataKey():
                self.state = NO_STATE if value is None else StatePartitions.of(value)

    def _replay_subscription(self, member_id: str, value: Any | None) -> None:
        if value is not None:
            self._put(self._member_or_new(member_id).with_subscription_of(value))
        elif member_id in self.members:
            self._forget(self.members.pop(member_id))

    def _member_or_new(self, member_id: str) -> ShareMember:
        return self.members.get(member_id) or ShareMember(member_id)

    def _put(self, member: ShareMember) -> None:
        before = self.members.get(member.member_id)
        if before is not None:
            self._forget(before)
        self.members[member.member_id] = member
        self.subscribers.update(member.topic_names)

    def _forget(self, member: ShareMember) -> None:
        """Take the member out of everything derived."""
        self.subscribers.subtract(member.topic_names)
        for name in member.topic_names:
            if not self.subscribers[name]:
                del self.subscribers[name]

    # --- questions -------------------------------------------------------------------------------

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state_name(self) -> str:
        return "Stable" if self.members else "Empty"

    def member(self, member_id: str) -> ShareMember:
        """Raises UNKNOWN_MEMBER_ID."""
        try:
            return self.members[member_id]
        except KeyError:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            ) from None

    def target_of(self, member_id: str) -> Assignment:
        return self.target.get(member_id, NO_PARTITIONS)

    def covered(self, topic_id: UUID) -> set[int]:
        """The partitions of a topic that are assigned in the target."""
        if self._covered is None:
            self._covered = {}
            for assignment in self.target.values():
                for assigned_id, partitions in assignment.items():
                    self._covered.setdefault(assigned_id, set()).update(partitions)
        return self._covered.get(topic_id, set())

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribers

    # --- offsets: share groups commit none -------------------------------------------------------

    def validate_offset_commit(self, commit: OffsetCommitter) -> PartitionValidator | None:
        raise self._not_a_consumer_group()

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Always allowed; there are none."""

    def validate_offset_delete(self) -> None:
        raise self._not_a_consumer_group()

    def offset_expiry_base_ms(self, offset: OffsetCommitValue) -> int | None:
        return None

    def _not_a_consumer_group(self) -> ApiError:
        return ApiError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group."
        )

    def validate_delete(self) -> None:
        if not self.is_empty:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"Group {self.group_id} is not empty.")

    # --- the group as records --------------------------------------------------------------------

    def tombstones(self) -> tuple[CoordinatorRecord, ...]:
        """Tombstones that remove the group. Its own record is last: its replay removes the rest."""
        group_id = self.group_id
        keys: list[Any] = [
            *(ShareGroupCurrentMemberAssignmentKey(group_id, m) for m in self.members),
            *(ShareGroupTargetAssignmentMemberKey(group_id, m) for m in self.target),
            ShareGroupTargetAssignmentMetadataKey(group_id),
            *(ShareGroupMemberMetadataKey(group_id, m) for m in self.members),
            ShareGroupStatePartitionMetadataKey(group_id),
            ShareGroupMetadataKey(group_id),
        ]
        return tuple(CoordinatorRecord(key, None) for key in keys)

    # --- events ----------------------------------------------------------------------------------

    def loaded(self, now_ms: int) -> Result[None]:
        return self._events.loaded(self, now_ms)

    def handle_timer(self, name: tuple[str, ...], now_ms: int) -> Result[Any]:
        return self._events.timer_fired(self, name, now_ms)

    def topics_changed(self, now_ms: int) -> Result[None]:
        """No-op: the next heartbeat of any member compares the metadata's version."""
        return Result()


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        ShareGroupMetadataKey(group_id), ShareGroupMetadataValue(epoch, metadata_hash)
    )


def target_records(
    group: ShareGroup, targets: Iterable[tuple[str, Assignment]]
) -> tuple[CoordinatorRecord, ...]:
    """Records of the members' targets that changed."""
    return tuple(
        CoordinatorRecord(
            ShareGroupTargetAssignmentMemberKey(group.group_id, member_id),
            ShareGroupTargetAssignmentMemberValue(topic_partitions(target)),
        )
        for member_id, target in targets
        if group.target.get(member_id) != target
    )


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        ShareGroupTargetAssignmentMetadataKey(group_id),
        ShareGroupTargetAssignmentMetadataValue(epoch, timestamp_ms),
    )


def member_tombstones(group_id: str, member_id: str) -> tuple[CoordinatorRecord, ...]:
    """Tombstones that remove a member."""
    return (
        CoordinatorRecord(ShareGroupCurrentMemberAssignmentKey(group_id, member_id), None),
        CoordinatorRecord(ShareGroupTargetAssignmentMemberKey(group_id, member_id), None),
        CoordinatorRecord(ShareGroupMemberMetadataKey(group_id, member_id), None),
    )
