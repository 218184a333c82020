"""Offsets that are committed in a transaction, with the records that were made of what was read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.test_transactions import (
    both_protocols,
    committed_offsets,
    either_end,
    producer_of,
    stable_offset,
)
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.transactional import (
    NO_ERROR,
    TransactionalProducer,
    describe_transactions,
    patiently,
)
from tests.peers.wire import Wire

ALSO_ON_A_WORKER = True

NO_OFFSET = -1
UNKNOWN_TOPIC_OR_PARTITION, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID = 3, 22, 25
INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING = 47, 48, 49
FENCED_INSTANCE_ID, UNSTABLE_OFFSET_COMMIT, TRANSACTION_ABORTABLE = 82, 88, 120


def offset_answer(
    broker: BrokerUnderTest, group: str, topic: str, *, stable: bool, partition: int = 0
) -> Any:
    topics = ({"name": topic, "partition_indexes": (partition,)},)
    groups = ({"group_id": group, "topics": topics},)
    with Wire(broker.coordinator(group)) as wire:
        answer = patiently(
            lambda: wire.call("offset_fetch", 8, groups=groups, require_stable=stable).groups[0],
            lambda answer: int(answer.error_code),
        )
    return answer.topics[0].partitions[0]


def offset_of(broker: BrokerUnderTest, group: str, topic: str, partition: int = 0) -> int:
    """The committed offset, whether more is pending or not."""
    answer = offset_answer(broker, group, topic, stable=False, partition=partition)
    assert answer.error_code == NO_ERROR
    return int(answer.committed_offset)


def is_unstable(broker: BrokerUnderTest, group: str, topic: str, partition: int = 0) -> bool:
    answer = offset_answer(broker, group, topic, stable=True, partition=partition)
    return bool(answer.error_code == UNSTABLE_OFFSET_COMMIT)


def join(producer: TransactionalProducer, group: str) -> None:
    """What comes before the first offset: in protocol 1 the group, in 2 nothing."""
    if producer.protocol == 1:
        assert producer.add_offsets(group) == NO_ERROR


def commit_outside(broker: BrokerUnderTest, group: str, topic: str, offset: int) -> int:
    """An ordinary OffsetCommit; the error code."""
    position = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    fields = {"group_id": group, "topics": ({"name": topic, "partitions": (position,)},)}
    alone = {"generation_id_or_member_epoch": -1, "member_id": ""}
    with Wire(broker.coordinator(group)) as wire:

        def ask() -> int:
            answer = wire.call("offset_commit", 8, **fields, **alone)
            return int(answer.topics[0].partitions[0].error_code)

        return int(patiently(ask))


@both_protocols
@either_end
def test_offset_counts_only_after_a_commit(
    broker: BrokerUnderTest, protocol: int, committed: bool
) -> None:
    topic, group = broker.create_topic(), unique("group")
    with producer_of(broker, protocol) as producer:
        join(producer, group)
        assert producer.commit_offset(group, topic, 5) == NO_ERROR
        assert offset_of(broker, group, topic) == NO_OFFSET
        assert is_unstable(broker, group, topic)
        assert producer.end(committed).error_code == NO_ERROR
    wait_until(lambda: not is_unstable(broker, group, topic))
    assert offset_of(broker, group, topic) == (5 if committed else NO_OFFSET)


@both_protocols
def test_aborted_offset_leaves_the_one_before(broker: BrokerUnderTest, protocol: int) -> None:
    topic, group = broker.create_topic(), unique("group")
    with producer_of(broker, protocol) as producer:
        for offset, committed, kept in ((3, True, 3), (8, False, 3), (9, True, 9)):
            join(producer, group)
            assert producer.commit_offset(group, topic, offset) == NO_ERROR
            assert is_unstable(broker, group, topic)
            assert producer.end(committed).error_code == NO_ERROR
            wait_until(lambda: not is_unstable(broker, group, topic))
            assert offset_of(broker, group, topic) == kept


@both_protocols
def test_last_of_several_offsets_in_a_transaction_counts(
    broker: BrokerUnderTest, protocol: int
) -> None:
    topic, group = broker.create_topic(partitions=2), unique("group")
    with producer_of(broker, protocol) as producer:
        join(producer, group)
        for offset in (1, 2, 3):
            assert producer.commit_offset(group, topic, offset) == NO_ERROR
        assert producer.commit_offset(group, topic, 7, partition=1) == NO_ERROR
        assert producer.end(committed=True).error_code == NO_ERROR
    wait_until(lambda: not is_unstable(broker, group, topic, 1))
    assert [offset_of(broker, group, topic, index) for index in (0, 1)] == [3, 7]


@both_protocols
@either_end
def test_records_and_offsets_of_a_transaction_share_its_fate(
    broker: BrokerUnderTest, protocol: int, committed: bool
) -> None:
    source, target, group = broker.create_topic(), broker.create_topic(), unique("group")
    with producer_of(broker, protocol) as producer:
        producer.begin(target)
        producer.produce(target, [b"made of what was read"])
        join(producer, group)
        assert producer.commit_offset(group, source, 1) == NO_ERROR
        assert producer.end(committed).error_code == NO_ERROR
    wait_until(lambda: stable_offset(broker, target) == 2)
    wait_until(lambda: not is_unstable(broker, group, source))
    assert committed_offsets(broker, target) == ([0] if committed else [])
    assert offset_of(broker, group, source) == (1 if committed else NO_OFFSET)


def test_one_group_takes_offsets_of_several_open_transactions(broker: BrokerUnderTest) -> None:
    topic, group = broker.create_topic(partitions=2), unique("group")
    with producer_of(broker, 2) as one, producer_of(broker, 2) as two:
        assert one.commit_offset(group, topic, 4, partition=0) == NO_ERROR
        assert two.commit_offset(group, topic, 6, partition=1) == NO_ERROR
        assert one.end(committed=True).error_code == NO_ERROR
        wait_until(lambda: not is_unstable(broker, group, topic, 0))
        assert is_unstable(broker, group, topic, 1)
        assert two.end(committed=False).error_code == NO_ERROR
        wait_until(lambda: not is_unstable(broker, group, topic, 1))
    assert [offset_of(broker, group, topic, index) for index in (0, 1)] == [4, NO_OFFSET]


def test_ordinary_commit_during_a_transaction_is_superseded_by_it(
    broker: BrokerUnderTest,
) -> None:
    """What was committed later counts, and the transaction's offset is as old as its record."""
    topic, group = broker.create_topic(), unique("group")
    with producer_of(broker, 2) as producer:
        assert producer.commit_offset(group, topic, 5) == NO_ERROR
        assert commit_outside(broker, group, topic, 9) == NO_ERROR
        assert offset_of(broker, group, topic) == 9
        assert producer.end(committed=True).error_code == NO_ERROR
    wait_until(lambda: not is_unstable(broker, group, topic))
    assert offset_of(broker, group, topic) == 9


@pytest.mark.parametrize("version", range(5))
def test_offset_for_a_group_that_was_not_added_is_refused(
    broker: BrokerUnderTest, version: int
) -> None:
    topic, group = broker.create_topic(), unique("group")
    with producer_of(broker, 1) as producer:
        refused = producer.commit_offset(group, topic, 5, version=version)
        assert refused == (TRANSACTION_ABORTABLE if version >= 4 else INVALID_TXN_STATE)
    assert offset_of(broker, group, topic) == NO_OFFSET


def test_offset_of_protocol_2_adds_its_group_by_itself(broker: BrokerUnderTest) -> None:
    topic, group = broker.create_topic(), unique("group")
    with producer_of(broker, 2) as producer:
        assert producer.commit_offset(group, topic, 5) == NO_ERROR
        (described,) = describe_transactions(broker.bootstrap, producer.transactional_id)
        assert [topic.topic for topic in described.topics] == ["__consumer_offsets"]
        producer.end(committed=True)


@both_protocols
def test_stranger_cannot_commit_offsets(broker: BrokerUnderTest, protocol: int) -> None:
    topic, group = broker.create_topic(), unique("group")
    with producer_of(broker, protocol) as producer:
        join(producer, group)
        known = producer.transactional_id
        producer.transactional_id = unique("absent")
        refused = producer.commit_offset(group, topic, 5)
        assert refused == INVALID_PRODUCER_ID_MAPPING
        producer.transactional_id = known
        producer.producer_epoch += 1
        assert producer.commit_offset(group, topic, 5) == INVALID_PRODUCER_EPOCH
    assert offset_of(broker, group, topic) == NO_OFFSET


@both_protocols
def test_offset_of_an_unknown_topic_is_refused(broker: BrokerUnderTest, protocol: int) -> None:
    group = unique("group")
    with producer_of(broker, protocol) as producer:
        join(producer, group)
        refused = producer.commit_offset(group, unique("absent"), 5)
        assert refused == UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [3, 4, 5])
def test_offset_of_a_member_from_another_generation_is_refused(
    broker: BrokerUnderTest, version: int
) -> None:
    """A consumer that lost its place in the group cannot commit through a producer (KIP-447)."""
    topic, group = broker.create_topic(), unique("group")
    with producer_of(broker, 2 if version == 5 else 1) as producer:
        join(producer, group)
        assert producer.commit_offset(group, topic, 1, version=version) == NO_ERROR
        for member in ({"generation_id": 3, "member_id": "nobody"}, {"generation_id": 3}):
            refused = producer.commit_offset(group, topic, 5, version=version, **member)
            assert refused in (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID)
        producer.end(committed=True)
    wait_until(lambda: not is_unstable(broker, group, topic))
    assert offset_of(broker, group, topic) == 1


def test_group_with_a_pending_offset_forgets_it_with_its_topic(broker: BrokerUnderTest) -> None:
    topic, group = broker.create_topic(), unique("group")
    with producer_of(broker, 2) as producer:
        assert commit_outside(broker, group, topic, 1) == NO_ERROR
        assert producer.commit_offset(group, topic, 5) == NO_ERROR
        broker.admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
        wait_until(lambda: offset_of(broker, group, topic) == NO_OFFSET)
        assert producer.end(committed=True).error_code == NO_ERROR
