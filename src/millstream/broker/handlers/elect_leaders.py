"""ElectLeaders, v0-2: elect the preferred replica (KIP-183), or an unclean leader (KIP-460).

* v0: preferred only
* v2: flexible
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import require_cluster
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.elect_leaders.v2.request import ElectLeadersRequest

    from millstream.partitions import TopicPartition
    from millstream.protocol.messages import Fields

_PREFERRED = 0
_UNCLEAN = 1


async def elect_leaders(context: RequestContext, request: ElectLeadersRequest) -> Fields:
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    wanted = None
    if request.topic_partitions is not None:
        wanted = [
            (topic.topic, index) for topic in request.topic_partitions for index in topic.partitions
        ]
    code = ErrorCode.NONE
    outcomes: dict[TopicPartition, ErrorCode] = {}
    try:
        require_cluster(context, Operation.ALTER)
        outcomes = await context.services.actions.elect_leaders(
            wanted, unclean=request.election_type == _UNCLEAN
        )
    except ApiError as error:  # that of all partitions
        code = error.code
        outcomes = dict.fromkeys(wanted or (), code)
    topics: dict[str, list[dict[str, Any]]] = {}
    for (name, index), outcome in outcomes.items():
        topics.setdefault(name, []).append(_answer(context, name, index, outcome))
    return {
        "error_code": code,
        "replica_election_results": [
            {"topic": name, "partition_result": partitions} for name, partitions in topics.items()
        ],
    }


def _answer(context: RequestContext, name: str, index: int, error: ErrorCode) -> dict[str, Any]:
    message = None if error is ErrorCode.NONE else error.description
    if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        is_known = name in context.services.metadata.image.topics
        message = f"No such partition as {name}-{index}" if is_known else f"No such topic as {name}"
    return {"partition_id": index, "error_code": error, "error_message": message}
