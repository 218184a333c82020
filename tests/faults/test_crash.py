"""kill -9 under load, again and again: nothing acknowledged is lost, moved or doubled."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port, start_millstream

PARTITIONS = 3
SETTINGS = {"log.segment.bytes": "1048576", "group.initial.rebalance.delay.ms": "0"}


class Ledger:
    """A producer that never stops, and what was acknowledged to it."""

    def __init__(self, bootstrap: str, topic: str, **config: Any) -> None:
        self.topic = topic
        self.acknowledged: dict[int, tuple[int, int]] = {}  # number -> (partition, offset)
        self.failures: list[str] = []
        self._stop = threading.Event()
        settings = {name.replace("_", "."): value for name, value in config.items()}
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
                **settings,
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_for(self, count: int) -> None:
        """Until that many more have been acknowledged."""
        goal = len(self.acknowledged) + count
        pause = threading.Event()
        while len(self.acknowledged) < goal:
            pause.wait(0.01)

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_SECONDS) == 0
        assert not self.failures, self.failures[:3]

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            for _ in range(50):
                self._send(number)
                number += 1
            self._producer.poll(0.005)

    def _send(self, number: int) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.acknowledged[number] = (message.partition(), message.offset())
            else:
                self.failures.append(str(error))

        value = str(number).encode() + b"." * 50
        while True:
            try:
                self._producer.produce(
                    self.topic, value, partition=number % PARTITIONS, on_delivery=delivered
                )
                return
            except BufferError:
                self._producer.poll(0.05)


def stored(bootstrap: str, topic: str, partition: int) -> Iterator[tuple[int, int]]:
    """(offset, number) of every record of a partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    try:
        while True:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            if message.error() is None:
                yield message.offset(), int(message.value().rstrip(b"."))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return
    finally:
        consumer.close()


def check(bootstrap: str, ledger: Ledger, *, once: bool) -> None:
    for partition in range(PARTITIONS):
        records = list(stored(bootstrap, ledger.topic, partition))
        at = dict(records)
        acknowledged = {
            number: offset
            for number, (where, offset) in ledger.acknowledged.items()
            if where == partition
        }
        lost = [number for number, offset in acknowledged.items() if at.get(offset) != number]
        assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged records lost: {lost[:5]}"
        numbers = [number for _, number in records]
        first_seen = list(dict.fromkeys(numbers))
        assert first_seen == sorted(first_seen), "records changed places"
        if once:
            assert len(numbers) == len(set(numbers)), (
                "an idempotent producer's record is twice there"
            )


@pytest.mark.parametrize(
    "rounds", [2, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    tmp_path: Path, rounds: int
) -> None:
    dice = random.Random(rounds)
    port = free_port()
    server = start_millstream(tmp_path / "data", SETTINGS, port=port)
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    topics = [NewTopic(name, PARTITIONS, 1) for name in ("plain", "idempotent")]
    for created in admin.create_topics(topics).values():
        created.result(PATIENCE_SECONDS)
    plain = Ledger(server.bootstrap, "plain", max_in_flight=1)
    idempotent = Ledger(server.bootstrap, "idempotent", enable_idempotence=True)
    try:
        for _ in range(rounds):
            plain.wait_for(dice.randrange(100, 3000))
            idempotent.wait_for(dice.randrange(100, 3000))
            server.kill()
            server = start_millstream(tmp_path / "data", SETTINGS, port=port)
        plain.wait_for(100)
        idempotent.wait_for(100)
        plain.finish()
        idempotent.finish()
        server.kill()
        server = start_millstream(tmp_path / "data", SETTINGS, port=port)
        check(server.bootstrap, plain, once=False)
        check(server.bootstrap, idempotent, once=True)
    finally:
        plain._stop.set()
        idempotent._stop.set()
        server.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    "rounds", [2, pytest.param(15, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_topic_created_again_keeps_its_own_records_when_the_server_is_killed(
    tmp_path: Path, rounds: int
) -> None:
    """Deleted while others write, after some of its records were deleted; then the power goes."""
    dice = random.Random(rounds)
    port = free_port()
    settings = SETTINGS | {
        "log.flush.offset.checkpoint.interval.ms": "50",
        "auto.create.topics.enable": "false",  # else a producer creates the topic in between
    }
    server = start_millstream(tmp_path / "data", settings, port=port)
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("plain", PARTITIONS, 1)])["plain"].result(PATIENCE_SECONDS)
    plain = Ledger(server.bootstrap, "plain", max_in_flight=1)
    try:
        for _ in range(rounds):
            recreate(admin, "churn")
            busy = Ledger(server.bootstrap, "churn")
            busy.wait_for(dice.randrange(100, 1000))
            busy.finish()
            parts = [TopicPartition("churn", partition, 20) for partition in range(PARTITIONS)]
            for deleted in admin.delete_records(parts).values():
                deleted.result(PATIENCE_SECONDS)
            plain.wait_for(500)  # long enough for a checkpoint to mention it
            recreate(admin, "churn")
            again = Ledger(server.bootstrap, "churn")
            again.wait_for(30)
            again.finish()
            server.kill()
            server = start_millstream(tmp_path / "data", settings, port=port)
            check(server.bootstrap, again, once=False)
        plain.finish()
        check(server.bootstrap, plain, once=False)
    finally:
        plain._stop.set()
        server.kill()


def recreate(admin: AdminClient, topic: str) -> None:
    if topic in admin.list_topics(timeout=PATIENCE_SECONDS).topics:
        admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(PATIENCE_SECONDS)


def test_checker_notices_a_lost_record(tmp_path: Path) -> None:
    """The ledger claims one record too many: the check above can fail."""
    server = start_millstream(tmp_path / "data")
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("plain", PARTITIONS, 1)])["plain"].result(PATIENCE_SECONDS)
        ledger = Ledger(server.bootstrap, "plain")
        ledger.wait_for(10)
        ledger.finish()
        check(server.bootstrap, ledger, once=True)
        ledger.acknowledged[10**9] = (0, 10**9)
        with pytest.raises(AssertionError, match=r"1 of \d+ acknowledged records lost"):
            check(server.bootstrap, ledger, once=True)
    finally:
        server.kill()
