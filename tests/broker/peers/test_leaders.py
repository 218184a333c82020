"""The leader of a partition, as requests to it need it."""

from __future__ import annotations

import uuid

import pytest

from millstream.broker.peers.leaders import leader_of
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import (
    BrokerRegistrationChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from millstream.errors import ApiError, ErrorCode

TOPIC_ID = uuid.uuid4()


def image() -> ClusterImage:
    """Partition 0 is led by broker 2, which is live; 1 by broker 3, which is unknown."""
    return ClusterImage().apply(
        [
            RegisterBrokerRecord(2, uuid.uuid4(), 5, endpoints=()),
            TopicRecord("t", TOPIC_ID),
            PartitionRecord(0, TOPIC_ID, (2,), (2,), leader=2),
            PartitionRecord(1, TOPIC_ID, (3,), (3,), leader=3),
        ],
        4,
    )


def refusal(image: ClusterImage, topic: str | uuid.UUID, index: int) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        leader_of(image, topic, index)
    return refused.value.code


def test_leader_is_found_by_name_and_by_id() -> None:
    assert leader_of(image(), "t", 0) == leader_of(image(), TOPIC_ID, 0) == 2


def test_partition_without_a_live_leader_has_none() -> None:
    assert refusal(image(), "t", 1) is ErrorCode.LEADER_NOT_AVAILABLE
    fenced = image().apply([BrokerRegistrationChangeRecord(2, 5, fenced=1)], 5)
    assert refusal(fenced, "t", 0) is ErrorCode.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize(("topic", "index"), [("t", 2), ("t", -1), ("u", 0), (uuid.uuid4(), 0)])
def test_unknown_partition_is_refused(topic: str | uuid.UUID, index: int) -> None:
    assert refusal(image(), topic, index) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
