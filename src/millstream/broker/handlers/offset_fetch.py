"""OffsetFetch, v1-10: committed offsets of groups.

* v2: error of the whole answer; null topics: all that the group has
* v5: leader epoch (KIP-320)
* v6: flexible
* v7: require_stable (KIP-447): where a transaction is open that commits offsets,
  UNSTABLE_OFFSET_COMMIT is answered; without it the offset before
* v8: several groups at once (KIP-709)
* v9: member id and epoch, checked for consumer groups
* v10: topic ids instead of names
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import may, may_topic
from millstream.broker.services import RequestContext
from millstream.coordination.group_records import NO_TOPIC_ID
from millstream.coordination.groups.offsets import FetchedOffset, FetchRequest, TopicFetch
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from millstream.protocol.messages import Fields

FIRST_WITH_ERROR = 2
FIRST_WITH_SEVERAL_GROUPS = 8
FIRST_WITH_TOPIC_IDS = 10


async def offset_fetch(context: RequestContext, request: Any) -> Fields:
    if context.api_version < FIRST_WITH_SEVERAL_GROUPS:
        return await _fetch(context, request, getattr(request, "require_stable", False))
    stable = request.require_stable
    return {"groups": [await _fetch(context, group, stable) for group in request.groups]}


async def _fetch(context: RequestContext, group: Any, require_stable: bool) -> dict[str, Any]:
    """The answer for one group; from v8 on one of several, before that the whole answer."""
    if not may(context, Operation.DESCRIBE, ResourceType.GROUP, group.group_id):
        return _failed(context, group, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    asked, unknown = _topics_asked(context, group)
    request = FetchRequest(
        group_id=group.group_id,
        topics=asked,
        member_id=getattr(group, "member_id", None),
        member_epoch=getattr(group, "member_epoch", -1),
        require_stable=require_stable,
    )
    groups = context.services.coordinators.groups
    try:
        fetched = await groups.read(group.group_id, lambda shard: shard.fetch_offsets(request))
    except ApiError as error:
        return _failed(context, group, error.code)
    topics = _by_topic(context, fetched, asked is None)
    return {"group_id": group.group_id, "error_code": ErrorCode.NONE, "topics": topics + unknown}


def _topics_asked(
    context: RequestContext, group: Any
) -> tuple[tuple[TopicFetch, ...] | None, list[dict[str, Any]]]:
    """What to look up (None: everything), and answers for ids that no topic has, and for topics
    that the client may not describe."""
    if group.topics is None:
        return None, []
    image = context.services.metadata.image
    asked: list[TopicFetch] = []
    unknown: list[dict[str, Any]] = []
    for topic in group.topics:
        partitions = tuple(topic.partition_indexes)
        if context.api_version < FIRST_WITH_TOPIC_IDS:
            found = TopicFetch(topic.name, NO_TOPIC_ID, partitions)
        else:
            known = image.topics_by_id.get(topic.topic_id or NO_TOPIC_ID)
            if known is None:
                unknown.append(_without_offsets(topic, ErrorCode.UNKNOWN_TOPIC_ID))
                continue
            found = TopicFetch(known.name, known.id, partitions)
        if may_topic(context, Operation.DESCRIBE, found.topic):
            asked.append(found)
        else:
            unknown.append(_without_offsets(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    return tuple(asked), unknown


def _without_offsets(topic: Any, error: ErrorCode) -> dict[str, Any]:
    return {
        "name": getattr(topic, "name", ""),
        "topic_id": getattr(topic, "topic_id", None),
        "partitions": [_no_offset(partition, error) for partition in topic.partition_indexes],
    }


def _no_offset(partition: int, error: ErrorCode) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": error,
    }


def _by_topic(
    context: RequestContext, fetched: Iterable[FetchedOffset], is_everything: bool
) -> list[dict[str, Any]]:
    image = context.services.metadata.image
    topics: dict[str, dict[str, Any]] = {}
    for offset in fetched:
        answer = topics.get(offset.topic)
        if answer is None:
            known = image.topics.get(offset.topic)
            topic_id = known.id if known is not None else None
            if is_everything and topic_id is None and context.api_version >= FIRST_WITH_TOPIC_IDS:
                continue  # a topic that is gone has no id to answer with
            if is_everything and not may_topic(
                context, Operation.DESCRIBE, offset.topic, log_denied=False
            ):
                continue
            answer = {"name": offset.topic, "topic_id": topic_id, "partitions": []}
            topics[offset.topic] = answer
        answer["partitions"].append(
            {
                "partition_index": offset.partition,
                "committed_offset": offset.offset,
                "committed_leader_epoch": offset.leader_epoch,
                "metadata": offset.metadata,
                "error_code": offset.error,
            }
        )
    return list(topics.values())


def _failed(context: RequestContext, group: Any, error: ErrorCode) -> dict[str, Any]:
    topics = []
    if context.api_version < FIRST_WITH_ERROR:  # the error can only stand with each partition
        topics = [
            {
                "name": topic.name,
                "partitions": [_no_offset(p, error) for p in topic.partition_indexes],
            }
            for topic in group.topics
        ]
    return {"group_id": group.group_id, "error_code": error, "topics": topics}
