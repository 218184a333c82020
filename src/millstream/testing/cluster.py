"""A replicated cluster of child processes: brokers and a ZooKeeper, on this machine.

For tests and demos that kill, freeze and restart brokers:

    with ClusterProcesses(directory) as cluster:
        cluster.brokers[2].kill()
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from millstream.testing.histories.faults import SWIFT_GROUPS, BrokerProcess, free_port
from millstream.testing.zookeeper import ZooKeeperProcess

BROKER_COUNT = 3
# Short, so that failover does not take the 18 seconds of Kafka's default.
SESSION_MS = 2_000
TICKS_PER_SESSION = 10  # ZooKeeper grants sessions of 2 to 20 ticks


class ClusterProcesses:
    """Brokers with ids from 1, not yet started; their data and logs are in `directory`."""

    def __init__(
        self,
        directory: Path,
        count: int = BROKER_COUNT,
        settings: Mapping[str, object] | None = None,
        *,
        session_ms: int = SESSION_MS,
    ) -> None:
        tick_ms = session_ms // TICKS_PER_SESSION
        self.zookeeper = ZooKeeperProcess(directory / "zookeeper", free_port(), tick_ms=tick_ms)
        session = {"zookeeper.session.timeout.ms": session_ms}
        self._settings = replicated(count) | session | dict(settings or {})
        self.brokers = {
            node_id: self._broker(directory / f"broker-{node_id}", node_id)
            for node_id in range(1, count + 1)
        }

    def _broker(self, directory: Path, node_id: int) -> BrokerProcess:
        directory.mkdir(parents=True, exist_ok=True)
        address = f"127.0.0.1:{free_port()}"
        command = [sys.executable, "-m", "millstream.cli.entry", "serve", "--listen", address]
        command += ["--data", str(directory / "data"), "--node-id", str(node_id)]
        command += ["--zookeeper", self.zookeeper.address]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        return BrokerProcess(command, address, directory / "broker.log")

    @property
    def addresses(self) -> str:
        """The bootstrap servers."""
        return ",".join(broker.address for broker in self.brokers.values())

    def start(self) -> None:
        """Start everything; the brokers at the same time."""
        self.zookeeper.start()
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            list(pool.map(BrokerProcess.start, self.brokers.values()))

    def kill(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        self.zookeeper.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()


def replicated(count: int) -> dict[str, object]:
    """Settings with which a cluster of this size survives the loss of any one broker."""
    in_sync = max(1, count - 1)
    return {
        **SWIFT_GROUPS,
        "default.replication.factor": count,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": count,
        "transaction.state.log.replication.factor": count,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": count,
        "share.coordinator.state.topic.min.isr": in_sync,
    }
