"""The disk of one broker of a cluster fills up: others lead, until there is space again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, PartitionMetadata

from millstream.testing.cluster import ClusterProcesses
from millstream.testing.histories import check
from millstream.testing.histories.faults import BrokerProcess, Nemesis
from millstream.testing.histories.workload import Plan, run_workload
from tests.peers.patience import wait_until
from tests.peers.small_disk import small_tmpfs

SETTINGS = {
    "zookeeper.session.timeout.ms": 4_000,  # all that the ensemble's ticks allow
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "share.coordinator.state.topic.num.partitions": 6,
}
DISK_BYTES = 256 << 20
BLOCK = b"\0" * (1 << 20)
VICTIM = 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    with small_tmpfs(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


class FullDisk(Nemesis):
    """Fills the disk of a broker, and makes space once others have taken over."""

    def __init__(self, victim: BrokerProcess, others: str, disk: Path) -> None:
        super().__init__([victim], seed=0)
        self.others = others
        self.ballast = disk / "ballast"

    def heal(self) -> None:
        self._thread.join()
        super().heal()

    def _run(self) -> None:
        try:
            wait_until(lambda: bool(self.led()) and self.are_in_sync())
            self.tell(f"broker {VICTIM} leads {self.led()}")
            self.fill()
            self.tell("disk full")
            wait_until(lambda: not self.led())
            self.tell("others lead")
            self._stopping.wait(5)  # they take records
            self.ballast.unlink()
            wait_until(self.are_in_sync)
            self.tell("in sync again")
        except BaseException as error:  # noqa: BLE001 - `heal` raises it
            self.failure = error

    def fill(self) -> None:
        with contextlib.suppress(OSError), self.ballast.open("wb", buffering=0) as file:
            while True:
                file.write(BLOCK)
        with contextlib.suppress(OSError), self.ballast.open("ab", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)

    def led(self) -> list[str]:
        """The partitions that the broker leads; only those that are written to have to move."""
        return [
            f"{topic}-{it.id}"
            for topic, it in self.partitions()
            if it.leader == VICTIM and topic.endswith("-in")
        ]

    def are_in_sync(self) -> bool:
        found = self.partitions()
        return bool(found) and all(len(it.isrs) == len(it.replicas) for _, it in found)

    def partitions(self) -> list[tuple[str, PartitionMetadata]]:
        """As another broker knows them."""
        admin = AdminClient({"bootstrap.servers": self.others, "log_level": 0})
        with contextlib.suppress(KafkaException):
            topics = admin.list_topics(timeout=10).topics
            return [(it.topic, each) for it in topics.values() for each in it.partitions.values()]
        return []


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(900)
def test_broker_with_a_full_disk_loses_nothing_and_returns(
    tmp_path: Path, small_disk: Path
) -> None:
    cluster = ClusterProcesses(tmp_path, settings=SETTINGS)
    victim = cluster.brokers[VICTIM]
    victim.command[victim.command.index("--data") + 1] = str(small_disk / "data")
    others = ",".join(it.address for it in cluster.brokers.values() if it is not victim)
    nemesis = FullDisk(victim, others, small_disk)
    with cluster:
        plan = Plan(seed=1, seconds=10, sharers=2)
        history = run_workload(cluster.addresses, plan, nemesis=nemesis)
    history.save(tmp_path / "history.jsonl")
    report = check(history)
    assert report.is_good, f"history in {tmp_path}, {nemesis.events}\n{report}"
    assert report.summary.committed > 0
    log = victim.log.read_text()
    assert "No space left" in log
    assert "was not in the cluster" not in log, "its session ended: that proves nothing"
