"""Dead letters in a real broker: what they say, where they go, and what they wait for."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path

import pytest

from millstream.broker.metadata.configs import Change, Operation
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.replicas.partition import Partition
from millstream.broker.replicas.pending import ACKS_ALL
from millstream.broker.server import BrokerServer
from millstream.broker.sharing import dead_letters
from millstream.broker.sharing.dead_letters import (
    CORRUPT,
    HEADER_PREFIX,
    LIMIT,
    MESSAGES,
    REJECTED,
    DeadLetter,
)
from millstream.coordination.cluster import Resource, ResourceType
from millstream.coordination.sharing.breaker import BURST_SECONDS
from millstream.errors import ApiError, ErrorCode
from millstream.records.batch import iterate_headers
from millstream.records.compression import Compression
from millstream.records.record import (
    ControlType,
    Record,
    decode_batch,
    encode_batch,
    encode_end_transaction,
)
from tests.broker.serving import serving
from tests.peers.patience import PATIENCE_SECONDS

GROUP = "workers"
DLQ = "dlq.orders"
REJECTION = DeadLetter(1, 2, REJECTED, MESSAGES[REJECTED])
ORIGINALS = [
    Record(index, 1_700_000_000_000 + index, b"k%d" % index, b"v%d" % index, (("h", b"x"),))
    for index in range(4)
]


def run(
    directory: Path,
    scenario: Callable[[BrokerServer, Partition], Coroutine[None, None, None]],
    **settings: object,
) -> None:
    """A broker whose topic `orders` has four records, and whose group copies its dead letters."""

    async def main() -> None:
        async with serving(directory, **settings) as broker:
            enabled = {"errors.deadletterqueue.group.enable": "true"}
            await broker.topics.create([NewTopic("orders", 3), NewTopic(DLQ, 2, settings=enabled)])
            await configure(broker, "errors.deadletterqueue.topic.name", DLQ)
            await configure(broker, "errors.deadletterqueue.copy.record.enable", "true")
            orders = broker.partitions.find("orders", 0)
            await orders.append(encode_batch(ORIGINALS, compression=Compression.ZSTD), acks=-1)
            await scenario(broker, orders)

    asyncio.run(main())


async def configure(broker: BrokerServer, name: str, value: str) -> None:
    resource = Resource(ResourceType.GROUP, GROUP)
    change = Change(name, Operation.SET, value)
    await broker.configs.alter({resource: [change]}, validate_only=False)


def letters_in(broker: BrokerServer, topic: str = DLQ, index: int = 0) -> list[Record]:
    partition = broker.partitions.find(topic, index)
    if partition.high_watermark == 0:
        return []
    data = partition.read(0, max_bytes=1 << 20)
    return [it for position, _ in iterate_headers(data) for it in decode_batch(data, position)]


def about(letter: Record) -> dict[str, str]:
    """What the letter's own headers say; the last of a name counts."""
    return {
        name.removeprefix(HEADER_PREFIX): (value or b"").decode()
        for name, value in letter.headers
        if name.startswith(HEADER_PREFIX)
    }


def test_letter_has_the_record_and_says_where_it_was(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        before_ms = broker.clock.now_ms()
        await broker.services.share_partitions.dead_letters.write(GROUP, orders, [REJECTION])
        (letter,) = letters_in(broker)
        assert (letter.key, letter.value, letter.headers[0]) == (b"k1", b"v1", ("h", b"x"))
        assert about(letter) == {
            "topic": "orders",
            "partition": "0",
            "offset": "1",
            "group": GROUP,
            "delivery.count": "2",
            "message": "Offset rejected by client.",
            "reason": "rejected",
            "timestamp": "1700000000001",
        }
        assert letter.timestamp >= before_ms

    run(tmp_path, scenario)


def test_letter_has_headers_alone_unless_records_are_copied(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        await configure(broker, "errors.deadletterqueue.copy.record.enable", "false")
        await broker.services.share_partitions.dead_letters.write(GROUP, orders, [REJECTION])
        (letter,) = letters_in(broker)
        assert (letter.key, letter.value) == (None, None)
        assert all(name.startswith(HEADER_PREFIX) for name, _ in letter.headers)
        assert about(letter)["timestamp"] == "1700000000001"

    run(tmp_path, scenario)


def test_letters_of_one_call_share_a_batch(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        letters = [DeadLetter(offset, 5, LIMIT, MESSAGES[LIMIT]) for offset in (3, 0)]
        await broker.services.share_partitions.dead_letters.write(GROUP, orders, letters)
        assert [about(it)["offset"] for it in letters_in(broker)] == ["3", "0"]
        data = broker.partitions.find(DLQ, 0).read(0, max_bytes=1 << 20)
        assert len(list(iterate_headers(data))) == 1

    run(tmp_path, scenario)


def test_letters_are_durable_when_written(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        await broker.services.share_partitions.dead_letters.write(GROUP, orders, [REJECTION])
        assert broker.partitions.find(DLQ, 0).log.flushed_offset == 1

    run(tmp_path, scenario)


def test_letters_go_to_the_partition_of_their_origin(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        for index in (1, 2):
            partition = broker.partitions.find("orders", index)
            await partition.append(encode_batch(ORIGINALS), acks=ACKS_ALL)
            await broker.services.share_partitions.dead_letters.write(GROUP, partition, [REJECTION])
        assert [about(it)["partition"] for it in letters_in(broker, index=0)] == ["2"]
        assert [about(it)["partition"] for it in letters_in(broker, index=1)] == ["1"]

    run(tmp_path, scenario)


def test_letter_is_written_of_a_record_that_retention_took(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        orders.delete_records_before(4)
        await broker.services.share_partitions.dead_letters.write(GROUP, orders, [REJECTION])
        (letter,) = letters_in(broker)
        assert letter.value is None
        assert about(letter)["offset"] == "1"
        assert "could not be read" in about(letter)["message"]
        assert "timestamp" not in about(letter)

    run(tmp_path, scenario)


def test_letter_is_written_of_a_corrupt_record(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        (segment,) = (tmp_path / "orders-0").glob("*.log")
        damaged = bytearray(segment.read_bytes())
        damaged[-1] ^= 0xFF
        segment.write_bytes(damaged)
        await broker.services.share_partitions.dead_letters.write(
            GROUP, orders, [DeadLetter(1, 1, CORRUPT, "Unreadable.")]
        )
        (letter,) = letters_in(broker)
        assert about(letter)["reason"] == "corrupt"
        assert about(letter)["message"].startswith("Unreadable. The record could not be read")

    run(tmp_path, scenario)


def test_marker_of_a_transaction_is_no_letter(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        marker = encode_end_transaction(
            ControlType.COMMIT,
            offset=0,
            timestamp=0,
            producer_id=7,
            producer_epoch=0,
            coordinator_epoch=0,
        )
        await orders.append(marker, acks=ACKS_ALL, internal=True)
        letters = [DeadLetter(offset, 5, LIMIT, MESSAGES[LIMIT]) for offset in (3, 4)]
        await broker.services.share_partitions.dead_letters.write(GROUP, orders, letters)
        await broker.services.share_partitions.dead_letters.write(GROUP, orders, letters[1:])
        assert [about(it)["offset"] for it in letters_in(broker)] == ["3"]

    run(tmp_path, scenario)


def test_letters_are_not_written_while_the_origin_is_offline(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        orders.go_offline(ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone"))
        with pytest.raises(ApiError, match="the disk is gone"):
            await broker.services.share_partitions.dead_letters.write(GROUP, orders, [REJECTION])
        assert letters_in(broker) == []

    run(tmp_path, scenario)


def test_letters_are_split_where_the_topic_takes_only_small_batches(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        large = Record(0, 0, b"k", b"x" * 3000)
        await orders.append(encode_batch([large]), acks=ACKS_ALL)
        await alter_topic(broker, DLQ, "max.message.bytes", "1000")
        letters = [DeadLetter(offset, 1, REJECTED, "no") for offset in range(5)]
        await broker.services.share_partitions.dead_letters.write(GROUP, orders, letters)
        written = letters_in(broker)
        assert [it.value for it in written] == [b"v0", b"v1", b"v2", b"v3", None]
        assert about(written[4])["message"] == "no The record is too large to be copied."

    run(tmp_path, scenario)


def test_large_letters_are_composed_in_a_thread_each_batch_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    counts: list[int] = []

    def encode(records: Iterable[Record]) -> bytes:
        letters = list(records)
        threads.add(threading.get_ident())
        counts.append(len(letters))
        return encode_batch(letters)

    monkeypatch.setattr(dead_letters, "encode_batch", encode)

    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        for size_bytes in (600_000, 300_000, 900_000, 900_000):
            await orders.append(encode_batch([Record(0, 0, b"k", b"x" * size_bytes)]), acks=-1)
        letters = [DeadLetter(offset, 1, REJECTED, "no") for offset in range(8)]
        await broker.services.share_partitions.dead_letters.write(GROUP, orders, letters)
        assert counts == [6, 1, 1], "no letter is encoded twice"
        assert threading.get_ident() not in threads
        assert broker.partitions.find(DLQ, 0).high_watermark == 8

    run(tmp_path, scenario)


def test_letter_of_a_letter_keeps_its_history(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        await broker.services.share_partitions.dead_letters.write(GROUP, orders, [REJECTION])
        (first,) = letters_in(broker)
        await orders.append(
            encode_batch([Record(0, 7, first.key, first.value, first.headers)]), acks=-1
        )
        await broker.services.share_partitions.dead_letters.write(
            GROUP, orders, [DeadLetter(4, 5, LIMIT, MESSAGES[LIMIT])]
        )
        second = letters_in(broker)[1]
        offsets = [value for name, value in second.headers if name == "__dlq.errors.offset"]
        assert offsets == [b"1", b"4"]
        assert about(second)["reason"] == "limit"

    run(tmp_path, scenario)


def test_dead_letter_topic_never_dead_letters_into_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        await broker.services.share_partitions.dead_letters.write(GROUP, orders, [REJECTION])
        letters = broker.partitions.find(DLQ, 0)
        for _ in range(2):
            await broker.services.share_partitions.dead_letters.write(
                GROUP, letters, [DeadLetter(0, 1, REJECTED, "no")]
            )
        assert letters.high_watermark == 1
        assert caplog.text.count("is its own dead-letter topic") == 1

    run(tmp_path, scenario)


def test_group_without_a_topic_writes_nothing(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        await broker.services.share_partitions.dead_letters.write("others", orders, [REJECTION])
        assert letters_in(broker) == []

    run(tmp_path, scenario)


# The rules for the topic


def test_topic_that_does_not_exist_is_created_where_the_broker_allows_it(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        await configure(broker, "errors.deadletterqueue.topic.name", "dlq.new")
        await asyncio.gather(
            *(
                broker.services.share_partitions.dead_letters.write(GROUP, orders, [REJECTION])
                for _ in range(3)
            )
        )
        assert len(letters_in(broker, "dlq.new")) == 3
        assert broker.configs.topic("dlq.new").errors_deadletterqueue_group_enable

    run(tmp_path, scenario, errors_deadletterqueue_auto_create_topics_enable=True)


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("dlq.missing", "does not exist: create it with errors.deadletterqueue.group.enable=true"),
        ("dlq.plain", "does not accept dead letters: set errors.deadletterqueue.group.enable=true"),
    ],
)
def test_topic_that_may_not_take_letters_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, topic: str, message: str
) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        await broker.topics.create([NewTopic("dlq.plain", 1)])
        await configure(broker, "errors.deadletterqueue.topic.name", topic)
        for _ in range(2):
            with pytest.raises(ApiError, match=message):
                await broker.services.share_partitions.dead_letters.write(
                    GROUP, orders, [REJECTION]
                )
        assert caplog.text.count(message) == 1, "said once, not with every try"

    run(tmp_path, scenario)


def test_topic_whose_name_no_longer_begins_with_the_prefix_is_refused(tmp_path: Path) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        change = Change("errors.deadletterqueue.topic.name.prefix", Operation.SET, "dead.")
        everywhere = Resource(ResourceType.BROKER, "")
        await broker.configs.alter({everywhere: [change]}, validate_only=False)
        with pytest.raises(ApiError, match=r"does not begin with 'dead\.'"):
            await broker.services.share_partitions.dead_letters.write(GROUP, orders, [REJECTION])

    run(tmp_path, scenario)


# The breaker


def test_flood_waits_and_says_so_and_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    def said() -> list[str]:
        return [it.getMessage() for it in caplog.records if it.name == dead_letters.__name__]

    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        burst = 100 * BURST_SECONDS
        # More than the bucket gets back before the second write, should that come late.
        letters = [DeadLetter(offset % 4, 1, REJECTED, "no") for offset in range(burst + 100)]
        await asyncio.gather(
            broker.services.share_partitions.dead_letters.write(GROUP, orders, letters[:burst]),
            broker.services.share_partitions.dead_letters.write(GROUP, orders, letters[burst:]),
        )
        assert broker.partitions.find(DLQ, 0).high_watermark == burst + 100
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(said()) < 2:
                await asyncio.sleep(0.05)
        opened, closed = said()
        assert "rate limit exceeded: more than 100 records per second fail" in opened
        assert "below the dead-letter rate limit again after" in closed
        assert "100 records waited" in closed

    run(tmp_path, scenario, millstream_deadletterqueue_max_records_per_second=100)


def test_letters_that_cannot_be_written_cost_no_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: BrokerServer, orders: Partition) -> None:
        letters = [DeadLetter(offset % 4, 1, REJECTED, "no") for offset in range(BURST_SECONDS)]
        await alter_topic(broker, DLQ, "max.message.bytes", "100")
        for _ in range(3):
            with pytest.raises(ApiError):
                await broker.services.share_partitions.dead_letters.write(GROUP, orders, letters)
        await alter_topic(broker, DLQ, "max.message.bytes", "100000")
        await broker.services.share_partitions.dead_letters.write(GROUP, orders, letters)
        assert "rate limit" not in caplog.text

    run(tmp_path, scenario, millstream_deadletterqueue_max_records_per_second=1)


async def alter_topic(broker: BrokerServer, topic: str, name: str, value: str) -> None:
    change = Change(name, Operation.SET, value)
    resource = Resource(ResourceType.TOPIC, topic)
    await broker.configs.alter({resource: [change]}, validate_only=False)
