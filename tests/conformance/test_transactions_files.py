"""What transactions leave on disk: DumpLogSegments reads it, and Apache Kafka goes on with it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from millstream.broker.coordinators.key_hash import java_hash
from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.test_log_files import dump, judge
from tests.conformance.test_transactions import committed_offsets, stable_offset
from tests.conformance.test_transactions_offsets import is_unstable, offset_of
from tests.peers.java_runtime import ToolRunner
from tests.peers.kafka import start_kafka
from tests.peers.patience import wait_until
from tests.peers.servers import start_millstream
from tests.peers.transactional import NO_ERROR, TransactionalProducer

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("apache-tools")]

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}


@pytest.fixture(scope="module")
def left_open() -> list[tuple[str, int, int, int]]:
    """(transactional id, protocol, producer id, epoch) of transactions that nobody has ended."""
    return []


@pytest.fixture(scope="module")
def data(
    tmp_path_factory: pytest.TempPathFactory, left_open: list[tuple[str, int, int, int]]
) -> Path:
    """A directory with transactions of both protocols: committed, aborted, and still open."""
    directory = tmp_path_factory.mktemp("files") / "data"
    server = start_millstream(directory, SETTINGS)
    broker = BrokerUnderTest(server)
    for protocol in (1, 2):
        broker.create_topic(name=f"events-{protocol}")
        name = with_negative_hash("transactional")
        with TransactionalProducer(server.bootstrap, name, protocol=protocol) as producer:
            # Nothing may end what is left open before Apache Kafka is asked to.
            assert producer.init(timeout_ms=900_000) == NO_ERROR
            run_transactions(producer, f"events-{protocol}")
            left_open.append((name, protocol, *producer.identity))
    server.stop()
    return directory


def with_negative_hash(prefix: str) -> str:
    """A name that belongs to another partition when its hash is made positive in a wrong way."""
    while java_hash(name := unique(prefix)) < 2**31:
        pass
    return name


def run_transactions(producer: TransactionalProducer, topic: str) -> None:
    """Offsets 0 to 1 committed, 3 to 4 aborted, 6 to 7 open, with offsets of the group likewise."""
    for offset, committed in ((1, True), (2, False), (3, None)):
        producer.begin(topic)
        assert producer.produce(topic, [b"x", b"y"]).error_code == NO_ERROR
        if producer.protocol == 1:
            assert producer.add_offsets("group") == NO_ERROR
        assert producer.commit_offset("group", topic, offset) == NO_ERROR
        if committed is not None:
            assert producer.end(committed).error_code == NO_ERROR


def logs_of(data: Path, topic: str) -> list[Path]:
    return sorted(data.glob(f"{topic}-*/*.log"))


def test_transaction_state_decodes(tools: ToolRunner, data: Path) -> None:
    shown = "\n".join(
        dump(tools, *logs_of(data, "__transaction_state"), options=["--transaction-log-decoder"])
    )
    states = {int(found) for found in re.findall(r'"transactionStatus":(\d)', shown)}
    assert states == {
        EMPTY,
        ONGOING,
        PREPARE_COMMIT,
        PREPARE_ABORT,
        COMPLETE_COMMIT,
        COMPLETE_ABORT,
    }
    assert "events-1" in shown
    assert "Error" not in shown


def test_control_batches_are_read(tools: ToolRunner, data: Path) -> None:
    for protocol in (1, 2):
        shown = dump(tools, *logs_of(data, f"events-{protocol}"), options=["--deep-iteration"])
        markers = [line for line in shown if "endTxnMarker" in line]
        assert [line.split("endTxnMarker: ")[1].split()[0] for line in markers] == [
            "COMMIT",
            "ABORT",
        ]
        batches = [line for line in shown if line.startswith("baseOffset:")]
        assert [("isTransactional: true" in b, "isControl: true" in b) for b in batches] == [
            (True, False),
            (True, True),
        ] * 2 + [(True, False)]
    every_log = sorted(data.glob("*-*/*.log"))
    assert judge(tools, *every_log) == []


def test_aborted_transactions_are_indexed(tools: ToolRunner, data: Path) -> None:
    indexes = [path for path in data.glob("events-*/*.txnindex") if path.stat().st_size]
    assert len(indexes) == 2
    for index in indexes:
        (line,) = [line for line in dump(tools, index) if "firstOffset" in line]
        assert "firstOffset: 3 lastOffset: 5" in line


def test_apache_kafka_ends_what_was_left_open_and_gives_it_back(
    data: Path, left_open: list[tuple[str, int, int, int]], tmp_path: Path
) -> None:
    home = tmp_path / "kafka"
    shutil.copytree(data, home / "data")
    kafka = start_kafka(home, SETTINGS)
    try:
        broker = BrokerUnderTest(kafka)
        for name, protocol, producer_id, epoch in left_open:
            topic = f"events-{protocol}"
            broker.await_leaders(topic, 1)
            assert stable_offset(broker, topic) == 6
            assert committed_offsets(broker, topic) == [0, 1]
            with TransactionalProducer(
                kafka.bootstrap,
                name,
                protocol=protocol,
                producer_id=producer_id,
                producer_epoch=epoch,
            ) as producer:
                producer.find_coordinator("group", 0)
                assert is_unstable(broker, "group", topic)
                assert offset_of(broker, "group", topic) == 1
                # Kafka may still be loading; asked again, it gives the same answer.
                wait_until(
                    lambda producer=producer: producer.end(committed=True).error_code == NO_ERROR
                )
            wait_until(lambda topic=topic: stable_offset(broker, topic) == 9)
            wait_until(lambda topic=topic: offset_of(broker, "group", topic) == 3)
    finally:
        kafka.stop()
    server = start_millstream(home / "data", SETTINGS)
    try:
        broker = BrokerUnderTest(server)
        for name, protocol, *_ in left_open:
            assert committed_offsets(broker, f"events-{protocol}") == [0, 1, 6, 7]
            assert offset_of(broker, "group", f"events-{protocol}") == 3
            with TransactionalProducer(server.bootstrap, name, protocol=protocol) as producer:
                assert producer.init() == NO_ERROR
                assert producer.run(f"events-{protocol}", [b"z"], committed=True) == 9
    finally:
        server.stop()
