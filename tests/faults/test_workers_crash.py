"""Workers killed under load: what was acknowledged is there, once and in order."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, start_workers

pytestmark = pytest.mark.slow

WORKERS = 3
PARTITIONS = 6
KILLS = 6


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = start_workers(tmp_path / "data", WORKERS)
    yield started
    started.stop()


def workers_of(server: Server) -> list[psutil.Process]:
    """Those that serve, without the spare process."""
    return [
        process
        for process in psutil.Process(server.process.pid).children()
        if any(file.path.startswith(f"{server.data}/workers/") for file in process.open_files())
    ]


class Load:
    """An idempotent producer in a thread; counts what was acknowledged, by partition."""

    def __init__(self, server: Server, topic: str) -> None:
        self.acknowledged: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self._stopping = threading.Event()
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": server.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "message.timeout.ms": int(PATIENCE_SECONDS * 1000),
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            for partition in range(PARTITIONS):
                self._producer.produce(
                    self._topic,
                    str(number).encode(),
                    partition=partition,
                    on_delivery=self._delivered,
                )
            number += 1
            self._producer.poll(0)
            time.sleep(0.001)

    def _delivered(self, error: object, message: Message) -> None:
        assert error is None, error
        self.acknowledged[message.partition()].append(int(message.value()))


def consume(server: Server, topic: str, count: int) -> list[list[int]]:
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while sum(map(len, found)) < count and time.monotonic() < deadline:
        for message in consumer.consume(10_000, 1.0):
            if message.error() is None:
                found[message.partition()].append(int(message.value()))
    consumer.close()
    return found


def test_workers_killed_under_load_lose_and_double_nothing(server: Server) -> None:
    placed = [[index % WORKERS + 1] for index in range(PARTITIONS)]
    topic = NewTopic("load", num_partitions=PARTITIONS, replica_assignment=placed)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([topic])["load"].result(PATIENCE_SECONDS)
    load = Load(server, "load")
    for kill in range(KILLS):
        before = [len(it) for it in load.acknowledged]
        random.Random(kill).choice(workers_of(server)).kill()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(len(it) < old + 50 for it, old in zip(load.acknowledged, before, strict=True)):
            assert time.monotonic() < deadline, "a partition does not come back"
            time.sleep(0.02)
    load.stop()
    assert consume(server, "load", sum(map(len, load.acknowledged))) == load.acknowledged
