"""Produce: what is appended, what is refused, and how each is answered."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.calls import create_topic, produce, topic_id_of
from tests.peers.wire import Wire, batch


@pytest.fixture
def wire(millstream: SharedBroker) -> Iterator[Wire]:
    with Wire(millstream.bootstrap_servers) as connected:
        yield connected


@pytest.fixture
def topic(wire: Wire, millstream: SharedBroker) -> str:
    name = millstream.unique_topic()
    create_topic(wire, name)
    return name


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("acks", [-1, 1])
def test_produce_answers_with_the_first_offset_in_every_version(
    wire: Wire, topic: str, version: int, acks: int
) -> None:
    for expected in (0, 2, 4):
        answer = produce(wire, topic, batch([b"a", b"b"]), version=version, acks=acks)
        assert (answer.error_code, answer.base_offset) == (0, expected)


def test_produce_finds_topics_by_id(wire: Wire, topic: str) -> None:
    data = [{"index": 0, "records": batch([b"a"])}]
    for topic_id, code in (
        (topic_id_of(wire, topic), ErrorCode.NONE),
        (uuid.uuid4(), ErrorCode.UNKNOWN_TOPIC_ID),
    ):
        answer = wire.call(
            "produce",
            13,
            acks=-1,
            timeout=1000,
            topic_data=[{"topic_id": topic_id, "partition_data": data}],
        )
        assert answer.responses[0].topic_id == topic_id
        assert answer.responses[0].partition_responses[0].error_code == code


def test_partitions_of_one_request_succeed_and_fail_by_themselves(
    wire: Wire, topic: str, millstream: SharedBroker
) -> None:
    good, bad = batch([b"a"]), batch([b"a"])[:-1] + b"?"
    topics = [
        {"name": topic, "partition_data": [{"index": i, "records": good} for i in (0, 7)]},
        {"name": millstream.unique_topic(), "partition_data": [{"index": 0, "records": good}]},
        {"name": topic, "partition_data": [{"index": 0, "records": bad}]},
    ]
    answer = wire.call("produce", 9, acks=-1, timeout=1000, topic_data=topics)
    codes = [it.error_code for each in answer.responses for it in each.partition_responses]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [ErrorCode.NONE, unknown, unknown, ErrorCode.CORRUPT_MESSAGE]


def test_acks_that_mean_nothing_are_refused(wire: Wire, topic: str) -> None:
    answer = produce(wire, topic, batch([b"a"]), acks=2)
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_partition_without_records_is_refused(wire: Wire, topic: str) -> None:
    assert produce(wire, topic, b"").error_code == ErrorCode.INVALID_RECORD


def test_zstd_needs_version_7(wire: Wire, topic: str) -> None:
    records = batch([b"a" * 1000], compression="zstd")
    refused = produce(wire, topic, records, version=6)
    assert refused.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert produce(wire, topic, records, version=7).error_code == 0


def test_internal_topic_is_not_for_clients(wire: Wire) -> None:
    wire.call("find_coordinator", 4, key_type=0, coordinator_keys=("group",))
    answer = produce(wire, "__consumer_offsets", batch([b"a"]))
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_null_keys_of_a_compacted_topic_are_named_one_by_one(
    wire: Wire, millstream: SharedBroker
) -> None:
    compacted = millstream.unique_topic()
    create_topic(wire, compacted, cleanup_policy="compact")
    answer = produce(wire, compacted, batch([b"a", b"b"], keys=[b"key", None]))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [1]


def test_duplicates_and_gaps_of_an_idempotent_producer_are_found(wire: Wire, topic: str) -> None:
    def send(sequence: int, epoch: int = 3) -> tuple[int, int]:
        records = batch([b"a"], producer_id=900, producer_epoch=epoch, base_sequence=sequence)
        answer = produce(wire, topic, records)
        return answer.error_code, answer.base_offset

    assert [send(0), send(1), send(2)] == [(0, 0), (0, 1), (0, 2)]
    assert send(1) == (0, 1)
    assert send(9)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(3, epoch=2)[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert send(3) == (0, 3)


def test_log_append_time_is_told(wire: Wire, millstream: SharedBroker) -> None:
    stamped = millstream.unique_topic()
    create_topic(wire, stamped, message_timestamp_type="LogAppendTime")
    answer = produce(wire, stamped, batch([b"a"], timestamp_ms=1000))
    assert answer.log_append_time.timestamp() * 1000 > 1000
