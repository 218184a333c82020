"""DeleteShareGroupOffsets, v0: delete offsets of a share group without members."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from millstream.broker.handlers._rights import require_group, split_topics
from millstream.broker.services import RequestContext
from millstream.broker.sharing.acknowledging import require_share_groups
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.delete_share_group_offsets.v0.request import DeleteShareGroupOffsetsRequest

    from millstream.protocol.messages import Fields


async def delete_share_group_offsets(
    context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> Fields:
    services = context.services
    names, refused = split_topics(
        context,
        Operation.READ,
        [topic.topic_name for topic in request.topics],
        lambda name: name,
    )
    try:
        require_share_groups(context.services.metadata.image)
        require_group(context, Operation.DELETE, request.group_id)
        deleted = await services.coordinators.share_groups.delete_offsets(
            request.group_id, names, services.share_partitions.forget
        )
    except ApiError as error:
        return {
            "error_code": error.code,
            "error_message": error.message or error.code.description,
            "responses": [],
        }
    return {
        "error_code": ErrorCode.NONE,
        "responses": [
            {
                "topic_name": topic.topic,
                "topic_id": topic.topic_id or UUID(int=0),
                "error_code": topic.error,
                "error_message": topic.error_message,
            }
            for topic in deleted
        ]
        + [
            {
                "topic_name": name,
                "topic_id": UUID(int=0),
                "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                "error_message": ErrorCode.TOPIC_AUTHORIZATION_FAILED.description,
            }
            for name in refused
        ],
    }
