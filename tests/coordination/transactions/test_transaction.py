"""One transactional id: Kafka's state machine, by both protocols, to the end of the epochs."""

from __future__ import annotations

import pytest

from millstream.coordination.transactions.records import TransactionState
from millstream.coordination.transactions.transaction import Producer
from millstream.errors import ErrorCode
from tests.coordination.transactions.harness import ID, T0, T1, Driver, refused

V2 = 2


# --- InitProducerId


def test_first_producer_gets_epoch_0() -> None:
    driver = Driver()
    assert driver.init() == Producer(1001, 0)
    assert driver.state is TransactionState.EMPTY


def test_each_start_raises_the_epoch_and_fences_the_one_before() -> None:
    driver = Driver()
    first = driver.started()
    assert driver.init() == Producer(1001, 1)
    with refused(ErrorCode.PRODUCER_FENCED):
        driver.add(first)
    with refused(ErrorCode.PRODUCER_FENCED):
        driver.end(first)


def test_producer_that_goes_on_after_an_error_gets_the_next_epoch_once() -> None:
    driver = Driver()
    first = driver.started()
    assert driver.init(expected=first) == Producer(1001, 1)
    assert driver.init(expected=first) == Producer(1001, 1), "the same request again"
    assert driver.init(expected=Producer(1001, 1)) == Producer(1001, 2)
    with refused(ErrorCode.PRODUCER_FENCED):
        driver.init(expected=first)
    with refused(ErrorCode.PRODUCER_FENCED):
        driver.init(expected=Producer(7, 0))


def test_repeated_request_is_not_known_once_another_producer_has_started() -> None:
    driver = Driver()
    first = driver.started()
    driver.init()
    with refused(ErrorCode.PRODUCER_FENCED):
        driver.init(expected=first)


def test_start_aborts_what_is_open_and_comes_back() -> None:
    driver = Driver()
    driver.add(driver.started())
    assert driver.init() is None
    assert driver.state is TransactionState.PREPARE_ABORT
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        driver.init()
    driver.complete()
    assert driver.init() == Producer(1001, 2)


def test_stranger_who_claims_to_go_on_leaves_an_open_transaction_alone() -> None:
    driver = Driver()
    owner = driver.started()
    driver.add(owner)
    with refused(ErrorCode.PRODUCER_FENCED):
        driver.init(expected=Producer(7, 3))
    assert driver.state is TransactionState.ONGOING
    driver.end(owner)


@pytest.mark.parametrize("expected", [None, Producer(1001, 32766)])
def test_used_up_epochs_bring_a_new_producer_id_at_the_start(expected: Producer | None) -> None:
    driver = Driver()
    driver.started()
    driver.exhaust_epochs()
    assert driver.init(expected=expected) == Producer(1002, 0)


def test_repeated_start_after_the_epochs_were_used_up_gets_the_same_answer() -> None:
    driver = Driver()
    driver.started()
    last = driver.exhaust_epochs()
    assert driver.init(expected=last) == Producer(1002, 0)
    assert driver.init(expected=last) == Producer(1002, 0)
    with refused(ErrorCode.PRODUCER_FENCED):
        driver.init(expected=Producer(last.id, 5))


@pytest.mark.parametrize("transaction_version", [0, 2])
def test_start_over_an_open_transaction_of_the_last_epoch_ends_in_a_new_id(
    transaction_version: int,
) -> None:
    driver = Driver()
    driver.transaction_version = transaction_version
    driver.started()
    driver.add(driver.exhaust_epochs())
    assert driver.init() is None
    assert driver.shard.transactions[ID].marker(0).producer_epoch == 32767
    driver.complete()
    producer = driver.init()
    assert producer is not None
    assert producer.id > 1001
    assert producer.epoch < 2


# --- partitions


def test_partitions_join_the_transaction_and_begin_it_once() -> None:
    driver = Driver()
    producer = driver.started()
    driver.add(producer, T0)
    started_ms = driver.value.start_ms
    driver.now_ms += 500
    driver.add(producer, T1)
    assert driver.value.start_ms == started_ms
    assert driver.shard.transactions[ID].partitions == {T0, T1}


def test_partitions_that_are_in_it_already_need_no_record() -> None:
    driver = Driver()
    producer = driver.started()
    driver.add(producer, T0, T1)
    written = len(driver.log)
    driver.add(producer, T1)
    assert len(driver.log) == written


def test_partitions_of_the_transaction_before_are_not_in_the_next() -> None:
    driver = Driver()
    producer = driver.started()
    driver.transact(producer)
    with refused(ErrorCode.INVALID_TXN_STATE):
        driver.shard.verify(ID, producer, T0)
    driver.add(producer, T1)
    driver.shard.verify(ID, producer, T1)
    with refused(ErrorCode.INVALID_TXN_STATE):
        driver.shard.verify(ID, producer, T0)


def test_verification_says_whose_transaction_it_is() -> None:
    driver = Driver()
    producer = driver.started()
    driver.add(producer)
    driver.shard.verify(ID, producer, T0)
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        driver.shard.verify(ID, Producer(7, 0), T0)
    with refused(ErrorCode.PRODUCER_FENCED):
        driver.shard.verify(ID, Producer(producer.id, 1), T0)
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        driver.shard.verify("nobody", producer, T0)
    driver.end(producer)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        driver.shard.verify(ID, producer, T0)


# --- the end, protocol v1


@pytest.mark.parametrize("committed", [True, False])
def test_v1_end_keeps_the_epoch_and_may_be_repeated(committed: bool) -> None:
    driver = Driver()
    producer = driver.started()
    assert driver.transact(producer, committed=committed) == producer
    assert driver.end(producer, committed=committed) == producer
    with refused(ErrorCode.INVALID_TXN_STATE):
        driver.end(producer, committed=not committed)
    driver.add(producer)
    assert driver.state is TransactionState.ONGOING


@pytest.mark.parametrize("committed", [True, False])
def test_v1_end_of_nothing_is_refused(committed: bool) -> None:
    driver = Driver()
    producer = driver.started()
    with refused(ErrorCode.INVALID_TXN_STATE):
        driver.end(producer, committed=committed)


def test_whoever_comes_between_decision_and_completion_comes_too_early() -> None:
    driver = Driver()
    producer = driver.started()
    driver.add(producer)
    driver.end(producer)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        driver.add(producer)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        driver.end(producer)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        driver.init()


def test_marker_of_v1_has_the_epoch_of_the_records() -> None:
    driver = Driver()
    producer = driver.started()
    driver.add(producer)
    driver.end(producer, committed=False)
    marker = driver.shard.transactions[ID].marker(coordinator_epoch=9)
    assert marker == (producer.id, 0, 9, False, 0)


# --- the end, protocol v2


@pytest.mark.parametrize("committed", [True, False])
def test_v2_end_raises_the_epoch_and_answers_the_same_again(committed: bool) -> None:
    driver = Driver()
    producer = driver.started()
    after = driver.transact(producer, committed=committed, version=V2)
    assert after == Producer(producer.id, 1)
    assert driver.end(producer, committed=committed, version=V2) == after
    with refused(ErrorCode.INVALID_TXN_STATE):
        driver.end(producer, committed=not committed, version=V2)


def test_v2_late_end_cannot_end_the_next_transaction() -> None:
    driver = Driver()
    producer = driver.started()
    after = driver.transact(producer, version=V2)
    driver.add(after, version=V2)
    with refused(ErrorCode.PRODUCER_FENCED):
        driver.end(producer, version=V2)
    assert driver.state is TransactionState.ONGOING


def test_marker_of_v2_has_the_epoch_after_that_of_the_records() -> None:
    driver = Driver()
    producer = driver.started()
    driver.add(producer, version=V2)
    driver.end(producer, version=V2)
    assert driver.shard.transactions[ID].marker(9) == (producer.id, 1, 9, True, 2)


def test_v2_abort_of_nothing_raises_the_epoch() -> None:
    driver = Driver()
    producer = driver.started()
    after = driver.end(producer, committed=False, version=V2)
    assert after == Producer(producer.id, 1)
    driver.complete()
    assert driver.end(producer, committed=False, version=V2) == after, "the same again"
    assert driver.end(after, committed=False, version=V2) == Producer(producer.id, 2)


@pytest.mark.parametrize("committed", [True, False])
def test_v2_commit_of_nothing_is_refused(committed: bool) -> None:
    driver = Driver()
    producer = driver.started()
    with refused(ErrorCode.INVALID_TXN_STATE):
        driver.end(producer, version=V2)
    after = driver.transact(producer, committed=committed, version=V2)
    with refused(ErrorCode.INVALID_TXN_STATE):
        driver.end(after, version=V2)


def test_v2_end_of_the_last_epoch_brings_a_new_producer_id() -> None:
    driver = Driver()
    driver.started()
    last = driver.exhaust_epochs()
    driver.add(last, version=V2)
    after = driver.end(last, version=V2)
    assert after == Producer(1002, 0)
    assert driver.shard.transactions[ID].marker(0).producer_id == last.id
    assert driver.shard.transactions[ID].marker(0).producer_epoch == 32767
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        driver.end(last, version=V2)
    driver.complete()
    assert driver.end(last, version=V2) == after, "the same question, the same answer"
    driver.add(after, version=V2)
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        driver.end(last, version=V2)


def test_v2_new_producer_id_survives_a_restart_between_decision_and_completion() -> None:
    driver = Driver()
    driver.started()
    last = driver.exhaust_epochs()
    driver.add(last, version=V2)
    after = driver.end(last, version=V2)
    driver.reload()
    driver.complete()
    assert driver.shard.transactions[ID].producer == after
    assert driver.end(last, version=V2) == after


def test_end_of_an_unknown_producer_is_refused() -> None:
    driver = Driver()
    driver.started()
    for version in (0, V2):
        with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            driver.end(Producer(7, 0), version=version)
