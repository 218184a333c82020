"""Which broker leads a partition now, as requests to it need to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from uuid import UUID

    from millstream.coordination.cluster import ClusterImage


def leader_of(image: ClusterImage, topic: str | UUID, index: int) -> int:
    """The id of the leader, which is live as far as is known here. Raises `ApiError`."""
    partition = image.partition(topic, index)
    if partition is None:
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"partition {index} of topic {topic} does not exist",
        )
    broker = image.brokers.get(partition.leader)
    if broker is None or broker.fenced:
        raise ApiError(
            ErrorCode.LEADER_NOT_AVAILABLE, f"partition {index} of topic {topic} has no leader"
        )
    return broker.id
