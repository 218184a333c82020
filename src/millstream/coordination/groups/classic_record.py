"""The durable state of a classic group, from its last record.

The last `GroupMetadataValue` contains the generation, protocol, leader, members and their
assignments; `replay` applies it. The protocol itself, with all volatile state, is in `classic.py`.
"""

from __future__ import annotations

import logging

from millstream.coordination.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitValue,
)
from millstream.coordination.groups.classic_members import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicMember,
    Membership,
    subscribed_topics,
)
from millstream.coordination.groups.classic_messages import DescribedMember, GroupDescription
from millstream.coordination.groups.classic_state import ClassicState
from millstream.coordination.groups.group import (
    UNKNOWN_MEMBER_ID,
    GroupKind,
    OffsetCommitter,
    PartitionValidator,
)
from millstream.coordination.result import CoordinatorRecord
from millstream.errors import ApiError, ErrorCode
from millstream.records.batch import NO_TIMESTAMP

logger = logging.getLogger(__name__)


class ClassicGroupRecord:
    """The durable part of a classic group."""

    kind = GroupKind.CLASSIC

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.members = Membership()
        self.generation = 0
        self.protocol_type = ""  # "" until a member joins: a simple group
        self.protocol_name: str | None = None
        self.state = ClassicState.EMPTY
        self.state_since_ms = NO_TIMESTAMP

    # --- queries

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def leader_id(self) -> str | None:
        return self.members.leader_id

    def known_subscription(self) -> set[str] | None:
        """The topics its members consume; None if unknown."""
        if not self.uses_consumer_protocol:
            return None
        if not len(self.members):
            return set()
        if self.protocol_name is None:
            return None
        try:
            return set().union(
                *(subscribed_topics(m.metadata(self.protocol_name)) for m in self.members)
            )
        except ValueError as error:
            logger.warning("group %s: cannot decode the subscriptions: %s", self.group_id, error)
            return None

    def is_subscribed_to(self, topic: str) -> bool:
        known = self.known_subscription()
        return topic in known if known is not None else self.uses_consumer_protocol

    def describe(self) -> GroupDescription:
        """As Kafka does: metadata and assignments only while the group is stable."""
        stable = self.state is ClassicState.STABLE
        return GroupDescription(
            group_id=self.group_id,
            state=self.state_name,
            protocol_type=self.protocol_type,
            protocol=(self.protocol_name or "") if stable else "",
            members=tuple(
                DescribedMember(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata(self.protocol_name) if stable else b"",
                    assignment=member.assignment if stable else b"",
                )
                for member in self.members
            ),
        )

    # --- offsets and deletion

    def validate_offset_commit(self, commit: OffsetCommitter) -> PartitionValidator | None:
        self._require_alive()
        if commit.generation_or_epoch < 0 and self.is_empty:
            return None  # an administrator, or a consumer that does not use membership
        names_member = commit.member_id != UNKNOWN_MEMBER_ID or commit.group_instance_id is not None
        if commit.generation_or_epoch >= 0 or names_member:
            self.members.validate(commit.member_id, commit.group_instance_id)
            self._require_generation(commit.generation_or_epoch)
        elif not commit.is_transactional and not self.is_empty:
            raise ApiError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Group {self.group_id} has active members: only they may commit its offsets.",
            )
        if not commit.is_transactional and self.state is ClassicState.COMPLETING_REBALANCE:
            raise ApiError(
                ErrorCode.REBALANCE_IN_PROGRESS, f"Group {self.group_id} is rebalancing; rejoin."
            )
        return None

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Every client may fetch a classic group's offsets."""

    def validate_offset_delete(self) -> None:
        if not self.is_empty and not self.uses_consumer_protocol:
            raise self._non_empty()

    def validate_delete(self) -> None:
        if not self.is_empty:
            raise self._non_empty()

    def tombstones(self) -> tuple[CoordinatorRecord, ...]:
        return (CoordinatorRecord(GroupMetadataKey(self.group_id), None),)

    def offset_expiry_base_ms(self, offset: OffsetCommitValue) -> int | None:
        if not self.protocol_type:
            return offset.commit_timestamp_ms
        if self.is_empty:
            known = self.state_since_ms != NO_TIMESTAMP
            return self.state_since_ms if known else offset.commit_timestamp_ms
        if self.state is ClassicState.STABLE and self.known_subscription() is not None:
            return offset.commit_timestamp_ms
        return None

    # --- records

    def as_value(self, assignments: dict[str, bytes], now_ms: int) -> GroupMetadataValue:
        """The group with these assignments, as a record."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp_ms=now_ms,
            members=tuple(
                member.as_record(self.protocol_name, assignments.get(member.member_id, b""))
                for member in self.members
            ),
        )

    def replay(self, value: GroupMetadataValue) -> None:
        """Apply the record: stable with its members, or empty.

        In a live group the members exist already and get their assignments; when the group is
        loaded they are created from the record.
        """
        was_created_only = not value.members and value.generation == self.generation
        if was_created_only and self.state is not ClassicState.EMPTY:
            return  # the record that made the group; its first member is already joining
        self.protocol_type = value.protocol_type
        self.protocol_name = value.protocol
        self.generation = value.generation
        self.state_since_ms = value.current_state_timestamp_ms
        listed = {record.member_id for record in value.members}
        for member in self.members:
            successor = self._successor_in(value, member)
            if successor is not None:
                self.members.rename(member, successor)
            elif member.member_id not in listed:
                self.members.remove(member.member_id)
        for record in value.members:
            member_now = self.members.get(record.member_id)
            if member_now is None:
                self.members.add(ClassicMember.from_record(record, value.protocol))
            else:
                member_now.assignment = record.assignment
        self.members.leader_id = value.leader
        # A record is a state, not a transition: when loading, it may follow on any other.
        self.state = ClassicState.STABLE if value.members else ClassicState.EMPTY

    def _successor_in(self, value: GroupMetadataValue, member: ClassicMember) -> str | None:
        """The new id of a static member, if the record contains one."""
        for record in value.members if member.is_static else ():
            same_instance = record.group_instance_id == member.group_instance_id
            if same_instance and record.member_id != member.member_id:
                return record.member_id
        return None

    # --- errors

    def _require_alive(self) -> None:
        if self.state is ClassicState.DEAD:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.group_id} was deleted.")

    def _require_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise ApiError(
                ErrorCode.ILLEGAL_GENERATION,
                f"Group {self.group_id} is in generation {self.generation}, not {generation}.",
            )

    def _non_empty(self) -> ApiError:
        return ApiError(
            ErrorCode.NON_EMPTY_GROUP,
            f"Group {self.group_id} has {len(self.members)} members; stop them first.",
        )
