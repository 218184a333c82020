"""Topics of calls, requests as others send them, and replies as they lie in the log."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.rpc.headers import parse_reply
from millstream.rpc.intakes import GroupIntake, ShareIntake
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.patience import wait_until

PATIENCE = 60.0


def make_topics(millstream: SharedBroker, partitions: int = 1) -> tuple[str, str]:
    """The topics of requests and of replies."""
    name = millstream.unique_topic("calls")
    with Cluster(millstream.bootstrap_servers) as cluster:
        create_topics(cluster, [NewTopic(name, partitions), NewTopic(f"{name}-replies", 8)])
    return name, f"{name}-replies"


def far_ms() -> int:
    return round((time.time() + PATIENCE) * 1000)


def send(millstream: SharedBroker, topic: str, *requests: tuple[bytes, list[object]]) -> None:
    producer = Producer({"bootstrap.servers": millstream.bootstrap_servers})
    for value, headers in requests:
        producer.produce(topic, value, headers=headers)
    assert producer.flush(PATIENCE) == 0


def read_replies(millstream: SharedBroker, topic: str, count: int) -> list[tuple[bytes, bytes]]:
    """Correlation ids and values of partition 0."""
    settings = {"bootstrap.servers": millstream.bootstrap_servers, "group.id": "unused"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            correlation_id, _ = parse_reply(message.headers() or [])
            found.append((correlation_id or b"", message.value() or b""))
    consumer.close()
    return found


def read_requests(intake: GroupIntake | ShareIntake, count: int) -> list[Message]:
    """At least so many."""
    found: list[Message] = []

    def has_enough() -> bool:
        found.extend(intake.poll())
        return len(found) >= count

    wait_until(has_enough)
    return found
