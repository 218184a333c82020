"""kill -9 after a topic was deleted and created again: the new one has its own records alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from tests.conformance.brokers import SETTINGS, BrokerUnderTest, unique
from tests.conformance.queues import QUEUE_SETTINGS, Queue
from tests.conformance.test_compaction import COMPACTED, fill_segments
from tests.conformance.test_recreate import read, recreate, write
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port, start_millstream
from tests.peers.share_consumers import Delivered

# Checkpoints mention the deleted topic, if anything does.
OFTEN = {"log.flush.offset.checkpoint.interval.ms": "50"}


class Crashing(BrokerUnderTest):
    """A broker that can be killed and started again at the same address."""

    def crash(self) -> None:
        self.server.kill()
        self.server = start_millstream(
            self.server.data, SETTINGS | QUEUE_SETTINGS | OFTEN, port=self.server.port
        )


@pytest.fixture
def crashing(tmp_path: Path) -> Crashing:
    settings = SETTINGS | QUEUE_SETTINGS | OFTEN
    return Crashing(start_millstream(tmp_path / "data", settings, port=free_port()))


def delete_records(broker: BrokerUnderTest, topic: str) -> None:
    write(broker, topic, 100, "old")
    cut = broker.admin.delete_records([TopicPartition(topic, 0, 60)])
    assert next(iter(cut.values())).result(PATIENCE_SECONDS).low_watermark == 60


def compact(broker: BrokerUnderTest, topic: str) -> None:
    fill_segments(broker, topic, 3)


def abort(broker: BrokerUnderTest, topic: str) -> None:
    producer = Producer(broker.config(transactional_id=unique("recreate")))
    producer.init_transactions(PATIENCE_SECONDS)
    for commits in (True, False):
        producer.begin_transaction()
        for number in range(20):
            producer.produce(topic, b"old-%d" % number, partition=0)
        producer.flush(PATIENCE_SECONDS)
        end = producer.commit_transaction if commits else producer.abort_transaction
        end(PATIENCE_SECONDS)


@pytest.mark.slow_with("delete_records", "compact")
@pytest.mark.parametrize("live", [delete_records, compact, abort])
def test_new_topic_has_its_own_records_alone_after_a_kill(
    crashing: Crashing, live: Callable[[BrokerUnderTest, str], None]
) -> None:
    settings = COMPACTED if live is compact else {}
    topic = crashing.create_topic(**settings)
    try:
        live(crashing, topic)
        crashing.crash()
        recreate(crashing, topic, **settings)
        values = write(crashing, topic, 10, "new")
        crashing.crash()
        assert read(crashing, topic) == list(enumerate(values))
    finally:
        crashing.server.kill()


def test_share_group_gets_the_new_records_alone_after_a_kill(crashing: Crashing) -> None:
    try:
        queue = Queue(crashing)
        queue.produce("a", "b", "c")
        with queue.join() as consumer:
            consumer.accept_all(3)
        recreate(crashing, queue.topic)
        queue.produce("new")
        crashing.crash()
        with queue.join() as consumer:
            assert consumer.receive() == [Delivered(0, 0, "new", 1)]
    finally:
        crashing.server.kill()
