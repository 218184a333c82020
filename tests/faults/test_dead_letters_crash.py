"""kill -9 while a share group gives records up: each of them leaves a letter, and is done with."""

from __future__ import annotations

import contextlib
import random
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, free_port, start_millstream
from tests.peers.share_member import REJECT, ShareMember, initialize
from tests.peers.wire import ConnectionEnded, Wire, batch, produce_fields

RECORDS = 1_000
SETTINGS = {"share.coordinator.state.topic.num.partitions": "2"}
GROUP_SETTINGS = {
    "errors.deadletterqueue.topic.name": "dlq.t",
    "errors.deadletterqueue.copy.record.enable": "true",
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_every_rejected_record_leaves_a_letter(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    port = free_port()
    server = start_millstream(tmp_path / "data", SETTINGS, port=port)
    try:
        topic_id = prepare(server)
        for _ in range(5):
            reject_some(server, topic_id, rounds=dice.randrange(1, 6))
            killed_while_burying(server, topic_id)
            server = start_millstream(tmp_path / "data", SETTINGS, port=port)
        while reject_some(server, topic_id, rounds=1_000):
            pass
        letters = read_letters(server, at_least=RECORDS)
        assert set(letters) == {(offset, b"r%d" % offset) for offset in range(RECORDS)}
    finally:
        server.kill()


def prepare(server: Server) -> uuid.UUID:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    enabled = {"errors.deadletterqueue.group.enable": "true"}
    for created in admin.create_topics(
        [NewTopic("t", 1, 1), NewTopic("dlq.t", 1, 1, config=enabled)]
    ).values():
        created.result(PATIENCE_SECONDS)
    changes = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in GROUP_SETTINGS.items()
    ]
    group = ConfigResource(ConfigResource.Type.GROUP, "g", incremental_configs=changes)
    admin.incremental_alter_configs([group])[group].result(PATIENCE_SECONDS)
    with Wire(server.bootstrap) as wire:
        for first in range(0, RECORDS, 20):
            values = [b"r%d" % offset for offset in range(first, first + 20)]
            wire.call("produce", 9, **produce_fields("t", batch(values, compression="gzip")))
        topic_id: uuid.UUID = wire.call("metadata", 12, topics=({"name": "t"},)).topics[0].topic_id
    initialize(server.bootstrap, "g", topic_id)
    return topic_id


def reject_some(server: Server, topic_id: uuid.UUID, rounds: int) -> bool:
    """Take records and reject them all; whether there were any."""
    with ShareMember(server.bootstrap, "g", topic_id) as member:
        for number in range(rounds):
            max_wait = 1_000 if number else 10_000  # after a crash the state is loaded first
            acquired = member.fetch(max_wait=max_wait, max_records=40, batch_size=20)
            if not acquired:
                return number > 0
            assert member.acknowledge(*((first, last, REJECT) for first, last, _ in acquired)) == 0
    return True


def killed_while_burying(server: Server, topic_id: uuid.UUID) -> None:
    """Rejections are under way when the server dies: letters may be written, or not."""
    with ShareMember(server.bootstrap, "g", topic_id) as member:
        acquired = member.fetch(max_wait=1_000, max_records=40)
        answer = member.send_acknowledgements(
            *((first, last, REJECT) for first, last, _ in acquired)
        )
        server.process.kill()
        with contextlib.suppress(ConnectionEnded, OSError):
            answer()
        server.process.wait()


def read_letters(server: Server, at_least: int) -> list[tuple[int, bytes]]:
    """(offset of the record, its copied value) of all letters, once there are so many."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition("dlq.t", 0, 0)])
    letters: list[tuple[int, bytes]] = []
    while len(set(letters)) < at_least:
        letter = consumer.poll(PATIENCE_SECONDS)
        assert letter is not None, f"only {len(set(letters))} records have left a letter"
        assert letter.error() is None
        headers = dict(letter.headers())
        letters.append((int(headers["__dlq.errors.offset"]), letter.value()))
    consumer.close()
    return letters
