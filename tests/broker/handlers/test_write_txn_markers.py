"""WriteTxnMarkers: an administrator ends a transaction partition by partition."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.transaction_calls import new_producer, new_topic
from tests.peers.transactional import TransactionalProducer


def write(
    producer: TransactionalProducer, version: int, *topics: tuple[str, int], **changes: object
) -> dict[Any, int]:
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "transaction_result": False,
        "coordinator_epoch": 0,
        "topics": [{"name": name, "partition_indexes": (index,)} for name, index in topics],
        **changes,
    }
    answer = producer.wire.call("write_txn_markers", version, markers=[marker])
    (result,) = answer.markers
    assert result.producer_id == marker["producer_id"]
    return {
        (topic.name, it.partition_index): int(it.error_code)
        for topic in result.topics
        for it in topic.partitions
    }


@pytest.mark.parametrize("version", [1, 2])
def test_marker_ends_the_transaction_where_it_is_written(
    millstream: SharedBroker, version: int
) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        producer.add_partitions(topic, 0, 1)
        for partition in (0, 1):
            producer.produce(topic, [b"x"], partition=partition)
        assert write(producer, version, (topic, 0)) == {(topic, 0): 0}
        described = producer.wire.call(
            "describe_producers", 0, topics=[{"name": topic, "partition_indexes": (0, 1)}]
        )
    begun = {
        it.partition_index: it.active_producers[0].current_txn_start_offset
        for it in described.topics[0].partitions
    }
    assert begun == {0: -1, 1: 0}


def test_partition_that_is_not_here_is_unknown_and_the_others_take_it(
    millstream: SharedBroker,
) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        assert write(producer, 1, (topic, 0), (topic, 9)) == {
            (topic, 0): 0,
            (topic, 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }


def test_marker_of_a_coordinator_that_was_replaced_is_refused(millstream: SharedBroker) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        assert write(producer, 1, (topic, 0), coordinator_epoch=5) == {(topic, 0): 0}
        assert write(producer, 1, (topic, 0), coordinator_epoch=4) == {
            (topic, 0): ErrorCode.TRANSACTION_COORDINATOR_FENCED
        }


def test_marker_reaches_the_coordinator_of_the_group(millstream: SharedBroker) -> None:
    topic, group = new_topic(millstream), millstream.unique_group()
    with new_producer(millstream) as producer:
        assert producer.add_offsets(group) == 0
        assert producer.commit_offset(group, topic, 42) == 0
        answer = producer.wire.call(
            "describe_transactions", 0, transactional_ids=[producer.transactional_id]
        )
        (offsets,) = answer.transaction_states[0].topics
        place = (offsets.topic, offsets.partitions[0])
        assert write(producer, 1, place, transaction_result=True) == {place: 0}
        groups = [{"group_id": group, "topics": [{"name": topic, "partition_indexes": (0,)}]}]
        fetched = producer.wire.call("offset_fetch", 8, groups=groups, require_stable=True)
    assert fetched.groups[0].topics[0].partitions[0].committed_offset == 42


def test_no_markers_have_no_results(millstream: SharedBroker) -> None:
    with new_producer(millstream) as producer:
        assert producer.wire.call("write_txn_markers", 1, markers=[]).markers == ()
