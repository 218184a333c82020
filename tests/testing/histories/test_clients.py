"""The clients' bookkeeping: what is certain of a batch, of a transaction, of one who hangs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing.histories import Kind, Outcome, Read
from millstream.testing.histories.clients import (
    Attempt,
    Batch,
    Client,
    Scene,
    Transactor,
    as_read,
    positions_after,
    positions_before,
)
from millstream.testing.histories.faults import BrokerProcess
from tests.peers.patience import PATIENCE_SECONDS

READS = [Read("a-b-0", 4, 1), Read("c-1", 9, 2), Read("a-b-0", 5, 3)]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with BrokerProcess.millstream(tmp_path) as broker:
        config = {"bootstrap.servers": broker.address}
        topics = [NewTopic("t-in", 1), NewTopic("t-out", 1)]
        admin = AdminClient(config)
        for future in admin.create_topics(topics).values():
            future.result(PATIENCE_SECONDS)
        yield Scene(config, "t", partitions=1, seed=1, rate=50)


def idle_scene() -> Scene:
    return Scene({}, "t", partitions=1, seed=1, rate=50)


def places(positions: list[TopicPartition]) -> list[tuple[str, int, int]]:
    return [(place.topic, place.partition, place.offset) for place in positions]


def test_positions_are_after_the_last_and_before_the_first_read() -> None:
    assert places(positions_after(READS)) == [("a-b", 0, 6), ("c", 1, 10)]
    assert sorted(places(positions_before(READS))) == [("a-b", 0, 4), ("c", 1, 9)]


@pytest.mark.parametrize(
    ("offsets", "errors", "outcome"),
    [
        ({1: 0, 2: 1}, {}, Outcome.OK),
        ({1: 0, 2: None}, {}, Outcome.OK),
        ({1: 0}, {}, Outcome.INFO),
        ({1: 0}, {2: KafkaError._MSG_TIMED_OUT}, Outcome.INFO),
        ({1: 0}, {2: KafkaError._PURGE_QUEUE}, Outcome.FAIL),
        ({}, {1: KafkaError._PURGE_INFLIGHT, 2: KafkaError._PURGE_QUEUE}, Outcome.INFO),
    ],
)
def test_batch_knows_what_is_certain(
    offsets: dict[int, int | None], errors: dict[int, int], outcome: Outcome
) -> None:
    batch = Batch(idle_scene())
    batch.places = [("a-0", 1), ("a-0", 2)]
    batch.offsets = offsets
    batch.errors = {value: KafkaError(code) for value, code in errors.items()}
    assert batch.outcome is outcome


@pytest.mark.parametrize(
    ("commit_ns", "is_committed", "outcome"),
    [(None, False, Outcome.FAIL), (5, False, Outcome.INFO), (5, True, Outcome.OK)],
)
def test_transaction_is_certain_to_fail_until_its_commit_is_asked_for(
    commit_ns: int | None, is_committed: bool, outcome: Outcome
) -> None:
    attempt = Attempt(Batch(idle_scene()), 0, {}, commit_ns, is_committed)
    assert attempt.outcome is outcome


def test_batch_notes_offsets_that_were_acknowledged(scene: Scene) -> None:
    producer = scene.producer()
    batch = Batch(scene)
    for _ in range(3):
        batch.send(producer, "t-in", 0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert [(send.partition, send.value, send.offset) for send in batch.sends] == [
        ("t-in-0", 1, 0),
        ("t-in-0", 2, 1),
        ("t-in-0", 3, 2),
    ]
    consumer = scene.consumer("g")
    consumer.assign([TopicPartition("t-in", 0, 0)])
    assert as_read(consumer.poll(PATIENCE_SECONDS)) == Read("t-in-0", 0, 1)
    consumer.close()


def test_abandoned_client_records_what_it_has_in_hand_and_then_no_more(scene: Scene) -> None:
    transactor = Transactor(scene, "transactor")
    transactor.init_transactions()

    def fill(batch: Batch) -> None:
        batch.send(transactor.producer, "t-in", 0)
        transactor.abandon()

    transactor.transact(fill)
    assert [operation.outcome for operation in scene.history] == [Outcome.FAIL]
    assert [send.value for send in scene.history.operations[0].sends] == [1]


def test_failure_of_a_client_is_kept() -> None:
    class Clumsy(Client):
        def live(self) -> None:
            raise ValueError("oops")

    client = Clumsy(idle_scene(), "clumsy")
    client.start()
    client.join()
    assert isinstance(client.failure, ValueError)


@pytest.mark.parametrize(
    ("cause", "lives"), [(KafkaException(KafkaError(KafkaError._FATAL)), 2), (None, 1)]
)
def test_fatal_error_that_a_logger_disguises_ends_one_life(
    cause: Exception | None, lives: int
) -> None:
    class Fated(Client):
        def live(self) -> None:
            if self.lives == 2:
                self.stopping.set()
                return
            raise SystemError("returned a result with an exception set") from cause

    client = Fated(idle_scene(), "fated")
    client.start()
    client.join()
    assert client.lives == lives
    assert (client.failure is None) == (cause is not None)


def test_every_life_is_a_process_of_its_own() -> None:
    class Mayfly(Client):
        def live(self) -> None:
            self.record(Kind.POLL, 0)
            if self.lives == 3:
                self.stopping.set()

    scene: Any = idle_scene()
    client = Mayfly(scene, "mayfly")
    client.start()
    client.join()
    assert [operation.process for operation in scene.history] == [
        "mayfly.1",
        "mayfly.2",
        "mayfly.3",
    ]
