"""Validation of heartbeats of the consumer protocol."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.coordination.groups.consumer import ConsumerGroup
from millstream.coordination.groups.consumer_member import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
)
from millstream.coordination.groups.consumer_messages import ConsumerHeartbeat
from millstream.coordination.groups.group import GroupSettings
from millstream.errors import ApiError, ErrorCode

# From this version on, members choose their ids themselves (KIP-1082).
_MEMBER_ID_REQUIRED_VERSION = 1


def validate_heartbeat(request: ConsumerHeartbeat, assignors: Sequence[str]) -> None:
    """Raise INVALID_REQUEST or UNSUPPORTED_ASSIGNOR for an invalid request."""
    has_own_id = request.api_version >= _MEMBER_ID_REQUIRED_VERSION
    if has_own_id or request.member_epoch > 0 or request.member_epoch == LEAVE_EPOCH:
        _require(bool(request.member_id), "MemberId can't be empty.")
    _require(bool(request.group_id), "GroupId can't be empty.")
    _require(request.instance_id != "", "InstanceId can't be empty.")
    _require(request.rack_id != "", "RackId can't be empty.")
    if request.member_epoch == 0:
        _require(
            request.rebalance_timeout_ms != -1,
            "RebalanceTimeoutMs must be provided in first request.",
        )
        _require(
            request.owned is not None and not request.owned,
            "TopicPartitions must be empty when (re-)joining.",
        )
        # An empty subscription is valid; a missing one is not.
        _require(
            request.topic_names is not None or request.topic_regex is not None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining.",
        )
    elif request.member_epoch == STATIC_LEAVE_EPOCH:
        _require(request.instance_id is not None, "InstanceId can't be null.")
    _require(request.member_epoch >= STATIC_LEAVE_EPOCH, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(assignors)}.",
        )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ApiError(ErrorCode.INVALID_REQUEST, message)


def require_room(
    group: ConsumerGroup, member_id: str, instance_id: str | None, settings: GroupSettings
) -> None:
    """A full group accepts only existing members."""
    is_known = member_id in group.members or instance_id in group.static_members
    if not is_known and len(group.members) >= settings.group_consumer_max_size:
        raise ApiError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            "The consumer group has reached its maximum capacity of "
            f"{settings.group_consumer_max_size} members.",
        )


def require_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
    """Fence a member with an unexpected epoch.

    Its previous epoch is valid too, if it owns only its assigned partitions: then it did not
    receive the answer with the new epoch.
    """
    if request.member_epoch == member.epoch:
        return
    lost_the_answer = request.member_epoch == member.previous_epoch and _owns_at_most(
        request, member
    )
    if request.member_epoch > member.epoch or not lost_the_answer:
        size = "greater" if request.member_epoch > member.epoch else "smaller"
        raise ApiError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {size} member epoch ({request.member_epoch}) than "
            f"the one known by the group coordinator ({member.epoch}). The member must abandon "
            "all its partitions and rejoin.",
        )


def _owns_at_most(request: ConsumerHeartbeat, member: ConsumerMember) -> bool:
    return request.owned is not None and all(
        partitions <= member.assigned.get(topic_id, {}).keys()
        for topic_id, partitions in request.owned.items()
    )


def require_instance(
    group: ConsumerGroup, static: ConsumerMember | None, member_id: str, instance_id: str
) -> ConsumerMember:
    """The static member, if it owns the instance id."""
    if static is None:
        raise ApiError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Instance id {instance_id} is unknown in group {group.group_id}.",
        )
    if static.member_id != member_id:
        raise ApiError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{static.member_id}.",
        )
    return static


def require_released(predecessor: ConsumerMember, request: ConsumerHeartbeat) -> None:
    """A static member can be replaced only after it has left (with epoch -2)."""
    if predecessor.epoch != STATIC_LEAVE_EPOCH:
        raise ApiError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {request.instance_id} cannot "
            f"join the group because the instance id is owned by {predecessor.member_id} member.",
        )
