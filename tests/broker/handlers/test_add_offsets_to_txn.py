"""AddOffsetsToTxn: the group's partition of `__consumer_offsets` joins the transaction."""

from __future__ import annotations

import pytest

from millstream import Broker
from millstream.broker.coordinators.key_hash import partition_for
from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.transaction_calls import new_producer, who
from tests.peers.transactional import TransactionalProducer, describe_transactions


@pytest.mark.parametrize("version", range(5))
def test_partition_of_the_group_joins_the_transaction(
    millstream: SharedBroker, version: int
) -> None:
    with new_producer(millstream) as producer:
        answer = producer.wire.call("add_offsets_to_txn", version, group_id="g", **who(producer))
        assert answer.error_code == 0
        described = describe_transactions(millstream.bootstrap_servers, producer.transactional_id)
    (topic,) = described[0].topics
    assert (topic.topic, topic.partitions) == ("__consumer_offsets", [partition_for("g", 50)])


def test_topic_of_offsets_is_made_when_it_is_first_needed() -> None:
    with (
        Broker.start() as broker,
        TransactionalProducer(broker.bootstrap_servers, "tx", protocol=1) as producer,
    ):
        assert producer.init() == 0
        assert producer.add_offsets("never-heard-of") == 0
        assert producer.end(committed=True).error_code == 0


@pytest.mark.parametrize(
    ("version", "code"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)]
)
def test_producer_that_was_replaced_is_fenced(
    millstream: SharedBroker, version: int, code: ErrorCode
) -> None:
    with new_producer(millstream) as producer:
        producer.producer_epoch += 1
        answer = producer.wire.call("add_offsets_to_txn", version, group_id="g", **who(producer))
        assert answer.error_code == code


def test_empty_transactional_id_is_refused(millstream: SharedBroker) -> None:
    with new_producer(millstream) as producer:
        producer.transactional_id = ""
        assert producer.add_offsets("g") == ErrorCode.INVALID_REQUEST
