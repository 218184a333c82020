"""What tests of the transactional handlers share: a producer on a topic of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.calls import create_topic
from tests.peers.transactional import TransactionalProducer
from tests.peers.wire import Wire

PARTITIONS = 3


def new_topic(millstream: SharedBroker) -> str:
    topic = millstream.unique_topic()
    with Wire(millstream.bootstrap_servers) as wire:
        create_topic(wire, topic, PARTITIONS)
    return topic


@contextlib.contextmanager
def new_producer(millstream: SharedBroker, protocol: int = 1) -> Iterator[TransactionalProducer]:
    """Initialized, under a transactional id that nobody else has."""
    transactional_id = millstream.unique_topic("tx")
    with TransactionalProducer(
        millstream.bootstrap_servers, transactional_id, protocol=protocol
    ) as producer:
        assert producer.init() == 0
        yield producer


def who(producer: TransactionalProducer) -> dict[str, object]:
    """The fields by which a request says whose transaction it means."""
    return {
        "transactional_id": producer.transactional_id,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
    }
