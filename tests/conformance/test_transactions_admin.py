"""Looking at transactions and producers, and ending by hand what nobody else will end."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.test_transactions import (
    committed_offsets,
    either_end,
    log_of,
    producer_of,
    stable_offset,
)
from tests.peers.patience import wait_until
from tests.peers.transactional import NO_ERROR, TransactionalProducer, describe_transactions
from tests.peers.wire import Wire, batch, produce_fields

ALSO_ON_A_WORKER = True

UNKNOWN_TOPIC_OR_PARTITION, INVALID_PRODUCER_EPOCH = 3, 47
TRANSACTION_COORDINATOR_FENCED, TRANSACTIONAL_ID_NOT_FOUND = 52, 105
INVALID_REGULAR_EXPRESSION = 128


def describe(broker: BrokerUnderTest, *names: str) -> Any:
    return describe_transactions(broker.bootstrap, *names)


def list_transactions(broker: BrokerUnderTest, version: int = 2, **filters: Any) -> Any:
    with Wire(broker.bootstrap) as wire:
        return wire.call("list_transactions", version, **filters)


def names_in(answer: Any) -> set[str]:
    return {state.transactional_id for state in answer.transaction_states}


def producers_of(broker: BrokerUnderTest, topic: str, partition: int = 0) -> Any:
    with Wire(broker.bootstrap) as wire:
        answer = wire.call(
            "describe_producers", 0, topics=({"name": topic, "partition_indexes": (partition,)},)
        )
    return answer.topics[0].partitions[0]


def write_marker(
    broker: BrokerUnderTest,
    topic: str,
    producer: TransactionalProducer,
    *,
    committed: bool,
    version: int = 1,
    coordinator_epoch: int = 0,
    partition: int = 0,
    **fields: Any,
) -> int:
    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "transaction_result": committed,
        "topics": ({"name": topic, "partition_indexes": (partition,)},),
        "coordinator_epoch": coordinator_epoch,
        **fields,
    }
    with Wire(broker.bootstrap) as wire:
        answer = wire.call("write_txn_markers", version, markers=(marker,))
    (result,) = answer.markers
    assert result.producer_id == producer.producer_id
    return int(result.topics[0].partitions[0].error_code)


def test_transaction_is_described_through_its_life(broker: BrokerUnderTest) -> None:
    topic, name = broker.create_topic(partitions=2), unique("transactional")
    with TransactionalProducer(broker.bootstrap, name, protocol=1) as producer:
        assert producer.init(timeout_ms=54_321) == NO_ERROR
        (state,) = describe(broker, name)
        assert (state.error_code, state.transaction_state) == (NO_ERROR, "Empty")
        assert (state.transaction_timeout_ms, state.transaction_start_time_ms) == (54_321, -1)
        assert (state.producer_id, state.producer_epoch) == producer.identity
        assert list(state.topics) == []
        before = int(time.time() * 1000)
        producer.begin(topic, 0, 1)
        (state,) = describe(broker, name)
        assert state.transaction_state == "Ongoing"
        assert before <= state.transaction_start_time_ms <= time.time() * 1000
        assert [(t.topic, sorted(t.partitions)) for t in state.topics] == [(topic, [0, 1])]
        producer.end(committed=False)
        wait_until(lambda: describe(broker, name)[0].transaction_state == "CompleteAbort")
        assert list(describe(broker, name)[0].topics) == []
        producer.run(topic, [b"x"], committed=True)
        wait_until(lambda: describe(broker, name)[0].transaction_state == "CompleteCommit")


def test_unknown_transactional_id_is_not_found(broker: BrokerUnderTest) -> None:
    with producer_of(broker, 2) as producer:
        absent = unique("absent")
        known, unknown = describe(broker, producer.transactional_id, absent)
    assert (known.transactional_id, known.error_code) == (producer.transactional_id, NO_ERROR)
    assert (unknown.transactional_id, unknown.error_code) == (absent, TRANSACTIONAL_ID_NOT_FOUND)


def test_transactions_are_listed_by_state_producer_age_and_name(broker: BrokerUnderTest) -> None:
    topic, prefix = broker.create_topic(), unique("listed")
    with (
        producer_of(broker, 1, f"{prefix}-idle") as idle,
        producer_of(broker, 1, f"{prefix}-open") as busy,
    ):
        busy.begin(topic)

        def listed(**filters: Any) -> set[str]:
            answer = list_transactions(broker, **filters)
            assert answer.error_code == NO_ERROR
            return {
                name.removeprefix(prefix) for name in names_in(answer) if name.startswith(prefix)
            }

        assert listed() == {"-idle", "-open"}
        assert listed(state_filters=("Ongoing",)) == {"-open"}
        assert listed(state_filters=("Empty", "Ongoing")) == {"-idle", "-open"}
        assert listed(producer_id_filters=(idle.producer_id,)) == {"-idle"}
        assert listed(producer_id_filters=(idle.producer_id,), state_filters=("Ongoing",)) == set()
        assert listed(duration_filter=3_600_000) == {"-idle"}  # begun at -1: long ago
        wait_until(lambda: listed(duration_filter=1) == {"-idle", "-open"})
        assert listed(transactional_id_pattern=f"{prefix}-i.*") == {"-idle"}
        assert listed(transactional_id_pattern="") == {"-idle", "-open"}
        assert listed(transactional_id_pattern="-i") == set()  # of the whole name
        unknown = list_transactions(broker, state_filters=("Ongoing", "Dreaming"))
        assert list(unknown.unknown_state_filters) == ["Dreaming"]
        assert f"{prefix}-open" in names_in(unknown)
        only_unknown = list_transactions(broker, state_filters=("Dreaming",))
        assert names_in(only_unknown) == set()
        bad = list_transactions(broker, transactional_id_pattern="(")
        assert bad.error_code == INVALID_REGULAR_EXPRESSION
        for version in (0, 1):
            state = next(
                state
                for state in list_transactions(broker, version).transaction_states
                if state.transactional_id == busy.transactional_id
            )
            assert (state.producer_id, state.transaction_state) == (busy.producer_id, "Ongoing")
        busy.end(committed=False)


def test_producers_of_a_partition_are_described(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with producer_of(broker, 1) as producer:
        assert list(producers_of(broker, topic).active_producers) == []
        producer.begin(topic)
        producer.produce(topic, [b"a", b"b", b"c"])
        (active,) = producers_of(broker, topic).active_producers
        assert (active.producer_id, active.producer_epoch) == producer.identity
        assert (active.last_sequence, active.current_txn_start_offset) == (2, 0)
        assert active.coordinator_epoch == -1
        assert abs(active.last_timestamp / 1000 - time.time()) < 60
        producer.end(committed=True)
        wait_until(lambda: stable_offset(broker, topic) == 4)
        (ended,) = producers_of(broker, topic).active_producers
        assert (ended.current_txn_start_offset, ended.coordinator_epoch) == (-1, 0)
        assert ended.last_sequence == 2
    beyond = producers_of(broker, topic, 5)
    assert beyond.error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert producers_of(broker, unique("absent")).error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_producer_of_no_transaction_is_described_too(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with Wire(broker.bootstrap) as wire:
        given = wire.call("init_producer_id", 4, transactional_id=None, transaction_timeout=1)
        identity = {"producer_id": given.producer_id, "producer_epoch": given.producer_epoch}
        records = batch([b"x"], base_sequence=0, **identity)
        wire.call("produce", 9, **produce_fields(topic, records))
    (active,) = producers_of(broker, topic).active_producers
    assert (active.producer_id, active.last_sequence) == (given.producer_id, 0)
    assert active.current_txn_start_offset == -1


@either_end
@pytest.mark.parametrize("version", [1, 2])
def test_marker_written_by_hand_ends_a_transaction_on_its_partition(
    broker: BrokerUnderTest, version: int, committed: bool
) -> None:
    topic = broker.create_topic()
    with producer_of(broker, 1) as producer:
        producer.begin(topic)
        producer.produce(topic, [b"x"])
        wrote = write_marker(broker, topic, producer, committed=committed, version=version)
        assert wrote == NO_ERROR
        assert stable_offset(broker, topic) == 2
        assert committed_offsets(broker, topic) == ([0] if committed else [])
        producer.end(committed)


def test_marker_of_an_older_coordinator_or_producer_is_refused(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with producer_of(broker, 1) as producer:
        assert producer.init() == NO_ERROR
        producer.begin(topic)
        producer.produce(topic, [b"x"])
        assert (
            write_marker(broker, topic, producer, committed=True, coordinator_epoch=7) == NO_ERROR
        )
        producer.produce(topic, [b"y"], patient=False)
        older = write_marker(broker, topic, producer, committed=True, coordinator_epoch=6)
        assert older == TRANSACTION_COORDINATOR_FENCED
        stale = {"producer_epoch": producer.producer_epoch - 1}
        assert (
            write_marker(broker, topic, producer, committed=True, coordinator_epoch=7, **stale)
            == INVALID_PRODUCER_EPOCH
        )


def test_marker_of_protocol_2_must_carry_a_newer_epoch(broker: BrokerUnderTest) -> None:
    """KIP-1228: a late marker of an older transaction cannot end a newer one."""
    topic = broker.create_topic()
    with producer_of(broker, 2) as producer:
        producer.produce(topic, [b"x"])
        same = write_marker(
            broker, topic, producer, committed=False, version=2, transaction_version=2
        )
        assert same == INVALID_PRODUCER_EPOCH
        assert stable_offset(broker, topic) == 0
        producer.end(committed=True)
    wait_until(lambda: committed_offsets(broker, topic) == [0])


def test_marker_for_an_unknown_partition_is_refused(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with producer_of(broker, 1) as producer:
        fields = {"committed": False, "partition": 9}
        assert write_marker(broker, topic, producer, **fields) == UNKNOWN_TOPIC_OR_PARTITION
        assert write_marker(broker, unique("absent"), producer, committed=False) == (
            UNKNOWN_TOPIC_OR_PARTITION
        )
    assert log_of(broker, topic) == []


def test_marker_of_a_producer_that_wrote_nothing_is_written(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with producer_of(broker, 1) as producer:
        assert write_marker(broker, topic, producer, committed=False) == NO_ERROR
    (marker,) = log_of(broker, topic)
    assert marker.is_control
    assert stable_offset(broker, topic) == 1
