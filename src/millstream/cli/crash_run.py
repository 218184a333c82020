"""The run behind `millstream demo crash`: clients, a server, kill -9, and the books.

An idempotent producer (acks=all) writes numbered records; whatever the broker acknowledges goes
into the ledger. A consumer group follows live. The server, a child process, is killed and started
again while both go on. At the end a fresh consumer reads everything from the beginning, and the
ledger is compared with what it found.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing.histories.faults import BrokerProcess

TOPIC = "payments"
GROUP = "bookkeeping"
PARTITIONS = 4
ACCOUNTS = 64
PADDING = b"." * 80
PRODUCE_EVERY_S = 0.01
START_TIMEOUT_S = 20.0
DRAIN_TIMEOUT_S = 30.0
IMPATIENT = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}


@dataclass
class Ledger:
    """What was sent, what was acknowledged and where it should be."""

    sent: int = 0
    refused: int = 0
    places: dict[int, Any] = field(default_factory=dict)  # record number -> (partition, offset)
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))

    @property
    def acknowledged(self) -> int:
        return len(self.places)

    def on_delivery(self, number: int, error: Any, message: Any) -> None:
        if error is not None:
            self.refused += 1
            return
        self.places[number] = (message.partition(), message.offset())
        self.ends[message.partition()] = message.offset() + 1


class Writer(threading.Thread):
    """Sends numbered records at a steady rate until stopped, then waits for every answer."""

    def __init__(self, address: str, ledger: Ledger, rate: int) -> None:
        super().__init__(name="writer", daemon=True)
        self.ledger = ledger
        self.rate = rate
        self.stopping = threading.Event()
        self.producer = Producer(
            IMPATIENT
            | {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "acks": "all",
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "error_cb": lambda error: None,
            }
        )

    def run(self) -> None:
        began = time.monotonic()
        while not self.stopping.wait(PRODUCE_EVERY_S):
            due = int((time.monotonic() - began) * self.rate)
            while self.ledger.sent < due and self.send(self.ledger.sent):
                self.ledger.sent += 1
            self.producer.poll(0)
        self.producer.flush(DRAIN_TIMEOUT_S)

    def send(self, number: int) -> bool:
        """Hand one record to the client; False while its queue is full."""
        try:
            self.producer.produce(
                TOPIC,
                key=f"account-{number % ACCOUNTS}",
                value=b"%d %s" % (number, PADDING),
                on_delivery=lambda error, message: self.ledger.on_delivery(number, error, message),
            )
        except BufferError:
            return False
        return True


class Follower(threading.Thread):
    """A member of a consumer group; remembers how far it has read in each partition."""

    def __init__(self, address: str) -> None:
        super().__init__(name="follower", daemon=True)
        self.stopping = threading.Event()
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.consumer = Consumer(
            IMPATIENT
            | {
                "bootstrap.servers": address,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "error_cb": lambda error: None,
            }
        )

    def run(self) -> None:
        self.consumer.subscribe([TOPIC])
        while not self.stopping.is_set():
            for message in self.consumer.consume(500, timeout=0.05):
                if message.error() is None:
                    self.positions[message.partition()] = message.offset() + 1
        self.consumer.close()


@dataclass(frozen=True)
class Verdict:
    """The ledger against what a fresh consumer found."""

    acknowledged: int
    found: int
    lost: int
    doubled: int
    misplaced: int  # in the log, but not where the acknowledgement said
    disordered: int

    @property
    def holds(self) -> bool:
        return not (self.lost or self.doubled or self.misplaced or self.disordered)


def judge(ledger: Ledger, found: dict[int, list[tuple[int, int]]]) -> Verdict:
    """`found` has (offset, record number) in the order read, by partition."""
    where = {
        number: (partition, offset)
        for partition, records in found.items()
        for offset, number in records
    }
    counts = Counter(number for records in found.values() for _, number in records)
    return Verdict(
        acknowledged=ledger.acknowledged,
        found=len(counts),
        lost=sum(number not in where for number in ledger.places),
        doubled=sum(count - 1 for count in counts.values()),
        misplaced=sum(where.get(number, place) != place for number, place in ledger.places.items()),
        disordered=sum(
            after[1] < before[1]
            for records in found.values()
            for before, after in pairwise(records)
        ),
    )


def read_everything(address: str) -> dict[int, list[tuple[int, int]]]:
    """(offset, record number) of all records, by partition, from the very beginning."""
    consumer = Consumer(
        IMPATIENT
        | {"bootstrap.servers": address, "group.id": "auditor", "enable.auto.commit": False}
    )
    places = [TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)]
    left = {p.partition: consumer.get_watermark_offsets(p, timeout=10)[1] for p in places}
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    try:
        consumer.assign(places)
        while any(left.values()) and time.monotonic() < deadline:
            for message in consumer.consume(1000, timeout=0.2):
                if message.error() is None:
                    partition, offset = message.partition(), message.offset()
                    found[partition].append((offset, int(message.value().split(b" ", 1)[0])))
                    if offset + 1 >= left[partition]:
                        left[partition] = 0
    finally:
        consumer.close()
    return found


class CrashRun:
    """Server, writer and follower together; use it as a context manager."""

    def __init__(self, rate: int) -> None:
        self.scratch = tempfile.TemporaryDirectory(prefix="millstream-demo-")
        self.server = BrokerProcess.millstream(Path(self.scratch.name))
        self.ledger = Ledger()
        self.rate = rate
        self.writer: Writer | None = None
        self.follower: Follower | None = None

    def __enter__(self) -> CrashRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for thread in (self.writer, self.follower):
            if thread is not None:
                thread.stopping.set()
        self.server.stop()
        self.scratch.cleanup()

    def create_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.server.address, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(START_TIMEOUT_S)

    def start_clients(self) -> None:
        self.writer = Writer(self.server.address, self.ledger, self.rate)
        self.follower = Follower(self.server.address)
        self.follower.start()
        self.writer.start()

    @property
    def positions(self) -> dict[int, int]:
        return self.follower.positions if self.follower else dict.fromkeys(range(PARTITIONS), 0)

    @property
    def drained(self) -> bool:
        """Whether all sent records were answered and the follower has read them."""
        answered = self.ledger.acknowledged + self.ledger.refused == self.ledger.sent
        return answered and self.positions == self.ledger.ends

    def stop_writing(self) -> None:
        assert self.writer is not None
        self.writer.stopping.set()

    def audit(self) -> Verdict:
        assert self.writer is not None
        self.writer.join(DRAIN_TIMEOUT_S)
        return judge(self.ledger, read_everything(self.server.address))
