"""AddPartitionsToTxn: all or nothing, from clients and on behalf of them."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.transaction_calls import new_producer, new_topic, who
from tests.peers.transactional import TransactionalProducer, describe_transactions


def add(producer: TransactionalProducer, version: int, *topics: tuple[str, int]) -> dict[Any, int]:
    """The error code of each partition, as a client asks."""
    fields = {f"v3_and_below_{name}": value for name, value in who(producer).items()}
    answer = producer.wire.call(
        "add_partitions_to_txn",
        version,
        v3_and_below_topics=[{"name": name, "partitions": (index,)} for name, index in topics],
        **fields,
    )
    return codes(answer.results_by_topic_v3_and_below)


def add_for(
    producer: TransactionalProducer, version: int, topic: str, *partitions: int, **more: object
) -> dict[Any, int]:
    """The error code of each partition, as a broker asks for a client."""
    transaction = {**who(producer), **more, "topics": [{"name": topic, "partitions": partitions}]}
    answer = producer.wire.call("add_partitions_to_txn", version, transactions=[transaction])
    assert answer.error_code == 0
    (result,) = answer.results_by_transaction
    assert result.transactional_id == producer.transactional_id
    return codes(result.topic_results)


def codes(topics: Any) -> dict[Any, int]:
    return {
        (topic.name, it.partition_index): int(it.partition_error_code)
        for topic in topics
        for it in topic.results_by_partition
    }


@pytest.mark.parametrize("version", range(4))
def test_partitions_join_the_transaction(millstream: SharedBroker, version: int) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        assert add(producer, version, (topic, 0), (topic, 2)) == {(topic, 0): 0, (topic, 2): 0}
        described = describe_transactions(millstream.bootstrap_servers, producer.transactional_id)
    assert described[0].transaction_state == "Ongoing"
    assert [(it.topic, sorted(it.partitions)) for it in described[0].topics] == [(topic, [0, 2])]


def test_unknown_partition_keeps_the_others_out(millstream: SharedBroker) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        assert add(producer, 3, (topic, 0), (topic, 9), ("nowhere", 0)) == {
            (topic, 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
            (topic, 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        described = describe_transactions(millstream.bootstrap_servers, producer.transactional_id)
    assert described[0].transaction_state == "Empty"


def test_internal_topics_are_not_for_clients_to_add(millstream: SharedBroker) -> None:
    with new_producer(millstream) as producer:
        assert add(producer, 3, ("__transaction_state", 0)) == {
            ("__transaction_state", 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED
        }


@pytest.mark.parametrize(
    ("version", "code"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)]
)
def test_producer_that_was_replaced_is_fenced(
    millstream: SharedBroker, version: int, code: ErrorCode
) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        producer.producer_epoch += 1
        assert add(producer, version, (topic, 0)) == {(topic, 0): code}


def test_empty_transactional_id_is_refused(millstream: SharedBroker) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        producer.transactional_id = ""
        assert add(producer, 3, (topic, 0)) == {(topic, 0): ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize("version", [4, 5])
def test_broker_adds_and_verifies_on_behalf_of_a_client(
    millstream: SharedBroker, version: int
) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        assert add_for(producer, version, topic, 0) == {(topic, 0): 0}
        assert add_for(producer, version, topic, 0, 1, verify_only=True) == {
            (topic, 0): 0,
            (topic, 1): ErrorCode.TRANSACTION_ABORTABLE,
        }
        producer.producer_epoch += 1
        assert add_for(producer, version, topic, 0, verify_only=True) == {
            (topic, 0): ErrorCode.PRODUCER_FENCED
        }
