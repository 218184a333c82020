"""ConsumerGroupDescribe, v0-1: epochs, members and assignments of consumer groups (KIP-848).

* v1: whether a member uses the classic or the consumer protocol

Every group that was asked for is in the answer: librdkafka aborts its process otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import require_group, require_visible
from millstream.broker.handlers.describe_groups import group_operations
from millstream.broker.services import RequestContext
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.groups.consumer_messages import (
    ConsumerGroupDescription,
    DescribedConsumer,
    Partitions,
)
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest

    from millstream.protocol.messages import Fields

CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


async def consumer_group_describe(
    context: RequestContext, request: ConsumerGroupDescribeRequest
) -> Fields:
    answers = []
    for group_id in request.group_ids:
        group = await _describe(context, group_id)
        is_asked = request.include_authorized_operations and group.error is ErrorCode.NONE
        operations = group_operations(context, group_id, is_asked=is_asked)
        encoded = _encoded(group, context.services.metadata.image)
        answers.append({**encoded, "authorized_operations": operations})
    return {"groups": answers}


async def _describe(context: RequestContext, group_id: str) -> ConsumerGroupDescription:
    groups = context.services.coordinators.groups
    try:
        require_group(context, Operation.DESCRIBE, group_id)
        group = await groups.read(group_id, lambda shard: shard.consumer_groups.describe(group_id))
        held = {topic_id for it in group.members for topic_id in (*it.assigned, *it.target)}
        require_visible(context, held)
        return group
    except ApiError as error:
        code, message = error.code, error.message
        if code is ErrorCode.COORDINATOR_NOT_AVAILABLE and groups.has_no_groups:
            # There are no groups yet.
            code, message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} was not found."
        return ConsumerGroupDescription(group_id, code, message)


def _encoded(group: ConsumerGroupDescription, image: ClusterImage) -> dict[str, Any]:
    return {
        "error_code": group.error,
        "error_message": group.error_message,
        "group_id": group.group_id,
        "group_state": group.state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [_encoded_member(member, image) for member in group.members],
    }


def _encoded_member(described: DescribedConsumer, image: ClusterImage) -> dict[str, Any]:
    member = described.member
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.subscription.names),
        "subscribed_topic_regex": member.subscription.regex,
        "assignment": _named(described.assigned, image),
        "target_assignment": _named(described.target, image),
        "member_type": CLASSIC_MEMBER if member.uses_classic_protocol else CONSUMER_MEMBER,
    }


def _named(partitions: Partitions, image: ClusterImage) -> dict[str, Any]:
    """The partitions with their topics' names; topics that are gone are left out."""
    topics = []
    for topic_id, held in sorted(partitions.items()):
        topic = image.topics_by_id.get(topic_id)
        if topic is not None:
            topics.append(
                {"topic_id": topic_id, "topic_name": topic.name, "partitions": sorted(held)}
            )
    return {"topic_partitions": topics}
