"""CreatePartitions, v0-3: add partitions to topics; each topic succeeds or fails individually.

* v2: flexible
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import split_topics
from millstream.broker.metadata.topics import MorePartitions
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.create_partitions.v3.request import (
        CreatePartitionsRequest,
        CreatePartitionsTopic,
    )

    from millstream.protocol.messages import Fields


async def create_partitions(context: RequestContext, request: CreatePartitionsRequest) -> Fields:
    counts = Counter(topic.name for topic in request.topics)
    wanted = [topic for topic in request.topics if counts[topic.name] == 1]
    allowed, refused = split_topics(context, Operation.ALTER, wanted, lambda topic: topic.name)
    outcomes = await context.services.actions.create_partitions(
        [_more(topic) for topic in allowed], validate_only=request.validate_only
    )
    for topic in refused:
        outcomes[topic.name] = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    for name, count in counts.items():
        if count > 1:
            outcomes[name] = ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    return {"results": [_answer(name, error) for name, error in outcomes.items()]}


def _more(topic: CreatePartitionsTopic) -> MorePartitions:
    assignments = None
    if topic.assignments is not None:
        assignments = tuple(tuple(assignment.broker_ids) for assignment in topic.assignments)
    return MorePartitions(topic.name, topic.count, assignments)


def _answer(name: str, error: ApiError | None) -> dict[str, Any]:
    return {
        "name": name,
        "error_code": ErrorCode.NONE if error is None else error.code,
        "error_message": None if error is None else error.message or error.code.description,
    }
