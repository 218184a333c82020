"""Decisions and what follows from them, on Millstream and on Apache Kafka. No Spark here."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from millstream.client.cluster import Cluster, check
from millstream.client.fetching import last_stable_offset, log_end_offset
from millstream.client.producing import RawProducer
from millstream.client.transactions import (
    Transaction,
    begin_transaction,
    end_transaction,
    open_transactions,
)
from millstream.errors import ApiError, ErrorCode
from millstream.pipelines.offsets import DECISIONS_TOPIC
from millstream.pipelines.writing.completing import Completer, RecordsLost
from millstream.pipelines.writing.decisions import (
    NO_BATCH,
    Decision,
    DecisionLog,
    DriverEpoch,
    TaskTransaction,
    decide,
    decode_decision,
    encode_decision,
)
from millstream.records.record import Record, encode_batch
from tests.peers.cache import PeerMissing
from tests.peers.impatient import start_impatient
from tests.peers.servers import Server
from tests.pipelines.writing.test_writer import read_committed

FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
LONG_MS = 60_000
SHORT_MS = 5_000


@pytest.fixture(
    scope="module",
    params=["millstream", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.slow])],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    try:
        running = start_impatient(request.param, tmp_path_factory.mktemp("completing"))
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield running
    running.stop()


@dataclass
class Query:
    """One query's driver, and tasks that write for it."""

    server: Server
    driver: Cluster
    tasks: Cluster
    topic: str
    transactional_id: str
    log: DecisionLog

    def completer(self, fail_on_loss: bool = True) -> Completer:
        return Completer(self.driver, self.log, timeout_ms=LONG_MS, fail_on_loss=fail_on_loss)

    def begin(self) -> Transaction:
        return begin_transaction(self.driver, self.transactional_id, LONG_MS)

    def write(self, number: int, values: list[str], timeout_ms: int = LONG_MS) -> TaskTransaction:
        """What a task does: records in two batches, in a transaction that stays open."""
        producer = RawProducer(self.tasks)
        producer.begin(f"{self.transactional_id}-task-{number}-0", timeout_ms)
        middle = len(values) // 2
        for part in (values[:middle], values[middle:]):
            send(producer, self.topic, part)
        written = producer.flush()
        assert producer.transaction is not None
        return TaskTransaction(producer.transaction, tuple(written))

    def decide(self, driver: Transaction, *tasks: TaskTransaction, batch_id: int = 0) -> Decision:
        identity = DriverEpoch(driver.producer_id, driver.epoch)
        decision = Decision(batch_id, tasks, driver=identity)
        decide(self.driver, self.log, driver, decision, group_id=None, offsets={})
        return decision

    def values(self, *, at_least: int = 0) -> list[str]:
        messages = read_committed(self.server.bootstrap, self.topic, at_least=at_least)
        return sorted(it.value().decode() for it in messages)


def send(producer: RawProducer, topic: str, values: list[str]) -> None:
    """Records of now: a broker deletes a segment of old records when retention first runs, 30 s
    after its start, unless a marker, which has the broker's time, is in it already."""
    if not values:
        return
    identity = producer.identity(topic, 0)
    now_ms = int(time.time() * 1000)
    batch = encode_batch(
        [Record(number, now_ms, None, value.encode()) for number, value in enumerate(values)],
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=identity.base_sequence,
        is_transactional=identity.is_transactional,
    )
    producer.send(topic, 0, batch, len(values))


@pytest.fixture
def query(server: Server) -> Iterator[Query]:
    with (
        Cluster(server.bootstrap, client_id="driver") as driver,
        Cluster(server.bootstrap, client_id="task") as tasks,
    ):
        name = uuid.uuid4().hex[:8]
        topic = {"name": f"topic-{name}", "num_partitions": 1, "replication_factor": 1}
        fields = {"topics": [topic], "timeout": 30_000}
        answer = driver.any_connection().call("create_topics", fields)
        check(answer.topics[0].error_code, name)
        log = DecisionLog(driver, f"query-{name}")
        log.create_topic()
        yield Query(server, driver, tasks, f"topic-{name}", f"query-{name}", log)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def time_out(query: Query) -> None:
    """Wait until the broker has aborted all of the query's open transactions."""
    prefix = f"{query.transactional_id}-task-"
    wait_for(lambda: not open_transactions(query.driver, prefix))


def test_decision_survives_being_encoded(query: Query) -> None:
    decision = Decision(7, (query.write(0, ["a", "b"]), query.write(1, ["c"])))
    assert decode_decision(encode_decision(decision)) == decision


def test_latest_of_a_new_query_has_no_batch(query: Query) -> None:
    state = query.log.latest(query.begin())
    assert (state.decided_batch_id, state.completed_batch_id) == (NO_BATCH, NO_BATCH)
    assert state.is_completed


def test_latest_finds_a_decision_from_the_beginning_and_from_where_it_stopped(
    query: Query,
) -> None:
    first = query.decide(query.begin(), batch_id=0)
    driver = query.begin()
    assert query.log.latest(driver).decision == first
    second = query.decide(driver, query.write(0, ["a"]), batch_id=1)
    driver = query.begin()
    for log in (query.log, DecisionLog(query.driver, query.transactional_id)):
        assert log.latest(driver).decision == second
        assert not log.latest(driver).is_completed
    query.log.write_completed(second)
    assert query.log.latest(driver).is_completed


def test_latest_passes_over_a_decision_that_was_aborted(query: Query) -> None:
    first = query.decide(query.begin(), batch_id=0)
    producer = RawProducer(query.driver)
    producer.resume(query.begin())
    query.log.send_decision(producer, Decision(1))
    producer.flush()
    driver = query.begin()  # another driver: what was open is aborted
    assert query.log.latest(driver).decision == first


def test_latest_does_not_take_what_a_newer_driver_is_about_to_decide(query: Query) -> None:
    older = query.begin()
    producer = RawProducer(query.driver)
    producer.resume(query.begin())
    query.log.send_decision(producer, Decision(1))
    producer.flush()
    with pytest.raises(ApiError, match="another driver") as caught:
        query.log.latest(older)
    assert caught.value.code is ErrorCode.PRODUCER_FENCED
    producer.end(commit=False)
    assert query.log.latest(query.begin()).decided_batch_id == NO_BATCH


def deciding(query: Query, transactional_id: str, decision: Decision) -> RawProducer:
    """A driver with a producer id of its own that has sent its decision, and not ended it."""
    producer = RawProducer(query.driver)
    producer.begin(f"{query.transactional_id}-{transactional_id}", LONG_MS)
    query.log.send_decision(producer, decision)
    producer.flush()
    return producer


def all_have_ended(query: Query) -> bool:
    """Whether the markers of all decisions are written."""
    where = (query.driver, DECISIONS_TOPIC, 0)
    return last_stable_offset(*where) == log_end_offset(*where)


@pytest.mark.parametrize("first_is_committed", [False, True])
def test_last_committed_decision_in_the_log_counts_whichever_marker_comes_first(
    query: Query, first_is_committed: bool
) -> None:
    earlier = Decision(57, driver=DriverEpoch(1, 9))
    later = Decision(NO_BATCH, driver=DriverEpoch(2, 0))
    first, second = deciding(query, "first", earlier), deciding(query, "second", later)
    second.end(commit=True)
    wait_for(lambda: query.log.committed().decision == later)
    first.end(commit=first_is_committed)
    wait_for(lambda: all_have_ended(query))
    for log in (query.log, DecisionLog(query.driver, query.transactional_id)):
        assert log.committed().decision == later


def test_decision_that_is_aborted_leaves_the_one_before_it(query: Query) -> None:
    earlier = Decision(57, driver=DriverEpoch(1, 9))
    first = deciding(query, "first", earlier)
    second = deciding(query, "second", Decision(0, driver=DriverEpoch(2, 0)))
    second.end(commit=False)
    first.end(commit=True)
    wait_for(lambda: all_have_ended(query))
    assert query.log.committed().decision == earlier


def test_latest_does_not_take_what_a_driver_with_another_producer_id_is_about_to_decide(
    query: Query,
) -> None:
    older = query.begin()
    newer = deciding(query, "newer", Decision(1))
    with pytest.raises(ApiError, match="another driver") as caught:
        query.log.latest(older)
    assert caught.value.code is ErrorCode.PRODUCER_FENCED
    newer.end(commit=False)
    wait_for(lambda: all_have_ended(query))
    assert query.log.latest(query.begin()).decided_batch_id == NO_BATCH


def test_latest_is_not_held_up_by_another_query_that_died_deciding(query: Query) -> None:
    other = RawProducer(query.driver)
    other.begin(f"other-{query.transactional_id}", LONG_MS)
    DecisionLog(query.driver, "other").send_decision(other, Decision(9))
    other.flush()
    decision = query.decide(query.begin(), batch_id=3)
    assert query.log.latest(query.begin()).decision == decision
    other.end(commit=False)


def test_latest_ignores_a_late_completion_of_an_earlier_batch(query: Query) -> None:
    third = query.decide(query.begin(), batch_id=3)
    fourth = query.decide(query.begin(), batch_id=4)
    query.log.write_completed(fourth)
    query.log.write_completed(third)
    assert query.log.latest(query.begin()).is_completed


@pytest.mark.parametrize("batch_id", [0, 50])
def test_latest_does_not_take_a_batch_of_before_for_the_one_decided_since(
    query: Query, batch_id: int
) -> None:
    query.log.write_completed(query.decide(query.begin(), batch_id=50))
    again = query.decide(query.begin(), batch_id=batch_id)
    state = query.log.latest(query.begin())
    assert (state.decision, state.is_completed) == (again, False)


def test_decide_is_fenced_when_another_driver_has_begun(query: Query) -> None:
    old = query.begin()
    task = query.write(0, ["a"])
    query.begin()
    with pytest.raises(ApiError) as caught:
        query.decide(old, task)
    assert caught.value.code in FENCED
    assert query.log.latest(query.begin()).decided_batch_id == NO_BATCH


def test_settle_commits_what_was_decided_however_often(query: Query) -> None:
    driver = query.begin()
    tasks = query.write(0, ["a", "b"]), query.write(1, ["c"])
    decision = query.decide(driver, *tasks)
    end_transaction(query.driver, *tasks[0].transaction, commit=True)  # as far as another came
    for _ in range(2):
        assert query.completer().complete(driver, decision) == driver
    assert query.values(at_least=3) == ["a", "b", "c"]
    assert query.log.latest(driver).is_completed


def test_settle_publishes_again_what_timed_out_after_the_decision(query: Query) -> None:
    driver = query.begin()
    slow = query.write(0, ["a", "b", "c"], SHORT_MS)
    other = query.write(1, ["d"], SHORT_MS)
    fine = query.write(2, ["e"])
    decision = query.decide(driver, slow, other, fine)
    wait_for(lambda: len(open_transactions(query.driver, f"{query.transactional_id}-task-")) == 1)
    assert query.values() == []
    driver = query.completer().complete(driver, decision)
    assert query.values(at_least=5) == ["a", "b", "c", "d", "e"]
    state = query.log.latest(driver)
    assert state.is_completed
    # A driver that finds the first decision does not do it once more.
    query.completer().complete(driver, state.decision)
    assert query.values(at_least=5) == ["a", "b", "c", "d", "e"]


def test_settle_does_not_publish_again_what_was_committed_and_its_id_used_since(
    query: Query,
) -> None:
    driver = query.begin()
    task = query.write(0, ["a", "b"])
    decision = query.decide(driver, task)
    end_transaction(query.driver, *task.transaction, commit=True)
    later = query.write(0, ["x"])
    query.completer().complete(driver, decision)
    assert query.values(at_least=2) == ["a", "b"]
    end_transaction(query.driver, *later.transaction, commit=False)


def test_settle_publishes_again_only_its_own_records_of_the_range(query: Query) -> None:
    driver = query.begin()
    plain = RawProducer(query.tasks)
    plain.begin()
    producer = RawProducer(query.tasks)
    producer.begin(f"{query.transactional_id}-task-0-0", SHORT_MS)
    for number in range(3):
        send(producer, query.topic, [f"own{number}"])
        producer.flush()
        send(plain, query.topic, [f"other{number}"])
        written = producer.flush()
        plain.flush()
    assert producer.transaction is not None
    decision = query.decide(driver, TaskTransaction(producer.transaction, tuple(written)))
    time_out(query)
    query.completer().complete(driver, decision)
    expected = [f"{who}{number}" for who in ("other", "own") for number in range(3)]
    assert query.values(at_least=6) == expected


@pytest.mark.slow
def test_deleted_records_of_an_aborted_transaction_are_reported_as_lost(query: Query) -> None:
    driver = query.begin()
    decision = query.decide(driver, query.write(0, ["a", "b"], SHORT_MS))
    time_out(query)
    delete_records(query, 1)  # of two batches the first
    with pytest.raises(RecordsLost, match=r"1 of 2 records .* failOnDataLoss=false"):
        query.completer().complete(driver, decision)
    query.completer(fail_on_loss=False).complete(query.begin(), decision)
    assert query.values(at_least=1) == ["b"]


def delete_records(query: Query, offset: int) -> None:
    partition = {"partition_index": 0, "offset": offset}
    fields = {
        "topics": [{"name": query.topic, "partitions": [partition]}],
        "timeout": 30_000,
    }
    answer = query.driver.ask_leader(query.topic, 0, "delete_records", fields)
    check(answer.topics[0].partitions[0].error_code, "deleting records")


def test_sweep_aborts_what_no_decision_names_and_fences_its_writer(query: Query) -> None:
    kept = query.write(0, ["a"])
    producer = RawProducer(query.tasks)
    producer.begin(f"{query.transactional_id}-task-1-0", LONG_MS)
    send(producer, query.topic, ["left"])
    producer.flush()
    assert query.completer().sweep(f"{query.transactional_id}-task-", keep=[kept]) == 1
    send(producer, query.topic, ["too late"])
    with pytest.raises(ApiError) as caught:
        producer.flush()
    assert caught.value.code in FENCED
    query.completer().complete(query.begin(), Decision(0, (kept,)))
    assert query.values(at_least=1) == ["a"]
