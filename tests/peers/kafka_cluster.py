"""Apache Kafka as a cluster: of nodes that are broker and controller, or, as before version 4, of
brokers with ZooKeeper."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.peers.java_runtime import classpath, jars, java_command
from tests.peers.kafka import CLUSTER_ID, JVM_OPTIONS, kafka_properties
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, free_port, wait_until_listening


@dataclass
class KafkaCluster:
    nodes: list[Server]
    commands: list[list[str]]  # with which they were started

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def start_again(self, index: int) -> None:
        """Start a node that was stopped or killed."""
        node = self.nodes[index]
        node.process = _launch(self.commands[index], node.data.parent)
        wait_until_listening(node, _log(node), PATIENCE_SECONDS)

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def stop(self) -> None:
        for node in self.nodes:
            node.process.terminate()
        for node in self.nodes:
            node.stop()


def start_kafka_cluster(
    directory: Path, count: int = 3, settings: Mapping[str, str] | None = None
) -> KafkaCluster:
    """Start `count` nodes, with ids from 1, at the same time. `{node}` in a setting's value is the
    id of its node."""
    ports = {node_id: (free_port(), free_port()) for node_id in range(1, count + 1)}
    voters = ",".join(f"{node_id}@127.0.0.1:{ports[node_id][1]}" for node_id in ports)
    servers, commands = [], []
    for node_id, (port, controller_port) in ports.items():
        home = directory / str(node_id)
        home.mkdir(parents=True)
        own = {
            "node.id": str(node_id),
            "controller.quorum.voters": voters,
            "offsets.topic.replication.factor": str(count),
            "transaction.state.log.replication.factor": str(count),
            "share.coordinator.state.topic.replication.factor": str(count),
            **{name: value.format(node=node_id) for name, value in (settings or {}).items()},
        }
        properties = home / "server.properties"
        properties.write_text(kafka_properties(home / "data", port, controller_port, own))
        java = [java_command(), *JVM_OPTIONS, "-cp", classpath("kafka")]
        command = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
        subprocess.run([*java, *command], check=True, capture_output=True)
        commands.append([*java, "kafka.Kafka", str(properties)])
        process = _launch(commands[-1], home)
        servers.append(Server("apache-kafka", "127.0.0.1", port, process, home / "data"))
    return _serving(servers, commands)


def start_old_kafka_cluster(
    directory: Path, zookeeper: str, count: int = 3, settings: Mapping[str, str] | None = None
) -> KafkaCluster:
    """Start `count` brokers of the last version that works with ZooKeeper, with ids from 1."""
    servers, commands = [], []
    for broker in range(1, count + 1):
        home = directory / str(broker)
        home.mkdir(parents=True)
        port = free_port()
        own = {
            "broker.id": str(broker),
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "zookeeper.connect": zookeeper,
            "log.dirs": str(home / "data"),
            "offsets.topic.replication.factor": str(count),
            "transaction.state.log.replication.factor": str(count),
            **(settings or {}),
        }
        properties = home / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in own.items()))
        libraries = f"{jars('kafka-zookeeper')}/*"
        java = [java_command(), *JVM_OPTIONS, "-cp", libraries]
        commands.append([*java, "kafka.Kafka", str(properties)])
        process = _launch(commands[-1], home)
        servers.append(Server("apache-kafka", "127.0.0.1", port, process, home / "data"))
    return _serving(servers, commands)


def _serving(servers: list[Server], commands: list[list[str]]) -> KafkaCluster:
    cluster = KafkaCluster(servers, commands)
    try:
        for server in servers:
            wait_until_listening(server, _log(server), PATIENCE_SECONDS)
    except BaseException:
        cluster.kill()
        raise
    return cluster


def _launch(command: list[str], home: Path) -> subprocess.Popen[bytes]:
    with (home / "server.log").open("a") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _log(server: Server) -> Path:
    return server.data.parent / "server.log"
