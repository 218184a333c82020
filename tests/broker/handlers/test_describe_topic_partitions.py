"""DescribeTopicPartitions: all partitions, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.calls import create_topic
from tests.peers.wire import Wire


@pytest.fixture
def wire(millstream: SharedBroker) -> Iterator[Wire]:
    with Wire(millstream.bootstrap_servers) as connected:
        yield connected


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
def test_pages_hold_every_partition_once_in_order(
    wire: Wire, millstream: SharedBroker, limit: int
) -> None:
    names = sorted(millstream.unique_topic() for _ in range(3))
    for name in names:
        create_topic(wire, name, 3)
    seen = []
    cursor = None
    while True:
        answer = wire.call(
            "describe_topic_partitions",
            0,
            topics=[{"name": name} for name in reversed(names)],
            response_partition_limit=limit,
            cursor=cursor,
        )
        page = [(it.name, each.partition_index) for it in answer.topics for each in it.partitions]
        assert len(page) <= limit
        seen += page
        if answer.next_cursor is None:
            break
        cursor = {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }
    assert seen == [(name, index) for name in names for index in range(3)]


def test_unknown_topic_is_named_as_such(wire: Wire, millstream: SharedBroker) -> None:
    name = millstream.unique_topic()
    answer = wire.call("describe_topic_partitions", 0, topics=[{"name": name}])
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_all_topics_are_described_when_none_is_named(wire: Wire, millstream: SharedBroker) -> None:
    name = millstream.unique_topic()
    create_topic(wire, name)
    answer = wire.call("describe_topic_partitions", 0, topics=(), response_partition_limit=2000)
    assert name in {it.name for it in answer.topics}
