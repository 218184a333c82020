"""A member of a consumer group (KIP-848), from its records.

A member is immutable; a decision makes a changed copy, the copy's records are written, and
replaying them makes the group hold it. Two records keep a member: its subscription (type 5) and its
current assignment (type 8). Its epoch is the version of the target that it has reached.

    STABLE                  it owns its target of that epoch, limited to its subscription
    UNREVOKED_PARTITIONS    it must give up partitions first; it keeps its epoch until it has
    UNRELEASED_PARTITIONS   it waits for partitions that another member has yet to give up

Partitions carry the epoch since which they are assigned, to distinguish a commit from before an
epoch bump from that of a zombie (KIP-1251).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple, TypeAlias
from uuid import UUID

from millstream.coordination.group_records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    EpochedTopicPartitions,
)
from millstream.coordination.result import CoordinatorRecord

# topic id -> partition -> the epoch since which the member has it
EpochedPartitions: TypeAlias = Mapping[UUID, Mapping[int, int]]

LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


class MemberState(IntEnum):
    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    # Written by a later version of Kafka with more states.
    UNKNOWN = 127

    @classmethod
    def of(cls, value: int) -> MemberState:
        return cls(value) if value in cls._value2member_map_ else cls.UNKNOWN


class Subscription(NamedTuple):
    """A member's topics, by name and by regular expression (`None` or "": none)."""

    names: frozenset[str] = frozenset()
    regex: str | None = None


NO_SUBSCRIPTION = Subscription()


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscription: Subscription = NO_SUBSCRIPTION
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None  # set while it uses the classic protocol
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: EpochedPartitions = field(default_factory=dict)
    pending_revocation: EpochedPartitions = field(default_factory=dict)

    @property
    def uses_classic_protocol(self) -> bool:
        return self.classic is not None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def assignment_epoch(self, topic_id: UUID, partition: int) -> int | None:
        """The epoch since which it owns the partition; None if it does not."""
        for partitions in (self.assigned, self.pending_revocation):
            epoch = partitions.get(topic_id, {}).get(partition)
            if epoch is not None:
                return epoch
        return None

    def left_for_a_while(self) -> ConsumerMember:
        """A static member that will rejoin: it keeps its partitions under its next id."""
        return replace(
            self,
            epoch=STATIC_LEAVE_EPOCH,
            pending_revocation={},
            assigned={t: dict.fromkeys(partitions, 0) for t, partitions in self.assigned.items()},
        )

    def with_subscription_of(self, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscription=Subscription(
                frozenset(value.subscribed_topic_names), value.subscribed_topic_regex
            ),
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def with_assignment_of(
        self, value: ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> ConsumerMember:
        """The member after its assignment's record; after a tombstone it owns nothing."""
        if value is None:
            return replace(
                self,
                epoch=LEAVE_EPOCH,
                previous_epoch=LEAVE_EPOCH,
                assigned={},
                pending_revocation={},
            )
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState.of(value.state),
            assigned=_from_records(value.assigned_partitions, value.member_epoch),
            pending_revocation=_from_records(
                value.partitions_pending_revocation, value.member_epoch
            ),
        )

    def subscription_record(self, group_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(
            ConsumerGroupMemberMetadataKey(group_id, self.member_id),
            ConsumerGroupMemberMetadataValue(
                instance_id=self.instance_id,
                rack_id=self.rack_id,
                client_id=self.client_id,
                client_host=self.client_host,
                subscribed_topic_names=tuple(sorted(self.subscription.names)),
                subscribed_topic_regex=self.subscription.regex,
                rebalance_timeout_ms=self.rebalance_timeout_ms,
                server_assignor=self.server_assignor,
                classic_member_metadata=self.classic,
            ),
        )

    def assignment_record(self, group_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(
            ConsumerGroupCurrentMemberAssignmentKey(group_id, self.member_id),
            ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=self.epoch,
                previous_member_epoch=self.previous_epoch,
                state=self.state,
                assigned_partitions=_to_records(self.assigned),
                partitions_pending_revocation=_to_records(self.pending_revocation),
            ),
        )


def owned_partitions(member: ConsumerMember) -> dict[UUID, frozenset[int]]:
    """The partitions of a member, including those it must still give up."""
    partitions = {t: frozenset(epochs) for t, epochs in member.assigned.items()}
    for topic_id, epochs in member.pending_revocation.items():
        partitions[topic_id] = partitions.get(topic_id, frozenset()) | frozenset(epochs)
    return partitions


def _to_records(partitions: EpochedPartitions) -> tuple[EpochedTopicPartitions, ...]:
    return tuple(
        EpochedTopicPartitions(
            topic_id,
            tuple(sorted(epochs)),
            tuple(epochs[partition] for partition in sorted(epochs)),
        )
        for topic_id, epochs in sorted(partitions.items())
    )


def _from_records(
    topics: tuple[EpochedTopicPartitions, ...], member_epoch: int
) -> dict[UUID, dict[int, int]]:
    """Records of Kafka before 4.3 have no partition epochs: use the member's."""
    assignment = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = (member_epoch,) * len(topic.partitions)
        assignment[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return assignment
