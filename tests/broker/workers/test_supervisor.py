"""`millstream serve --workers`: real processes, killed and stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.broker.workers.processes import WorkerFailed
from millstream.broker.workers.supervisor import Supervisor
from millstream.config.broker import BrokerConfig
from millstream.errors import ConfigError, DirectoryLocked, MillstreamError
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.servers import Server, start_workers
from tests.peers.wire import Wire

WORKERS = 2
PARTITIONS = 6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = start_workers(tmp_path_factory.mktemp("workers") / "data", WORKERS)
    yield started
    started.stop()


def create_topic(server: Server, name: str) -> None:
    """With partitions on every worker: number 1 has the even ones."""
    placed = [[index % WORKERS + 1] for index in range(PARTITIONS)]
    topic = NewTopic(name, num_partitions=PARTITIONS, replica_assignment=placed)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([topic])[name].result(PATIENCE_SECONDS)


def produce(server: Server, topic: str, first: int, count: int) -> None:
    """One record after the other to all partitions in turn; all are acknowledged."""
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "acks": "all", "enable.idempotence": True}
    )
    errors: list[Any] = []
    for number in range(first, first + count):
        producer.produce(
            topic,
            str(number).encode(),
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: errors.append(error),
        )
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert errors == [None] * count


def consume(server: Server, topic: str, count: int) -> list[int]:
    """Everything in the topic, once `count` records are there."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count, 1.0):
            assert message.error() is None
            found.append(int(message.value()))
    consumer.close()
    return sorted(found)


def workers_of(server: Server) -> dict[int, psutil.Process]:
    """The processes by their number, which is in the name of the lock that they hold."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.Process(server.process.pid).children():
        for file in open_files(process):
            if file.path.startswith(f"{server.data}/cluster/") and file.path.endswith(".lock"):
                name = Path(file.path).stem
                if name.isdigit():
                    found[int(name)] = process
    return found


def open_files(process: psutil.Process) -> list[Any]:
    try:
        return list(process.open_files())
    except psutil.Error:  # it has just ended
        return []


def leaders(server: Server, topic: str) -> dict[int, tuple[int, int]]:
    """The leader and its epoch, by partition."""
    with Wire(server.bootstrap) as wire:
        answer = wire.call("metadata", 12, topics=({"name": topic},))
    return {
        it.partition_index: (it.leader_id, it.leader_epoch) for it in answer.topics[0].partitions
    }


def is_alive(process: psutil.Process) -> bool:
    """Not that of a process that has ended and that nobody has asked for its exit code yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_clients_see_a_cluster_of_workers(server: Server) -> None:
    create_topic(server, "seen")
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    brokers = admin.list_topics("seen", PATIENCE_SECONDS).brokers
    assert sorted(brokers) == [1, 2]
    assert len({broker.port for broker in brokers.values()} | {server.port}) == 3
    produce(server, "seen", 0, 60)
    assert consume(server, "seen", 60) == list(range(60))


def test_topic_that_one_worker_has_created_is_known_to_the_other_at_once(server: Server) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    brokers = admin.list_topics(timeout=PATIENCE_SECONDS).brokers
    one, two = (Wire(f"127.0.0.1:{brokers[number].port}") for number in (1, 2))
    with one, two:
        for index in range(10):
            writer, reader = (one, two) if index % 2 else (two, one)
            topic = {"name": f"known-{index}", "num_partitions": 1, "replication_factor": 1}
            created = writer.call("create_topics", 7, topics=(topic,), timeout=60_000)
            assert created.topics[0].error_code == 0
            deleted = reader.call(
                "delete_topics", 6, topics=({"name": f"known-{index}"},), timeout=60_000
            )
            assert deleted.responses[0].error_code == 0


def test_killed_worker_comes_back_with_its_records_and_new_leader_epochs(server: Server) -> None:
    create_topic(server, "killed")
    produce(server, "killed", 0, 60)
    before = leaders(server, "killed")
    victim = workers_of(server)[2]
    victim.kill()
    produce(server, "killed", 60, 60)
    assert consume(server, "killed", 120) == list(range(120))
    after = leaders(server, "killed")
    for index in range(PARTITIONS):
        leader, epoch = before[index]
        assert after[index] == (leader, epoch if leader == 1 else epoch + 2)
    assert workers_of(server)[2].pid != victim.pid


def test_second_parent_and_single_broker_are_refused(server: Server) -> None:
    command = [Path(sys.executable).with_name("millstream"), "serve"]
    command += ["--listen", "127.0.0.1:0", "--data", str(server.data)]
    for options in (["--workers", "2"], []):
        done = subprocess.run(
            [*command, *options],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "in use by another process" in done.stderr


def test_stopped_workers_leave_clean_directories_and_nobody(tmp_path: Path) -> None:
    server = start_workers(tmp_path / "data", 2)
    processes = psutil.Process(server.process.pid).children(recursive=True)
    assert server.stop() == 0
    wait_until(lambda: not any(map(is_alive, processes)))
    for worker in "12":
        assert (server.data / "workers" / worker / ".kafka_cleanshutdown").exists()


def test_workers_stop_when_their_parent_is_killed(tmp_path: Path) -> None:
    server = start_workers(tmp_path / "data", 2)
    processes = psutil.Process(server.process.pid).children(recursive=True)
    server.kill()
    wait_until(lambda: not any(map(is_alive, processes)))
    for worker in "12":
        assert (server.data / "workers" / worker / ".kafka_cleanshutdown").exists()


def supervisor(path: Path, workers: int, listeners: str = "PLAINTEXT://127.0.0.1:0") -> Supervisor:
    settings = {"log.dirs": str(path), "listeners": listeners}
    return Supervisor(BrokerConfig.from_values(settings), workers)


@pytest.mark.parametrize("workers", [0, -1, 257])
def test_impossible_numbers_of_workers_are_refused(tmp_path: Path, workers: int) -> None:
    with pytest.raises(ConfigError, match=f"--workers {workers}: give at least 1"):
        supervisor(tmp_path, workers)


def test_fewer_ports_than_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 workers need the ports 65533 to 65536"):
        supervisor(tmp_path, 3, "PLAINTEXT://127.0.0.1:65533")


def test_port_of_another_process_is_reported_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MillstreamError, match=f"cannot listen on 127.0.0.1:{port}"):
            asyncio.run(supervisor(tmp_path, 1, f"PLAINTEXT://127.0.0.1:{port}").start())


def test_worker_that_cannot_start_stops_the_others(tmp_path: Path) -> None:
    before = psutil.Process(os.getpid()).children()
    presence: list[int] = []

    async def scenario() -> None:
        it = supervisor(tmp_path, 2)
        it._layout.fs.make_directory(it._layout.worker_directories(2)[0])
        presence.append(it._layout.fs.lock(f"{it._layout.worker_directories(2)[0]}/.lock"))
        with pytest.raises(WorkerFailed, match=r"worker 2 cannot start: .* in use by another"):
            await it.start()

    asyncio.run(scenario())
    others = [it for it in psutil.Process(os.getpid()).children() if it not in before]
    wait_until(lambda: not any(map(is_alive, others)))


def test_directory_of_a_running_parent_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        it = supervisor(tmp_path, 1)
        await it.start()
        try:
            with pytest.raises(DirectoryLocked, match="in use by another process"):
                await supervisor(tmp_path, 1).start()
            it.send(signal.SIGUSR1)
        finally:
            await it.stop()

    asyncio.run(scenario())
