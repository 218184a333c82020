"""Moves a member from its current to its target assignment.

A partition is moved in three steps: the target changes; its owner is asked to give it up and
answers with a heartbeat that no longer contains it; only then does another member get it.
`reconcile` takes one such step for one member:

    what it keeps            = owned now, and in the target
    what it must give up     = owned now, not in the target     -> UNREVOKED_PARTITIONS, old epoch
    what it gets             = in the target, owned by nobody   -> target epoch
    what it has to wait for  = in the target, owned by another  -> UNRELEASED_PARTITIONS

A member moves to the target's epoch only once it has given up everything it must. Topics that it no
longer subscribes to count as not in its target, even before the target has been recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from uuid import UUID

from millstream.coordination.groups.assignors import Assignment
from millstream.coordination.groups.consumer_member import (
    ConsumerMember,
    EpochedPartitions,
    MemberState,
)
from millstream.errors import ApiError, ErrorCode


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The input of a step, besides the member itself."""

    target_epoch: int
    target: Assignment
    subscribed_topics: AbstractSet[UUID]
    subscription_changed: bool  # from this heartbeat
    owned: Mapping[UUID, AbstractSet[int]] | None  # from the member; None if not sent
    is_owned: Callable[[UUID, int], bool]  # whether any member of the group has the partition


def reconcile(member: ConsumerMember, step: Reconciliation) -> ConsumerMember:
    """The member after one step towards its target; unchanged if there is none."""
    match member.state:
        case MemberState.STABLE:
            if member.epoch != step.target_epoch:
                return _next_assignment(member, step)
            return _drop_unsubscribed(member, step) if step.subscription_changed else member
        case MemberState.UNREVOKED_PARTITIONS:
            if not _owns_any(step, member.pending_revocation):
                return _next_assignment(member, step)
            return _drop_unsubscribed(member, step) if step.subscription_changed else member
        case MemberState.UNRELEASED_PARTITIONS:
            return _next_assignment(member, step)
        case MemberState.UNKNOWN:
            if step.owned is None or step.owned:
                raise ApiError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The consumer group member is in an unknown state. The member must abandon "
                    "all its partitions and rejoin.",
                )
            return _next_assignment(replace(member, epoch=step.target_epoch), step)


def _owns_any(step: Reconciliation, partitions: EpochedPartitions) -> bool:
    """Whether the member still owns any of these, according to its last heartbeat."""
    if step.owned is None:
        return True
    return any(
        not owned.isdisjoint(partitions.get(topic_id, ())) for topic_id, owned in step.owned.items()
    )


def _drop_unsubscribed(member: ConsumerMember, step: Reconciliation) -> ConsumerMember:
    """Drop topics that the member no longer subscribes to, without waiting for a new target."""
    kept = {t: p for t, p in member.assigned.items() if t in step.subscribed_topics}
    if len(kept) == len(member.assigned):
        return member
    pending = {t: dict(partitions) for t, partitions in member.pending_revocation.items()}
    for topic_id, partitions in member.assigned.items():
        if topic_id not in kept:
            pending.setdefault(topic_id, {}).update(partitions)
    if _owns_any(step, pending):
        return _unrevoked(member, kept, pending)
    # It gave them up before it was asked.
    return replace(member, previous_epoch=member.epoch, assigned=kept)


def _next_assignment(member: ConsumerMember, step: Reconciliation) -> ConsumerMember:
    kept: dict[UUID, dict[int, int]] = {}
    pending_revocation: dict[UUID, dict[int, int]] = {}
    gained: dict[UUID, list[int]] = {}
    waits = False
    nothing: frozenset[int] = frozenset()
    for topic_id in member.assigned.keys() | step.target.keys():
        target = (
            step.target.get(topic_id, nothing) if topic_id in step.subscribed_topics else nothing
        )
        current = member.assigned.get(topic_id, {})
        keep = {partition: epoch for partition, epoch in current.items() if partition in target}
        revoke = {partition: epoch for partition, epoch in current.items() if partition not in keep}
        # Partitions that the member itself is giving up are not owned by others.
        own = member.pending_revocation.get(topic_id, {})
        wanted = [partition for partition in target if partition not in keep]
        free = [p for p in wanted if p in own or not step.is_owned(topic_id, p)]
        waits = waits or len(free) < len(wanted)
        if keep:
            kept[topic_id] = keep
        if revoke:
            pending_revocation[topic_id] = revoke
        if free:
            gained[topic_id] = free
    if pending_revocation and _owns_any(step, pending_revocation):
        return _unrevoked(member, kept, pending_revocation)
    for topic_id, partitions in gained.items():
        kept.setdefault(topic_id, {}).update(dict.fromkeys(partitions, step.target_epoch))
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE,
        epoch=step.target_epoch,
        previous_epoch=member.epoch,
        assigned=kept,
        pending_revocation={},
    )


def _unrevoked(
    member: ConsumerMember, kept: EpochedPartitions, pending: EpochedPartitions
) -> ConsumerMember:
    return replace(
        member,
        state=MemberState.UNREVOKED_PARTITIONS,
        previous_epoch=member.epoch,
        assigned=kept,
        pending_revocation=pending,
    )
