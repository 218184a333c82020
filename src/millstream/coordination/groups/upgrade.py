"""Online migration of a group from the classic to the consumer protocol, and back.

    upgrade     the first member that sends a consumer heartbeat turns a classic group of consumers
                into a consumer group. Its classic members stay in it with what they own
    both        the server assigns partitions to members of both kinds. Heartbeat answers ask
                classic ones to rejoin; they send their owned partitions in JoinGroup and get
                their assignment in SyncGroup; their generation is their member epoch, and there
                is no leader
    downgrade   when the last consumer-protocol member has gone and classic ones are left, the group
                becomes classic again and rebalances

`group.consumer.migration.policy` sets what is allowed. An empty group can always be converted: by
the shard for JoinGroup, by `to_consumer_group` for a heartbeat.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from millstream.coordination.group_records import (
    ClassicMemberMetadata,
    GroupMetadataKey,
    GroupMetadataValue,
)
from millstream.coordination.groups.classic import ClassicGroup
from millstream.coordination.groups.classic_members import ClassicMember, Membership
from millstream.coordination.groups.classic_messages import (
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeavingMember,
    LeftMember,
    SyncRequest,
    SyncResponse,
)
from millstream.coordination.groups.consumer import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerGroup,
    GroupEvents,
    epoch_record,
    target_epoch_record,
    target_record,
)
from millstream.coordination.groups.consumer_member import (
    ConsumerMember,
    MemberState,
    Subscription,
    owned_partitions,
)
from millstream.coordination.groups.consumer_prospect import metadata_hash
from millstream.coordination.groups.consumer_validation import require_instance, require_room
from millstream.coordination.groups.embedded_protocol import (
    EmbeddedAssignment,
    EmbeddedSubscription,
    by_topic_id,
    by_topic_name,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    version_of,
)
from millstream.coordination.groups.group import (
    UNKNOWN_MEMBER_ID,
    Group,
    GroupSettings,
    Topics,
    group_timer,
)
from millstream.coordination.record_codec import CorruptRecord
from millstream.coordination.result import CoordinatorRecord, Result, ResultBuilder
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.coordination.groups.consumer_messages import Partitions
    from millstream.coordination.groups.group import GroupContext


class UpgradableGroups(GroupEvents, Protocol):
    """What an upgrade or downgrade needs of `consumer_groups.ConsumerGroups`."""

    context: GroupContext

    def extend_session(
        self, group: ConsumerGroup, member: ConsumerMember, out: ResultBuilder, now_ms: int
    ) -> None: ...

    def succeed(
        self, group: ConsumerGroup, old: ConsumerMember, member_id: str, out: ResultBuilder
    ) -> ConsumerMember: ...

    def advance(
        self,
        group: ConsumerGroup,
        before: ConsumerMember,
        updated: ConsumerMember,
        owned: Partitions | None,
        out: ResultBuilder,
        now_ms: int,
    ) -> ConsumerMember: ...

    def fence(
        self,
        group: ConsumerGroup,
        members: Sequence[ConsumerMember],
        reason: str,
        out: ResultBuilder,
        now_ms: int,
    ) -> None: ...


_UPGRADING_POLICIES = ("bidirectional", "upgrade")
_DOWNGRADING_POLICIES = ("bidirectional", "downgrade")


# --- upgrade -------------------------------------------------------------------------------------


def to_consumer_group(
    groups: UpgradableGroups, group: Group, out: ResultBuilder, now_ms: int
) -> ConsumerGroup:
    """The classic group as a consumer group to be; GROUP_ID_NOT_FOUND where that cannot be."""
    if not isinstance(group, ClassicGroup):
        raise _cannot_upgrade(group, "it is not a consumer group")
    if group.is_empty:
        out.extend(group.tombstones())
        return ConsumerGroup(group.group_id, groups)
    _require_upgradable(group, groups.context.settings)
    members = [_upgraded(group, member, groups.context.topics) for member in group.members]
    _release_waiting_members(group, out)
    records = tuple(_records_of(group, members, groups.context.topics))
    out.extend(group.tombstones())
    out.extend(records)
    upgraded = ConsumerGroup(group.group_id, groups)
    for record in records:
        upgraded.replay(record.key, record.value)
    for member in members:
        groups.extend_session(upgraded, member, out, now_ms)
    return upgraded


def _require_upgradable(group: ClassicGroup, settings: GroupSettings) -> None:
    if settings.group_consumer_migration_policy.lower() not in _UPGRADING_POLICIES:
        raise _cannot_upgrade(group, "online upgrade is disabled")
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise _cannot_upgrade(group, "the group does not use the consumer embedded protocol")
    if len(group.members) > settings.group_consumer_max_size:
        raise _cannot_upgrade(group, "the group size exceeds the consumer group maximum size")


def _cannot_upgrade(group: Group, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}.",
    )


def _upgraded(group: ClassicGroup, member: ClassicMember, topics: Topics) -> ConsumerMember:
    """The classic member with what its last assignment gave it, as if it were the target."""
    assignment = EmbeddedAssignment(())
    try:
        subscription = decode_subscription(
            member.metadata(group.protocol_name or member.protocols[0].name)
        )
        if member.assignment:  # none before its first sync
            assignment = decode_assignment(member.assignment)
    except CorruptRecord as error:
        raise _cannot_upgrade(
            group, f"the embedded consumer protocol is malformed ({error})"
        ) from error
    if assignment.user_data:
        raise _cannot_upgrade(
            group,
            "an unsupported custom assignor is in use; switch to a default assignor before "
            "re-attempting the upgrade",
        )
    owned = by_topic_id(assignment.assigned_partitions, topics)
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        subscription=Subscription(frozenset(subscription.topics)),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMemberMetadata(member.session_timeout_ms, member.protocols),
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned={t: dict.fromkeys(p, group.generation) for t, p in owned.items()},
    )


def _records_of(
    group: ClassicGroup, members: list[ConsumerMember], topics: Topics
) -> Iterable[CoordinatorRecord]:
    group_id, generation = group.group_id, group.generation
    names = frozenset().union(*(member.subscription.names for member in members))
    yield from (member.subscription_record(group_id) for member in members)
    yield epoch_record(group_id, generation, metadata_hash(names, topics))
    for member in members:
        target = {t: frozenset(partitions) for t, partitions in member.assigned.items()}
        yield target_record(group_id, member.member_id, target)
    yield target_epoch_record(group_id, generation, 0)
    yield from (member.assignment_record(group_id) for member in members)


def _release_waiting_members(group: ClassicGroup, out: ResultBuilder) -> None:
    """Joins and syncs that wait for a classic rebalance would wait forever: ask to retry."""
    for member in group.members:
        error = ErrorCode.REBALANCE_IN_PROGRESS
        if member.join_token is not None:
            out.answer(member.join_token, JoinResponse(error, member.member_id))
        if member.sync_token is not None:
            out.answer(member.sync_token, SyncResponse(error))
    for timer in ("join", "sync"):
        out.cancel_timer(group_timer(group.group_id, timer))


# --- downgrade -----------------------------------------------------------------------------------


def can_downgrade(
    group: ConsumerGroup,
    leaving: Collection[ConsumerMember],
    settings: GroupSettings,
    joining_count: int = 0,
) -> bool:
    """Whether the group is to become classic without these members."""
    leaving_ids = {member.member_id for member in leaving}
    staying = [m for m in group.members.values() if m.member_id not in leaving_ids]
    return (
        0 < len(staying) + joining_count <= settings.group_max_size
        and all(member.uses_classic_protocol for member in staying)
        and settings.group_consumer_migration_policy.lower() in _DOWNGRADING_POLICIES
    )


def to_classic_group(
    groups: UpgradableGroups,
    group: ConsumerGroup,
    leaving: Collection[ConsumerMember],
    out: ResultBuilder,
    now_ms: int,
    joining: ConsumerMember | None = None,
) -> None:
    """Write the group as a classic one, without those leaving.

    Everyone's assignment is what it may still own, not its target (as in Kafka): should a member of
    the consumer protocol come before they have rejoined, the group must know. And nobody leads, so
    that a classic group loaded from these records knows that it has to rebalance.
    """
    leaving_ids = {member.member_id for member in leaving}
    staying = [m for m in group.members.values() if m.member_id not in leaving_ids]
    if joining is not None:
        staying.append(joining)
    membership = Membership()
    for member in staying:
        membership.add(_downgraded(member))
        groups.extend_session(group, member, out, now_ms)
        for timer in ("rebalance", "join", "sync"):
            out.cancel_timer(group_timer(group.group_id, timer, member.member_id))
    out.cancel_timer(group_timer(group.group_id, "assign"))
    protocol = membership.select_protocol()
    assignments = {
        member.member_id: _embedded_assignment(
            owned_partitions(member), member, groups.context.topics
        )
        for member in staying
    }
    out.extend(group.tombstones())
    out.write(
        GroupMetadataKey(group.group_id),
        GroupMetadataValue(
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            generation=group.epoch,
            protocol=protocol,
            leader=None,
            current_state_timestamp_ms=now_ms,
            members=tuple(m.as_record(protocol, assignments[m.member_id]) for m in membership),
        ),
    )
    # The classic group exists once the records are replayed; only then can it start to rebalance.
    out.set_timer(group_timer(group.group_id, "downgraded"), now_ms)


def _downgraded(member: ConsumerMember) -> ClassicMember:
    classic = _classic_of(member)
    return ClassicMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        protocols=classic.supported_protocols,
    )


def _classic_of(member: ConsumerMember) -> ClassicMemberMetadata:
    """What is known of a classic member; UNKNOWN_MEMBER_ID for one of the consumer protocol."""
    if member.classic is None:
        raise ApiError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member {member.member_id} does not use the classic protocol.",
        )
    return member.classic


def _embedded_assignment(
    partitions: Mapping[UUID, Iterable[int]], member: ConsumerMember, topics: Topics
) -> bytes:
    version = version_of(_classic_of(member).supported_protocols[0].metadata)
    return encode_assignment(EmbeddedAssignment(by_topic_name(partitions, topics)), version)


# --- both ----------------------------------------------------------------------------------------


def join(
    groups: UpgradableGroups,
    group: ConsumerGroup,
    request: JoinRequest,
    token: object,
    now_ms: int,
) -> Result[None]:
    """A classic member joins or rejoins a consumer group: answered without waiting."""
    settings = groups.context.settings
    if settings.group_consumer_migration_policy.lower() == "disabled":
        raise _inconsistent(f"group {group.group_id} is not open to classic members")
    is_unknown = request.member_id == UNKNOWN_MEMBER_ID
    member_id = groups.context.new_member_suffix() if is_unknown else request.member_id
    require_room(group, member_id, request.group_instance_id, settings)
    _require_common_protocol(group, request)
    out = ResultBuilder()
    if is_unknown and request.group_instance_id is None and request.requires_member_id:
        out.answer(token, JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        return out.result()
    try:
        subscription = decode_subscription(request.protocols[0].metadata)
    except CorruptRecord as error:
        raise _inconsistent(f"its subscription is malformed: {error}") from error
    predecessor = group.static_member(request.group_instance_id)
    if predecessor is not None and not is_unknown:
        require_instance(group, predecessor, member_id, predecessor.instance_id or "")
    if _replaces_the_last_modern_member(group, predecessor, settings):
        assert predecessor is not None
        member = _joined(replace(predecessor, member_id=member_id), request, subscription)
        to_classic_group(groups, group, [predecessor], out, now_ms, joining=member)
        out.answer(token, _join_response(member, group.epoch))
        return out.result()
    if predecessor is not None and predecessor.member_id != member_id:
        before = groups.succeed(group, predecessor, member_id, out)
    else:
        before = group.members.get(member_id) or ConsumerMember(member_id)
    owned = by_topic_id(subscription.owned_partitions, groups.context.topics)
    updated = _joined(before, request, subscription)
    member = groups.advance(group, before, updated, owned, out, now_ms)
    group.told_to_rejoin.discard(member_id)
    out.cancel_timer(group_timer(group.group_id, "join", member_id))
    groups.extend_session(group, member, out, now_ms)
    out.set_timer(
        group_timer(group.group_id, "sync", member_id), now_ms + request.rebalance_timeout_ms
    )
    out.answer(token, _join_response(member, member.epoch))
    return out.result()


def _replaces_the_last_modern_member(
    group: ConsumerGroup, predecessor: ConsumerMember | None, settings: GroupSettings
) -> bool:
    return (
        predecessor is not None
        and not predecessor.uses_classic_protocol
        and can_downgrade(group, [predecessor], settings, joining_count=1)
    )


def _joined(
    member: ConsumerMember, request: JoinRequest, subscription: EmbeddedSubscription
) -> ConsumerMember:
    return replace(
        member,
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscription=Subscription(frozenset(subscription.topics), ""),
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        classic=ClassicMemberMetadata(request.session_timeout_ms, request.protocols),
    )


def _join_response(member: ConsumerMember, generation: int) -> JoinResponse:
    """There is no leader, so no member gets the list of members: the server assigns."""
    return JoinResponse(
        ErrorCode.NONE,
        member.member_id,
        generation=generation,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=_classic_of(member).supported_protocols[0].name,
    )


def _require_common_protocol(group: ConsumerGroup, request: JoinRequest) -> None:
    """So that they could go on without us, classic members must share an assignor."""
    offered = {protocol.name for protocol in request.protocols}
    for member in group.classic_members:
        offered &= {protocol.name for protocol in _classic_of(member).supported_protocols}
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not offered:
        raise _inconsistent(f"member {request.member_id}'s protocols are not supported")


def _inconsistent(reason: str) -> ApiError:
    return ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Cannot join: {reason}.")


def sync(
    groups: UpgradableGroups,
    group: ConsumerGroup,
    request: SyncRequest,
    token: object,
    now_ms: int,
) -> Result[None]:
    """A classic member fetches the assignment that goes with its last JoinGroup."""
    member = _validated(group, request.member_id, request.group_instance_id, request.generation)
    protocol = _classic_of(member).supported_protocols[0].name
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE):
        raise _inconsistent(f"the group is of type {CONSUMER_PROTOCOL_TYPE}")
    if request.protocol_name not in (None, protocol):
        raise _inconsistent(f"its JoinGroup was answered with the protocol {protocol}")
    out = ResultBuilder()
    rejoins = member.state is MemberState.UNREVOKED_PARTITIONS
    if group.assignment_epoch > member.epoch and not rejoins:
        _tell_to_rejoin(group, member, out, now_ms)
        out.answer(token, SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS))
        return out.result()
    out.cancel_timer(group_timer(group.group_id, "sync", member.member_id))
    groups.extend_session(group, member, out, now_ms)
    assignment = _embedded_assignment(member.assigned, member, groups.context.topics)
    response = SyncResponse(
        ErrorCode.NONE, request.protocol_type, request.protocol_name, assignment
    )
    out.answer(token, response)
    return out.result()


def heartbeat(
    groups: UpgradableGroups, group: ConsumerGroup, request: HeartbeatRequest, now_ms: int
) -> Result[ErrorCode]:
    """A classic member is alive; it must rejoin if its assignment changes."""
    member = _validated(group, request.member_id, request.group_instance_id, request.generation)
    out = ResultBuilder()
    groups.extend_session(group, member, out, now_ms)
    waits_in_vain = (
        member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_partitions(member)
    )
    must_revoke = member.state is MemberState.UNREVOKED_PARTITIONS
    if member.epoch < group.assignment_epoch or must_revoke or waits_in_vain:
        _tell_to_rejoin(group, member, out, now_ms)
        return out.result(ErrorCode.REBALANCE_IN_PROGRESS)
    return out.result(ErrorCode.NONE)


def _tell_to_rejoin(
    group: ConsumerGroup, member: ConsumerMember, out: ResultBuilder, now_ms: int
) -> None:
    """It has its rebalance timeout to do so, from the first request to rejoin."""
    if member.member_id not in group.told_to_rejoin:
        group.told_to_rejoin.add(member.member_id)
        deadline_ms = now_ms + member.rebalance_timeout_ms
        out.set_timer(group_timer(group.group_id, "join", member.member_id), deadline_ms)


def leave(
    groups: UpgradableGroups, group: ConsumerGroup, request: LeaveRequest, now_ms: int
) -> Result[tuple[LeftMember, ...]]:
    """LeaveGroup: members leave, or an administrator removes them (of either protocol)."""
    left: list[LeftMember] = []
    leaving: dict[str, ConsumerMember] = {}
    for identity in request.members:
        try:
            member = _leaving_member(group, identity)
        except ApiError as error:
            left.append(LeftMember(identity.member_id, identity.group_instance_id, error.code))
        else:
            leaving[member.member_id] = member
            left.append(LeftMember(identity.member_id, identity.group_instance_id))
    out = ResultBuilder()
    groups.fence(group, list(leaving.values()), "it left with LeaveGroup", out, now_ms)
    return out.result(tuple(left))


def _leaving_member(group: ConsumerGroup, identity: LeavingMember) -> ConsumerMember:
    instance_id = identity.group_instance_id
    if instance_id is None:
        return group.member(identity.member_id)
    static = group.static_member(instance_id)
    if static is not None and identity.member_id == UNKNOWN_MEMBER_ID:
        return static
    return require_instance(group, static, identity.member_id, instance_id)


def _validated(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> ConsumerMember:
    """The classic member, if it is in the group and in this generation."""
    if instance_id is None:
        member = group.member(member_id)
    else:
        member = require_instance(group, group.static_member(instance_id), member_id, instance_id)
    _classic_of(member)
    if generation != member.epoch:
        raise ApiError(
            ErrorCode.ILLEGAL_GENERATION,
            f"The request generation id {generation} is not equal to the member epoch "
            f"{member.epoch} of member {member.member_id}.",
        )
    return member
