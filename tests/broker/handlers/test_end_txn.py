"""EndTxn: by both protocols, again, late, and with nothing to end."""

from __future__ import annotations

import pytest

from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.transaction_calls import new_producer, new_topic, who
from tests.peers.transactional import TransactionalProducer, describe_transactions, patiently


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("committed", [True, False])
def test_every_version_ends_a_transaction(
    millstream: SharedBroker, version: int, committed: bool
) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        producer.add_partitions(topic, 0, 1)
        identity = who(producer)
        answer = producer.wire.call("end_txn", version, committed=committed, **identity)
        again = patiently(
            lambda: producer.wire.call("end_txn", version, committed=committed, **identity),
            lambda answer: int(answer.error_code),
        )
    assert answer.error_code == again.error_code == 0
    if version == 5:
        assert (answer.producer_id, answer.producer_epoch) == (producer.producer_id, 1)
        assert (again.producer_id, again.producer_epoch) == (producer.producer_id, 1)
    (described,) = describe_transactions(millstream.bootstrap_servers, producer.transactional_id)
    assert described.transaction_state == ("CompleteCommit" if committed else "CompleteAbort")


def test_next_transaction_may_be_begun_at_once(millstream: SharedBroker) -> None:
    """Kafka answers CONCURRENT_TRANSACTIONS here; the markers are one flush away, so we wait,
    though not for ever: where the disk is busy a client may have to come again."""
    topic = new_topic(millstream)
    begun_at_once = 0
    with new_producer(millstream) as producer:
        for _ in range(20):
            begun_at_once += producer.add_partitions(topic, 0, 1, 2, patient=False) == 0
            producer.add_partitions(topic, 0, 1, 2)
            assert producer.end(committed=True).error_code == 0
    assert begun_at_once > 1  # the first has none before it


def test_requests_sent_together_are_answered_one_after_the_other(millstream: SharedBroker) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        producer.add_partitions(topic)
        for _ in range(2):
            producer.wire.start("end_txn", 1, committed=True, **who(producer))
        first, second = (producer.wire.receive("end_txn", 1).error_code for _ in range(2))
    assert first == 0
    assert second in (0, ErrorCode.CONCURRENT_TRANSACTIONS)


@pytest.mark.parametrize(
    ("version", "code"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (2, ErrorCode.PRODUCER_FENCED)]
)
def test_producer_that_was_replaced_is_fenced(
    millstream: SharedBroker, version: int, code: ErrorCode
) -> None:
    with new_producer(millstream) as producer:
        producer.producer_epoch += 1
        assert producer.end(committed=True, version=version).error_code == code


def test_empty_transactional_id_is_refused(millstream: SharedBroker) -> None:
    with new_producer(millstream) as producer:
        producer.transactional_id = ""
        answer = producer.end(committed=True, version=5)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


def test_late_end_over_a_connection_that_the_client_has_replaced_ends_nothing(
    millstream: SharedBroker,
) -> None:
    topic = new_topic(millstream)
    with (
        new_producer(millstream) as old,
        TransactionalProducer(
            millstream.bootstrap_servers,
            old.transactional_id,
            protocol=1,
            producer_id=old.producer_id,
            producer_epoch=old.producer_epoch,
        ) as new,
    ):
        old.add_partitions(topic)
        assert new.end(committed=True).error_code == 0
        assert new.add_partitions(topic) == 0
        assert old.end(committed=True).error_code == ErrorCode.INVALID_TXN_STATE
        (described,) = describe_transactions(millstream.bootstrap_servers, old.transactional_id)
        assert described.transaction_state == "Ongoing"
        assert new.end(committed=False).error_code == 0
