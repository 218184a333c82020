"""The steps of an exactly-once batch, on a real broker, without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from millstream.client.cluster import Cluster
from millstream.client.producing import RawProducer
from millstream.client.transactions import open_transactions
from millstream.errors import ApiError, ErrorCode
from millstream.pipelines.writing.decisions import (
    NO_BATCH,
    Decision,
    DecisionLog,
    TaskTransaction,
)
from millstream.pipelines.writing.options import parse_write_options
from millstream.pipelines.writing.protocol import BatchProtocol, Begun
from millstream.records.record import Record, encode_batch
from tests.pipelines.conftest import Topics
from tests.pipelines.writing.test_writer import committed_offsets, values_of

TIMEOUT_MS = 60_000


@pytest.fixture
def cluster(topics: Topics) -> Iterator[Cluster]:
    with Cluster(topics.bootstrap) as made:
        yield made


class Query:
    """A query that writes one topic; every `protocol()` is another driver's."""

    def __init__(self, topics: Topics, cluster: Cluster) -> None:
        self.id = f"query-{uuid.uuid4().hex[:8]}"
        self.topics, self.cluster = topics, cluster
        self.target = topics.create()

    def protocol(self) -> BatchProtocol:
        options = {
            "kafka.bootstrap.servers": self.topics.bootstrap,
            "topic": self.target,
            "checkpointLocation": "unused",
            "kafka.group.id": self.id,
        }
        parsed = parse_write_options(options, streaming=True)
        return BatchProtocol(parsed, self.cluster, DecisionLog(self.cluster, self.id))

    def write(self, protocol: BatchProtocol, value: bytes) -> TaskTransaction:
        """What a task does: write a record in a transaction that stays open."""
        producer = RawProducer(self.cluster)
        producer.begin(f"{protocol.task_prefix}0-0", TIMEOUT_MS)
        producer.join([(self.target, 0)])
        identity = producer.identity(self.target, 0)
        batch = encode_batch(
            [Record(0, 0, None, value)],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=identity.base_sequence,
            is_transactional=True,
        )
        producer.send(self.target, 0, batch, 1)
        written = tuple(producer.flush())
        assert producer.transaction is not None
        return TaskTransaction(producer.transaction, written)

    def decision(self, begun: Begun, batch_id: int, *tasks: TaskTransaction) -> Decision:
        ends = {(self.target, 0): batch_id + 1}
        return Decision(batch_id, tasks, ends, "checkpoint", begun.epoch)

    def values(self, at_least: int = 0) -> list[bytes]:
        return values_of(self.topics, self.target, at_least=at_least)


@pytest.fixture
def query(topics: Topics, cluster: Cluster) -> Query:
    return Query(topics, cluster)


def test_batch_is_begun_decided_and_completed_and_the_next_one_resumes(query: Query) -> None:
    protocol = query.protocol()
    begun = protocol.begin()
    assert begun.decided.batch_id == NO_BATCH
    for batch_id in (0, 1):
        decision = query.decision(begun, batch_id, query.write(protocol, b"%d" % batch_id))
        protocol.decide(begun.driver, decision)
        resumed = protocol.resume(protocol.complete(begun.driver, decision), decision)
        assert resumed is not None
        begun = resumed
    assert query.values(at_least=2) == [b"0", b"1"]
    assert committed_offsets(query.topics, query.id, query.target, 1) == [2]
    assert query.protocol().begin().decided == decision


def test_begin_completes_what_was_decided_and_aborts_the_rest(query: Query) -> None:
    protocol = query.protocol()
    begun = protocol.begin()
    query.write(protocol, b"not decided")
    begun = query.protocol().begin()
    assert open_transactions(query.cluster, protocol.task_prefix) == []
    decision = query.decision(begun, 0, query.write(protocol, b"decided"))
    protocol.decide(begun.driver, decision)
    assert query.protocol().begin().decided == decision
    assert query.values(at_least=1) == [b"decided"]


def test_begin_copies_the_decision_of_a_store_before_it_is_completed(query: Query) -> None:
    protocol = query.protocol()
    begun = protocol.begin()
    stored = query.decision(begun, 0, query.write(protocol, b"stored"))
    assert query.protocol().begin(stored=stored).decided == stored
    assert query.values(at_least=1) == [b"stored"]
    assert query.protocol().begin().decided == stored  # without the store
    assert committed_offsets(query.topics, query.id, query.target, 1) == [1]


def test_driver_that_was_superseded_can_neither_decide_nor_resume(query: Query) -> None:
    first, second = query.protocol(), query.protocol()
    begun = first.begin()
    decision = query.decision(begun, 0, query.write(first, b"first"))
    second.begin()
    with pytest.raises(ApiError) as raised:
        first.decide(begun.driver, decision)
    assert raised.value.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
    assert first.resume(begun.driver, decision) is None
    with pytest.raises(ApiError):
        first.begin(after=begun.driver)
    assert query.values() == []


def test_reset_forgets_what_was_decided(query: Query) -> None:
    protocol = query.protocol()
    begun = protocol.begin()
    decision = query.decision(begun, 5, query.write(protocol, b"5"))
    protocol.decide(begun.driver, decision)
    protocol.complete(begun.driver, decision)
    begun = protocol.reset(protocol.begin())
    assert query.protocol().begin().decided.batch_id == NO_BATCH
    begun = protocol.begin()
    decision = query.decision(begun, 0, query.write(protocol, b"0"))
    protocol.decide(begun.driver, decision)
    protocol.complete(begun.driver, decision)
    assert query.protocol().begin().decided == decision
    assert query.values(at_least=2) == [b"0", b"5"]
