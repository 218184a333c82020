"""A member of a share group (KIP-932), as its records say.

A member is immutable, as in consumer groups: a decision makes a changed copy, the copy's records
are written, and replaying them makes the group hold it. Two records keep a member: its subscription
(type 10) and its current assignment (type 14). Partitions are shared, so nobody has to give up
anything before another may take it on: a member goes from one assignment to the next in one step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from millstream.coordination.group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    TopicPartitions,
)
from millstream.coordination.groups.assignors import Assignment
from millstream.coordination.result import CoordinatorRecord

LEAVE_EPOCH = -1
_STABLE = 0  # Kafka's MemberState; members of share groups know no other


@dataclass(frozen=True, slots=True)
class ShareMember:
    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    epoch: int = 0
    previous_epoch: int = -1
    assigned: Assignment = field(default_factory=dict)

    def moved_to(self, target_epoch: int, assigned: Assignment, known_epoch: int) -> ShareMember:
        """The member with that assignment, at the target's epoch.

        Until it says the new epoch, it may come again with the one that it knows.
        """
        if target_epoch == self.epoch:
            return replace(self, assigned=assigned)
        return replace(self, epoch=target_epoch, previous_epoch=known_epoch, assigned=assigned)

    def with_subscription_of(self, value: ShareGroupMemberMetadataValue) -> ShareMember:
        return replace(
            self,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=frozenset(value.subscribed_topic_names),
        )

    def with_assignment_of(
        self, value: ShareGroupCurrentMemberAssignmentValue | None
    ) -> ShareMember:
        """The member after its assignment's record; after a tombstone it has nothing."""
        if value is None:
            return replace(self, epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH, assigned={})
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            assigned=assignment_of(value.assigned_partitions),
        )

    def subscription_record(self, group_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(
            ShareGroupMemberMetadataKey(group_id, self.member_id),
            ShareGroupMemberMetadataValue(
                rack_id=self.rack_id,
                client_id=self.client_id,
                client_host=self.client_host,
                subscribed_topic_names=tuple(sorted(self.topic_names)),
            ),
        )

    def assignment_record(self, group_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(
            ShareGroupCurrentMemberAssignmentKey(group_id, self.member_id),
            ShareGroupCurrentMemberAssignmentValue(
                member_epoch=self.epoch,
                previous_member_epoch=self.previous_epoch,
                state=_STABLE,
                assigned_partitions=topic_partitions(self.assigned),
            ),
        )


def topic_partitions(assignment: Assignment) -> tuple[TopicPartitions, ...]:
    return tuple(
        TopicPartitions(topic_id, tuple(sorted(partitions)))
        for topic_id, partitions in sorted(assignment.items())
    )


def assignment_of(topics: tuple[TopicPartitions, ...]) -> Assignment:
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics}
