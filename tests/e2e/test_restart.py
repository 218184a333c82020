"""Everything a broker was told survives its end, be it a clean stop or kill -9."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.conformance.conftest import prepared
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.programs import Record
from tests.peers.servers import Server, free_port, start_millstream
from tests.peers.wire import Wire, batch, produce_fields

SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "3"}
ENDS: dict[str, Callable[[Server], object]] = {"stopped": Server.stop, "killed": Server.kill}


class Restartable:
    """A server that can be ended and started again on the same data and port."""

    def __init__(self, directory: Path, end: str) -> None:
        self._directory = directory
        self._end = ENDS[end]
        self._port = free_port()
        self.server = self._start()
        self.admin = AdminClient({"bootstrap.servers": self.server.bootstrap, "log_level": 0})

    @property
    def bootstrap(self) -> str:
        return self.server.bootstrap

    def restart(self) -> None:
        self._end(self.server)
        self.server = self._start()

    def _start(self) -> Server:
        return start_millstream(self._directory / "data", SETTINGS, port=self._port)


@pytest.fixture(params=ENDS)
def restartable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Restartable]:
    made = Restartable(tmp_path, request.param)
    yield made
    made.server.kill()


@pytest.mark.slow_with("stopped")
def test_topics_with_ids_partitions_and_settings_survive(restartable: Restartable) -> None:
    admin = restartable.admin
    topics = [NewTopic("kept", 2, 1, config={"retention.ms": "1234567"}), NewTopic("dropped", 1, 1)]
    for created in admin.create_topics(topics).values():
        created.result(PATIENCE_SECONDS)
    admin.create_partitions([NewPartitions("kept", 3)])["kept"].result(PATIENCE_SECONDS)
    change = ConfigEntry("max.message.bytes", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "kept", incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)
    admin.delete_topics(["dropped"])["dropped"].result(PATIENCE_SECONDS)
    with Wire(restartable.bootstrap) as wire:
        before = wire.call("metadata", 12, topics=({"name": "kept"},)).topics[0]
    restartable.restart()
    with Wire(restartable.bootstrap) as wire:
        listed = wire.call("metadata", 12, topics=None).topics
    (after,) = [topic for topic in listed if not topic.is_internal]
    assert (after.name, after.topic_id, len(after.partitions)) == ("kept", before.topic_id, 3)
    described = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "kept")])
    (settings,) = [entries.result(PATIENCE_SECONDS) for entries in described.values()]
    assert settings["retention.ms"].value == "1234567"
    assert settings["max.message.bytes"].value == "5000"


@pytest.mark.slow_with("stopped")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_goes_on_where_it_was(restartable: Restartable, protocol: str) -> None:
    """The member stays connected: after the restart it reads on, and reads nothing twice."""
    restartable.admin.create_topics([NewTopic("t", 3, 1)])["t"].result(PATIENCE_SECONDS)
    client = prepared("confluent")

    def produce(start: int) -> None:
        records = [Record(value=str(n).encode(), partition=n % 3) for n in range(start, start + 30)]
        client.produce(restartable.bootstrap, "t", records)

    produce(0)
    config = {"group.protocol": protocol, "auto.commit.interval.ms": 50, "log_level": 0}
    member = client.join(restartable.bootstrap, "t", "group", config)
    try:
        member.wait_until(lambda m: len(m.records) == 30)
        wait_until(lambda: committed(restartable.bootstrap) == 30)
        restartable.restart()
        produce(30)
        member.wait_until(lambda m: len(m.records) >= 60)
    finally:
        member.kill()
        client.close()
    assert sorted(int(record.value or b"") for record in member.records) == list(range(60))


def committed(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "group", "log_level": 0})
    positions = consumer.committed(
        [TopicPartition("t", p) for p in range(3)], timeout=PATIENCE_SECONDS
    )
    consumer.close()
    return sum(max(position.offset, 0) for position in positions)


@pytest.mark.slow_with("stopped")
def test_idempotent_producer_goes_on_and_a_repeated_batch_is_known(
    restartable: Restartable,
) -> None:
    restartable.admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_SECONDS)

    def produce(sequence: int) -> tuple[int, int]:
        identity = {"producer_id": producer_id, "producer_epoch": epoch}
        records = batch([b"x"], base_sequence=sequence, **identity)
        with Wire(restartable.bootstrap) as wire:
            answer = wire.call("produce", 9, **produce_fields("t", records))
        partition = answer.responses[0].partition_responses[0]
        return int(partition.error_code), int(partition.base_offset)

    with Wire(restartable.bootstrap) as wire:
        given = wire.call("init_producer_id", 4, transactional_id=None, transaction_timeout=1000)
    producer_id, epoch = given.producer_id, given.producer_epoch
    assert [produce(0), produce(1)] == [(0, 0), (0, 1)]
    restartable.restart()
    assert produce(1) == (0, 1)
    assert produce(2) == (0, 2)
    with Wire(restartable.bootstrap) as wire:
        other = wire.call("init_producer_id", 4, transactional_id=None, transaction_timeout=1000)
    assert other.producer_id != producer_id


def test_leader_epoch_rises_after_an_unclean_end(tmp_path: Path) -> None:
    """Offsets may be used again after it, and clients shall notice."""
    made = Restartable(tmp_path, "killed")
    try:
        made.admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_SECONDS)
        before = leader_epoch(made.bootstrap)
        made.restart()
        assert leader_epoch(made.bootstrap) > before
    finally:
        made.server.kill()


def leader_epoch(bootstrap: str) -> int:
    with Wire(bootstrap) as wire:
        topic = wire.call("metadata", 12, topics=({"name": "t"},)).topics[0]
    return int(topic.partitions[0].leader_epoch)


@pytest.mark.slow_with("stopped")
def test_deleted_records_stay_deleted_and_big_logs_come_back(restartable: Restartable) -> None:
    topic = NewTopic("t", 1, 1, config={"segment.bytes": "1048576"})
    restartable.admin.create_topics([topic])["t"].result(PATIENCE_SECONDS)
    producer = Producer({"bootstrap.servers": restartable.bootstrap, "log_level": 0})
    values = [os.urandom(20_000) for _ in range(300)]
    for value in values:
        producer.produce("t", value, partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    delete = restartable.admin.delete_records([TopicPartition("t", 0, 120)])
    delete[TopicPartition("t", 0)].result(PATIENCE_SECONDS)
    restartable.restart()
    received = prepared("confluent").consume(restartable.bootstrap, "t", 180)
    prepared("confluent").close()
    assert [record.offset for record in received] == list(range(120, 300))
    assert [record.value for record in received] == values[120:]
