"""Apache Kafka itself, as one KRaft node on free ports in a directory of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.peers.java_runtime import classpath, java_command
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, free_port, wait_until_listening

CLUSTER_ID = "AAAAAAAAQACAAAAAAAAAAA"
JVM_OPTIONS = [
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
]


def start_kafka(
    directory: Path,
    settings: Mapping[str, str],
    *,
    more_listeners: Sequence[str] = (),
    port: int | None = None,
    jvm_options: Sequence[str] = (),
    bundle: str = "kafka",
) -> Server:
    """Format `directory/data` (unless it is formatted) and start a broker on it, with the jars of
    that bundle.

    `more_listeners` are like `SSL://127.0.0.1:9093`, beside the plain one on `port`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    port, controller_port = port or free_port(), free_port()
    properties = directory / "server.properties"
    text = kafka_properties(directory / "data", port, controller_port, settings)
    for listener in more_listeners:
        text = text.replace("\nlisteners=", f"\nlisteners={listener},")
    properties.write_text(text)
    java = [java_command(), *JVM_OPTIONS, *jvm_options, "-cp", classpath(bundle)]
    if not (directory / "data" / "meta.properties").exists():
        command = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
        subprocess.run([*java, *command], check=True, capture_output=True)
    log = (directory / "server.log").open("a")
    process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log)
    server = Server("apache-kafka", "127.0.0.1", port, process, directory / "data")
    wait_until_listening(server, directory / "server.log", PATIENCE_SECONDS)
    return server


def kafka_properties(
    data: Path, port: int, controller_port: int, settings: Mapping[str, str]
) -> str:
    base = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "log.dirs": str(data),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }
    return "".join(f"{name}={value}\n" for name, value in {**base, **settings}.items())


def tiered_settings(remote: Path) -> dict[str, str]:
    """For the bundle `kafka-tiered`: tiered storage in a directory."""
    storage = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": storage,
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.dir": str(remote),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    }
