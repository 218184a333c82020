"""ConsumerGroupHeartbeat, v0-1: join, stay in and leave a consumer group (KIP-848).

* v0: joins, stays, acknowledges what it gave up and took on, leaves (epochs -1 and -2)
* v1: the member chooses its id (KIP-1082); regular-expression subscriptions

Not done: the rack of a member is kept and shown, but no assignor looks at it (nor do Kafka's).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import may_topic, require_group, require_topics
from millstream.broker.services import RequestContext
from millstream.coordination.groups.consumer_messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    Partitions,
)
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.messages import milliseconds
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest

    from millstream.protocol.messages import Fields


async def consumer_group_heartbeat(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> Fields:
    beat = _decoded(context, request)
    groups = context.services.coordinators.groups
    try:
        require_group(context, Operation.READ, beat.group_id)
        require_topics(context, Operation.DESCRIBE, beat.topic_names or ())
        response = await groups.run(
            beat.group_id, lambda shard, now_ms: shard.consumer_groups.heartbeat(beat, now_ms)
        )
    except ApiError as error:
        return {
            "error_code": error.code,
            "error_message": error.message or error.code.description,
        }
    return _encoded(response)


def _decoded(context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        topic_names=request.subscribed_topic_names,
        topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=_owned(request),
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        api_version=context.api_version,
        may_describe=lambda topic: may_topic(context, Operation.DESCRIBE, topic, log_denied=False),
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    owned: dict[Any, frozenset[int]] = {}
    for topic in request.topic_partitions:
        if topic.topic_id is not None:
            held = owned.get(topic.topic_id, frozenset())
            owned[topic.topic_id] = held | frozenset(topic.partitions)
    return owned


def _encoded(response: ConsumerHeartbeatResponse) -> Fields:
    return {
        "error_code": ErrorCode.NONE,
        "member_id": response.member_id,
        "member_epoch": response.member_epoch,
        "heartbeat_interval": response.heartbeat_interval_ms,
        "assignment": None
        if response.assignment is None
        else {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": sorted(partitions)}
                for topic_id, partitions in sorted(response.assignment.items())
            ]
        },
    }
