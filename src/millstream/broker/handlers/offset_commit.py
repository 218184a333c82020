"""OffsetCommit, v2-10: store how far a group has read.

* v2-4: the commit may ask for its own retention time
* v6: leader epoch (KIP-320)
* v7: group instance ids (KIP-345)
* v8: flexible
* v9: consumer groups: the generation may be a member epoch, GROUP_ID_NOT_FOUND, STALE_MEMBER_EPOCH
* v10: topic ids instead of names
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from millstream.broker.context import RequestContext
from millstream.coordination.group_records import NO_TOPIC_ID
from millstream.coordination.groups.group import OffsetCommitter
from millstream.coordination.groups.offsets import (
    NO_RETENTION_MS,
    CommitRequest,
    PartitionCommit,
    TopicCommit,
)
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.messages import milliseconds

if TYPE_CHECKING:
    from millstream.coordination.cluster import TopicImage
    from millstream.protocol.messages import Fields

FIRST_WITH_TOPIC_IDS = 10


async def offset_commit(context: RequestContext, request: Any) -> Fields:
    errors: dict[tuple[int, int], ErrorCode] = {}  # by place in the request: topic, partition
    known = list(_known_topics(context, request.topics, errors))
    if known:
        try:
            await _commit(context, request, known, errors)
        except ApiError as error:
            for number, _, partitions in known:
                errors |= {(number, position): error.code for position, _ in partitions}
    return {
        "topics": [
            {
                "name": getattr(topic, "name", ""),
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": errors.get((number, position), ErrorCode.NONE),
                    }
                    for position, partition in enumerate(topic.partitions)
                ],
            }
            for number, topic in enumerate(request.topics)
        ]
    }


Known = tuple[int, "TopicImage", list[tuple[int, Any]]]


def _known_topics(
    context: RequestContext, topics: Iterable[Any], errors: dict[tuple[int, int], ErrorCode]
) -> Iterator[Known]:
    """The topics and partitions that exist, with their places; `errors` takes the others."""
    image = context.broker.metadata.image
    by_id = context.api_version >= FIRST_WITH_TOPIC_IDS
    for number, asked in enumerate(topics):
        topic = (
            image.topics_by_id.get(asked.topic_id or NO_TOPIC_ID)
            if by_id
            else image.topics.get(asked.name)
        )
        count = len(topic.partitions) if topic is not None else 0
        unknown_id = by_id and topic is None
        error = ErrorCode.UNKNOWN_TOPIC_ID if unknown_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        there: list[tuple[int, Any]] = []
        for position, partition in enumerate(asked.partitions):
            if 0 <= partition.partition_index < count:
                there.append((position, partition))
            else:
                errors[number, position] = error
        if topic is not None and there:
            yield number, topic, there


async def _commit(
    context: RequestContext,
    request: Any,
    known: list[Known],
    errors: dict[tuple[int, int], ErrorCode],
) -> None:
    commit = CommitRequest(
        group_id=request.group_id,
        committer=OffsetCommitter(
            member_id=request.member_id,
            generation_or_epoch=_generation(request),
            group_instance_id=getattr(request, "group_instance_id", None),
            api_version=context.api_version,
        ),
        topics=tuple(_topic_commit(topic.name, topic.id, there) for _, topic, there in known),
        retention_ms=_retention_ms(request),
    )
    outcomes = await context.broker.coordinators.groups.run(
        commit.group_id, lambda shard, now_ms: shard.commit_offsets(commit, now_ms)
    )
    places = ((number, position) for number, _, there in known for position, _ in there)
    errors |= {place: outcome.error for place, outcome in zip(places, outcomes, strict=True)}


def _generation(request: Any) -> int:
    generation: int = request.generation_id_or_member_epoch
    return generation


def _retention_ms(request: Any) -> int:
    retention = getattr(request, "retention_time", None)
    return milliseconds(retention) if retention is not None else NO_RETENTION_MS


def _topic_commit(topic: str, topic_id: uuid.UUID, there: list[tuple[int, Any]]) -> TopicCommit:
    return TopicCommit(
        topic=topic,
        topic_id=topic_id,
        partitions=tuple(
            PartitionCommit(
                partition=partition.partition_index,
                offset=partition.committed_offset,
                leader_epoch=getattr(partition, "committed_leader_epoch", -1),
                metadata=partition.committed_metadata,
            )
            for _, partition in there
        ),
    )
