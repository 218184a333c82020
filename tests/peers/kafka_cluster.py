"""Apache Kafka as a cluster of several nodes, each a broker and a controller."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.peers.java_runtime import classpath, java_command
from tests.peers.kafka import CLUSTER_ID, JVM_OPTIONS, kafka_properties
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, free_port, wait_until_listening


@dataclass
class KafkaCluster:
    nodes: list[Server]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

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
    nodes = []
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
        with (home / "server.log").open("a") as log:
            process = subprocess.Popen(
                [*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log
            )
        nodes.append(Server("apache-kafka", "127.0.0.1", port, process, home / "data"))
    for node in nodes:
        wait_until_listening(node, node.data.parent / "server.log", PATIENCE_SECONDS)
    return KafkaCluster(nodes)
