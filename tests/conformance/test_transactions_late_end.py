"""EndTxn from where it is not expected: late, from an older connection, from another process.

An EndTxn of protocol 1 names the producer's id and epoch, which stay the same from transaction to
transaction. If a client gives one up for lost (its connection hung), reconnects, and goes on to its
next transaction, the lost one may still arrive and end that: half of it is committed, half lost.
Jepsen found this in Apache Kafka. Protocol 2 (KIP-890) raises the epoch at every end and is safe.
Millstream guards protocol 1: an EndTxn that comes over a connection older than one over which the
same client has since spoken for the transactional id ends nothing.
"""

from __future__ import annotations

import pytest

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.test_transactions import (
    both_protocols,
    committed_offsets,
    producer_of,
    stable_offset,
)
from tests.peers.patience import wait_until
from tests.peers.transactional import NO_ERROR, TransactionalProducer

ALSO_ON_A_WORKER = True

PRODUCER_FENCED = 90


def reconnected(
    broker: BrokerUnderTest, producer: TransactionalProducer, client_id: str = "wire"
) -> TransactionalProducer:
    """The same producer over another connection."""
    return TransactionalProducer(
        broker.bootstrap,
        producer.transactional_id,
        protocol=producer.protocol,
        client_id=client_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
    )


def test_late_end_of_protocol_1_ends_a_later_transaction_unless_guarded(
    broker: BrokerUnderTest,
) -> None:
    topic = broker.create_topic()
    with producer_of(broker, 1) as old:
        old.run(topic, [b"first"], committed=True)
        with reconnected(broker, old) as new:
            new.begin(topic)
            new.produce(topic, [b"second, one half"], sequence=1)
            late = old.end(committed=True)  # of the first transaction, held up on its way
            expected = broker.expects("late EndTxn of protocol 1")
            assert (late.error_code == NO_ERROR) == expected["ends a later transaction"]
            wait_until(lambda: len(committed_offsets(broker, topic)) == expected["committed"])
            other_half = new.produce(topic, [b"second, other half"], sequence=2)
            assert (other_half.error_code == NO_ERROR) != expected["ends a later transaction"]
            assert new.end(committed=False).error_code == expected["abort"]
    wait_until(lambda: stable_offset(broker, topic) == expected["stable"])
    assert len(committed_offsets(broker, topic)) == expected["committed"]


def test_late_end_of_protocol_2_ends_nothing(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with producer_of(broker, 2) as old:
        before = old.identity
        old.run(topic, [b"first"], committed=True)
        with reconnected(broker, old) as new:
            new.produce(topic, [b"second, one half"])
            old.producer_id, old.producer_epoch = before
            late = old.end(committed=True)
            assert late.error_code == PRODUCER_FENCED
            assert new.produce(topic, [b"second, other half"]).error_code == NO_ERROR
            assert new.end(committed=False).error_code == NO_ERROR
    wait_until(lambda: stable_offset(broker, topic) == 5)
    assert committed_offsets(broker, topic) == [0]


def test_late_end_of_protocol_2_between_transactions_says_it_again(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with producer_of(broker, 2) as old:
        before = old.identity
        old.run(topic, [b"first"], committed=True)
        with reconnected(broker, old) as new:
            old.producer_id, old.producer_epoch = before
            assert old.end(committed=True).error_code == NO_ERROR
            new.run(topic, [b"second"], committed=True)
    wait_until(lambda: stable_offset(broker, topic) == 4)
    assert committed_offsets(broker, topic) == [0, 2]


@both_protocols
@pytest.mark.parametrize("client_id", ["wire", "another"])
def test_transaction_is_ended_by_another_process_that_knows_its_identity(
    broker: BrokerUnderTest, protocol: int, client_id: str
) -> None:
    """Sinks of Flink's kind rely on it: who writes may die, and another commits."""
    topic = broker.create_topic()
    with producer_of(broker, protocol) as writer:
        writer.begin(topic)
        writer.produce(topic, [b"x"] * 10)
    assert committed_offsets(broker, topic) == []
    with reconnected(broker, writer, client_id) as other:
        ended = other.end(committed=True)
        assert ended.error_code == NO_ERROR
        wait_until(lambda: stable_offset(broker, topic) == 11)
        other.producer_id, other.producer_epoch = writer.identity
        assert other.end(committed=True).error_code == NO_ERROR
    assert committed_offsets(broker, topic) == list(range(10))


def test_transaction_is_ended_by_another_process_while_its_writer_lives(
    broker: BrokerUnderTest,
) -> None:
    """Over a connection older than the writer's, even: another client is no late self."""
    topic, name = broker.create_topic(), unique("transactional")
    with TransactionalProducer(broker.bootstrap, name, protocol=1, client_id="other") as other:
        other.find_coordinator(name, 1)  # its connection is in use before the writer's is opened
        with producer_of(broker, 1, name) as writer:
            writer.begin(topic)
            writer.produce(topic, [b"x"])
            other.producer_id, other.producer_epoch = writer.identity
            assert other.end(committed=True).error_code == NO_ERROR
            wait_until(lambda: committed_offsets(broker, topic) == [0])
            assert other.end(committed=True).error_code == NO_ERROR
            writer.begin(topic)
            assert writer.produce(topic, [b"y"]).error_code == NO_ERROR
            assert writer.end(committed=True).error_code == NO_ERROR
    wait_until(lambda: committed_offsets(broker, topic) == [0, 2])
