"""Shared by OffsetCommit and TxnOffsetCommit: find partitions, commit, and answer for each.

The topics of a request are looked up first. Existing partitions are committed at once in the
group's shard; each partition of the request is answered in its place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from millstream.broker.handlers._rights import may_topic
from millstream.coordination.group_records import NO_TOPIC_ID
from millstream.coordination.groups.offsets import (
    CommittedPartition,
    PartitionCommit,
    TopicCommit,
)
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from millstream.broker.services import RequestContext
    from millstream.coordination.cluster import TopicImage

Place: TypeAlias = tuple[int, int]  # in the request: topic, partition
Commit: TypeAlias = Callable[[tuple[TopicCommit, ...]], Awaitable[Sequence[CommittedPartition]]]


class _Known(NamedTuple):
    """A topic of the request that exists, and those of its partitions that do."""

    commit: TopicCommit
    places: list[Place]


async def commit_topics(
    context: RequestContext, topics: Sequence[Any], *, by_id: bool, commit: Commit
) -> list[dict[str, Any]]:
    """Commit existing partitions of topics that the client may read, and answer for each topic of
    the request."""
    errors: dict[Place, ErrorCode] = {}
    known = [
        found
        for number, asked in enumerate(topics)
        if (found := _find(context, number, asked, by_id, errors)) is not None
    ]
    if known:
        places = [place for topic in known for place in topic.places]
        try:
            outcomes = await commit(tuple(topic.commit for topic in known))
            errors |= {
                place: outcome.error for place, outcome in zip(places, outcomes, strict=True)
            }
        except ApiError as error:
            errors |= dict.fromkeys(places, error.code)
    return [_answer(number, topic, errors) for number, topic in enumerate(topics)]


def refuse_topics(topics: Sequence[Any], error: ErrorCode) -> list[dict[str, Any]]:
    """The same error for all partitions of the request."""
    places = [(n, p) for n, topic in enumerate(topics) for p in range(len(topic.partitions))]
    errors = dict.fromkeys(places, error)
    return [_answer(number, topic, errors) for number, topic in enumerate(topics)]


def _find(
    context: RequestContext, number: int, asked: Any, by_id: bool, errors: dict[Place, ErrorCode]
) -> _Known | None:
    """The existing partitions of a topic; the others are added to `errors`."""
    image = context.services.metadata.image
    topic: TopicImage | None
    if by_id:
        topic = image.topics_by_id.get(asked.topic_id or NO_TOPIC_ID)
    else:
        topic = image.topics.get(asked.name)
    unknown_id = by_id and topic is None
    error = ErrorCode.UNKNOWN_TOPIC_ID if unknown_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not unknown_id and not may_topic(
        context, Operation.READ, asked.name if topic is None else topic.name
    ):
        topic, error = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    count = len(topic.partitions) if topic is not None else 0
    commits: list[PartitionCommit] = []
    places: list[Place] = []
    for position, partition in enumerate(asked.partitions):
        if 0 <= partition.partition_index < count:
            commits.append(_partition_commit(partition))
            places.append((number, position))
        else:
            errors[number, position] = error
    if topic is None or not places:
        return None
    return _Known(TopicCommit(topic.name, topic.id, tuple(commits)), places)


def _partition_commit(partition: Any) -> PartitionCommit:
    return PartitionCommit(
        partition=partition.partition_index,
        offset=partition.committed_offset,
        leader_epoch=getattr(partition, "committed_leader_epoch", -1),
        metadata=partition.committed_metadata,
    )


def _answer(number: int, topic: Any, errors: dict[Place, ErrorCode]) -> dict[str, Any]:
    return {
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
