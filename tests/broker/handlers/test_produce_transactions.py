"""Produce in transactions: what is verified, what adds itself, and in which words it is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ErrorCode
from millstream.testing.pytest_plugin import SharedBroker
from tests.broker.handlers.transaction_calls import new_producer, new_topic
from tests.broker.serving import WireClient, serving
from tests.peers.patience import wait_until
from tests.peers.transactional import TransactionalProducer, describe_transactions, wait_for_markers
from tests.peers.wire import batch


def described(millstream: SharedBroker, producer: TransactionalProducer) -> Any:
    return describe_transactions(millstream.bootstrap_servers, producer.transactional_id)[0]


@pytest.mark.parametrize("version", range(3, 12))
def test_partition_that_was_added_is_written_to_in_every_version(
    millstream: SharedBroker, version: int
) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        producer.add_partitions(topic, 0)
        for offset in range(3):  # the first opens the transaction, the last goes through a lane
            answer = producer.produce(topic, [b"a"], version=version)
            assert (answer.error_code, answer.base_offset) == (0, offset)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (3, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_partition_that_was_not_added_is_refused(
    millstream: SharedBroker, version: int, code: ErrorCode
) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        producer.add_partitions(topic, 0)
        assert producer.produce(topic, [b"a"], version=version).error_code == 0
        assert producer.produce(topic, [b"a"], partition=1, version=version).error_code == code
        producer.end(committed=True)
        wait_for_markers(millstream.bootstrap_servers)
        # The transaction is over; what opened it opens no other.
        assert producer.produce(topic, [b"b"], version=version).error_code == code


@pytest.mark.parametrize("version", [9, 11, 12])
def test_producer_that_was_replaced_is_refused(millstream: SharedBroker, version: int) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        producer.add_partitions(topic, 0)
        zombie_epoch = producer.producer_epoch
        producer.init()
        producer.producer_epoch = zombie_epoch
        answer = producer.produce(topic, [b"a"], version=version)
        assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("version", [9, 12])
def test_transactional_id_that_nobody_knows_is_refused(
    millstream: SharedBroker, version: int
) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        producer.transactional_id = millstream.unique_topic("unknown")
        answer = producer.produce(topic, [b"a"], version=version)
        assert answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_batch_of_a_transaction_needs_a_transactional_id(millstream: SharedBroker) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        plain, forged = batch([b"a"]), transactional_batch(producer)
        data = [{"index": 0, "records": plain}, {"index": 1, "records": forged}]
        for acks in (1, -1):
            answer = producer.wire.call(
                "produce",
                9,
                acks=acks,
                timeout=1000,
                topic_data=[{"name": topic, "partition_data": data}],
            )
            codes = {it.error_code for it in answer.responses[0].partition_responses}
            assert codes == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}


def test_transactional_batch_does_not_slip_through_a_lane_without_transactional_id(
    millstream: SharedBroker,
) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        producer.add_partitions(topic, 0)
        producer.produce(topic, [b"a"])
        codes = []
        for records in (batch([b"a"]), transactional_batch(producer, 1)):
            answer = producer.wire.call(
                "produce",
                9,
                acks=-1,
                timeout=1000,
                topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": records}]}],
            )
            codes.append(answer.responses[0].partition_responses[0].error_code)
        assert codes == [ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]


def test_producers_of_one_request_must_be_the_same(millstream: SharedBroker) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream, protocol=2) as producer:
        first = transactional_batch(producer)
        producer.producer_id += 1
        data = [
            {"index": 0, "records": first},
            {"index": 1, "records": transactional_batch(producer)},
        ]
        answer = producer.wire.call(
            "produce",
            12,
            transactional_id=producer.transactional_id,
            acks=-1,
            timeout=1000,
            topic_data=[{"name": topic, "partition_data": data}],
        )
        codes = {it.error_code for it in answer.responses[0].partition_responses}
        assert codes == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}


def test_plain_batch_is_refused_while_its_producer_has_a_transaction_open(
    millstream: SharedBroker,
) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream) as producer:
        producer.add_partitions(topic, 0)
        producer.produce(topic, [b"a"])
        answer = producer.produce(topic, [b"a"], transactional=False)
        assert answer.error_code == ErrorCode.INVALID_TXN_STATE


# Protocol 2


def test_request_adds_all_its_partitions_at_once(millstream: SharedBroker) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream, protocol=2) as producer:
        data = [{"index": index, "records": transactional_batch(producer)} for index in (0, 1, 9)]
        answer = producer.wire.call(
            "produce",
            12,
            transactional_id=producer.transactional_id,
            acks=-1,
            timeout=1000,
            topic_data=[{"name": topic, "partition_data": data}],
        )
        codes = [it.error_code for it in answer.responses[0].partition_responses]
        assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        (found,) = described(millstream, producer).topics
        assert (found.topic, sorted(found.partitions)) == (topic, [0, 1])


def test_requests_behind_one_that_adds_its_partition_do_not_overtake_it(
    millstream: SharedBroker,
) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream, protocol=2) as producer:
        for _ in range(5):  # transactions
            for sequence in range(5):
                producer.wire.start("produce", 12, **one_batch(producer, topic, sequence))
            for _ in range(5):
                answer = producer.wire.receive("produce", 12)
                assert answer.responses[0].partition_responses[0].error_code == 0
            assert producer.end(committed=True).error_code == 0
            # What comes while markers are written is held a while, and turned away if that is long.
            wait_until(
                lambda: described(millstream, producer).transaction_state == "CompleteCommit"
            )


def test_sequence_begins_at_0_in_every_transaction(millstream: SharedBroker) -> None:
    topic = new_topic(millstream)
    with new_producer(millstream, protocol=2) as producer:
        answer = producer.produce(topic, [b"b"], sequence=1)
        assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert producer.produce(topic, [b"a"]).error_code == 0
        assert producer.produce(topic, [b"b"]).error_code == 0


def test_partitions_add_themselves_only_where_the_feature_is_finalized(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as broker, WireClient.connected(broker) as client:
            change = {"feature": "transaction.version", "max_version_level": 1, "upgrade_type": 2}
            assert (await client.call(57, 2, timeout=1, feature_updates=[change])).error_code == 0
            topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
            await client.call(19, 7, topics=[topic], timeout=1000)
            await client.call(10, 4, key_type=1, coordinator_keys=["x"])
            answer = await client.call(22, 4, transactional_id="x", transaction_timeout=60_000)
            assert answer.error_code == 0
            records = batch(
                [b"a"],
                producer_id=answer.producer_id,
                producer_epoch=answer.producer_epoch,
                base_sequence=0,
                transactional=True,
            )
            data = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
            produced = await client.call(
                0, 12, transactional_id="x", acks=-1, timeout=1000, topic_data=data
            )
            code = produced.responses[0].partition_responses[0].error_code
            assert code == ErrorCode.TRANSACTION_ABORTABLE

    asyncio.run(main())


def transactional_batch(producer: TransactionalProducer, sequence: int = 0) -> bytes:
    return batch(
        [b"a"],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        transactional=True,
    )


def one_batch(producer: TransactionalProducer, topic: str, sequence: int) -> dict[str, Any]:
    data = [{"index": 0, "records": transactional_batch(producer, sequence)}]
    return {
        "transactional_id": producer.transactional_id,
        "acks": -1,
        "timeout": 1000,
        "topic_data": [{"name": topic, "partition_data": data}],
    }
