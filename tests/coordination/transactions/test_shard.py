"""A shard of the transaction coordinator: many transactional ids, time, and late requests."""

from __future__ import annotations

import pytest

from millstream.coordination.result import CoordinatorRecord, SetTimer
from millstream.coordination.transactions.late_ends import ClientConnection
from millstream.coordination.transactions.records import TransactionKey, TransactionState
from millstream.coordination.transactions.shard import EXPIRED_PER_BATCH_MAX, EXPIRY_TIMER
from millstream.coordination.transactions.transaction import Producer
from millstream.errors import ErrorCode
from tests.coordination.transactions.harness import ID, T0, T1, Driver, refused

DAY_MS = 86_400_000


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_time_out_out_of_bounds_is_refused(timeout_ms: int) -> None:
    with refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT):
        Driver().init(timeout_ms=timeout_ms)


def test_longest_time_out_is_the_settings() -> None:
    assert Driver(transaction_max_timeout_ms=5).init(timeout_ms=5) is not None


def test_unknown_transactional_id_is_refused() -> None:
    driver = Driver()
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        driver.add(Producer(1, 0))
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        driver.end(Producer(1, 0))


@pytest.mark.parametrize(
    ("transaction_version", "client_version", "written"),
    [(0, 0, 0), (1, 0, 1), (2, 0, 1), (2, 2, 1), (0, 2, 1)],
)
def test_format_follows_the_feature_unless_the_client_needs_more(
    transaction_version: int, client_version: int, written: int
) -> None:
    driver = Driver()
    driver.transaction_version = transaction_version
    driver.add(driver.started(), version=client_version)
    assert driver.value.format_version == written


# --- after a restart


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("committed", [True, False])
def test_restart_finds_what_is_prepared_and_its_marker(version: int, committed: bool) -> None:
    driver = Driver()
    producer = driver.started()
    driver.add(producer, T0, T1, version=version)
    driver.end(producer, committed=committed, version=version)
    before = [(it.marker(3), it.partitions) for it in driver.shard.prepared()]
    driver.reload()
    assert [(it.marker(3), it.partitions) for it in driver.shard.prepared()] == before
    assert before[0][1] == {T0, T1}
    driver.complete()
    assert driver.shard.prepared() == []


def test_restart_keeps_what_is_ongoing_as_it_was() -> None:
    driver = Driver()
    producer = driver.started()
    driver.add(producer)
    driver.reload()
    driver.shard.verify(ID, producer, T0)
    assert driver.shard.prepared() == []


# --- time-outs


def test_transaction_past_its_time_out_is_aborted_and_its_producer_fenced() -> None:
    driver = Driver()
    producer = driver.init(timeout_ms=100)
    assert producer is not None
    driver.add(producer)
    driver.now_ms += 100
    assert driver.shard.timed_out(driver.now_ms) == []
    driver.now_ms += 1
    assert driver.shard.timed_out(driver.now_ms) == [ID]
    assert driver.apply(driver.shard.abort_timed_out(ID, driver.now_ms)) is True
    assert driver.state is TransactionState.PREPARE_ABORT
    assert driver.shard.transactions[ID].marker(0).producer_epoch == 1
    driver.complete()
    with refused(ErrorCode.PRODUCER_FENCED):
        driver.add(producer)


def test_transaction_that_has_ended_meanwhile_is_not_aborted() -> None:
    driver = Driver()
    producer = driver.init(timeout_ms=100)
    assert producer is not None
    driver.add(producer)
    driver.now_ms += 101
    driver.end(producer)
    assert driver.apply(driver.shard.abort_timed_out(ID, driver.now_ms)) is False
    assert driver.state is TransactionState.PREPARE_COMMIT
    assert driver.apply(driver.shard.abort_timed_out("nobody", driver.now_ms)) is False


def test_abort_past_the_time_out_tells_a_client_of_v2_that_it_is_fenced() -> None:
    driver = Driver()
    producer = driver.init(timeout_ms=100)
    assert producer is not None
    driver.add(producer, version=2)
    driver.now_ms += 101
    driver.apply(driver.shard.abort_timed_out(ID, driver.now_ms))
    driver.complete()
    with refused(ErrorCode.INVALID_TXN_STATE):  # it looks like its own abort, and is no commit
        driver.end(producer, committed=True, version=2)
    with refused(ErrorCode.PRODUCER_FENCED):
        driver.add(producer, version=2)


# --- expiry


def expire(driver: Driver) -> tuple[CoordinatorRecord, ...]:
    result = driver.shard.handle_timer(EXPIRY_TIMER, driver.now_ms)
    driver.apply(result)
    assert isinstance(result.timers[0], SetTimer)
    return result.records


def test_unused_transactional_id_expires_with_a_tombstone() -> None:
    driver = Driver(transactional_id_expiration_ms=DAY_MS)
    driver.transact(driver.started())
    driver.now_ms += DAY_MS - 1
    assert expire(driver) == ()
    driver.now_ms += 1
    assert expire(driver) == (CoordinatorRecord(TransactionKey(ID), None),)
    assert driver.shard.list_all() == {}
    driver.reload()
    assert driver.shard.list_all() == {}


@pytest.mark.parametrize("is_prepared", [True, False])
def test_open_transaction_does_not_expire(is_prepared: bool) -> None:
    driver = Driver(transactional_id_expiration_ms=DAY_MS)
    producer = driver.started()
    driver.add(producer)
    if is_prepared:
        driver.end(producer)
    driver.now_ms += 2 * DAY_MS
    assert expire(driver) == ()


def test_expiry_goes_on_at_once_where_there_is_much_to_forget() -> None:
    driver = Driver(transactional_id_expiration_ms=DAY_MS)
    driver.started()
    value = driver.value
    for number in range(EXPIRED_PER_BATCH_MAX):
        driver.shard.replay(CoordinatorRecord(TransactionKey(f"tx{number}"), value))
    driver.now_ms += DAY_MS
    result = driver.shard.handle_timer(EXPIRY_TIMER, driver.now_ms)
    assert len(result.records) == EXPIRED_PER_BATCH_MAX
    assert result.timers == (SetTimer(EXPIRY_TIMER, driver.now_ms),)
    driver.apply(result)
    assert len(expire(driver)) == 1


def test_expiry_is_looked_for_at_the_interval_of_the_settings() -> None:
    driver = Driver(transaction_remove_expired_transaction_cleanup_interval_ms=77)
    assert driver.shard.loaded(driver.now_ms).timers == (
        SetTimer(EXPIRY_TIMER, driver.now_ms + 77),
    )


# --- late ends

OLD, NEW = ClientConnection("app", "host", 1), ClientConnection("app", "host", 2)


def test_late_v1_end_over_a_replaced_connection_ends_nothing() -> None:
    driver = Driver()
    producer = driver.started()
    driver.add(producer, connection=OLD)
    driver.end(producer, connection=NEW)  # the client has reconnected and asked again
    driver.complete()
    driver.add(producer, connection=NEW)
    with refused(ErrorCode.INVALID_TXN_STATE):
        driver.end(producer, connection=OLD)  # only now the first one arrives
    assert driver.state is TransactionState.ONGOING
    driver.end(producer, connection=NEW)
    assert driver.state is TransactionState.PREPARE_COMMIT


def test_another_process_may_end_the_transaction_over_any_connection() -> None:
    driver = Driver()
    producer = driver.started()
    driver.add(producer, connection=NEW)
    driver.end(producer, connection=ClientConnection("committer", "host", 0))
    assert driver.state is TransactionState.PREPARE_COMMIT


def test_new_producer_forgets_the_connections_of_the_one_before() -> None:
    driver = Driver()
    driver.add(driver.started(), connection=NEW)
    driver.init()
    driver.complete()
    producer = driver.started()
    driver.add(producer, connection=OLD)
    driver.end(producer, connection=OLD)
    assert driver.state is TransactionState.PREPARE_COMMIT
