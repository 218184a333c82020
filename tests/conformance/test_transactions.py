"""The life of a transaction in both protocols: its records, its end, and what readers see of it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.peers.patience import wait_until
from tests.peers.transactional import NO_ERROR, TransactionalProducer, describe_transactions
from tests.peers.wire import Wire, batch, produce_fields

ALSO_ON_A_WORKER = True

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
INVALID_TXN_STATE, TRANSACTION_ABORTABLE = 48, 120
INVALID_PRODUCER_ID_MAPPING, TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 49, 53

both_protocols = pytest.mark.parametrize("protocol", [1, 2])
either_end = pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])


class Batch(NamedTuple):
    """What a batch's header says."""

    base_offset: int
    count: int
    is_transactional: bool
    is_control: bool
    producer_id: int
    producer_epoch: int
    body: bytes


def batches_of(records: bytes) -> Iterator[Batch]:
    """The whole batches in a fetched set of records."""
    while len(records) >= 61:
        base_offset, size = struct.unpack_from(">qi", records)
        (attributes,) = struct.unpack_from(">h", records, 21)
        producer_id, epoch, _, count = struct.unpack_from(">qhii", records, 43)
        whole = records[: 12 + size]
        yield Batch(
            base_offset,
            count,
            bool(attributes & 0x10),
            bool(attributes & 0x20),
            producer_id,
            epoch,
            whole[61:],
        )
        records = records[12 + size :]


def fetch(
    broker: BrokerUnderTest, topic: str, isolation: int, *, offset: int = 0, partition: int = 0
) -> Any:
    """The partition's answer to a Fetch from an offset."""
    position = {"fetch_offset": offset, "partition_max_bytes": 1 << 20}
    topics = ({"topic": topic, "partitions": ({"partition": partition, **position},)},)
    with Wire(broker.bootstrap) as wire:
        answer = wire.call(
            "fetch",
            12,
            replica_id=-1,
            max_wait=0,
            min_bytes=0,
            isolation_level=isolation,
            topics=topics,
        )
    return answer.responses[0].partitions[0]


def log_of(broker: BrokerUnderTest, topic: str, partition: int = 0) -> list[Batch]:
    answer = fetch(broker, topic, READ_UNCOMMITTED, partition=partition)
    return list(batches_of(answer.records or b""))


def end_offset(broker: BrokerUnderTest, topic: str, isolation: int, partition: int = 0) -> int:
    """What ListOffsets says of the end."""
    asked = {"partition_index": partition, "timestamp": -1}
    topics = ({"name": topic, "partitions": (asked,)},)
    with Wire(broker.bootstrap) as wire:
        answer = wire.call(
            "list_offsets", 9, replica_id=-1, isolation_level=isolation, topics=topics
        )
    return int(answer.topics[0].partitions[0].offset)


def stable_offset(broker: BrokerUnderTest, topic: str, partition: int = 0) -> int:
    return end_offset(broker, topic, READ_COMMITTED, partition)


def committed_offsets(broker: BrokerUnderTest, topic: str, partition: int = 0) -> list[int]:
    """Offsets of records that a read-committed consumer hands on, by the rule of the protocol."""
    answer = fetch(broker, topic, READ_COMMITTED, partition=partition)
    pending = sorted((a.first_offset, a.producer_id) for a in answer.aborted_transactions or ())
    aborted: set[int] = set()
    offsets: list[int] = []
    for each in batches_of(answer.records or b""):
        while pending and pending[0][0] <= each.base_offset:
            aborted.add(pending.pop(0)[1])
        if each.is_control:
            aborted.discard(each.producer_id)
        elif not (each.is_transactional and each.producer_id in aborted):
            offsets += range(each.base_offset, each.base_offset + each.count)
    return offsets


@contextmanager
def producer_of(
    broker: BrokerUnderTest, protocol: int, transactional_id: str | None = None
) -> Iterator[TransactionalProducer]:
    """A producer that has its id and epoch."""
    name = transactional_id or unique("transactional")
    with TransactionalProducer(broker.bootstrap, name, protocol=protocol) as producer:
        assert producer.init() == NO_ERROR
        yield producer


@both_protocols
@either_end
def test_records_are_read_committed_only_after_a_commit(
    broker: BrokerUnderTest, protocol: int, committed: bool
) -> None:
    topic = broker.create_topic()
    with producer_of(broker, protocol) as producer:
        producer.begin(topic)
        assert producer.produce(topic, [b"a", b"b"]).base_offset == 0
        assert producer.produce(topic, [b"c"]).base_offset == 2
        assert end_offset(broker, topic, READ_UNCOMMITTED) == 3
        assert stable_offset(broker, topic) == 0
        open_answer = fetch(broker, topic, READ_COMMITTED)
        assert (open_answer.high_watermark, open_answer.last_stable_offset) == (3, 0)
        assert not open_answer.records
        assert len(log_of(broker, topic)) == 2
        assert producer.end(committed).error_code == NO_ERROR
    wait_until(lambda: stable_offset(broker, topic) == 4)
    assert committed_offsets(broker, topic) == ([0, 1, 2] if committed else [])
    assert end_offset(broker, topic, READ_UNCOMMITTED) == 4


@both_protocols
@either_end
def test_end_is_written_as_a_control_batch(
    broker: BrokerUnderTest, protocol: int, committed: bool
) -> None:
    """In protocol 2 the marker carries the next epoch already (KIP-890)."""
    topic = broker.create_topic()
    with producer_of(broker, protocol) as producer:
        producer_id, epoch = producer.identity
        producer.run(topic, [b"a"], committed=committed)
    wait_until(lambda: len(log_of(broker, topic)) == 2)
    data, marker = log_of(broker, topic)
    assert (data.is_transactional, data.is_control) == (True, False)
    assert (marker.is_transactional, marker.is_control) == (True, True)
    assert (marker.base_offset, marker.count) == (1, 1)
    assert (marker.producer_id, marker.producer_epoch) == (producer_id, epoch + protocol - 1)
    # length, attributes, timestamp and offset deltas, then key: version 0, type; value: version 0
    key_at = marker.body.index(struct.pack(">hh", 0, int(committed)))
    assert marker.body[key_at - 1] == 8  # a zigzag varint: four bytes of key
    value = marker.body[key_at + 5 :]
    assert struct.unpack_from(">h", value) == (0,)


@both_protocols
@either_end
def test_transaction_spans_partitions_of_several_topics(
    broker: BrokerUnderTest, protocol: int, committed: bool
) -> None:
    places = [(broker.create_topic(partitions=2), index) for index in (0, 1)]
    places += [(broker.create_topic(), 0)]
    with producer_of(broker, protocol) as producer:
        for topic, index in places:
            producer.begin(topic, index)
            assert producer.produce(topic, [b"x"], partition=index).error_code == NO_ERROR
        assert [committed_offsets(broker, *place) for place in places] == [[], [], []]
        assert producer.end(committed).error_code == NO_ERROR
    for place in places:
        wait_until(lambda place=place: stable_offset(broker, *place) == 2)
        assert committed_offsets(broker, *place) == ([0] if committed else [])


@both_protocols
def test_reader_skips_the_aborted_among_the_committed(
    broker: BrokerUnderTest, protocol: int
) -> None:
    topic = broker.create_topic()
    with producer_of(broker, protocol) as producer:
        for number in range(6):
            producer.run(topic, [b"x", b"y"], committed=number % 3 != 1)
    wait_until(lambda: stable_offset(broker, topic) == 18)
    assert committed_offsets(broker, topic) == [0, 1, 6, 7, 9, 10, 15, 16]
    answer = fetch(broker, topic, READ_COMMITTED)
    assert sorted(a.first_offset for a in answer.aborted_transactions) == [3, 12]
    assert fetch(broker, topic, READ_UNCOMMITTED).aborted_transactions is None
    later = fetch(broker, topic, READ_COMMITTED, offset=6)
    assert [a.first_offset for a in later.aborted_transactions] == [12]
    last = fetch(broker, topic, READ_COMMITTED, offset=15)
    assert list(last.aborted_transactions) == []


@both_protocols
def test_open_transaction_holds_up_what_others_committed_after_it(
    broker: BrokerUnderTest, protocol: int
) -> None:
    topic = broker.create_topic()
    with producer_of(broker, protocol) as slow, producer_of(broker, protocol) as quick:
        slow.begin(topic)
        slow.produce(topic, [b"slow"])
        quick.run(topic, [b"quick"], committed=True)
        with Wire(broker.bootstrap) as wire:
            wire.call("produce", 9, **produce_fields(topic, batch([b"plain"])))
        assert stable_offset(broker, topic) == 0
        assert committed_offsets(broker, topic) == []
        assert slow.end(committed=False).error_code == NO_ERROR
    wait_until(lambda: stable_offset(broker, topic) == 5)
    plain = next(b.base_offset for b in log_of(broker, topic) if not b.is_transactional)
    assert committed_offsets(broker, topic) == sorted([1, plain])


@both_protocols
def test_interleaved_transactions_end_each_for_itself(
    broker: BrokerUnderTest, protocol: int
) -> None:
    topic = broker.create_topic()
    with producer_of(broker, protocol) as one, producer_of(broker, protocol) as two:
        for producer in (one, two):
            producer.begin(topic)
        for _ in range(3):
            one.produce(topic, [b"one"])
            two.produce(topic, [b"two"])
        assert one.end(committed=False).error_code == NO_ERROR
        wait_until(lambda: stable_offset(broker, topic) == 1)
        assert two.end(committed=True).error_code == NO_ERROR
    wait_until(lambda: stable_offset(broker, topic) == 8)
    assert committed_offsets(broker, topic) == [1, 3, 5]


def test_empty_transaction_of_protocol_1_is_not_begun_and_cannot_end(
    broker: BrokerUnderTest,
) -> None:
    """Clients of protocol 1 send no EndTxn where nothing was added."""
    with producer_of(broker, 1) as producer:
        assert producer.end(committed=True).error_code == INVALID_TXN_STATE
        assert producer.end(committed=False).error_code == INVALID_TXN_STATE


def test_empty_transaction_of_protocol_2_can_abort_and_raises_the_epoch(
    broker: BrokerUnderTest,
) -> None:
    with producer_of(broker, 2) as producer:
        started = producer.producer_epoch
        assert producer.end(committed=True).error_code == INVALID_TXN_STATE
        assert producer.end(committed=False).error_code == NO_ERROR
        assert producer.producer_epoch == started + 1


@either_end
def test_empty_transaction_of_protocol_2_after_another(
    broker: BrokerUnderTest, committed: bool
) -> None:
    """A commit needs something to commit; an abort does no harm."""
    topic = broker.create_topic()
    with producer_of(broker, 2) as producer:
        producer.run(topic, [b"x"], committed=committed)
        epoch = producer.producer_epoch
        assert producer.end(committed=True).error_code == INVALID_TXN_STATE
        assert producer.end(committed=False).error_code == NO_ERROR
        assert producer.producer_epoch == epoch + 1
        assert producer.end(committed=False).error_code == NO_ERROR
        assert producer.producer_epoch == epoch + 2
    wait_until(lambda: stable_offset(broker, topic) == 2)


@both_protocols
@either_end
def test_partition_added_without_a_record_gets_its_marker(
    broker: BrokerUnderTest, protocol: int, committed: bool
) -> None:
    topic = broker.create_topic()
    with producer_of(broker, protocol) as producer:
        assert producer.add_partitions(topic) == NO_ERROR
        assert producer.end(committed).error_code == NO_ERROR
    wait_until(lambda: stable_offset(broker, topic) == 1)
    (marker,) = log_of(broker, topic)
    assert marker.is_control
    assert committed_offsets(broker, topic) == []


def test_epoch_rises_at_every_end_in_protocol_2(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with producer_of(broker, 2) as producer:
        producer_id, first = producer.identity
        for number in range(1, 5):
            producer.run(topic, [b"x"], committed=number % 2 == 0)
            assert producer.identity == (producer_id, first + number)


def test_epoch_stays_in_protocol_1(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with producer_of(broker, 1) as producer:
        identity = producer.identity
        for committed in (True, False, True):
            producer.run(topic, [b"x"], committed=committed)
        assert producer.identity == identity
    wait_until(lambda: stable_offset(broker, topic) == 6)
    assert committed_offsets(broker, topic) == [0, 4]


@either_end
def test_repeated_end_of_protocol_2_gets_the_same_answer(
    broker: BrokerUnderTest, committed: bool
) -> None:
    topic = broker.create_topic()
    with producer_of(broker, 2) as producer:
        before = producer.identity
        producer.run(topic, [b"x"], committed=committed)
        after = producer.identity
        producer.producer_id, producer.producer_epoch = before
        again = producer.end(committed)
        assert again.error_code == NO_ERROR
        assert (again.producer_id, again.producer_epoch) == after


@either_end
def test_repeated_end_of_protocol_1_succeeds_and_the_other_end_does_not(
    broker: BrokerUnderTest, committed: bool
) -> None:
    topic = broker.create_topic()
    with producer_of(broker, 1) as producer:
        producer.run(topic, [b"x"], committed=committed)
        assert producer.end(committed).error_code == NO_ERROR
        assert producer.end(not committed).error_code == INVALID_TXN_STATE


@pytest.mark.parametrize(
    ("version", "error"),
    [(9, INVALID_TXN_STATE), (10, INVALID_TXN_STATE), (11, TRANSACTION_ABORTABLE)],
)
def test_record_for_a_partition_that_was_not_added_is_refused(
    broker: BrokerUnderTest, version: int, error: int
) -> None:
    topic = broker.create_topic(partitions=2)
    with producer_of(broker, 1) as producer:
        producer.begin(topic, 0)
        assert producer.produce(topic, [b"x"], version=version).error_code == NO_ERROR
        refused = producer.produce(topic, [b"y"], partition=1, version=version)
        assert refused.error_code == error
        assert producer.produce(topic, [b"z"], version=version).error_code == NO_ERROR
        assert log_of(broker, topic, 1) == []


@pytest.mark.parametrize(
    ("version", "error"), [(10, INVALID_TXN_STATE), (11, TRANSACTION_ABORTABLE)]
)
def test_record_after_the_end_of_its_transaction_is_refused(
    broker: BrokerUnderTest, version: int, error: int
) -> None:
    """Protocol 1 keeps the epoch: only the verification tells a late record from a new one."""
    topic = broker.create_topic()
    with producer_of(broker, 1) as producer:
        producer.run(topic, [b"x"], committed=True)
        wait_until(lambda: stable_offset(broker, topic) == 2)
        assert producer.produce(topic, [b"late"], version=version).error_code == error
    assert end_offset(broker, topic, READ_UNCOMMITTED) == 2


def test_record_of_protocol_2_adds_its_partition_by_itself(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic(partitions=3)
    with producer_of(broker, 2) as producer:
        for index in range(3):
            assert producer.produce(topic, [b"x"], partition=index).error_code == NO_ERROR
        (described,) = describe_transactions(broker.bootstrap, producer.transactional_id)
        assert described.transaction_state == "Ongoing"
        assert [(t.topic, sorted(t.partitions)) for t in described.topics] == [(topic, [0, 1, 2])]
        producer.end(committed=True)


@both_protocols
def test_repeated_batch_of_a_transaction_is_known(broker: BrokerUnderTest, protocol: int) -> None:
    topic = broker.create_topic()
    with producer_of(broker, protocol) as producer:
        producer.begin(topic)
        for sequence, offset in ((0, 0), (2, 2), (2, 2), (0, 0)):
            answer = producer.produce(topic, [b"x", b"y"], sequence=sequence)
            assert (answer.error_code, answer.base_offset) == (NO_ERROR, offset)
        producer.end(committed=True)
    wait_until(lambda: stable_offset(broker, topic) == 5)
    assert committed_offsets(broker, topic) == [0, 1, 2, 3]


@both_protocols
def test_plain_batch_cannot_slip_into_an_open_transaction(
    broker: BrokerUnderTest, protocol: int
) -> None:
    topic = broker.create_topic()
    with producer_of(broker, protocol) as producer:
        producer.begin(topic)
        producer.produce(topic, [b"x"])
        plain = producer.produce(topic, [b"y"], transactional=False)
        assert plain.error_code == INVALID_TXN_STATE
        producer.end(committed=True)
    wait_until(lambda: stable_offset(broker, topic) == 2)


def test_transactional_batch_without_a_transactional_id_is_refused(
    broker: BrokerUnderTest,
) -> None:
    topic = broker.create_topic()
    with producer_of(broker, 1) as producer:
        producer.begin(topic)
        identity = {"producer_id": producer.producer_id, "producer_epoch": 0}
        records = batch([b"x"], base_sequence=0, transactional=True, **identity)
        for version in (10, 11, 12):
            answer = producer.wire.call("produce", version, **produce_fields(topic, records))
            refused = answer.responses[0].partition_responses[0]
            assert refused.error_code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_record_of_a_transactional_id_nobody_knows_is_refused(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    for protocol in (1, 2):
        with producer_of(broker, protocol) as producer:
            producer.transactional_id = unique("absent")
            answer = producer.produce(topic, [b"x"])
            assert answer.error_code == INVALID_PRODUCER_ID_MAPPING
    assert log_of(broker, topic) == []


def test_consumer_at_the_stable_offset_waits_and_wakes_at_the_commit(
    broker: BrokerUnderTest,
) -> None:
    """A read-committed Fetch with a wait is answered when the transaction ends."""
    topic = broker.create_topic()
    position = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = ({"topic": topic, "partitions": (position,)},)
    with producer_of(broker, 2) as producer, Wire(broker.bootstrap) as wire:
        producer.produce(topic, [b"x"])
        fields = {"max_wait": 15_000, "min_bytes": 1, "isolation_level": READ_COMMITTED}
        wire.start("fetch", 12, replica_id=-1, topics=topics, **fields)
        producer.end(committed=True)
        partition = wire.receive("fetch", 12).responses[0].partitions[0]
    assert next(batches_of(partition.records)).base_offset == 0
    assert partition.last_stable_offset >= 1
