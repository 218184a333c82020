"""kill -9 in a loop while real share consumers accept, release and reject; and delayed records."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, KafkaException, ShareConsumer

from millstream.broker.handlers.read_share_group_state import DELAYED
from tests.conformance.brokers import BrokerUnderTest
from tests.conformance.queues import QUEUE_SETTINGS, Queue
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.servers import Server, free_port, start_millstream
from tests.peers.share_member import ACCEPT, RELEASE, ShareMember

SETTINGS = QUEUE_SETTINGS | {
    "group.share.delivery.count.limit": "10",
    "share.coordinator.snapshot.update.records.per.snapshot": "20",
}
RECORDS = 4_000
KILLS = 5


class Ledger:
    """What all workers were told of each record, and what must never happen."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.finished: set[int] = set()  # accepted or rejected, and answered without error
        self.in_doubt: set[int] = set()  # accepted or rejected, but nobody knows
        self.released: dict[int, int] = {}  # the delivery count of the release that was answered
        self.wrongs: list[str] = []

    def delivered(self, offset: int, count: int) -> None:
        with self.lock:
            if offset in self.finished:
                self.wrongs.append(f"{offset} was done with, and came again")
            if count <= self.released.get(offset, 0):
                self.wrongs.append(f"{offset} forgot a delivery: {count}")

    def answered(self, kinds: dict[int, tuple[AcknowledgeType, int]], *, well: bool) -> None:
        with self.changed:
            for offset, (kind, count) in kinds.items():
                if kind == AcknowledgeType.RELEASE:
                    if well:
                        self.released[offset] = count
                elif well:
                    self.finished.add(offset)
                else:
                    self.in_doubt.add(offset)
            self.changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Until so many records are done with."""
        with self.changed:
            done = self.changed.wait_for(
                lambda: len(self.finished) >= count, timeout=PATIENCE_SECONDS
            )
        assert done, f"only {len(self.finished)} of {count} records were done with"


class Worker(threading.Thread):
    """A share consumer that accepts most records, and releases or rejects some."""

    def __init__(self, queue: Queue, ledger: Ledger, seed: int) -> None:
        super().__init__(daemon=True)
        self.ledger = ledger
        self.dice = random.Random(seed)
        self.stopping = threading.Event()
        self.consumer = ShareConsumer(
            queue.broker.config(
                group_id=queue.group,
                share_acknowledgement_mode="explicit",
                max_poll_records=50,
                reconnect_backoff_max_ms=200,
            )
        )
        self.consumer.subscribe([queue.topic])

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                messages = [it for it in self.consumer.poll(0.2) if it.error() is None]
            except KafkaException:
                continue
            if messages:
                self.work(messages)
        self.consumer.close()

    def work(self, messages: list[Any]) -> None:
        kinds: dict[int, tuple[AcknowledgeType, int]] = {}
        for message in messages:
            count = message.delivery_count()
            self.ledger.delivered(message.offset(), count)
            kind = self.choose(count)
            kinds[message.offset()] = kind, count
            self.consumer.acknowledge(message, kind)
        try:
            outcome = self.consumer.commit_sync(20.0)
        except KafkaException:
            outcome = {}
        well = bool(outcome) and all(error is None for error in outcome.values())
        self.ledger.answered(kinds, well=well)

    def choose(self, count: int) -> AcknowledgeType:
        roll = self.dice.random()
        if roll < 0.1 and count < 6:  # far from the limit, at which a record is given up
            return AcknowledgeType.RELEASE
        return AcknowledgeType.REJECT if roll > 0.9 else AcknowledgeType.ACCEPT


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerUnderTest]:
    made = BrokerUnderTest(start_millstream(tmp_path / "data", SETTINGS, port=free_port()))
    yield made
    made.server.kill()


def kill_and_restart(broker: BrokerUnderTest) -> None:
    server: Server = broker.server
    server.kill()
    broker.server = start_millstream(server.data, SETTINGS, port=server.port)


@pytest.mark.slow
def test_share_consumers_lose_nothing_and_see_nothing_again(broker: BrokerUnderTest) -> None:
    queue = Queue(broker)
    for first in range(0, RECORDS, 20):
        queue.produce(*(str(number) for number in range(first, first + 20)))
    ledger = Ledger()
    workers = [Worker(queue, ledger, seed) for seed in range(3)]
    for worker in workers:
        worker.start()
    try:
        for number in range(1, KILLS + 1):
            ledger.wait_for(number * RECORDS // (KILLS + 2))
            kill_and_restart(broker)
        wait_until(lambda: queue.start_offset() == RECORDS, seconds_max=90)
    finally:
        for worker in workers:
            worker.stopping.set()
        for worker in workers:
            worker.join(PATIENCE_SECONDS)
    assert not ledger.wrongs, ledger.wrongs[:5]
    lost = set(range(RECORDS)) - ledger.finished - ledger.in_doubt
    assert not lost, f"{len(lost)} records were never processed: {sorted(lost)[:10]}"


@pytest.mark.slow
def test_delayed_record_waits_through_kill_9_while_100_000_flow_past_it(
    broker: BrokerUnderTest,
) -> None:
    records = 100_000
    hour_ms = 3_600_000  # longer than two restarts and all that flows by can take
    queue = Queue(broker, share_retry_backoff_ms=hour_ms, share_retry_backoff_max_ms=hour_ms)
    for _ in range(0, records, 1_000):
        queue.produce(*["x"] * 1_000)
    with queue.join() as consumer:
        first = consumer.receive()
        consumer.acknowledge(first[:1], RELEASE)
        consumer.acknowledge(first[1:], ACCEPT)
        assert consumer.commit() == {0: None}
    done = len(first)
    topic_id = broker.topic_id(queue.topic)
    for until in (records // 2, records):
        with ShareMember(broker.bootstrap, queue.group, topic_id) as member:
            while done < until:
                acquired = member.fetch(max_wait=60_000, max_records=5_000, batch_size=5_000)
                assert acquired, f"only {done} came"
                assert acquired[0][0] > 0, "the delayed record came"
                acks = [(begin, end, ACCEPT) for begin, end, _ in acquired]
                assert member.acknowledge(*acks) == 0
                done += sum(end - begin + 1 for begin, end, _ in acquired)
        kill_and_restart(broker)
    assert queue.in_state(DELAYED) == {0}
    with ShareMember(broker.bootstrap, queue.group, topic_id) as member:
        assert member.fetch(max_wait=1_000) == []  # not due yet


def test_due_time_survives_kill_9(broker: BrokerUnderTest) -> None:
    queue = Queue(broker, share_retry_backoff_ms=4_000, share_retry_backoff_max_ms=4_000)
    queue.produce("later", "now")
    with queue.join() as consumer:
        records = consumer.receive()
        consumer.acknowledge(records[:1], RELEASE)
        consumer.acknowledge(records[1:], ACCEPT)
        released_at = time.time()
        assert consumer.commit() == {0: None}
    kill_and_restart(broker)
    with queue.join() as consumer:
        (again,) = consumer.receive()
        assert (again.value, again.delivery_count) == ("later", 2)
        assert time.time() - released_at > 3.9  # it was not due before
