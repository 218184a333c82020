"""Workers with a real client share a queue, through failures of their own and of the broker."""

from __future__ import annotations

import threading
from pathlib import Path

from confluent_kafka import AcknowledgeType, KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.servers import free_port, start_millstream

JOBS = 2_000
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "3"}


class Worker(threading.Thread):
    """Accepts jobs, but releases every tenth the first time it comes to it."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)  # a close that hangs shall not keep the tests from ending
        self.done: set[int] = set()  # accepted, and that is durable
        self.in_doubt: set[int] = set()  # accepted, but the answer was lost, or an error
        self.stopping = threading.Event()
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "workers",
                "share.acknowledgement.mode": "explicit",
                "log_level": 0,
            }
        )
        self._consumer.subscribe(["jobs"])

    def run(self) -> None:
        while not self.stopping.is_set():
            accepted = self._work()
            if accepted:
                (self.done if self._commit() else self.in_doubt).update(accepted)
        self._consumer.close()

    def _commit(self) -> bool:
        try:
            outcomes = self._consumer.commit_sync(10) or {}
        except KafkaException:
            return False
        return all(error is None for error in outcomes.values())

    def _work(self) -> list[int]:
        accepted = []
        for record in self._consumer.poll(0.5):
            if record.error():
                continue
            job = int(record.value() or b"")
            again = job % 10 == 0 and record.delivery_count() == 1
            outcome = AcknowledgeType.RELEASE if again else AcknowledgeType.ACCEPT
            self._consumer.acknowledge(record, outcome)
            if not again:
                accepted.append(job)
        return accepted


def test_every_job_is_done_though_workers_and_broker_fail(tmp_path: Path) -> None:
    port = free_port()
    server = start_millstream(tmp_path / "data", SETTINGS, port=port)
    workers: list[Worker] = []
    try:
        _prepare(server.bootstrap)
        workers = [Worker(server.bootstrap) for _ in range(3)]
        for worker in workers:
            worker.start()
        _produce(server.bootstrap, range(JOBS // 2))
        wait_until(lambda: len(_done(workers)) > JOBS // 4)
        server.kill()
        server = start_millstream(tmp_path / "data", SETTINGS, port=port)
        _produce(server.bootstrap, range(JOBS // 2, JOBS))
        wait_until(lambda: _done(workers) | _in_doubt(workers) == set(range(JOBS)))
    finally:
        for worker in workers:
            worker.stopping.set()
        for worker in workers:
            worker.join(PATIENCE_SECONDS)
        server.kill()


def _done(workers: list[Worker]) -> set[int]:
    return set().union(*(worker.done for worker in workers))


def _in_doubt(workers: list[Worker]) -> set[int]:
    return set().union(*(worker.in_doubt for worker in workers))


def _prepare(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("jobs", 2, 1)])["jobs"].result(PATIENCE_SECONDS)
    change = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    group = ConfigResource(ResourceType.GROUP, "workers", incremental_configs=[change])
    admin.incremental_alter_configs([group])[group].result(PATIENCE_SECONDS)


def _produce(bootstrap: str, jobs: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    for job in jobs:
        producer.produce("jobs", str(job))
    assert producer.flush(PATIENCE_SECONDS) == 0
