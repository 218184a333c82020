"""Offsets of many partitions at once, also of some that are not there."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from millstream.admin.offsets import (
    EARLIEST,
    LATEST,
    end_offsets,
    find_offsets,
    known_topics,
    offsets_at,
    start_offsets,
)
from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ApiError, ErrorCode


@pytest.fixture
def topic(cluster: Cluster, bootstrap_servers: str, name: str) -> str:
    """Three partitions with 0, 1 and 2 records, written at the times 1000 and 2000."""
    create_topics(cluster, [NewTopic(name, 3, {"retention.ms": "-1"})])
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for partition in range(3):
        for number in range(partition):
            time_ms = 1000 * (number + 1)
            producer.produce(name, b"x", partition=partition, timestamp=time_ms)
    assert producer.flush(60) == 0
    return name


def test_offsets_of_all_partitions_are_one_answer(cluster: Cluster, topic: str) -> None:
    places = [(topic, index) for index in range(3)]
    assert start_offsets(cluster, places) == dict.fromkeys(places, 0)
    assert end_offsets(cluster, places) == {(topic, index): index for index in range(3)}
    assert offsets_at(cluster, places, 1500) == {(topic, 0): 0, (topic, 1): 1, (topic, 2): 1}


def test_partition_that_is_not_there_does_not_hide_the_others(cluster: Cluster, topic: str) -> None:
    wanted = {(topic, 1): LATEST, (topic, 9): LATEST, ("absent", 0): EARLIEST}
    found = find_offsets(cluster, wanted)
    assert found.found == {(topic, 1): 1}
    assert found.errors == dict.fromkeys(
        [(topic, 9), ("absent", 0)], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert set(known_topics(cluster, [topic, "absent"])) == {topic}


def test_strict_functions_raise_for_it(bootstrap_servers: str, topic: str) -> None:
    with (
        Cluster(bootstrap_servers, timeout_seconds=0.5) as impatient,
        pytest.raises(ApiError, match=f"{topic}-9"),
    ):
        end_offsets(impatient, [(topic, 1), (topic, 9)])
