"""ElectLeaders, v0-2: elect the preferred replica (KIP-183), or an unclean leader (KIP-460).

* v0: preferred only
* v2: flexible

With one replica the leader is always the preferred one: ELECTION_NOT_NEEDED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.services import RequestContext
from millstream.coordination.cluster import ClusterImage
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kio.schema.elect_leaders.v2.request import ElectLeadersRequest

    from millstream.protocol.messages import Fields

_PREFERRED = 0
_UNCLEAN = 1


def elect_leaders(context: RequestContext, request: ElectLeadersRequest) -> Fields:
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    image = context.services.metadata.image
    # When all partitions are meant, those that need no election are not mentioned.
    results = [
        {
            "topic": wanted.topic,
            "partition_result": [
                _elect(image, wanted.topic, partition) for partition in wanted.partitions
            ],
        }
        for wanted in request.topic_partitions or ()
    ]
    return {"error_code": ErrorCode.NONE, "replica_election_results": results}


def _elect(image: ClusterImage, name: str, index: int) -> dict[str, Any]:
    topic = image.topics.get(name)
    error, message = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.ELECTION_NOT_NEEDED.description
    if topic is None:
        error, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}"
    elif not 0 <= index < len(topic.partitions):
        error, message = (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"No such partition as {name}-{index}",
        )
    return {"partition_id": index, "error_code": error, "error_message": message}
