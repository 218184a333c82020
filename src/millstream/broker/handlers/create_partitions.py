"""CreatePartitions, v0-3: add partitions to topics; each topic succeeds or fails individually.

* v2: flexible
* v3: THROTTLING_QUOTA_EXCEEDED (KIP-599)
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._quotas import Mutations
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

FIRST_VERSION_WITH_QUOTA_ERROR = 3


async def create_partitions(context: RequestContext, request: CreatePartitionsRequest) -> Fields:
    counts = Counter(topic.name for topic in request.topics)
    once = [topic for topic in request.topics if counts[topic.name] == 1]
    allowed, refused = split_topics(context, Operation.ALTER, once, lambda topic: topic.name)
    mutations = Mutations(context, "create_partitions", strict_since=FIRST_VERSION_WITH_QUOTA_ERROR)
    wanted = {str(topic.name): _more(topic) for topic in allowed}
    actions = context.services.actions
    outcomes: dict[str, ApiError | None] = {}
    if mutations.is_limited:
        checked = await actions.create_partitions(list(wanted.values()), validate_only=True)
        outcomes |= mutations.refusals(
            {name: _added(context, wanted[name]) for name, error in checked.items() if not error}
        )
    outcomes |= await actions.create_partitions(
        [more for name, more in wanted.items() if name not in outcomes],
        validate_only=request.validate_only,
    )
    for topic in refused:
        outcomes[topic.name] = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    for name, count in counts.items():
        if count > 1:
            outcomes[name] = ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    return {
        "results": [_answer(name, error) for name, error in outcomes.items()],
        "throttle_time": mutations.throttle(),
    }


def _added(context: RequestContext, more: MorePartitions) -> int:
    """How many partitions the topic would have more."""
    topic = context.services.metadata.image.topics.get(more.name)
    return 0 if topic is None else max(more.count - len(topic.partitions), 0)


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
