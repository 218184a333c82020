"""DescribeProducers: who writes, and whose transaction is open."""

from __future__ import annotations

from typing import Any

from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.transaction_calls import new_producer, new_topic
from tests.peers.wire import Wire


def describe(wire: Wire, topic: str, *indexes: int) -> list[Any]:
    answer = wire.call(
        "describe_producers", 0, topics=[{"name": topic, "partition_indexes": indexes}]
    )
    return list(answer.topics[0].partitions)


def test_open_transaction_is_described(millstream: SharedBroker) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream, protocol=2) as producer:
        producer.run(topic, [b"a", b"b"], committed=True)
        producer.produce(topic, [b"c", b"d", b"e"], timestamp_ms=1_700_000_000_000)
        first, second, missing = describe(producer.wire, topic, 0, 1, 9)
        (state,) = first.active_producers
        assert (state.producer_id, state.producer_epoch) == producer.identity
        assert (state.last_sequence, state.last_timestamp) == (2, 1_700_000_000_000)
        assert (state.coordinator_epoch, state.current_txn_start_offset) == (0, 3)
        assert not second.active_producers
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
