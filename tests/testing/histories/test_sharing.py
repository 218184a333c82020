"""Sharers: what they record is what the broker has done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing.histories import Acknowledgement, Kind, Outcome, check
from millstream.testing.histories.clients import Scene
from millstream.testing.histories.faults import BrokerProcess
from millstream.testing.histories.sharing import (
    DELAY_MS,
    RELEASES_MAX,
    Sharer,
    configure_share_group,
    outcomes_of,
)
from tests.peers.patience import PATIENCE_SECONDS, wait_until

RECORDS = 100


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with BrokerProcess.millstream(tmp_path) as broker:
        yield Scene({"bootstrap.servers": broker.address}, "t", partitions=1, seed=1, rate=1000)


def test_all_records_are_settled_and_released_ones_come_again(scene: Scene) -> None:
    assert configure_share_group(scene) == DELAY_MS
    admin = AdminClient(scene.config)
    admin.create_topics([NewTopic(scene.inputs, 1)])[scene.inputs].result(PATIENCE_SECONDS)
    producer = scene.producer()
    for number in range(RECORDS):
        producer.produce(scene.inputs, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    sharers = [Sharer(scene, number) for number in range(2)]
    for sharer in sharers:
        sharer.delay_ms = DELAY_MS
        sharer.start()
    wait_until(lambda: check(list(scene.history)).summary.settled >= RECORDS)
    for sharer in sharers:
        sharer.stopping.set()
        sharer.join(PATIENCE_SECONDS)
        assert sharer.failure is None
    acks = [ack for it in scene.history if it.outcome is Outcome.OK for ack in it.acks]
    assert all(it.kind is Kind.SHARE for it in scene.history)
    assert sum(ack.kind is not Acknowledgement.RELEASE for ack in acks) == RECORDS
    again = {ack.offset for ack in acks if ack.delivery_count > 1}
    assert again == {ack.offset for ack in acks if ack.kind is Acknowledgement.RELEASE}


def test_records_are_released_a_few_times_only(scene: Scene) -> None:
    sharer = Sharer(scene, 0)
    first = {sharer.choose(1) for _ in range(1000)}
    assert first == set(Acknowledgement)
    assert Acknowledgement.RELEASE not in {sharer.choose(RELEASES_MAX + 1) for _ in range(1000)}


def test_failed_acknowledgement_is_uncertain() -> None:
    failed = KafkaException(KafkaError(KafkaError.INVALID_RECORD_STATE))
    answers = {TopicPartition("t", 0): None, TopicPartition("t", 1): failed}
    assert outcomes_of(answers) == {"t-0": Outcome.OK, "t-1": Outcome.INFO}
