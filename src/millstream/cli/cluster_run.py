"""The run behind `millstream demo cluster`: three brokers, a ZooKeeper, clients, and the account.

An idempotent producer (acks=all) writes numbered records to a topic with three replicas, of which
two must be in sync. A share group works on them. Brokers are killed and frozen meanwhile. At the
end a fresh consumer reads everything, and what it finds is compared with what was acknowledged; the
share group must have got each of these records, too.
"""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaException, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from millstream.cli.crash_run import (
    DRAIN_TIMEOUT_S,
    IMPATIENT,
    PARTITIONS,
    START_TIMEOUT_S,
    TOPIC,
    Ledger,
    Verdict,
    Writer,
    judge,
    read_everything,
)
from millstream.testing.cluster import ClusterProcesses

SHARE_GROUP = "packing"


@dataclass
class ClusterLedger(Ledger):
    """Also knows for how long a partition acknowledged nothing."""

    longest_gap_s: float = 0.0
    last: dict[int, float] = field(default_factory=dict)  # partition -> when

    def on_delivery(self, number: int, error: Any, message: Any) -> None:
        super().on_delivery(number, error, message)
        if error is None:
            now, partition = time.monotonic(), message.partition()
            gap = now - self.last.get(partition, now)
            self.longest_gap_s = max(self.longest_gap_s, gap)
            self.last[partition] = now


class Packer(threading.Thread):
    """A member of a share group: every record goes to one of the members, which accepts it."""

    def __init__(self, address: str) -> None:
        super().__init__(name="packer", daemon=True)
        self.stopping = threading.Event()
        self.packed: set[int] = set()
        self.again = 0  # delivered more than once, as share groups may
        self.consumer = ShareConsumer(
            IMPATIENT
            | {
                "bootstrap.servers": address,
                "group.id": SHARE_GROUP,
                "error_cb": lambda error: None,
            }
        )

    def run(self) -> None:
        self.consumer.subscribe([TOPIC])
        while not self.stopping.is_set():
            try:
                messages = self.consumer.poll(0.2)
            except KafkaException:
                continue  # while a leader or a coordinator moves
            for message in messages:
                if message.error() is None:
                    self._pack(int(message.value().split(b" ", 1)[0]))
        self.consumer.close()

    def _pack(self, number: int) -> None:
        self.again += number in self.packed
        self.packed.add(number)


@dataclass(frozen=True)
class ClusterVerdict:
    records: Verdict
    unpacked: int  # acknowledged, but never given to the share group
    packed_again: int
    longest_gap_s: float

    @property
    def holds(self) -> bool:
        return self.records.holds and not self.unpacked


class ClusterRun:
    """ZooKeeper, brokers and clients together; use it as a context manager."""

    def __init__(self, rate: int) -> None:
        self.scratch = tempfile.TemporaryDirectory(prefix="millstream-demo-")
        self.cluster = ClusterProcesses(Path(self.scratch.name))
        self.ledger = ClusterLedger()
        self.rate = rate
        self.writer: Writer | None = None
        self.packer: Packer | None = None

    def __enter__(self) -> ClusterRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for thread in (self.writer, self.packer):
            if thread is not None:
                thread.stopping.set()
        self.cluster.kill()
        self.scratch.cleanup()

    @property
    def admin(self) -> AdminClient:
        settings = {"bootstrap.servers": self.cluster.addresses, "error_cb": lambda error: None}
        return AdminClient(IMPATIENT | settings)

    def create_topic(self) -> None:
        admin = self.admin
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(START_TIMEOUT_S)
        earliest = ConfigEntry(
            "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
        )
        group = ConfigResource(
            ConfigResource.Type.GROUP, SHARE_GROUP, incremental_configs=[earliest]
        )
        admin.incremental_alter_configs([group])[group].result(START_TIMEOUT_S)

    def start_clients(self) -> None:
        self.writer = Writer(self.cluster.addresses, self.ledger, self.rate)
        self.packer = Packer(self.cluster.addresses)
        self.packer.start()
        self.writer.start()

    def leader(self) -> int:
        """The broker that leads the first partition."""
        return int(self.admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0].leader)

    def controller(self) -> int:
        admin = self.admin  # must outlive the answer
        return int(admin.describe_cluster().result(10).controller.id)

    def in_sync(self) -> dict[int, int]:
        """The number of in-sync replicas of each partition."""
        partitions = self.admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions
        return {index: len(it.isrs) for index, it in partitions.items()}

    @property
    def packed(self) -> int:
        return len(self.packer.packed) if self.packer else 0

    @property
    def drained(self) -> bool:
        """Whether all sent records were answered and packed."""
        ledger = self.ledger
        answered = ledger.acknowledged + ledger.refused == ledger.sent
        packed = self.packer.packed if self.packer else set()
        return answered and ledger.places.keys() <= packed

    def stop_writing(self) -> None:
        assert self.writer is not None
        self.writer.stopping.set()

    def audit(self) -> ClusterVerdict:
        assert self.writer is not None
        assert self.packer is not None
        self.writer.join(DRAIN_TIMEOUT_S)
        return ClusterVerdict(
            records=judge(self.ledger, read_everything(self.cluster.addresses)),
            unpacked=len(self.ledger.places.keys() - self.packer.packed),
            packed_again=self.packer.again,
            longest_gap_s=self.ledger.longest_gap_s,
        )
