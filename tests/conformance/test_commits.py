"""Committed offsets: sync, async, automatic, with metadata, by hand, and what invalidates them."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, ConsumerGroupTopicPartitions, TopicPartition

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.test_consume import fill
from tests.conformance.test_groups import wait_for_coordinator
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.wire import Wire

both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])
NO_ERROR, OFFSET_METADATA_TOO_LARGE, UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION = 0, 12, 25, 22


def committed(broker: BrokerUnderTest, group: str, topic: str, partition: int = 0) -> Any:
    consumer = Consumer(broker.config(group_id=group))
    (position,) = consumer.committed([TopicPartition(topic, partition)], timeout=PATIENCE_SECONDS)
    consumer.close()
    return position


def reader(broker: BrokerUnderTest, group: str, topic: str, **config: Any) -> Consumer:
    consumer = Consumer(broker.config(group_id=group, auto_offset_reset="earliest", **config))
    consumer.subscribe([topic])
    return consumer


def read(consumer: Consumer, count: int) -> list[int]:
    offsets: list[int] = []
    while len(offsets) < count:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None, f"only {len(offsets)} of {count} records came"
        offsets.append(message.offset())
    return offsets


@both_protocols
def test_next_reader_goes_on_where_the_last_one_committed(
    broker: BrokerUnderTest, protocol: str
) -> None:
    topic, group = broker.create_topic(), unique("group")
    fill(broker, topic, 10)
    first = reader(broker, group, topic, enable_auto_commit=False, group_protocol=protocol)
    read(first, 4)
    first.commit(asynchronous=False)
    read(first, 2)
    first.close()
    assert committed(broker, group, topic).offset == 4
    second = reader(broker, group, topic, group_protocol=protocol)
    assert read(second, 1) == [4]
    second.close()


@both_protocols
def test_asynchronous_commit_reports_back(broker: BrokerUnderTest, protocol: str) -> None:
    topic, group = broker.create_topic(), unique("group")
    fill(broker, topic, 3)
    reports: list[Any] = []
    config = broker.config(
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        group_protocol=protocol,
    )
    consumer = Consumer({**config, "on_commit": lambda *report: reports.append(report)})
    consumer.subscribe([topic])
    read(consumer, 3)
    consumer.commit(asynchronous=True)
    while not reports:
        consumer.poll(0.1)
    error, positions = reports[0]
    assert error is None
    assert positions[0].offset == 3
    consumer.close()


@both_protocols
def test_automatic_commit_happens_at_the_interval_and_at_close(
    broker: BrokerUnderTest, protocol: str
) -> None:
    topic, group = broker.create_topic(), unique("group")
    fill(broker, topic, 5)
    config = {"auto_commit_interval_ms": 100, "group_protocol": protocol}
    consumer = reader(broker, group, topic, **config)
    read(consumer, 3)
    wait_until(lambda: committed(broker, group, topic).offset == 3)
    read(consumer, 2)
    consumer.close()
    assert committed(broker, group, topic).offset == 5


def test_commit_keeps_metadata_and_leader_epoch(broker: BrokerUnderTest) -> None:
    topic, group = broker.create_topic(partitions=2), unique("group")
    consumer = Consumer(broker.config(group_id=group))
    note = "verarbeitet bis Zeile 7 ✓"
    position = TopicPartition(topic, 1, 7, note, leader_epoch=0)
    consumer.commit(offsets=[position], asynchronous=False)
    consumer.close()
    kept = committed(broker, group, topic, 1)
    assert (kept.offset, kept.metadata, kept.leader_epoch) == (7, note, 0)
    assert committed(broker, group, topic, 0).offset == OFFSET_INVALID


def commit_fields(group: str, topic: str, metadata: str = "", **fields: Any) -> dict[str, Any]:
    partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": metadata}
    topics = ({"name": topic, "partitions": ({**partition, "committed_leader_epoch": -1},)},)
    return {"group_id": group, "topics": topics, **fields}


def test_commit_refuses_strangers_and_long_metadata(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        wait_for_coordinator(wire, group := unique("group"))

        def commit(**fields: Any) -> int:
            fields = commit_fields(group, topic, **fields)
            answer = wire.call("offset_commit", 8, **fields)
            return int(answer.topics[0].partitions[0].error_code)

        alone = {"generation_id_or_member_epoch": -1, "member_id": ""}
        assert commit(**alone) == NO_ERROR
        assert commit(**alone, metadata="x" * 5000) == OFFSET_METADATA_TOO_LARGE
        stranger = {"generation_id_or_member_epoch": 1, "member_id": "nobody"}
        assert commit(**stranger) in (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION)


@pytest.mark.parametrize("version", range(2, 10))
def test_commit_and_fetch_work_in_every_version(broker: BrokerUnderTest, version: int) -> None:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        wait_for_coordinator(wire, group := unique("group"))
        partition: dict[str, Any] = {"partition_index": 0, "committed_offset": 5}
        topics = ({"name": topic, "partitions": ({**partition, "committed_metadata": "m"},)},)
        fields: dict[str, Any] = {"group_id": group, "member_id": "", "topics": topics}
        fields["generation_id_or_member_epoch"] = -1
        answer = wire.call("offset_commit", version, **fields)
        assert answer.topics[0].partitions[0].error_code == NO_ERROR
        wanted = ({"name": topic, "partition_indexes": (0,)},)
        if version >= 8:
            fetched = wire.call(
                "offset_fetch", version, groups=({"group_id": group, "topics": wanted},)
            )
            found = fetched.groups[0].topics[0].partitions[0]
        else:
            found = wire.call("offset_fetch", version, group_id=group, topics=wanted)
            found = found.topics[0].partitions[0]
    assert (found.committed_offset, found.metadata) == (5, "m")


def test_admin_lists_alters_and_deletes_offsets(broker: BrokerUnderTest) -> None:
    topic, group = broker.create_topic(partitions=2), unique("group")
    positions = [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 4)]
    request = ConsumerGroupTopicPartitions(group, positions)
    broker.admin.alter_consumer_group_offsets([request])[group].result(PATIENCE_SECONDS)
    listed = broker.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = {p.partition: p.offset for p in listed[group].result(PATIENCE_SECONDS).topic_partitions}
    assert found == {0: 3, 1: 4}


def test_deleting_a_topic_forgets_its_offsets(broker: BrokerUnderTest) -> None:
    topic, group = broker.create_topic(), unique("group")
    consumer = Consumer(broker.config(group_id=group))
    consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    consumer.close()
    broker.admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
    with Wire(broker.bootstrap) as wire:
        groups = ({"group_id": group, "topics": None},)
        wait_until(lambda: not wire.call("offset_fetch", 8, groups=groups).groups[0].topics)
