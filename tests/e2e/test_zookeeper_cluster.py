"""Real broker processes in one cluster: killed, paused, cut off from ZooKeeper, and restarted."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.events import Accepted, CommandHandler, Event, EventLog, Origin, Refusal
from millstream.events.aggregate import Aggregate
from millstream.testing.zookeeper import ZooKeeperProcess
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.servers import Server, start_millstream
from tests.peers.zookeeper import running_ensemble, running_zookeeper

MILLSTREAM = Path(sys.executable).with_name("millstream")
SESSION_MS = 20_000  # a busy machine stalls
SHORT_SESSION_MS = 3_000  # for brokers whose session has to end


class Brokers:
    """Processes of one cluster, by node id."""

    def __init__(self, hosts: str, directory: Path, session_ms: int = SESSION_MS) -> None:
        self._hosts = hosts
        self.directory = directory
        self._session_ms = session_ms
        self.running: dict[int, Server] = {}

    def start(
        self,
        node_id: int,
        session_ms: int | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> Server:
        former = self.running.get(node_id)
        settings = {
            **settings,
            "zookeeper.connect": self._hosts,
            "zookeeper.session.timeout.ms": str(session_ms or self._session_ms),
            "zookeeper.connection.timeout.ms": str(int(PATIENCE_SECONDS * 1000)),
            "node.id": str(node_id),
        }
        port = None if former is None else former.port
        data = self.directory / f"broker-{node_id}"
        self.running[node_id] = start_millstream(data, settings, port=port)
        return self.running[node_id]

    def log(self, node_id: int) -> str:
        return (self.directory / f"broker-{node_id}.log").read_text()

    def members(self, asked: int) -> set[int]:
        """As one of the brokers tells clients."""
        return set(self.admin(asked).list_topics(timeout=PATIENCE_SECONDS).brokers)

    def leaders(self, asked: int, topic: str) -> list[int]:
        metadata = self.admin(asked).list_topics(topic, timeout=PATIENCE_SECONDS)
        partitions = metadata.topics[topic].partitions
        return [partitions[index].leader for index in sorted(partitions)]

    def in_sync(self, asked: int, topic: str) -> list[set[int]]:
        metadata = self.admin(asked).list_topics(topic, timeout=PATIENCE_SECONDS)
        partitions = metadata.topics[topic].partitions
        return [set(partitions[index].isrs) for index in sorted(partitions)]

    def controller(self, asked: int) -> int:
        return int(self.admin(asked).list_topics(timeout=PATIENCE_SECONDS).controller_id)

    def admin(self, asked: int) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.running[asked].bootstrap, "log_level": 0})

    def stop(self) -> None:
        for server in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                server.process.send_signal(signal.SIGCONT)
            if server.process.poll() is None:
                server.kill()


@pytest.fixture
def brokers(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Brokers]:
    cluster = Brokers(f"{zookeeper.address}/e2e-{uuid.uuid4().hex}", tmp_path)
    yield cluster
    cluster.stop()


def create_topic(brokers: Brokers, asked: int, replicas: list[list[int]]) -> None:
    create(brokers, asked, NewTopic("t", len(replicas), replica_assignment=replicas))


def create(brokers: Brokers, asked: int, topic: NewTopic) -> None:
    admin = brokers.admin(asked)
    for future in admin.create_topics([topic]).values():
        future.result(PATIENCE_SECONDS)


def produce(brokers: Brokers, asked: int, partition: int) -> None:
    errors: list[object] = []
    bootstrap = brokers.running[asked].bootstrap
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "acks": "all"})
    producer.produce(
        "t", b"x", partition=partition, on_delivery=lambda error, record: errors.append(error)
    )
    producer.flush(PATIENCE_SECONDS)
    assert errors == [None]


def unregister(brokers: Brokers, asked: int, gone: int) -> str:
    """What the command says."""
    command = ["cluster", "-b", brokers.running[asked].bootstrap, "unregister", str(gone)]
    done = subprocess.run([MILLSTREAM, *command], capture_output=True, text=True, check=False)
    return " ".join((done.stdout + done.stderr).split())


def test_paused_broker_is_fenced_and_comes_back(brokers: Brokers) -> None:
    brokers.start(1)
    two = brokers.start(2, SHORT_SESSION_MS)
    wait_until(lambda: brokers.members(1) == {1, 2})
    create_topic(brokers, 1, [[2], [1]])
    two.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: brokers.members(1) == {1})
    assert brokers.leaders(1, "t") == [-1, 1]
    two.process.send_signal(signal.SIGCONT)
    wait_until(lambda: brokers.leaders(1, "t") == [2, 1])
    assert "registering it again" in brokers.log(2)
    wait_until(lambda: brokers.members(2) == {1, 2})
    produce(brokers, 1, 0)


@pytest.mark.slow
def test_broker_that_is_gone_for_good_is_unregistered_and_may_be_replaced(
    brokers: Brokers,
) -> None:
    for node_id in (1, 2, 3):
        brokers.start(node_id, SHORT_SESSION_MS)
    wait_until(lambda: brokers.members(1) == {1, 2, 3})
    create_topic(brokers, 1, [[3, 1], [1, 2]])
    produce(brokers, 1, 0)
    assert "Broker 3 is running: stop it first" in unregister(brokers, 1, 3)
    brokers.running[3].kill()
    wait_until(lambda: brokers.members(1) == {1, 2})
    said = unregister(brokers, 1, 3)
    assert "unregistered broker 3" in said
    assert "1 partitions still have a replica there" in said
    produce(brokers, 1, 0)
    assert "Broker ID 3 is not currently registered" in unregister(brokers, 1, 3)
    shutil.rmtree(brokers.directory / "broker-3")  # another machine takes its place
    brokers.start(3, SHORT_SESSION_MS)
    wait_until(lambda: brokers.in_sync(1, "t")[0] == {1, 3})


def test_killed_broker_is_back_at_once_when_it_is_restarted(brokers: Brokers) -> None:
    one, two = brokers.start(1), brokers.start(2)
    wait_until(lambda: brokers.members(2) == {1, 2})
    create_topic(brokers, 2, [[1], [2]])
    one.kill()
    brokers.start(1)  # its former session may not have ended
    wait_until(lambda: brokers.members(2) == {1, 2} and brokers.leaders(2, "t") == [1, 2])
    produce(brokers, 2, 0)
    assert two.stop() == 0
    wait_until(lambda: brokers.members(1) == {1})


def test_followers_compact_their_logs_too(brokers: Brokers, tmp_path: Path) -> None:
    settings = {"log.cleaner.backoff.ms": "50"}
    for node_id in (1, 2):
        brokers.start(node_id, settings=settings)
    wait_until(lambda: brokers.members(1) == {1, 2})
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "1"}
    create(brokers, 1, NewTopic("t", 1, replica_assignment=[[1, 2]], config=config))
    producer = Producer({"bootstrap.servers": brokers.running[1].bootstrap, "acks": "all"})
    for number in range(20):
        producer.produce("t", b"first" if number == 0 else b"later", b"key")
        assert producer.flush(PATIENCE_SECONDS) == 0

    def has_first(node_id: int) -> bool:
        files = (tmp_path / f"broker-{node_id}" / "t-0").glob("*.log")
        try:
            return any(b"first" in it.read_bytes() for it in files)
        except FileNotFoundError:  # the cleaner has just replaced it: look again
            return True

    wait_until(lambda: not has_first(1))
    wait_until(lambda: not has_first(2))


@pytest.mark.slow
def test_brokers_survive_the_loss_of_zookeeper(tmp_path: Path) -> None:
    with running_zookeeper() as server:
        brokers = Brokers(f"{server.address}/e2e", tmp_path, session_ms=2_000)
        try:
            brokers.start(1)
            brokers.start(2)
            wait_until(lambda: brokers.members(1) == {1, 2})
            create_topic(brokers, 1, [[2], [1]])
            for down_seconds in (0.0, 4.0):  # shorter and longer than a session
                server.kill()
                time.sleep(down_seconds)
                server.start()
                wait_until(lambda: brokers.members(1) == brokers.members(2) == {1, 2})
                wait_until(lambda: brokers.leaders(1, "t") == brokers.leaders(2, "t") == [2, 1])
                produce(brokers, 1, 0)
            create(brokers, 2, NewTopic("later", 1, 1))
        finally:
            brokers.stop()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_cluster_survives_the_loss_of_the_leader_of_the_ensemble(
    tmp_path: Path, fault: str
) -> None:
    with running_ensemble() as ensemble:
        hosts = ",".join(server.address for server in ensemble)
        brokers = Brokers(f"{hosts}/e2e", tmp_path, session_ms=6_000)
        try:
            for node_id in (1, 2, 3):
                brokers.start(node_id)
            create_topic(brokers, 1, [[1], [2], [3]])
            leader = next(server for server in ensemble if server.mode() == "leader")
            leader.kill() if fault == "kill" else leader.pause()
            others = [server for server in ensemble if server is not leader]
            wait_until(lambda: any(server.mode() == "leader" for server in others))
            create(brokers, 3, NewTopic("later", 3, 1))
            for node_id in (1, 2, 3):
                wait_until(lambda it=node_id: brokers.members(it) == {1, 2, 3})  # type: ignore[misc]
                wait_until(lambda it=node_id: brokers.leaders(it, "t") == [1, 2, 3])  # type: ignore[misc]
            for partition in (0, 1, 2):
                produce(brokers, 1, partition)
            leader.start() if fault == "kill" else leader.resume()
        finally:
            brokers.stop()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["leader", "controller"])
def test_acknowledged_records_survive_the_kill_of_a_broker(brokers: Brokers, victim: str) -> None:
    for node_id in (1, 2, 3):
        brokers.start(node_id, SHORT_SESSION_MS)
    wait_until(lambda: brokers.members(1) == {1, 2, 3})
    settings = {"min.insync.replicas": "2"}
    create(brokers, 1, NewTopic("t", 3, 3, config=settings))
    bootstrap = ",".join(server.bootstrap for server in brokers.running.values())
    sent: list[bytes] = []
    failed: list[object] = []
    acknowledged: set[bytes] = set()

    def on_delivery(error: object, record: Message) -> None:
        if error is None:
            acknowledged.add(record.value() or b"")
        else:
            failed.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    killed = brokers.leaders(1, "t")[0] if victim == "leader" else brokers.controller(1)
    while len(acknowledged) < 3_000:
        value = b"%d" % len(sent)
        sent.append(value)
        producer.produce("t", value, on_delivery=on_delivery)
        producer.poll(0.002)
        if len(acknowledged) > 500 and brokers.running[killed].process.poll() is None:
            brokers.running[killed].kill()
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert failed == []
    wait_for_records(bootstrap, acknowledged)
    brokers.start(killed)
    asked = next(node_id for node_id in brokers.running if node_id != killed)
    wait_until(lambda: brokers.in_sync(asked, "t") == [{1, 2, 3}] * 3)


def wait_for_records(bootstrap: str, wanted: set[bytes]) -> None:
    """Read the topic until all of these were there; others may be, and some twice."""
    options = {"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0}
    consumer = Consumer({**options, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("t", index, 0) for index in range(3)])
    missing = set(wanted)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while missing:
        assert time.monotonic() < deadline, f"lost: {sorted(missing)}"
        record = consumer.poll(0.5)
        if record is not None and record.error() is None:
            missing.discard(record.value() or b"")
    consumer.close()


@pytest.mark.slow
def test_commands_are_carried_out_once_while_leaders_are_killed(brokers: Brokers) -> None:
    """Conditional appends whose answers are lost are sent to the next leader."""
    for node_id in (1, 2, 3):
        brokers.start(node_id, SHORT_SESSION_MS)
    wait_until(lambda: brokers.members(1) == {1, 2, 3})
    bootstrap = ",".join(server.bootstrap for server in brokers.running.values())
    settings = {
        "millstream.conditional.append": "version",
        "min.insync.replicas": "2",
        "retention.ms": "-1",
    }
    create(brokers, 1, NewTopic("t", 1, 3, config=settings))
    outcomes: dict[str, Accepted | Refusal] = {}
    counter: Aggregate[int, str] = Aggregate(
        "counter",
        0,
        evolve=lambda state, event: state + 1,
        decide=lambda state, command: [Event("counted", {})],
    )

    def work(worker: int) -> None:
        with EventLog(bootstrap, "t") as log:
            handler = CommandHandler(log, counter)
            for number in range(150):
                origin = Origin(f"{worker}-{number}")
                outcomes[origin.command_id] = handler.handle("1", "count", origin)

    workers = [threading.Thread(target=work, args=(it,)) for it in range(3)]
    for thread in workers:
        thread.start()
    for goal in (60, 200):
        wait_until(lambda it=goal: len(outcomes) >= it)  # type: ignore[misc]
        asked = next(it for it in brokers.running if brokers.running[it].process.poll() is None)
        killed = brokers.leaders(asked, "t")[0]
        brokers.running[killed].kill()
        others = [it for it in brokers.running if it != killed]
        wait_until(lambda it=others: brokers.leaders(it[0], "t")[0] in it)  # type: ignore[misc]
        brokers.start(killed, SHORT_SESSION_MS)
        wait_until(lambda it=others: brokers.in_sync(it[0], "t") == [{1, 2, 3}])  # type: ignore[misc]
    for thread in workers:
        thread.join(4 * PATIENCE_SECONDS)
    with EventLog(bootstrap, "t") as log:
        stored = list(log.events(0, 0, log.end_offset(0)))
    assert [it.version for it in stored] == list(range(1, 451))
    assert {it.causation_id for it in stored} == outcomes.keys()
    answered = {
        name: [(it.version, it.offset) for it in outcome.events]
        for name, outcome in outcomes.items()
        if isinstance(outcome, Accepted)
    }
    assert answered == {it.causation_id: [(it.version, it.offset)] for it in stored}
