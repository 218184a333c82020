"""Who may speak for a transactional id: fencing, epochs, time-outs, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.test_transactions import (
    both_protocols,
    committed_offsets,
    log_of,
    producer_of,
    stable_offset,
)
from tests.peers.patience import wait_until
from tests.peers.transactional import (
    NO_ERROR,
    TransactionalProducer,
    describe_transactions,
    patiently,
)
from tests.peers.wire import Wire

ALSO_ON_A_WORKER = True

UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST = 3, 42
INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING = 47, 48, 49
INVALID_TRANSACTION_TIMEOUT, OPERATION_NOT_ATTEMPTED = 50, 55
PRODUCER_FENCED, TRANSACTION_ABORTABLE = 90, 120


def state_of(broker: BrokerUnderTest, transactional_id: str) -> Any:
    return describe_transactions(broker.bootstrap, transactional_id)[0]


@both_protocols
def test_successor_keeps_the_producer_id_and_raises_the_epoch(
    broker: BrokerUnderTest, protocol: int
) -> None:
    name = unique("transactional")
    with producer_of(broker, protocol, name) as first, producer_of(broker, protocol, name) as next_:
        assert first.producer_epoch == 0
        assert next_.identity == (first.producer_id, 1)


@both_protocols
def test_successor_aborts_what_its_predecessor_left_open(
    broker: BrokerUnderTest, protocol: int
) -> None:
    topic, name = broker.create_topic(), unique("transactional")
    with producer_of(broker, protocol, name) as zombie:
        zombie.begin(topic)
        zombie.produce(topic, [b"zombie"])
        with producer_of(broker, protocol, name) as successor:
            assert stable_offset(broker, topic) == 2
            assert successor.run(topic, [b"successor"], committed=True) == 2
    wait_until(lambda: stable_offset(broker, topic) == 4)
    assert committed_offsets(broker, topic) == [2]


def test_successor_waits_for_the_abort_of_what_was_open(broker: BrokerUnderTest) -> None:
    topic, name = broker.create_topic(), unique("transactional")
    with producer_of(broker, 1, name) as zombie, Wire(broker.bootstrap) as wire:
        zombie.begin(topic)

        def init() -> Any:
            fields = {"transactional_id": name, "transaction_timeout": 60_000}
            return wire.call("init_producer_id", 4, **fields)

        answer = init()
        assert answer.error_code == broker.expects("InitProducerId while a transaction is open")
        if answer.error_code != NO_ERROR:
            answer = patiently(init, lambda answer: int(answer.error_code))
        assert (answer.producer_id, answer.producer_epoch) == (zombie.producer_id, 2)
        assert stable_offset(broker, topic) == 1


@pytest.mark.parametrize(
    ("versions", "fenced"),
    [
        ({"add_partitions": 1, "add_offsets": 1, "offsets": 2, "end": 1}, INVALID_PRODUCER_EPOCH),
        ({"add_partitions": 2, "add_offsets": 2, "offsets": 3, "end": 2}, PRODUCER_FENCED),
        ({"add_partitions": 3, "add_offsets": 4, "offsets": 4, "end": 4}, PRODUCER_FENCED),
    ],
    ids=["old", "from KIP-588", "newest"],
)
def test_zombie_of_protocol_1_is_refused_everywhere(
    broker: BrokerUnderTest, versions: dict[str, int], fenced: int
) -> None:
    topic, group, name = broker.create_topic(), unique("group"), unique("transactional")
    with producer_of(broker, 1, name) as zombie:
        zombie.begin(topic)
        zombie.produce(topic, [b"zombie"])
        with producer_of(broker, 1, name) as successor:
            successor.begin(topic)
            zombie.versions = zombie.versions | versions
            assert zombie.add_partitions(topic) == fenced
            assert zombie.add_offsets(group) == fenced
            assert zombie.end(committed=True).error_code == fenced
            assert zombie.commit_offset(group, topic, 1) == INVALID_PRODUCER_EPOCH
            for version in (9, 10, 11):
                refused = zombie.produce(topic, [b"late"], version=version)
                assert refused.error_code == INVALID_PRODUCER_EPOCH
            successor.run(topic, [b"successor"], committed=True)
    wait_until(lambda: stable_offset(broker, topic) == 4)
    assert committed_offsets(broker, topic) == [2]


def test_zombie_of_protocol_2_is_refused_everywhere(broker: BrokerUnderTest) -> None:
    topic, group, name = broker.create_topic(), unique("group"), unique("transactional")
    with producer_of(broker, 2, name) as zombie:
        zombie.produce(topic, [b"zombie"])
        with producer_of(broker, 2, name) as successor:
            assert zombie.produce(topic, [b"late"]).error_code == INVALID_PRODUCER_EPOCH
            assert zombie.add_offsets(group) == PRODUCER_FENCED
            assert zombie.commit_offset(group, topic, 1) == INVALID_PRODUCER_EPOCH
            successor.run(topic, [b"successor"], committed=True)
            assert zombie.end(committed=True).error_code == PRODUCER_FENCED
    wait_until(lambda: stable_offset(broker, topic) == 4)
    assert committed_offsets(broker, topic) == [2]


def test_late_record_of_protocol_2_is_refused_after_the_end(broker: BrokerUnderTest) -> None:
    """The epoch that the end raised fences even the producer's own late records."""
    topic = broker.create_topic()
    with producer_of(broker, 2) as producer:
        before = producer.identity
        producer.run(topic, [b"x"], committed=True)
        after = producer.identity
        wait_until(lambda: stable_offset(broker, topic) == 2)
        producer.producer_id, producer.producer_epoch = before
        late = producer.produce(topic, [b"late"], sequence=1)
        assert late.error_code == INVALID_PRODUCER_EPOCH
        producer.producer_id, producer.producer_epoch = after
        producer.run(topic, [b"y"], committed=True)
    wait_until(lambda: stable_offset(broker, topic) == 4)
    assert committed_offsets(broker, topic) == [0, 2]


@both_protocols
def test_zombie_cannot_resume_by_naming_itself(broker: BrokerUnderTest, protocol: int) -> None:
    """InitProducerId with the producer's own id and epoch (KIP-360) is for its owner alone."""
    name = unique("transactional")
    with (
        producer_of(broker, protocol, name) as zombie,
        producer_of(broker, protocol, name) as owner,
    ):
        assert zombie.init(resume=True) == PRODUCER_FENCED
        assert zombie.init(resume=True, version=3) == INVALID_PRODUCER_EPOCH
        epoch = owner.producer_epoch
        assert owner.init(resume=True) == NO_ERROR
        assert owner.producer_epoch == epoch + 1
        owner.producer_epoch = epoch  # sent again, as if the answer had been lost
        assert owner.init(resume=True) == NO_ERROR
        assert owner.producer_epoch == epoch + 1


@both_protocols
def test_stranger_cannot_resume_what_another_has_open(
    broker: BrokerUnderTest, protocol: int
) -> None:
    topic = broker.create_topic()
    with producer_of(broker, protocol) as owner, producer_of(broker, protocol) as stranger:
        owner.begin(topic)
        owner.produce(topic, [b"x"])
        stranger.transactional_id = owner.transactional_id
        assert stranger.init(resume=True) == PRODUCER_FENCED
        assert stranger.init(resume=True, version=3) == INVALID_PRODUCER_EPOCH
        assert owner.end(committed=True).error_code == NO_ERROR
    wait_until(lambda: stable_offset(broker, topic) == 2)
    assert committed_offsets(broker, topic) == [0]


@both_protocols
def test_resuming_aborts_the_open_transaction(broker: BrokerUnderTest, protocol: int) -> None:
    topic = broker.create_topic()
    with producer_of(broker, protocol) as producer:
        producer.begin(topic)
        producer.produce(topic, [b"x"])
        assert producer.init(resume=True) == NO_ERROR
        assert producer.run(topic, [b"y"], committed=True) == 2
    wait_until(lambda: stable_offset(broker, topic) == 4)
    assert committed_offsets(broker, topic) == [2]


@both_protocols
def test_time_out_aborts_and_fences(broker: BrokerUnderTest, protocol: int) -> None:
    topic = broker.create_topic()
    with TransactionalProducer(
        broker.bootstrap, unique("transactional"), protocol=protocol
    ) as producer:
        assert producer.init(timeout_ms=3_000) == NO_ERROR
        producer.begin(topic)
        assert producer.produce(topic, [b"x"]).error_code == NO_ERROR
        wait_until(lambda: stable_offset(broker, topic) == 2)
        wait_until(
            lambda: state_of(broker, producer.transactional_id).transaction_state == "CompleteAbort"
        )
        assert state_of(broker, producer.transactional_id).producer_epoch == 1
        late = producer.produce(topic, [b"late"])
        assert late.error_code == INVALID_PRODUCER_EPOCH
        refused = producer.end(committed=True).error_code
        assert refused == {1: PRODUCER_FENCED, 2: INVALID_TXN_STATE}[protocol]
        assert producer.init() == NO_ERROR
        producer.run(topic, [b"y"], committed=True)
    wait_until(lambda: stable_offset(broker, topic) == 4)
    assert committed_offsets(broker, topic) == [2]


def test_producer_of_protocol_2_learns_its_epoch_by_aborting_after_a_time_out(
    broker: BrokerUnderTest,
) -> None:
    """The broker's abort raised the epoch as the producer's own would have: an end sent again."""
    topic = broker.create_topic()
    with TransactionalProducer(broker.bootstrap, unique("transactional")) as producer:
        assert producer.init(timeout_ms=3_000) == NO_ERROR
        producer.produce(topic, [b"x"])
        wait_until(lambda: stable_offset(broker, topic) == 2)
        assert producer.end(committed=False).error_code == NO_ERROR
        assert producer.producer_epoch == 1
        producer.run(topic, [b"y"], committed=True)
    wait_until(lambda: committed_offsets(broker, topic) == [2])


def test_time_out_longer_than_the_brokers_is_refused(broker: BrokerUnderTest) -> None:
    with TransactionalProducer(broker.bootstrap, unique("transactional")) as producer:
        assert producer.init(timeout_ms=900_001) == INVALID_TRANSACTION_TIMEOUT
        assert producer.init(timeout_ms=0) == INVALID_TRANSACTION_TIMEOUT
        assert producer.init(timeout_ms=-1) == INVALID_TRANSACTION_TIMEOUT
        assert producer.init(timeout_ms=900_000) == NO_ERROR


def test_empty_transactional_id_is_refused(broker: BrokerUnderTest) -> None:
    with Wire(broker.bootstrap) as wire:
        answer = wire.call("init_producer_id", 4, transactional_id="", transaction_timeout=60_000)
    assert answer.error_code == INVALID_REQUEST


@both_protocols
def test_stranger_to_a_transactional_id_is_refused(broker: BrokerUnderTest, protocol: int) -> None:
    """Neither another producer id nor an id that nobody has initialised gets anywhere."""
    topic, group = broker.create_topic(), unique("group")
    with producer_of(broker, protocol) as producer:
        producer.begin(topic)
        producer.produce(topic, [b"x"])
        known, own_id = producer.transactional_id, producer.producer_id
        for name, producer_id in ((known, own_id + 1_000_000), (unique("absent"), own_id)):
            producer.transactional_id, producer.producer_id = name, producer_id
            assert producer.add_partitions(topic) == INVALID_PRODUCER_ID_MAPPING
            assert producer.add_offsets(group) == INVALID_PRODUCER_ID_MAPPING
            assert producer.end(committed=True).error_code == INVALID_PRODUCER_ID_MAPPING
        producer.transactional_id, producer.producer_id = known, own_id
        assert producer.end(committed=True).error_code == NO_ERROR
    wait_until(lambda: stable_offset(broker, topic) == 2)


@both_protocols
def test_epoch_from_the_future_is_refused(broker: BrokerUnderTest, protocol: int) -> None:
    topic = broker.create_topic()
    with producer_of(broker, protocol) as producer:
        producer.begin(topic)
        producer.produce(topic, [b"x"])
        producer.producer_epoch += 1
        assert producer.add_partitions(topic) == PRODUCER_FENCED
        assert producer.end(committed=True).error_code == PRODUCER_FENCED
        producer.producer_epoch -= 1
        assert producer.end(committed=True).error_code == NO_ERROR


def test_adding_an_unknown_partition_adds_none(broker: BrokerUnderTest) -> None:
    topic = broker.create_topic()
    with producer_of(broker, 1) as producer:
        who = {f"v3_and_below_{name}": value for name, value in producer._who.items()}
        topics = ({"name": topic, "partitions": (0, 7)}, {"name": "absent", "partitions": (0,)})
        answer = producer.wire.call("add_partitions_to_txn", 3, v3_and_below_topics=topics, **who)
        codes = {
            (topic_result.name, result.partition_index): result.partition_error_code
            for topic_result in answer.results_by_topic_v3_and_below
            for result in topic_result.results_by_partition
        }
        assert codes == {
            (topic, 0): OPERATION_NOT_ATTEMPTED,
            (topic, 7): UNKNOWN_TOPIC_OR_PARTITION,
            ("absent", 0): UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert producer.end(committed=True).error_code == INVALID_TXN_STATE


@pytest.mark.parametrize("version", range(6))
def test_producer_id_is_given_in_every_version(broker: BrokerUnderTest, version: int) -> None:
    name = unique("transactional")
    with TransactionalProducer(broker.bootstrap, name) as producer:
        assert producer.init(version=version) == NO_ERROR
        assert producer.init(version=version) == NO_ERROR
        assert producer.producer_epoch == 1


@pytest.mark.parametrize("version", range(6))
def test_transaction_ends_in_every_version(broker: BrokerUnderTest, version: int) -> None:
    """Adding partitions and offsets in the versions of the same age."""
    topic, group = broker.create_topic(), unique("group")
    with producer_of(broker, 1) as producer:
        producer.versions = producer.versions | {
            "add_partitions": min(version, 3),
            "add_offsets": min(version, 4),
            "offsets": min(version, 4),
        }
        assert producer.add_partitions(topic) == NO_ERROR
        assert producer.produce(topic, [b"x"], version=3 + version).error_code == NO_ERROR
        assert producer.add_offsets(group) == NO_ERROR
        assert producer.commit_offset(group, topic, 7) == NO_ERROR
        assert producer.end(committed=True, version=version).error_code == NO_ERROR
    wait_until(lambda: stable_offset(broker, topic) == 2)
    assert committed_offsets(broker, topic) == [0]


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_verify_and_add_partitions_in_batches(
    broker: BrokerUnderTest, version: int
) -> None:
    """AddPartitionsToTxn from version 4 is for brokers: several transactions, or only a check."""
    topic = broker.create_topic(partitions=2)
    with producer_of(broker, 1) as one, producer_of(broker, 1) as two:

        def ask(verify_only: bool) -> dict[str, list[int]]:
            transactions = tuple(
                {
                    **producer._who,
                    "verify_only": verify_only,
                    "topics": ({"name": topic, "partitions": (0, 1)},),
                }
                for producer in (one, two)
            )
            answer = one.wire.call("add_partitions_to_txn", version, transactions=transactions)
            return {
                result.transactional_id: [
                    int(partition.partition_error_code)
                    for partition in sorted(
                        result.topic_results[0].results_by_partition,
                        key=lambda partition: partition.partition_index,
                    )
                ]
                for result in answer.results_by_transaction
            }

        assert one.add_partitions(topic, 0) == NO_ERROR
        assert ask(verify_only=True) == {
            one.transactional_id: [NO_ERROR, TRANSACTION_ABORTABLE],
            two.transactional_id: [TRANSACTION_ABORTABLE, TRANSACTION_ABORTABLE],
        }
        added = ask(verify_only=False)
        assert added == {name: [NO_ERROR, NO_ERROR] for name in added}
        assert ask(verify_only=True) == added
        one.end(committed=True)
        two.end(committed=False)


def test_client_cannot_write_into_another_epoch_of_its_partition(broker: BrokerUnderTest) -> None:
    """A record with an epoch below the partition's own is refused before any coordinator."""
    topic, name = broker.create_topic(), unique("transactional")
    with producer_of(broker, 2, name) as first:
        first.run(topic, [b"x"], committed=True)
        with producer_of(broker, 2, name) as second:
            second.produce(topic, [b"y"])
            assert first.produce(topic, [b"z"]).error_code == INVALID_PRODUCER_EPOCH
            second.end(committed=True)
    wait_until(lambda: stable_offset(broker, topic) == 4)
    assert [each.is_control for each in log_of(broker, topic)] == [False, True, False, True]
