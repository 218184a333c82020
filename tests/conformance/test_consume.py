"""Reading: positions, time, the edges of the log, limits, waiting, fetch sessions."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    Producer,
    TopicPartition,
)

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.test_produce import read_all, wire_produce
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.wire import Wire, batch, request_frame

ALSO_ON_A_WORKER = True

NO_ERROR, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_ID, FENCED_LEADER_EPOCH = 0, 1, 100, 74
FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, UNKNOWN_LEADER_EPOCH = 70, 71, 75


def fill(broker: BrokerUnderTest, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer(broker.config())
    for index in range(count):
        producer.produce(topic, str(index).encode(), partition=partition)
    producer.flush(PATIENCE_SECONDS)


def fetch(wire: Wire, topic: str, offset: int, version: int = 12, **options: Any) -> Any:
    """Fetch partition 0 by name (versions up to 12); the partition's answer."""
    return fetch_answer(wire, topic, offset, version, **options).responses[0].partitions[0]


def fetch_answer(wire: Wire, topic: str, offset: int, version: int = 12, **options: Any) -> Any:
    return wire.call("fetch", version, **fetch_fields(topic, offset, **options))


def fetch_fields(
    topic: str,
    offset: int,
    *,
    max_wait: int = 5_000,
    min_bytes: int = 1,
    partition_max_bytes: int = 1 << 20,
    **partition: Any,
) -> dict[str, Any]:
    position = {"fetch_offset": offset, "partition_max_bytes": partition_max_bytes, **partition}
    topics = ({"topic": topic, "partitions": ({"partition": 0, **position},)},)
    return {"replica_id": -1, "max_wait": max_wait, "min_bytes": min_bytes, "topics": topics}


@pytest.mark.parametrize(("start", "first"), [(OFFSET_BEGINNING, b"0"), (7, b"7")])
def test_consumer_starts_where_it_is_assigned(
    broker: BrokerUnderTest, start: int, first: bytes
) -> None:
    topic = broker.create_topic()
    fill(broker, topic, 10)
    consumer = Consumer(broker.config(group_id=unique("group")))
    consumer.assign([TopicPartition(topic, 0, start)])
    message = consumer.poll(PATIENCE_SECONDS)
    assert message is not None
    assert message.value() == first
    consumer.close()


def await_the_end(consumer: Consumer) -> None:
    """Poll until it stands at the end of its partition; nothing may come before that."""
    message = consumer.poll(PATIENCE_SECONDS)
    assert message is not None
    assert message.error() is not None, message.offset()
    assert message.error().code() == KafkaError._PARTITION_EOF


def test_consumer_at_the_end_sees_only_what_comes_later(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    fill(broker, topic, 10)
    consumer = Consumer(broker.config(group_id=unique("group"), enable_partition_eof=True))
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    await_the_end(consumer)
    fill(broker, topic, 1)
    message = consumer.poll(PATIENCE_SECONDS)
    assert message is not None
    assert message.offset() == 10
    consumer.close()


def test_consumer_seeks_back_and_forth(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    fill(broker, topic, 100)
    consumer = Consumer(broker.config(group_id=unique("group")))
    consumer.assign([TopicPartition(topic, 0, 0)])
    for offset in (99, 3, 50, 0):
        consumer.seek(TopicPartition(topic, 0, offset))
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        assert message.offset() == offset
    consumer.close()


def test_consumer_finds_offsets_by_timestamp(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    now = int(time.time() * 1000)
    producer = Producer(broker.config(batch_num_messages=1))
    for delta in (0, 10, 5, 20):
        producer.produce(topic, b"x", partition=0, timestamp=now + delta)
    producer.flush(PATIENCE_SECONDS)
    consumer = Consumer(broker.config(group_id=unique("group")))

    def offset_at(timestamp: int) -> int:
        (found,) = consumer.offsets_for_times(
            [TopicPartition(topic, 0, timestamp)], timeout=PATIENCE_SECONDS
        )
        return int(found.offset)

    assert [offset_at(now + delta) for delta in (-5, 0, 1, 10, 11, 20)] == [0, 0, 1, 1, 3, 3]
    assert offset_at(now + 21) == OFFSET_END
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_SECONDS) == (
        0,
        4,
    )
    consumer.close()


@pytest.mark.parametrize(("policy", "first"), [("earliest", 5), ("latest", 10)])
def test_consumer_out_of_range_is_reset_as_it_asked(
    broker: BrokerUnderTest, policy: str, first: int
) -> None:
    topic = broker.create_topic()
    fill(broker, topic, 10)
    broker.admin.delete_records([TopicPartition(topic, 0, 5)])[TopicPartition(topic, 0)].result(
        PATIENCE_SECONDS
    )
    settings = {"auto_offset_reset": policy, "enable_partition_eof": True}
    consumer = Consumer(broker.config(group_id=unique("group"), **settings))
    consumer.assign([TopicPartition(topic, 0, 2)])
    if policy == "latest":
        await_the_end(consumer)
        fill(broker, topic, 1)
    message = consumer.poll(PATIENCE_SECONDS)
    assert message is not None
    assert message.offset() == first
    consumer.close()


def test_consumer_out_of_range_is_told_where_it_wants_no_reset(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    fill(broker, topic, 3)
    consumer = Consumer(broker.config(group_id=unique("group"), auto_offset_reset="error"))
    consumer.assign([TopicPartition(topic, 0, 1000)])
    message = consumer.poll(PATIENCE_SECONDS)
    assert message is not None
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    consumer.close()


def test_fetch_beyond_the_end_is_out_of_range_and_at_the_end_is_empty(
    broker: BrokerUnderTest,
) -> None:
    topic = broker.create_topic()
    fill(broker, topic, 3)
    with Wire(broker.bootstrap) as wire:
        at_end = fetch(wire, topic, 3, max_wait=0)
        beyond = fetch(wire, topic, 4, max_wait=0)
        below = fetch(wire, topic, -1, max_wait=0)
    assert (at_end.error_code, at_end.high_watermark) == (NO_ERROR, 3)
    assert not at_end.records
    assert (beyond.error_code, below.error_code) == (OFFSET_OUT_OF_RANGE, OFFSET_OUT_OF_RANGE)


def test_fetch_gives_the_whole_batch_that_holds_the_offset(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    sent = batch([b"a" * 1000, b"b", b"c"])
    with Wire(broker.bootstrap) as wire:
        wire_produce(wire, topic, sent)
        answer = fetch(wire, topic, 2, partition_max_bytes=1)
    assert len(answer.records) == len(sent)


def test_fetch_gives_at_least_one_batch_and_otherwise_keeps_to_the_limit(
    broker: BrokerUnderTest,
) -> None:
    topic = broker.create_topic()
    sent = batch([b"x" * 1000])
    with Wire(broker.bootstrap) as wire:
        for _ in range(5):
            wire_produce(wire, topic, sent)
        sizes = [
            len(fetch(wire, topic, 0, partition_max_bytes=limit).records)
            for limit in (1, len(sent) * 2, 1 << 20)
        ]
    assert sizes == [len(sent), 2 * len(sent), 5 * len(sent)]


def test_fetch_waits_for_data_and_returns_when_it_comes(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as waiting, Wire(broker.bootstrap) as wire:
        waiting.send(request_frame("fetch", 12, **fetch_fields(topic, 0, max_wait=15_000)))
        wire_produce(wire, topic, batch([b"x"]))
        answer = waiting.receive("fetch", 12).responses[0].partitions[0]
    assert answer.records


def test_fetch_waits_for_min_bytes_and_returns_less_when_time_is_up(
    broker: BrokerUnderTest,
) -> None:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        wire_produce(wire, topic, batch([b"x"]))
        started = time.monotonic()
        answer = fetch(wire, topic, 0, max_wait=400, min_bytes=1_000_000)
        waited = time.monotonic() - started
    assert answer.records
    assert waited >= 0.39


def test_fetch_answers_requests_of_one_connection_in_order(broker: BrokerUnderTest) -> None:
    """A long poll holds back what was asked after it on the same connection, as clients expect."""
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        wire.send(request_frame("fetch", 12, 1, **fetch_fields(topic, 0, max_wait=300)))
        wire.send(request_frame("api_versions", 0, 2))
        first, second = wire.receive_frame(), wire.receive_frame()
    assert [int.from_bytes(frame[:4], "big") for frame in (first, second)] == [1, 2]


def test_fetch_checks_the_leader_epoch(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    fill(broker, topic, 1)
    with Wire(broker.bootstrap) as wire:
        known = wire.call("metadata", 12, topics=({"name": topic},)).topics[0].partitions[0]
        epoch = known.leader_epoch
        assert fetch(wire, topic, 0, current_leader_epoch=epoch).error_code == NO_ERROR
        newer = fetch(wire, topic, 0, current_leader_epoch=epoch + 1, max_wait=0)
    assert newer.error_code == UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch_serves_every_version(broker: BrokerUnderTest, version: int) -> None:
    topic = broker.create_topic()
    topic_id = broker.topic_id(topic)
    fill(broker, topic, 3)
    fields = fetch_fields(topic, 1)
    if version >= 13:
        partitions = fields["topics"][0]["partitions"]
        fields["topics"] = ({"topic_id": topic_id, "partitions": partitions},)
    if version >= 15:
        fields.pop("replica_id")
    with Wire(broker.bootstrap) as wire:
        answer = wire.call("fetch", version, **fields)
        partition = answer.responses[0].partitions[0]
    assert (partition.error_code, partition.high_watermark) == (NO_ERROR, 3)
    assert partition.records


def test_fetch_by_an_unknown_topic_id_says_so(broker: BrokerUnderTest) -> None:
    fields = fetch_fields("", 0, max_wait=0)
    fields.pop("replica_id")
    partitions = fields["topics"][0]["partitions"]
    fields["topics"] = ({"topic_id": uuid.uuid4(), "partitions": partitions},)
    with Wire(broker.bootstrap) as wire:
        answer = wire.call("fetch", 17, **fields)
    assert answer.responses[0].partitions[0].error_code == UNKNOWN_TOPIC_ID


def test_fetch_session_sends_only_partitions_with_news(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic(partitions=3)
    with Wire(broker.bootstrap) as wire:
        everything = [{"partition": p, "partition_max_bytes": 1 << 20} for p in range(3)]
        common = {"replica_id": -1, "max_wait": 200, "min_bytes": 1}
        full = wire.call(
            "fetch",
            12,
            **common,
            session_epoch=0,
            topics=({"topic": topic, "partitions": everything},),
        )
        assert full.session_id != 0
        assert len(full.responses[0].partitions) == 3
        wire_produce(wire, topic, batch([b"x"]), partition=1)
        session = {"session_id": full.session_id, **common}
        news = wire.call("fetch", 12, **session, session_epoch=1)
        assert [p.partition_index for p in news.responses[0].partitions] == [1]
        moved = {"partition": 1, "fetch_offset": 1, "partition_max_bytes": 1 << 20}
        quiet = wire.call(
            "fetch",
            12,
            **session,
            session_epoch=2,
            topics=({"topic": topic, "partitions": (moved,)},),
        )
        assert quiet.responses == ()
        skipped = wire.call("fetch", 12, **session, session_epoch=9)
        assert skipped.error_code == INVALID_FETCH_SESSION_EPOCH
        unknown = wire.call("fetch", 12, **common, session_id=123_456, session_epoch=1)
        assert unknown.error_code == FETCH_SESSION_ID_NOT_FOUND


def test_readers_of_many_speeds_do_not_disturb_each_other(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    fill(broker, topic, 500)
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda: counts.append(len(read_all(broker, topic, 500))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [500] * 4


def test_list_offsets_knows_every_special_timestamp(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    now = int(time.time() * 1000)
    with Wire(broker.bootstrap) as wire:
        for delta in (0, 20, 10):
            wire_produce(wire, topic, batch([b"x"], timestamp_ms=now + delta))
        broker.admin.delete_records([TopicPartition(topic, 0, 1)])[TopicPartition(topic, 0)].result(
            PATIENCE_SECONDS
        )

        def offset(timestamp: int) -> tuple[int, int]:
            partitions = ({"partition_index": 0, "timestamp": timestamp},)
            topics = ({"name": topic, "partitions": partitions},)
            answer = wire.call("list_offsets", 10, replica_id=-1, topics=topics)
            partition = answer.topics[0].partitions[0]
            return partition.error_code, partition.offset

        latest, earliest, by_time, local, tiered = (offset(spec) for spec in (-1, -2, -3, -4, -5))
    assert (latest, earliest, by_time, local) == ((0, 3), (0, 1), (0, 1), (0, 1))
    assert tiered == (0, -1)
