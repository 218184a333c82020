"""A rolling restart as the guide describes it, with and without changed settings, under load.

With MILLSTREAM_OLDER, the path of a Python that has an older version of Millstream, the brokers are
started with that one, and the first round upgrades them.

Idempotent and transactional producers, groups of both protocols and a share group run on; nothing
is lost, nothing is doubled, and no record of a producer fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from millstream.testing.cluster import ClusterProcesses
from millstream.testing.histories import Kind, Outcome, check
from millstream.testing.histories.faults import BrokerProcess, Nemesis
from millstream.testing.histories.workload import Plan, run_workload
from tests.peers.patience import PATIENCE_SECONDS

SETTINGS = {
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "share.coordinator.state.topic.num.partitions": 6,
}
CHANGED = {"log.segment.bytes": "1048576", "replica.fetch.wait.max.ms": "200"}
ROUNDS = 2
SECONDS_MIN = 10.0  # of the load; it goes on until all brokers have been restarted


class RollingRestart(Nemesis):
    """Restarts all brokers once per round, the next one when the cluster is healthy again."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        super().__init__(list(cluster.brokers.values()), seed=0)
        self.addresses = cluster.addresses

    def heal(self) -> None:
        self._thread.join()
        super().heal()

    def _run(self) -> None:
        try:
            for number in range(ROUNDS):
                for broker in self.brokers:
                    self.restart(broker, has_changed=number > 0)
        except Exception as error:  # noqa: BLE001 - `heal` raises it
            self.failure = error

    def restart(self, broker: BrokerProcess, *, has_changed: bool) -> None:
        self.wait_until_healthy()
        self.tell(f"restart {broker.address}")
        broker.stop()
        broker.command[0] = sys.executable
        if has_changed:
            for name, value in CHANGED.items():
                broker.command += ["--set", f"{name}={value}"]
        broker.start()
        self.wait_until_healthy()
        self.tell("healthy again")

    def wait_until_healthy(self) -> None:
        command = [sys.executable, "-m", "millstream.cli.entry", "cluster", "--check"]
        command += ["--bootstrap-server", self.addresses]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (done := subprocess.run(command, capture_output=True, text=True)).returncode != 0:
            assert time.monotonic() < deadline, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(900)
def test_rolling_restart_loses_and_doubles_nothing(tmp_path: Path) -> None:
    cluster = ClusterProcesses(tmp_path, settings=SETTINGS)
    for broker in cluster.brokers.values():
        broker.command[0] = os.environ.get("MILLSTREAM_OLDER", broker.command[0])
    with cluster:
        roll = RollingRestart(cluster)
        # Without claimants that are not idempotent: a leader that hands over while it waits for
        # followers answers NOT_LEADER_OR_FOLLOWER, as Kafka does, and the client sends the claim
        # again, unseen. If the first one was replicated, the second is refused.
        plan = Plan(seed=1, seconds=SECONDS_MIN, sharers=2, claimants=0)
        history = run_workload(cluster.addresses, plan, nemesis=roll)
        for node_id in cluster.brokers:
            assert settings_of(cluster.addresses, node_id).items() >= CHANGED.items()
    history.save(tmp_path / "history.jsonl")
    report = check(history)
    assert report.is_good, f"history in {tmp_path}, {roll.events}\n{report}"
    failed = [
        it for it in history if it.process.startswith("writer-") and it.outcome is not Outcome.OK
    ]
    assert failed == []
    assert any(it.kind is Kind.TXN and it.outcome is Outcome.OK for it in history)
    assert report.summary.groups == 4
    assert report.summary.settled > 0


def settings_of(addresses: str, node_id: int) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": addresses, "log_level": 0})
    asked = ConfigResource(ConfigResource.Type.BROKER, str(node_id))
    known = admin.describe_configs([asked])[asked].result(PATIENCE_SECONDS)
    return {name: entry.value for name, entry in known.items()}
