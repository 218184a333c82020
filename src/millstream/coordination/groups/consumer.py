"""The state of a consumer group (KIP-848), from its records, and queries on it.

Three epochs drive it. The *group epoch* is bumped whenever something changes that the assignment
depends on (a member, a subscription, a topic). When it is ahead of the *assignment epoch*, the
target assignment is recomputed and gets the group epoch. Each member then moves to it, one by one,
with its own *member epoch* (`consumer_assignment.py`).

    Empty         no members
    Assigning     the target assignment is older than the group
    Reconciling   some member has not reached the target yet
    Stable        all have

This module only holds state: `replay` changes it, one record at a time, and nothing else does.
`consumer_groups.py` decides. A few caches are not in the records (the last compared metadata, the
classic members that were asked to rejoin); a reload drops them without harm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol
from uuid import UUID

from millstream.coordination.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    OffsetCommitValue,
    TopicPartitions,
)
from millstream.coordination.groups.assignors import NO_PARTITIONS, Assignment
from millstream.coordination.groups.consumer_member import (
    LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
    Subscription,
)
from millstream.coordination.groups.group import (
    UNKNOWN_GENERATION,
    UNKNOWN_MEMBER_ID,
    GroupKind,
    OffsetCommitter,
    PartitionValidator,
)
from millstream.coordination.groups.regex import ResolvedRegex, regex_tombstone
from millstream.coordination.result import CoordinatorRecord, Result
from millstream.errors import ApiError, ErrorCode

CONSUMER_PROTOCOL_TYPE = "consumer"

# OffsetCommit from this version on carries a member epoch.
_COMMIT_VERSION_WITH_EPOCH = 9


class GroupEvents(Protocol):
    """Handles timers of the group: implemented by `consumer_groups.ConsumerGroups`."""

    def loaded(self, group: ConsumerGroup, now_ms: int) -> Result[None]: ...

    def timer_fired(
        self, group: ConsumerGroup, name: tuple[str, ...], now_ms: int
    ) -> Result[Any]: ...


class ConsumerGroup:
    """One consumer group. Implements `Group`."""

    kind = GroupKind.CONSUMER
    protocol_type = CONSUMER_PROTOCOL_TYPE

    def __init__(self, group_id: str, events: GroupEvents) -> None:
        self.group_id = group_id
        self._events = events
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.assignment_timestamp_ms = 0
        self.has_legacy_metadata = False
        self.members: dict[str, ConsumerMember] = {}
        self.target: dict[str, Assignment] = {}
        self.resolved: dict[str, ResolvedRegex] = {}
        # Derived from the members:
        self.static_members: dict[str, str] = {}  # instance id -> member id
        self.subscriptions: Counter[Subscription] = Counter()
        self._owners: dict[UUID, dict[int, str]] = {}
        # Caches, not in the records:
        self.compared_version = -1  # of the metadata whose hash was last compared
        self.matched_version = -1  # of the metadata that the expressions were last matched with
        self.matched_at_ms = 0
        self.told_to_rejoin: set[str] = set()  # classic members with a join timer

    # --- records ---------------------------------------------------------------------------------

    def replay(self, key: Any, value: Any | None) -> None:
        """Apply a record; a tombstone of a missing key is ignored."""
        match key:
            case ConsumerGroupMetadataKey():
                if value is not None:
                    self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case ConsumerGroupPartitionMetadataKey():
                self.has_legacy_metadata = value is not None
            case ConsumerGroupMemberMetadataKey():
                self._replay_subscription(key.member_id, value)
            case ConsumerGroupCurrentMemberAssignmentKey():
                if value is not None or key.member_id in self.members:
                    member = self._member_or_new(key.member_id)
                    self._put(member.with_assignment_of(value))
            case ConsumerGroupTargetAssignmentMemberKey():
                if value is None:
                    self.target.pop(key.member_id, None)
                else:
                    self.target[key.member_id] = _assignment_of(value)
            case ConsumerGroupTargetAssignmentMetadataKey():
                self.assignment_epoch = -1 if value is None else value.assignment_epoch
                self.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp_ms
            case ConsumerGroupRegularExpressionKey():
                if value is None:
                    self.resolved.pop(key.regular_expression, None)
                else:
                    self.resolved[key.regular_expression] = ResolvedRegex(
                        frozenset(value.topics), value.version, value.timestamp_ms
                    )

    def _replay_subscription(self, member_id: str, value: Any | None) -> None:
        if value is not None:
            self._put(self._member_or_new(member_id).with_subscription_of(value))
        elif member_id in self.members:
            member = self.members.pop(member_id)
            self._forget(member)
            self.told_to_rejoin.discard(member_id)

    def _member_or_new(self, member_id: str) -> ConsumerMember:
        return self.members.get(member_id) or ConsumerMember(member_id)

    def _put(self, member: ConsumerMember) -> None:
        before = self.members.get(member.member_id)
        if before is not None:
            self._forget(before)
        self.members[member.member_id] = member
        self.subscriptions[member.subscription] += 1
        # A leaving member must not take its instance id back from its successor.
        if member.instance_id is not None and member.epoch != LEAVE_EPOCH:
            self.static_members[member.instance_id] = member.member_id
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, epochs in partitions.items():
                owners = self._owners.setdefault(topic_id, {})
                owners.update(dict.fromkeys(epochs, member.member_id))

    def _forget(self, member: ConsumerMember) -> None:
        """Remove the member from all derived state."""
        self.subscriptions[member.subscription] -= 1
        if not self.subscriptions[member.subscription]:
            del self.subscriptions[member.subscription]
        instance_id = member.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member.member_id:
            del self.static_members[instance_id]
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, epochs in partitions.items():
                owners = self._owners.get(topic_id, {})
                for partition in epochs:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    self._owners.pop(topic_id, None)

    # --- queries -------------------------------------------------------------------------------

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        stable = all(m.is_reconciled_to(self.assignment_epoch) for m in self.members.values())
        return "Stable" if stable else "Reconciling"

    def member(self, member_id: str) -> ConsumerMember:
        """Raises UNKNOWN_MEMBER_ID."""
        try:
            return self.members[member_id]
        except KeyError:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            ) from None

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        if instance_id is None or instance_id not in self.static_members:
            return None
        return self.members[self.static_members[instance_id]]

    def target_of(self, member: ConsumerMember) -> Assignment:
        """Its target; a static member inherits its predecessor's."""
        static = self.static_member(member.instance_id)
        member_id = member.member_id if static is None else static.member_id
        return self.target.get(member_id, NO_PARTITIONS)

    def is_owned(self, topic_id: UUID, partition: int) -> bool:
        """Whether a member owns the partition, even if it must give it up."""
        return partition in self._owners.get(topic_id, ())

    def waits_for_partitions(self, member: ConsumerMember) -> bool:
        """Whether some partition of its target is still owned by another member."""
        if member.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        return any(
            partition not in member.assigned.get(topic_id, {})
            and self.is_owned(topic_id, partition)
            for topic_id, partitions in self.target.get(member.member_id, NO_PARTITIONS).items()
            for partition in partitions
        )

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in s.names for s in self.subscriptions) or any(
            topic in resolved.topics for resolved in self.resolved.values()
        )

    def preferred_assignor(self, default: str, members: Iterable[ConsumerMember]) -> str:
        """The assignor that most members prefer."""
        wishes = Counter(m.server_assignor for m in members if m.server_assignor is not None)
        return wishes.most_common(1)[0][0] if wishes else default

    @property
    def classic_members(self) -> list[ConsumerMember]:
        return [member for member in self.members.values() if member.uses_classic_protocol]

    # --- offsets ---------------------------------------------------------------------------------

    def validate_offset_commit(self, commit: OffsetCommitter) -> PartitionValidator | None:
        epoch = commit.generation_or_epoch
        if epoch < 0 and self.is_empty:
            return None  # an administrator, or a consumer that manages its own partitions
        anonymous = (commit.member_id, epoch, commit.group_instance_id) == (
            UNKNOWN_MEMBER_ID,
            UNKNOWN_GENERATION,
            None,
        )
        if commit.is_transactional and anonymous:
            return None
        member = self.member(commit.member_id)
        is_modern_commit = commit.api_version >= _COMMIT_VERSION_WITH_EPOCH
        if not (commit.is_transactional or member.uses_classic_protocol or is_modern_commit):
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                "OffsetCommit version 9 or above must be used by members using the consumer "
                "group protocol",
            )
        if epoch == member.epoch:
            return None
        if epoch > member.epoch:
            raise _stale(member, f"{epoch} is newer than the current member epoch {member.epoch}")
        return lambda topic, topic_id, partition: _validate_old_commit(
            member, epoch, topic, topic_id, partition
        )

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is None and member_epoch < 0:
            return
        member = self.member(member_id or UNKNOWN_MEMBER_ID)
        if member_epoch != member.epoch:
            raise _stale(member, f"{member_epoch} does not match the member epoch {member.epoch}")

    def validate_offset_delete(self) -> None:
        """Offsets of topics without subscribers can be deleted at any time."""

    def validate_delete(self) -> None:
        if not self.is_empty:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"Group {self.group_id} is not empty.")

    def offset_expiry_base_ms(self, offset: OffsetCommitValue) -> int | None:
        return offset.commit_timestamp_ms

    # --- the group as records --------------------------------------------------------------------

    def tombstones(self) -> tuple[CoordinatorRecord, ...]:
        """Tombstones that remove the group. Its own record is last: its replay removes the rest."""
        group_id = self.group_id
        keys: list[Any] = [
            *(ConsumerGroupCurrentMemberAssignmentKey(group_id, m) for m in self.members),
            *(ConsumerGroupTargetAssignmentMemberKey(group_id, m) for m in self.target),
            ConsumerGroupTargetAssignmentMetadataKey(group_id),
            *(ConsumerGroupMemberMetadataKey(group_id, m) for m in self.members),
            *(regex_tombstone(group_id, regex).key for regex in self.resolved),
            ConsumerGroupPartitionMetadataKey(group_id),
            ConsumerGroupMetadataKey(group_id),
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


def _stale(member: ConsumerMember, what: str) -> ApiError:
    """The error for a stale epoch, in terms of the member's protocol."""
    if member.uses_classic_protocol:
        return ApiError(ErrorCode.ILLEGAL_GENERATION, f"The received generation id {what}.")
    return ApiError(ErrorCode.STALE_MEMBER_EPOCH, f"The received member epoch {what}.")


def _validate_old_commit(
    member: ConsumerMember, epoch: int, topic: str, topic_id: UUID, partition: int
) -> None:
    """A commit from before an epoch bump is valid for partitions that the member still owns."""
    assigned_since = member.assignment_epoch(topic_id, partition)
    if assigned_since is None:
        raise _stale(
            member, f"{epoch} is old, and {topic}-{partition} is not the member's any more"
        )
    if epoch < assigned_since:
        raise _stale(
            member,
            f"{epoch} is older than the assignment of {topic}-{partition} in {assigned_since}",
        )


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        ConsumerGroupMetadataKey(group_id), ConsumerGroupMetadataValue(epoch, metadata_hash)
    )


def target_record(group_id: str, member_id: str, assignment: Assignment) -> CoordinatorRecord:
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMemberKey(group_id, member_id),
        ConsumerGroupTargetAssignmentMemberValue(
            tuple(
                TopicPartitions(topic_id, tuple(sorted(partitions)))
                for topic_id, partitions in sorted(assignment.items())
            )
        ),
    )


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        ConsumerGroupTargetAssignmentMetadataKey(group_id),
        ConsumerGroupTargetAssignmentMetadataValue(epoch, timestamp_ms),
    )


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """Tombstones that remove a member. Order matters: first free its partitions."""
    return [
        CoordinatorRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None),
        CoordinatorRecord(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None),
        CoordinatorRecord(ConsumerGroupMemberMetadataKey(group_id, member_id), None),
    ]


def _assignment_of(
    value: ConsumerGroupTargetAssignmentMemberValue,
) -> Mapping[UUID, frozenset[int]]:
    return {topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions}
