"""What a broker does with a producer's records: contents, times, sizes, order, idempotence."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.wire import Wire, batch, produce_fields, request_frame

ALSO_ON_A_WORKER = True

NO_ERROR, CORRUPT_MESSAGE, UNKNOWN_TOPIC, MESSAGE_TOO_LARGE = 0, 2, 3, 10
OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH = 45, 47
INVALID_TIMESTAMP, INVALID_RECORD = 32, 87
INVALID_REQUIRED_ACKS, UNSUPPORTED_COMPRESSION_TYPE = 21, 76


def produce_one(broker: BrokerUnderTest, topic: str, **record: Any) -> Message:
    """Produce a record and return its delivery report; raises what the broker refused."""
    producer = Producer(broker.config(message_timeout_ms=20_000, message_max_bytes=8_000_000))
    reports: list[tuple[Any, Message]] = []
    producer.produce(topic, on_delivery=lambda *report: reports.append(report), **record)
    producer.flush(PATIENCE_SECONDS)
    error, message = reports[0]
    if error is not None:
        raise KafkaException(error)
    return message


def read_all(broker: BrokerUnderTest, topic: str, count: int, partition: int = 0) -> list[Message]:
    """The first `count` records of a partition."""
    consumer = Consumer(broker.config(group_id=unique("reader"), fetch_message_max_bytes=8_000_000))
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        messages: list[Message] = []
        while len(messages) < count:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, f"only {len(messages)} of {count} records came"
            assert message.error() is None, message.error()
            messages.append(message)
        return messages
    finally:
        consumer.close()


def wire_produce(wire: Wire, topic: str, records: bytes, version: int = 9, **options: Any) -> Any:
    """Produce raw bytes; the answer of the one partition."""
    answer = wire.call("produce", version, **produce_fields(topic, records, **options))
    return answer.responses[0].partition_responses[0]


def test_min_insync_replicas_above_the_replication_factor_counts_as_that_factor(
    broker: BrokerUnderTest,
) -> None:
    """Kafka's effective minimum: such a topic can be written to with acks=all."""
    topic = broker.create_topic(min_insync_replicas=2)
    with Wire(broker.bootstrap) as wire:
        for acks in (1, -1):
            assert wire_produce(wire, topic, batch([b"value"]), acks=acks).error_code == NO_ERROR
    assert [message.value() for message in read_all(broker, topic, 2)] == [b"value"] * 2


def test_broker_keeps_null_and_empty_keys_and_values_apart(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    pairs = [(None, None), (b"", b""), (None, b""), (b"", None), (b"k", b"v")]
    producer = Producer(broker.config())
    for key, value in pairs:
        producer.produce(topic, value, key, partition=0)
    producer.flush(PATIENCE_SECONDS)
    messages = read_all(broker, topic, len(pairs))
    assert [(message.key(), message.value()) for message in messages] == pairs


def test_broker_keeps_headers_in_order_with_repeats_and_nulls(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    headers = [("a", b"1"), ("b", None), ("a", b"2"), ("", b""), ("ü", b"\x00\xff")]
    produce_one(broker, topic, value=b"x", headers=headers)
    (message,) = read_all(broker, topic, 1)
    assert message.headers() == headers


def test_broker_keeps_the_producers_time(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    moment = int(time.time() * 1000) - 5_000
    produce_one(broker, topic, value=b"x", timestamp=moment)
    (message,) = read_all(broker, topic, 1)
    assert message.timestamp() == (TIMESTAMP_CREATE_TIME, moment)


def test_broker_sets_the_time_where_the_topic_says_log_append_time(
    broker: BrokerUnderTest,
) -> None:
    topic = broker.create_topic(message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    report = produce_one(broker, topic, value=b"x", timestamp=before - 3_600_000)
    after = int(time.time() * 1000)
    (message,) = read_all(broker, topic, 1)
    kind, moment = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before <= moment <= after
    assert report.timestamp() == (kind, moment)


def test_broker_refuses_a_time_too_far_ahead(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic(message_timestamp_after_max_ms=1000)
    ahead = int(time.time() * 1000) + 100_000
    with Wire(broker.bootstrap) as wire:
        answer = wire_produce(wire, topic, batch([b"x"], timestamp_ms=ahead))
    assert answer.error_code == INVALID_TIMESTAMP


def test_broker_takes_a_big_record_and_refuses_a_bigger_one(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic(max_message_bytes=2_000_000)
    value = bytes(range(256)) * 7_000
    produce_one(broker, topic, value=value)
    (message,) = read_all(broker, topic, 1)
    assert message.value() == value
    with pytest.raises(KafkaException) as refused:
        produce_one(broker, topic, value=b"x" * 2_100_000)
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


@pytest.mark.parametrize("target", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_broker_recompresses_where_the_topic_says_so(broker: BrokerUnderTest, target: str) -> None:
    topic = broker.create_topic(compression_type=target)
    values = [b"v" * 100 + str(index).encode() for index in range(50)]
    with Wire(broker.bootstrap) as wire:
        assert wire_produce(wire, topic, batch(values, compression="lz4")).error_code == NO_ERROR
        answer = wire.call(
            "fetch",
            12,
            replica_id=-1,
            max_wait=1000,
            min_bytes=1,
            topics=(
                {"topic": topic, "partitions": ({"partition": 0, "partition_max_bytes": 1 << 20},)},
            ),
        )
    stored = answer.responses[0].partitions[0].records
    attributes = int.from_bytes(stored[21:23], "big")
    assert attributes & 7 == ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(target)
    assert [message.value() for message in read_all(broker, topic, 50)] == values


def test_broker_keeps_the_order_of_one_producer(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    producer = Producer(broker.config(enable_idempotence=True, linger_ms=0, batch_num_messages=7))
    values = [str(index).encode() for index in range(2000)]
    for value in values:
        producer.produce(topic, value, partition=0)
        producer.poll(0)
    producer.flush(PATIENCE_SECONDS)
    messages = read_all(broker, topic, len(values))
    assert [message.value() for message in messages] == values
    assert [message.offset() for message in messages] == list(range(len(values)))


def new_producer_id(wire: Wire) -> tuple[int, int]:
    answer = wire.call("init_producer_id", 4, transactional_id=None, transaction_timeout=60_000)
    assert answer.error_code == NO_ERROR
    return answer.producer_id, answer.producer_epoch


def test_broker_answers_a_repeated_batch_with_its_first_offset(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        producer_id, epoch = new_producer_id(wire)

        def produce(sequence: int, count: int = 2) -> Any:
            records = batch(
                [b"x"] * count,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
            return wire_produce(wire, topic, records)

        assert [produce(sequence).base_offset for sequence in (0, 2, 4)] == [0, 2, 4]
        again = produce(2)
        assert (again.error_code, again.base_offset) == (NO_ERROR, 2)
        assert produce(9).error_code == OUT_OF_ORDER_SEQUENCE
        assert produce(6).base_offset == 6
    assert len(read_all(broker, topic, 8)) == 8


def test_broker_remembers_only_the_last_five_batches_of_a_producer(
    broker: BrokerUnderTest,
) -> None:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        producer_id, epoch = new_producer_id(wire)

        def produce(sequence: int) -> Any:
            identity = {"producer_id": producer_id, "producer_epoch": epoch}
            return wire_produce(wire, topic, batch([b"x"], base_sequence=sequence, **identity))

        for sequence in range(6):
            assert produce(sequence).error_code == NO_ERROR
        assert produce(1).base_offset == 1
        assert produce(0).error_code == OUT_OF_ORDER_SEQUENCE


def test_broker_refuses_an_older_epoch_of_a_producer(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        producer_id, epoch = new_producer_id(wire)

        def produce(epoch: int, sequence: int) -> Any:
            identity = {"producer_id": producer_id, "producer_epoch": epoch}
            return wire_produce(wire, topic, batch([b"x"], base_sequence=sequence, **identity))

        assert produce(epoch + 1, 0).error_code == NO_ERROR
        assert produce(epoch, 1).error_code == INVALID_PRODUCER_EPOCH
        assert produce(epoch + 2, 5).error_code == OUT_OF_ORDER_SEQUENCE
        assert produce(epoch + 2, 0).error_code == NO_ERROR


def test_broker_hands_out_producer_ids_once(broker: BrokerUnderTest) -> None:
    with Wire(broker.bootstrap) as wire:
        ids = [new_producer_id(wire)[0] for _ in range(20)]
    assert len(set(ids)) == 20


def test_broker_refuses_a_null_key_in_a_compacted_topic(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic(cleanup_policy="compact")
    with Wire(broker.bootstrap) as wire:
        answer = wire_produce(wire, topic, batch([b"x", b"y"], keys=[b"k", None]))
    assert answer.error_code == INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [1]


def test_broker_refuses_a_batch_with_a_flipped_bit(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    records = bytearray(batch([b"hello"]))
    records[-1] ^= 1
    with Wire(broker.bootstrap) as wire:
        assert wire_produce(wire, topic, bytes(records)).error_code == CORRUPT_MESSAGE
        assert wire_produce(wire, topic, batch([b"hello"])).base_offset == 0


def test_broker_refuses_acks_it_does_not_know(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        assert wire_produce(wire, topic, batch([b"x"]), acks=2).error_code == INVALID_REQUIRED_ACKS


def test_broker_answers_for_an_unknown_topic_and_partition(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        unknown = wire_produce(wire, unique("absent"), batch([b"x"]))
        beyond = wire_produce(wire, topic, batch([b"x"]), partition=7)
    assert (unknown.error_code, beyond.error_code) == (UNKNOWN_TOPIC, UNKNOWN_TOPIC)


@pytest.mark.parametrize("version", range(3, 14))
def test_broker_takes_every_version_of_produce(broker: BrokerUnderTest, version: int) -> None:
    topic = broker.create_topic()
    topic_id = broker.topic_id(topic)
    compression = "zstd" if version >= 7 else "gzip"
    records = batch([b"x", b"y"], compression=compression)
    fields = produce_fields(topic, records)
    if version >= 13:
        data = fields["topic_data"][0]["partition_data"]
        fields["topic_data"] = ({"topic_id": topic_id, "partition_data": data},)
    with Wire(broker.bootstrap) as wire:
        answer = wire.call("produce", version, **fields).responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (NO_ERROR, 0)
    assert [message.value() for message in read_all(broker, topic, 2)] == [b"x", b"y"]


def test_broker_refuses_zstd_in_a_version_that_predates_it(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        answer = wire_produce(wire, topic, batch([b"x" * 100], compression="zstd"), version=6)
    assert answer.error_code == UNSUPPORTED_COMPRESSION_TYPE


def test_broker_answers_nothing_to_acks_zero_and_goes_on(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        wire.send(request_frame("produce", 9, 1, **produce_fields(topic, batch([b"a"]), acks=0)))
        assert wire_produce(wire, topic, batch([b"b"])).base_offset == 1
    assert [message.value() for message in read_all(broker, topic, 2)] == [b"a", b"b"]
