"""Three brokers and three ZooKeepers on hosts of their own, whose network is cut in many ways.

Brokers from each other, brokers from ZooKeeper, and the leader of ZooKeeper from all others; in one
direction and in both. Clients reach all brokers all the time, so that they find a broker that was
deposed and does not know it. The checker finds no anomaly, and everything heals.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from millstream.testing.cluster import ClusterProcesses
from millstream.testing.histories import check
from millstream.testing.histories.faults import BrokerProcess, Nemesis
from millstream.testing.histories.workload import Plan, run_workload
from millstream.testing.zookeeper import ZooKeeperProcess
from tests.peers.cache import PeerMissing
from tests.peers.namespaces import Network, running_network
from tests.peers.patience import wait_until

IDS = (1, 2, 3)
BROKERS = [f"broker{number}" for number in IDS]
ZOOKEEPERS = [f"zoo{number}" for number in IDS]
PORT, ZOOKEEPER_PORT = 9092, 2181
TICK_MS = 500
SESSION_MS = 6_000
CUT_SECONDS = 10.0  # longer than a session, and than ZooKeeper needs to elect a leader
HEAL_SECONDS_MAX = 120.0
SETTINGS = {
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "share.coordinator.state.topic.num.partitions": 6,
    "zookeeper.session.timeout.ms": SESSION_MS,
    "zookeeper.connection.timeout.ms": 60_000,
}


class Host(BrokerProcess):
    """A broker on a host of its own."""

    def __init__(self, network: Network, host: str, broker: BrokerProcess) -> None:
        address = f"{network.address(host)}:{PORT}"
        command = [address if it == broker.address else it for it in broker.command]
        super().__init__(command, address, broker.log)
        self.network, self.host = network, host

    def start(self) -> float:
        with self.network.inside(self.host):
            return super().start()


class Cuts(Nemesis):
    """Cuts the network in one way after the other; waits each time until all has healed."""

    def __init__(
        self, brokers: list[BrokerProcess], ensemble: list[ZooKeeperProcess], network: Network
    ) -> None:
        super().__init__(brokers, seed=0)
        self.ensemble = ensemble
        self.network = network
        self.addresses = ",".join(broker.address for broker in brokers)

    def heal(self) -> None:
        self._thread.join()
        super().heal()

    def _run(self) -> None:
        network = self.network
        cuts: dict[str, Callable[[], None]] = {
            "brokers 1 and 2": lambda: network.cut(*BROKERS[:2]),
            "what broker 2 sends to 3": lambda: network.lose(*BROKERS[1:]),
            "broker 1 and ZooKeeper": lambda: self.each(network.cut, BROKERS[0], ZOOKEEPERS),
            "what broker 2 sends to ZooKeeper": lambda: self.each(
                network.lose, BROKERS[1], ZOOKEEPERS
            ),
            "broker 3 and all others": lambda: self.each(
                network.cut, BROKERS[2], BROKERS[:2] + ZOOKEEPERS
            ),
            "the leader of ZooKeeper": self.cut_leader,
        }
        try:
            with network.inside("client"):
                for name, cut in cuts.items():
                    cut()
                    self.tell(f"cut: {name}")
                    self._stopping.wait(CUT_SECONDS)
                    network.heal()
                    self.tell("the network is healed")
                    wait_until(self.is_healthy, HEAL_SECONDS_MAX)
                    self.tell("healthy again")
        except BaseException as error:  # noqa: BLE001 - `heal` raises it
            self.failure = error

    def each(self, cut: Callable[[str, str], None], host: str, others: list[str]) -> None:
        for other in others:
            cut(host, other)

    def cut_leader(self) -> None:
        leader = next(i for i, it in enumerate(self.ensemble) if it.mode() == "leader")
        others = [host for host in ZOOKEEPERS + BROKERS if host != ZOOKEEPERS[leader]]
        self.each(self.network.cut, ZOOKEEPERS[leader], others)

    def is_healthy(self) -> bool:
        """Whether all replicas are in sync, as each broker knows it."""
        for broker in self.brokers:
            admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
            try:
                metadata = admin.list_topics(timeout=10)
            except KafkaException:
                return False
            partitions = [
                it for topic in metadata.topics.values() for it in topic.partitions.values()
            ]
            if len(metadata.brokers) < len(IDS) or any(
                it.leader < 0 or len(it.isrs) < len(it.replicas) for it in partitions
            ):
                return False
        return True


@contextlib.contextmanager
def running_ensemble(network: Network, directory: Path) -> Iterator[list[ZooKeeperProcess]]:
    members = [f"{network.address(host)}:2888:3888" for host in ZOOKEEPERS]
    servers = [
        ZooKeeperProcess(
            *(directory / host, ZOOKEEPER_PORT),
            host=network.address(host),
            tick_ms=TICK_MS,
            ensemble=members,
            number=number,
        )
        for number, host in zip(IDS, ZOOKEEPERS, strict=True)
    ]
    try:
        for host, server in zip(ZOOKEEPERS, servers, strict=True):
            with network.inside(host):
                server.launch()
        for server in servers:
            server.wait_until_serving()
        yield servers
    finally:
        for server in servers:
            server.kill()


@contextlib.contextmanager
def running_brokers(
    network: Network, directory: Path, ensemble: list[ZooKeeperProcess]
) -> Iterator[list[BrokerProcess]]:
    plain = ClusterProcesses(directory, settings=SETTINGS)
    servers = ",".join(server.address for server in ensemble)
    brokers: list[BrokerProcess] = []
    for host, broker in zip(BROKERS, plain.brokers.values(), strict=True):
        broker.command[broker.command.index("--zookeeper") + 1] = f"{servers}/cuts"
        brokers.append(Host(network, host, broker))
    try:
        for each in brokers:
            each.start()
        yield brokers
    finally:
        for each in brokers:
            each.kill()


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        with running_network([*BROKERS, *ZOOKEEPERS, "client"]) as made:
            yield made
    except PeerMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(1200)
def test_cuts_of_the_network_lose_nothing_and_heal(tmp_path: Path, network: Network) -> None:
    with (
        network.inside("client"),
        running_ensemble(network, tmp_path) as ensemble,
        running_brokers(network, tmp_path, ensemble) as brokers,
    ):
        cuts = Cuts(brokers, ensemble, network)
        plan = Plan(seed=1, seconds=CUT_SECONDS, rate=20, sharers=2)
        history = run_workload(cuts.addresses, plan, nemesis=cuts)
    history.save(tmp_path / "history.jsonl")
    report = check(history)
    assert report.is_good, f"history in {tmp_path}, {cuts.events}\n{report}"
    for broker in brokers:  # each was cut off from ZooKeeper for longer than a session
        assert "registering it again" in broker.log.read_text()
    assert report.summary.committed > 0
    assert report.summary.settled > 0
