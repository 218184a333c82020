"""A cluster of a controller and a broker of Apache Kafka's and a broker of Millstream's.

The three are processes of their own. Each of the two brokers can be killed and started again.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.peers.java_runtime import classpath, java_command
from tests.peers.kafka import CLUSTER_ID, JVM_OPTIONS
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, free_port, wait_until_listening

OURS, APACHE, CONTROLLER = 1, 2, 3000


class MixedCluster:
    """Broker 1 is Millstream's, broker 2 Apache Kafka's."""

    def __init__(self, directory: Path, release: str | None = None) -> None:
        """`release` is that of Apache Kafka whose formats and versions the brokers use; the
        newest one unless given."""
        self._directory = directory
        self._release = release
        self._ports = {node: free_port() for node in (OURS, APACHE, CONTROLLER)}
        self._running: dict[int, Server] = {}

    @classmethod
    @contextlib.contextmanager
    def running(cls, directory: Path, release: str | None = None) -> Iterator[MixedCluster]:
        cluster = cls(directory, release)
        try:
            for node in (CONTROLLER, APACHE, OURS):
                cluster.start(node)
            yield cluster
        finally:
            for server in cluster._running.values():
                server.kill()

    def address(self, node: int) -> str:
        return f"127.0.0.1:{self._ports[node]}"

    @property
    def bootstrap(self) -> str:
        return f"{self.address(OURS)},{self.address(APACHE)}"

    def data(self, node: int) -> Path:
        return self._directory / str(node) / "data"

    def log(self, node: int) -> str:
        return (self._directory / str(node) / "server.log").read_text()

    def start(self, node: int) -> None:
        home = self._directory / str(node)
        home.mkdir(exist_ok=True)
        command = self._ours(home) if node == OURS else self._apache(home, node)
        log = home / "server.log"
        with log.open("a") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        kind = "millstream" if node == OURS else "apache-kafka"
        server = Server(kind, "127.0.0.1", self._ports[node], process, home / "data")
        self._running[node] = server
        wait_until_listening(server, log, PATIENCE_SECONDS)

    def kill(self, node: int) -> None:
        self._running.pop(node).kill()

    def stop(self, node: int) -> int:
        """Cleanly; returns the exit code."""
        return self._running.pop(node).stop()

    def _ours(self, home: Path) -> Sequence[str]:
        program = [sys.executable, "-m", "tests.peers.mixed_broker"]
        where = ["--listen", self.address(OURS), "--data", str(home / "data")]
        member = ["--node-id", str(OURS), "--cluster-id", CLUSTER_ID]
        return [*program, *where, *member, "--controller", self.address(CONTROLLER)]

    def _apache(self, home: Path, node: int) -> Sequence[str]:
        properties = home / "server.properties"
        properties.write_text(
            "".join(f"{name}={value}\n" for name, value in self._settings(home, node).items())
        )
        java = [java_command(), *JVM_OPTIONS, "-cp", classpath("kafka")]
        if not (home / "data" / "meta.properties").exists():
            command = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)]
            if self._release is not None:
                command += ["--release-version", self._release]
            subprocess.run([*java, *command], check=True, capture_output=True)
        return [*java, "kafka.Kafka", str(properties)]

    def _settings(self, home: Path, node: int) -> dict[str, str]:
        common = {
            "node.id": str(node),
            "controller.quorum.voters": f"{CONTROLLER}@{self.address(CONTROLLER)}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(home / "data"),
        }
        if node == CONTROLLER:
            return {
                **common,
                "process.roles": "controller",
                "listeners": f"CONTROLLER://{self.address(node)}",
                # Short, so that a broker that was killed is soon replaced.
                "broker.session.timeout.ms": "4000",
            }
        return {
            **common,
            "process.roles": "broker",
            "listeners": f"PLAINTEXT://{self.address(node)}",
            "broker.heartbeat.interval.ms": "500",
            "broker.session.timeout.ms": "4000",
            "replica.lag.time.max.ms": "5000",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }
