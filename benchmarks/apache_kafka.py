"""Apache Kafka 4.3.1 as a target: one KRaft node with the JVM options of its own start script."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from tests.peers.java_runtime import jars, java_command
from tests.peers.kafka import CLUSTER_ID, kafka_properties

from benchmarks.targets import Target, free_port

# For brokers that tests start, which compile little: what the defaults below have instead.
OPTIMISED = ["-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-Xmx1g"]

# What kafka-server-start.sh and kafka-run-class.sh set by default.
JVM_OPTIONS = [
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
]


class KafkaTarget(Target):
    def __init__(self) -> None:
        super().__init__(name="kafka")

    def prepare(self) -> None:
        settings = {"group.initial.rebalance.delay.ms": "0", **self.settings}
        text = kafka_properties(self.directory / "data", self.port, free_port(), settings)
        (self.directory / "server.properties").write_text(text)
        format_command = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"]
        subprocess.run(
            [*self._java(), *format_command, str(self.directory / "server.properties")],
            check=True,
            capture_output=True,
        )

    def command(self) -> Sequence[str]:
        return [*self._java(), "kafka.Kafka", str(self.directory / "server.properties")]

    def _java(self) -> list[str]:
        return [java_command(), *JVM_OPTIONS, "-cp", f"{jars('kafka')}/*"]
