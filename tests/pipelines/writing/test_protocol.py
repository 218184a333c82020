"""The steps of an exactly-once batch, on a real broker, without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millstream.admin.transactions import list_transactions
from millstream.client.cluster import Cluster
from millstream.client.fetching import fetch_batches
from millstream.client.producing import RawProducer
from millstream.client.transactions import (
    Transaction,
    begin_transaction,
    end_transaction,
    open_transactions,
)
from millstream.errors import ApiError, ErrorCode
from millstream.pipelines.offsets import DECISIONS_TOPIC
from millstream.pipelines.writing import protocol as module
from millstream.pipelines.writing.decisions import (
    NO_BATCH,
    Decision,
    DecisionLog,
    DriverEpoch,
    TaskTransaction,
)
from millstream.pipelines.writing.options import parse_write_options
from millstream.pipelines.writing.protocol import BatchProtocol, Begun
from millstream.records.batch import iterate_headers
from millstream.records.record import Record, encode_batch
from tests.peers.patience import wait_until
from tests.peers.servers import Server, start_millstream
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

    def repeat_init_late(self) -> None:
        """What a repeated InitProducerId does that is processed after the answer was used."""
        begin_transaction(self.cluster, self.id, TIMEOUT_MS)

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


def test_driver_is_not_fenced_by_the_attempts_of_the_superseded_one(query: Query) -> None:
    first, second = query.protocol(), query.protocol()
    old, new = first.begin(), second.begin()
    assert first.resume(old.driver, old.decided) is None
    decision = query.decision(new, 0, query.write(second, b"second"))
    assert second.decide(new.driver, decision) == (new.driver, decision)


def test_driver_that_fenced_itself_continues(query: Query) -> None:
    protocol = query.protocol()
    begun = protocol.begin()
    for batch_id in (0, 1):
        decision = query.decision(begun, batch_id, query.write(protocol, b"%d" % batch_id))
        query.repeat_init_late()
        driver, decision = protocol.decide(begun.driver, decision)
        driver = protocol.complete(driver, decision)
        query.repeat_init_late()
        resumed = protocol.resume(driver, decision)
        assert resumed is not None
        begun = resumed
    assert query.values(at_least=2) == [b"0", b"1"]
    assert committed_offsets(query.topics, query.id, query.target, 1) == [2]
    assert query.protocol().begin().decided == decision


def test_batch_is_decided_once_if_its_driver_is_fenced_before_the_answer(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide, decisions = module.decide, []

    def decide_and_lose_the_answer(*arguments: Any, **named: Any) -> None:
        decide(*arguments, **named)
        decisions.append(arguments)
        query.repeat_init_late()
        raise ApiError(ErrorCode.PRODUCER_FENCED, "the commit was sent again")

    protocol = query.protocol()
    begun = protocol.begin()
    decision = query.decision(begun, 0, query.write(protocol, b"0"))
    monkeypatch.setattr(module, "decide", decide_and_lose_the_answer)
    driver, decided = protocol.decide(begun.driver, decision)
    assert (decided, len(decisions)) == (decision, 1)
    protocol.complete(driver, decided)
    assert query.values(at_least=1) == [b"0"]


def test_records_are_written_again_by_a_driver_that_fenced_itself(query: Query) -> None:
    protocol = query.protocol()
    begun = protocol.begin()
    task = query.write(protocol, b"0")
    decision = query.decision(begun, 0, task)
    protocol.decide(begun.driver, decision)
    end_transaction(query.cluster, *task.transaction, commit=False)  # as if it had timed out
    query.repeat_init_late()
    driver = protocol.complete(begun.driver, decision)
    assert query.values(at_least=1) == [b"0"]
    assert protocol.resume(driver, decision) is not None


def test_driver_that_is_fenced_while_it_takes_over_tries_again(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older driver looks before the newer one is the owner, and begins after."""
    older, newer = query.protocol(), query.protocol()
    begun = older.begin()
    query.repeat_init_late()
    write_owner, resumed = DecisionLog.write_owner, []

    def write_late(log: DecisionLog, driver: Transaction, owner: str) -> None:
        monkeypatch.undo()
        resumed.append(older.resume(begun.driver, begun.decided))
        write_owner(log, driver, owner)

    monkeypatch.setattr(DecisionLog, "write_owner", write_late)
    new = newer.begin()
    assert resumed[0] is not None
    assert older.resume(resumed[0].driver, begun.decided) is None
    newer.decide(new.driver, query.decision(new, 0, query.write(newer, b"newer")))


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


@dataclass
class OwnBroker:
    """A broker that a test has to itself."""

    server: Server

    def expire_transactional_ids(self) -> None:
        """As the broker does with ids that are not used for a week."""
        self._restart(
            {
                "transactional.id.expiration.ms": "1",
                "transaction.remove.expired.transaction.cleanup.interval.ms": "50",
            }
        )
        with Cluster(self.server.bootstrap) as cluster:
            wait_until(lambda: not list_transactions(cluster))
        self._restart({})

    def _restart(self, settings: Mapping[str, str]) -> None:
        self.server.stop()
        self.server = start_millstream(self.server.data, settings, port=self.server.port)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[OwnBroker]:
    broker = OwnBroker(start_millstream(tmp_path / "data"))
    yield broker
    broker.server.kill()


@pytest.mark.parametrize("in_store", [False, True])
def test_reset_is_remembered_after_the_driver_got_another_producer_id(
    own_broker: OwnBroker, in_store: bool
) -> None:
    """With `in_store`, a store decides, and the driver dies before the decision is copied."""
    topics = Topics(own_broker.server)

    def run(query: Query, protocol: BatchProtocol, begun: Begun, batch_id: int) -> Decision:
        decision = query.decision(begun, batch_id, query.write(protocol, b"%d" % batch_id))
        if in_store:
            return query.protocol().begin(stored=decision).decided
        protocol.complete(*protocol.decide(begun.driver, decision))
        return decision

    with Cluster(topics.bootstrap) as cluster:
        query = Query(topics, cluster)
        protocol = query.protocol()
        begun = protocol.begin()
        first_id = begun.epoch.producer_id
        before = run(query, protocol, begun, 57)
    own_broker.expire_transactional_ids()
    with Cluster(topics.bootstrap) as cluster:
        query.cluster = cluster
        protocol = query.protocol()
        begun = protocol.begin()
        assert begun.decided == before
        assert begun.epoch.producer_id != first_id
        begun = protocol.reset(begun)
        assert query.protocol().begin().decided.batch_id == NO_BATCH
        after = run(query, protocol, protocol.begin(), 0)
        assert query.protocol().decided() == after
        assert query.protocol().begin().decided == after
    assert query.values(at_least=2) == [b"0", b"57"]


def test_decision_of_another_producer_id_is_found_before_and_after_compaction(
    tmp_path: Path,
) -> None:
    server = start_millstream(tmp_path / "data", {"log.cleaner.backoff.ms": "20"})
    try:
        topics = Topics(server)
        topics.create(
            name=DECISIONS_TOPIC,
            cleanup_policy="compact",
            internal_segment_bytes="300",
            min_cleanable_dirty_ratio="0.01",
        )
        with Cluster(topics.bootstrap) as cluster:
            log = DecisionLog(cluster, "query")
            for number in range(20):  # each by another producer id
                producer = RawProducer(cluster)
                producer.begin(f"driver-{number}", TIMEOUT_MS)
                epoch = DriverEpoch(number, 20 - number)
                last = Decision(20 - number, driver=epoch)
                log.send_decision(producer, last)
                producer.end(commit=True)
                wait_until(lambda expected=last: log.committed().decision == expected)
            wait_until(lambda: first_offset_of(cluster) > 0)
            assert DecisionLog(cluster, "query").committed().decision == last
    finally:
        server.kill()


def first_offset_of(cluster: Cluster) -> int:
    """That of the first decision that compaction has left. It keeps an empty batch of each
    producer."""
    position = 0
    while True:
        fetched = fetch_batches(cluster, DECISIONS_TOPIC, 0, position)
        for _, header in iterate_headers(fetched.records):
            if header.record_count and not header.is_control:
                return header.base_offset
            position = header.next_offset


@pytest.mark.parametrize("is_written", [False, True])
def test_driver_that_dies_while_it_takes_over_leaves_the_decided_batch_to_the_next(
    query: Query, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    first = query.protocol()
    begun = first.begin()
    decision = query.decision(begun, 0, query.write(first, b"0"))
    first.decide(begun.driver, decision)
    write_owner = DecisionLog.write_owner

    def die(*arguments: Any) -> None:
        if is_written:
            write_owner(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DecisionLog, "write_owner", die)
        with pytest.raises(KeyboardInterrupt):
            query.protocol().begin()
    assert query.protocol().begin().decided == decision
    assert query.values(at_least=1) == [b"0"]
    assert first.resume(begun.driver, decision) is None
