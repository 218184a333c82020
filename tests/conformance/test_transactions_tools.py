"""Apache's TransactionsCommand lists, describes, finds what hangs and ends it.

A hanging transaction is one that its coordinator does not know of: nothing will ever end it. They
came from late records before KIP-890; with `transaction.partition.verification.enable=false` (a
setting of Kafka's) a partition still takes such a record, which is how this test makes one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.test_transactions import committed_offsets, producer_of, stable_offset
from tests.peers.java_runtime import ToolRunner
from tests.peers.patience import wait_until
from tests.peers.transactional import NO_ERROR

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("apache-tools")]

OWN_SETTINGS = {"transaction.partition.verification.enable": "false"}
Command = Callable[..., list[dict[str, str]]]


@pytest.fixture
def transactions(own_broker: BrokerUnderTest, tools: ToolRunner) -> Command:
    """Run TransactionsCommand; the rows of the table that it prints."""

    def run(*arguments: str | int) -> list[dict[str, str]]:
        server = ("--bootstrap-server", own_broker.bootstrap)
        lines = tools.check("TransactionsCommand", *server, *arguments).lines
        if not lines:
            return []
        # cells are tab-separated, padded to the width of their column
        header, *rows = ([cell.strip() for cell in line.split("\t")] for line in lines)
        return [dict(zip(header, row, strict=False)) for row in rows]

    return run


def test_transactions_command_lists_transactions(
    own_broker: BrokerUnderTest, transactions: Command
) -> None:
    topic = own_broker.create_topic()
    with producer_of(own_broker, 2, unique("tool")) as producer:
        producer.produce(topic, [b"x"])
        rows = {row["TransactionalId"]: row for row in transactions("list")}
        row = rows[producer.transactional_id]
        assert (row["ProducerId"], row["TransactionState"]) == (
            str(producer.producer_id),
            "Ongoing",
        )
        assert row["Coordinator"] == "1"
        for_an_hour = transactions("list", "--duration-filter", "3600000")
        assert producer.transactional_id not in {row["TransactionalId"] for row in for_an_hour}
        pattern = transactions("list", "--transactional-id-pattern", "tool-.*")
        assert producer.transactional_id in {row["TransactionalId"] for row in pattern}
        producer.end(committed=True)


def test_transactions_command_describes_a_transaction(
    own_broker: BrokerUnderTest, transactions: Command
) -> None:
    topic = own_broker.create_topic()
    with producer_of(own_broker, 2) as producer:
        producer.produce(topic, [b"x"])
        (row,) = transactions("describe", "--transactional-id", producer.transactional_id)
        assert row["TransactionState"] == "Ongoing"
        assert row["TransactionTimeoutMs"] == "60000"
        assert row["TopicPartitions"] == f"{topic}-0"
        producer.end(committed=True)


def test_transactions_command_describes_producers(
    own_broker: BrokerUnderTest, transactions: Command
) -> None:
    topic = own_broker.create_topic()
    with producer_of(own_broker, 2) as producer:
        producer.produce(topic, [b"x", b"y"])
        (row,) = transactions("describe-producers", "--topic", topic, "--partition", 0)
        assert row["ProducerId"] == str(producer.producer_id)
        assert (row["LastSequence"], row["CurrentTransactionStartOffset"]) == ("1", "0")
        producer.end(committed=True)
        wait_until(lambda: stable_offset(own_broker, topic) == 3)
    (row,) = transactions("describe-producers", "--topic", topic, "--partition", 0)
    assert row["CurrentTransactionStartOffset"] == "None"


def test_transactions_command_finds_and_aborts_what_hangs(
    own_broker: BrokerUnderTest, transactions: Command
) -> None:
    topic = own_broker.create_topic()
    an_hour_ago = int(time.time() * 1000) - 3_600_000
    with producer_of(own_broker, 1) as producer:
        producer.run(topic, [b"ended well"], committed=True)
        wait_until(lambda: stable_offset(own_broker, topic) == 2)
        late = producer.produce(topic, [b"late"], timestamp_ms=an_hour_ago)
        assert late.error_code == NO_ERROR
    with producer_of(own_broker, 1) as other:
        other.run(topic, [b"held up"], committed=True)
    assert stable_offset(own_broker, topic) == 2
    (hanging,) = transactions("find-hanging", "--topic", topic)
    assert (hanging["Topic"], hanging["Partition"]) == (topic, "0")
    assert (hanging["StartOffset"], hanging["ProducerId"]) == ("2", str(producer.producer_id))
    assert transactions("find-hanging", "--broker-id", 1)
    transactions("abort", "--topic", topic, "--partition", 0, "--start-offset", 2)
    wait_until(lambda: stable_offset(own_broker, topic) == 6)
    assert committed_offsets(own_broker, topic) == [0, 3]
    assert transactions("find-hanging", "--topic", topic) == []


def test_transactions_command_terminates_a_transactional_id(
    own_broker: BrokerUnderTest, transactions: Command
) -> None:
    """It fences the producer and so aborts what it has open."""
    topic = own_broker.create_topic()
    with producer_of(own_broker, 2) as producer:
        producer.produce(topic, [b"x"])
        transactions("forceTerminateTransaction", "--transactionalId", producer.transactional_id)
        wait_until(lambda: stable_offset(own_broker, topic) == 2)
        assert producer.produce(topic, [b"y"]).error_code != NO_ERROR
    assert committed_offsets(own_broker, topic) == []
