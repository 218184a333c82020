"""ShareGroupDescribe, v1: epochs, members and assignments of share groups (KIP-932).

Every group that was asked for is in the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import require_group, require_visible
from millstream.broker.handlers.describe_groups import group_operations
from millstream.broker.services import RequestContext
from millstream.broker.sharing.acknowledging import require_share_groups
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.groups.share_member import ShareMember
from millstream.coordination.groups.share_messages import ShareGroupDescription
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest

    from millstream.protocol.messages import Fields


async def share_group_describe(
    context: RequestContext, request: ShareGroupDescribeRequest
) -> Fields:
    answers = []
    for group_id in request.group_ids:
        group = await _describe(context, group_id)
        is_asked = request.include_authorized_operations and group.error is ErrorCode.NONE
        operations = group_operations(context, group_id, is_asked=is_asked)
        encoded = _encoded(group, context.services.metadata.image)
        answers.append({**encoded, "authorized_operations": operations})
    return {"groups": answers}


async def _describe(context: RequestContext, group_id: str) -> ShareGroupDescription:
    groups = context.services.coordinators.groups
    try:
        require_share_groups(context.services.metadata.image)
        require_group(context, Operation.DESCRIBE, group_id)
        group = await groups.read(group_id, lambda shard: shard.share_groups.describe(group_id))
        require_visible(context, {topic_id for it in group.members for topic_id in it.assigned})
        return group
    except ApiError as error:
        code, message = error.code, error.message
        if code is ErrorCode.COORDINATOR_NOT_AVAILABLE and groups.has_no_groups:
            # There are no groups yet.
            code, message = ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
        return ShareGroupDescription(group_id, code, message)


def _encoded(group: ShareGroupDescription, image: ClusterImage) -> dict[str, Any]:
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


def _encoded_member(member: ShareMember, image: ClusterImage) -> dict[str, Any]:
    topics = [
        {
            "topic_id": topic_id,
            "topic_name": image.topics_by_id[topic_id].name,
            "partitions": sorted(partitions),
        }
        for topic_id, partitions in sorted(member.assigned.items())
        if topic_id in image.topics_by_id
    ]
    return {
        "member_id": member.member_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topic_names),
        "assignment": {"topic_partitions": topics},
    }
