"""A producer's epoch has 16 bits: before it runs out, the coordinator gives a new producer id."""

from __future__ import annotations

import pytest

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.test_transactions import committed_offsets, producer_of, stable_offset
from tests.peers.patience import wait_until
from tests.peers.transactional import NO_ERROR, TransactionalProducer
from tests.peers.wire import request_frame

LAST_EPOCH = 32_766  # 32,767 is kept for fencing
INVALID_PRODUCER_ID_MAPPING = 49
AT_ONCE = 250
OWN_SETTINGS = {"millstream.acks.all.flush": "false"}  # 32,766 flushes prove nothing here


def raise_epoch(producer: TransactionalProducer, epoch: int) -> None:
    """Init again and again, many requests on their way at a time."""
    name = producer.transactional_id
    request = request_frame(
        "init_producer_id", 4, 0, transactional_id=name, transaction_timeout=60_000
    )
    missing = epoch - producer.producer_epoch - 1
    while missing > 0:
        count = min(missing, AT_ONCE)
        producer.wire.send(request * count)
        for _ in range(count):
            producer.wire.receive_frame()
        missing -= count
    assert producer.init() == NO_ERROR
    assert producer.producer_epoch == epoch


@pytest.mark.slow
def test_end_of_protocol_2_hands_out_a_new_producer_id(own_broker: BrokerUnderTest) -> None:
    topic = own_broker.create_topic()
    with producer_of(own_broker, 2) as producer:
        raise_epoch(producer, LAST_EPOCH - 1)
        first_id = producer.producer_id
        producer.run(topic, [b"x"], committed=True)
        assert producer.identity == (first_id, LAST_EPOCH)
        producer.run(topic, [b"y"], committed=True)
        new_identity = producer.identity
        assert producer.producer_id != first_id
        assert producer.producer_epoch == 0
        producer.producer_id, producer.producer_epoch = first_id, LAST_EPOCH
        again = producer.end(committed=True)  # its answer was lost, say
        assert (again.error_code, producer.identity) == (NO_ERROR, new_identity)
        producer.run(topic, [b"z"], committed=True)
        assert producer.identity == (new_identity[0], 1)
        producer.producer_id, producer.producer_epoch = first_id, LAST_EPOCH
        assert producer.end(committed=True).error_code == INVALID_PRODUCER_ID_MAPPING
    wait_until(lambda: stable_offset(own_broker, topic) == 6)
    assert committed_offsets(own_broker, topic) == [0, 2, 4]


@pytest.mark.slow
def test_init_of_protocol_1_hands_out_a_new_producer_id(own_broker: BrokerUnderTest) -> None:
    topic, name = own_broker.create_topic(), unique("transactional")
    with producer_of(own_broker, 1, name) as producer:
        raise_epoch(producer, LAST_EPOCH)
        first_id = producer.producer_id
        producer.run(topic, [b"x"], committed=True)
        assert producer.identity == (first_id, LAST_EPOCH)
        producer.begin(topic)
        producer.produce(topic, [b"left open"])
        assert producer.init() == NO_ERROR
        assert producer.producer_id != first_id
        assert producer.producer_epoch == 1  # the abort of what was open took 0
        producer.run(topic, [b"y"], committed=True)
    wait_until(lambda: stable_offset(own_broker, topic) == 6)
    assert committed_offsets(own_broker, topic) == [0, 4]
