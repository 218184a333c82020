"""A pipeline's progress as a group's offsets, on a real broker."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.errors import ApiError, MillstreamError
from millstream.pipelines.running.progress import GroupProgress, parse_offset_log
from tests.peers.servers import free_port
from tests.pipelines.conftest import Topics


def committed(topics: Topics, group: str, topic: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": topics.bootstrap})
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(30)
    return {it.partition: it.offset for it in found.topic_partitions if it.topic == topic}


def test_commit_is_what_other_clients_see(topics: Topics) -> None:
    topic, group = topics.create(partitions=2), f"pipeline-{uuid.uuid4().hex[:8]}"
    progress = GroupProgress(topics.bootstrap, group)
    progress.commit({(topic, 0): 3, (topic, 1): 5})
    progress.commit({(topic, 1): 7})
    progress.commit({})
    progress.close()
    assert committed(topics, group, topic) == {0: 3, 1: 7}


def test_commit_into_a_group_with_members_is_refused(topics: Topics) -> None:
    topic, group = topics.create(), f"busy-{uuid.uuid4().hex[:8]}"
    consumer = Consumer(
        {
            "bootstrap.servers": topics.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,  # only the progress may commit
        }
    )
    topics.fill(topic, [b"x"])
    consumer.subscribe([topic])
    assert consumer.poll(60) is not None
    progress = GroupProgress(topics.bootstrap, group)
    with pytest.raises(ApiError, match="has active members"):
        progress.commit({(topic, 0): 1})
    progress.report({(topic, 0): 1})  # goes on
    progress.close()
    assert consumer.committed([TopicPartition(topic, 0)])[0].offset < 1
    consumer.close()


def test_report_goes_on_without_a_broker(caplog: pytest.LogCaptureFixture) -> None:
    progress = GroupProgress(f"127.0.0.1:{free_port()}", "g", timeout_seconds=0.1)
    progress.report({("t", 0): 1})
    assert "offsets of group g are not committed" in caplog.text


def test_offset_log_gives_the_lowest_of_each_partition() -> None:
    text = 'v1\n{"batchWatermarkMs":0}\n{"a": {"0": 5, "1": 2}}\n-\n{"a": {"0": 3}, "b": {"0": 9}}'
    assert parse_offset_log(text) == {("a", 0): 3, ("a", 1): 2, ("b", 0): 9}


def test_offset_log_has_sources_of_other_kinds() -> None:
    text = 'v1\n{}\n{"a": {"0": 5}}\n5\n{"logOffset":0}\n{"offset":0,"timestamp":1}'
    assert parse_offset_log(text) == {("a", 0): 5}


def test_offset_log_of_something_else_is_refused() -> None:
    with pytest.raises(MillstreamError, match="not one of Spark's"):
        parse_offset_log("")
