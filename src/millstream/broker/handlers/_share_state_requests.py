"""Shared by the APIs of the share state persister (83 to 87).

Each request has several partitions of one group, with a separate result for each. They run in one
turn, so that their records share a flush.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.broker.handlers._rights import may_cluster
from millstream.coordination.group_records import NO_TOPIC_ID
from millstream.coordination.share_state import SharePartitionKey
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from millstream.broker.services import RequestContext
    from millstream.protocol.messages import Fields


Answer: TypeAlias = Callable[[SharePartitionKey, Any], Awaitable[Mapping[str, Any]]]


async def answer_partitions(
    context: RequestContext,
    request: Any,
    answer: Answer,
    when_failed: Mapping[str, Any] = MappingProxyType({}),
) -> Fields:
    """Ask for all partitions at once.

    `answer` returns the fields of this API's answer, `when_failed` their values on error. Only
    brokers may ask.
    """
    if not request.group_id:
        return {"results": []}  # as Kafka does
    is_broker = may_cluster(context, Operation.CLUSTER_ACTION)
    asked = [(topic, partition) for topic in request.topics for partition in topic.partitions]

    async def outcome_of(topic: Any, partition: Any) -> dict[str, Any]:
        key = share_key(request, topic, partition)
        try:
            if not is_broker:
                raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return {**outcome(key, None), **await answer(key, partition)}
        except ApiError as error:
            return {**outcome(key, error), **when_failed}

    outcomes = await asyncio.gather(*(outcome_of(topic, entry) for topic, entry in asked))
    return {"results": by_topic(request, iter(outcomes).__next__)}


def share_key(request: Any, topic: Any, partition: Any) -> SharePartitionKey:
    return SharePartitionKey(request.group_id, topic.topic_id or NO_TOPIC_ID, partition.partition)


def outcome(key: SharePartitionKey, error: ApiError | None) -> dict[str, Any]:
    """The result of one partition."""
    return {
        "partition": key.partition,
        "error_code": ErrorCode.NONE if error is None else error.code,
        "error_message": None if error is None else error.message,
    }


def by_topic(request: Any, next_partition: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    """The partitions' answers, in the order of the request, under their topics."""
    return [
        {"topic_id": topic.topic_id, "partitions": [next_partition() for _ in topic.partitions]}
        for topic in request.topics
    ]
