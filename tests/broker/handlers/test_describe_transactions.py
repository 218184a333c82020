"""DescribeTransactions: what each transactional id is doing."""

from __future__ import annotations

from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.transaction_calls import new_producer, new_topic
from tests.peers.transactional import describe_transactions


def test_transaction_is_described_from_beginning_to_end(millstream: SharedBroker) -> None:
    topic = new_topic(millstream)
    address = millstream.bootstrap_servers
    with new_producer(millstream) as producer:
        (empty,) = describe_transactions(address, producer.transactional_id)
        producer.add_partitions(topic, 1, 2)
        (ongoing,) = describe_transactions(address, producer.transactional_id)
        producer.end(committed=True)
        (ended,) = describe_transactions(address, producer.transactional_id)
    assert (empty.transaction_state, empty.topics) == ("Empty", [])
    assert empty.transaction_start_time_ms == -1
    assert (ongoing.transaction_state, ongoing.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert (ongoing.producer_id, ongoing.producer_epoch) == producer.identity
    assert ongoing.transaction_start_time_ms > 0
    assert [(it.topic, sorted(it.partitions)) for it in ongoing.topics] == [(topic, [1, 2])]
    assert ended.transaction_state in ("PrepareCommit", "CompleteCommit")


def test_unknown_and_empty_transactional_ids_are_told_so(millstream: SharedBroker) -> None:
    with new_producer(millstream):
        nobody, empty = describe_transactions(millstream.bootstrap_servers, "nobody", "")
    assert nobody.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == ErrorCode.INVALID_REQUEST
