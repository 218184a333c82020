"""A queue's failures end to end: a server, real share consumers, and a reader of dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from millstream.records.batch import HEADER_SIZE_BYTES, iterate_headers
from tests.conformance.brokers import BrokerUnderTest
from tests.conformance.queues import QUEUE_SETTINGS, Queue
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port, start_millstream
from tests.peers.share_consumers import ShareConsumer
from tests.peers.share_member import ACCEPT, REJECT, RELEASE

HEADERS = {"topic", "partition", "offset", "group", "delivery.count", "message", "reason"}


class DeadLetterQueue(Queue):
    """A queue whose failures go to a topic of their own, copied."""

    def __init__(self, broker: BrokerUnderTest, **settings: object) -> None:
        self.letters = broker.create_topic(
            name="dlq.letters", errors_deadletterqueue_group_enable="true"
        )
        super().__init__(
            broker,
            errors_deadletterqueue_topic_name=self.letters,
            errors_deadletterqueue_copy_record_enable="true",
            **settings,
        )

    def read_letters(self, count: int) -> list[tuple[bytes | None, dict[str, str]]]:
        """(value, what the headers say) of the first so many."""
        consumer = Consumer(self.broker.config(group_id="reader"))
        consumer.assign([TopicPartition(self.letters, 0, 0)])
        letters = []
        while len(letters) < count:
            letter = consumer.poll(PATIENCE_SECONDS)
            assert letter is not None, f"there are only {len(letters)} letters"
            about = {
                name.removeprefix("__dlq.errors."): value.decode()
                for name, value in letter.headers()
            }
            letters.append((letter.value(), about))
        assert consumer.poll(0.3) is None
        consumer.close()
        return letters


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerUnderTest]:
    server = start_millstream(tmp_path / "data", QUEUE_SETTINGS, port=free_port())
    made = BrokerUnderTest(server)
    yield made
    made.server.kill()


def test_rejected_and_hopeless_records_become_letters(broker: BrokerUnderTest) -> None:
    queue = DeadLetterQueue(broker, share_delivery_count_limit=3)
    queue.produce("good", "rejected", "hopeless")
    accepted: list[str] = []
    with queue.join() as consumer:
        while len(accepted) < 2:
            for record in consumer.receive():
                kind = {"rejected": REJECT, "hopeless": RELEASE}.get(record.value, ACCEPT)
                consumer.acknowledge([record], kind)
                if kind == ACCEPT:
                    accepted.append(record.value)
                if record.value == "hopeless" and record.delivery_count == 3:
                    queue.produce("later")
            assert consumer.commit() == {0: None}
    assert accepted == ["good", "later"]
    letters = queue.read_letters(2)
    assert [value for value, _ in letters] == [b"rejected", b"hopeless"]
    place = {"topic": queue.topic, "partition": "0", "group": queue.group}
    expected = [
        {"offset": "1", "reason": "rejected", "delivery.count": "1"},
        {"offset": "2", "reason": "limit", "delivery.count": "3"},
    ]
    for (_, about), told in zip(letters, expected, strict=True):
        assert set(about) == HEADERS | {"timestamp"}
        assert about.items() >= (place | told).items()


@pytest.mark.slow_with("False")
@pytest.mark.parametrize("has_letters", [True, False])
def test_records_that_the_disk_damaged_are_given_up_and_stop_nobody(
    broker: BrokerUnderTest, *, has_letters: bool
) -> None:
    """As Apache Kafka's client does: what it cannot read it rejects."""
    queue = DeadLetterQueue(broker) if has_letters else Queue(broker)
    for number in range(4):
        queue.produce(f"{number}a", f"{number}b")
    damage_batch(broker, queue.topic, 1)
    with queue.join() as consumer:
        accepted = accept_until(consumer, "3b")
    assert accepted == ["0a", "0b", "2a", "2b", "3a", "3b"]
    if isinstance(queue, DeadLetterQueue):
        letters = queue.read_letters(2)
        for (value, about), offset in zip(letters, (2, 3), strict=True):
            assert value is None
            assert set(about) == HEADERS
            assert (about["offset"], about["reason"]) == (str(offset), "corrupt")
            assert "is corrupt at byte" in about["message"]


def accept_until(consumer: ShareConsumer, last: str) -> list[str]:
    accepted: list[str] = []
    while last not in accepted:
        records = consumer.receive()
        consumer.acknowledge(records)
        assert consumer.commit() == {0: None}
        accepted += [record.value for record in records]
    return accepted


def damage_batch(broker: BrokerUnderTest, topic: str, number: int) -> None:
    """Stop the server, flip a bit in a batch, and start it again."""
    server = broker.server
    assert server.stop() == 0
    (segment,) = (server.data / f"{topic}-0").glob("*.log")
    content = bytearray(segment.read_bytes())
    position, _ = list(iterate_headers(content))[number]
    content[position + HEADER_SIZE_BYTES + 2] ^= 0x10
    segment.write_bytes(content)
    broker.server = start_millstream(server.data, QUEUE_SETTINGS, port=server.port)
