"""What of a transaction may go, seen from the order in which the cleaner meets its parts."""

from __future__ import annotations

from millstream.records.batch import BatchHeader, parse_header
from millstream.records.record import ControlType, Record, encode_batch
from millstream.storage.cleaner_transactions import CleanedTransactions
from millstream.storage.transactions import AbortedTransaction


def batch(offset: int, producer_id: int, *, transactional: bool = True) -> BatchHeader:
    return parse_header(
        encode_batch(
            [Record(offset, 0, b"k", b"v")], producer_id=producer_id, is_transactional=transactional
        )
    )


def aborted(producer_id: int, first: int, last: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id, first, last, last + 1)


def test_data_of_an_aborted_transaction_may_go() -> None:
    transactions = CleanedTransactions([aborted(1, 10, 30)])
    assert not transactions.on_batch(batch(9, 1))
    assert transactions.on_batch(batch(10, 1))
    assert not transactions.on_batch(batch(11, 2))
    assert transactions.on_batch(batch(20, 1))
    transactions.on_marker(batch(30, 1), ControlType.ABORT)
    assert not transactions.on_batch(batch(31, 1))


def test_data_outside_transactions_stays() -> None:
    transactions = CleanedTransactions([aborted(1, 0, 30)])
    assert not transactions.on_batch(batch(5, 1, transactional=False))


def test_abort_marker_stays_while_its_data_was_seen() -> None:
    transactions = CleanedTransactions([aborted(1, 10, 30)])
    transactions.on_batch(batch(10, 1))
    assert transactions.on_marker(batch(30, 1), ControlType.ABORT) == (False, aborted(1, 10, 30))


def test_abort_marker_without_data_may_go() -> None:
    transactions = CleanedTransactions([aborted(1, 10, 30)])
    assert transactions.on_marker(batch(30, 1), ControlType.ABORT) == (True, None)
    assert transactions.on_marker(batch(40, 2), ControlType.ABORT) == (True, None)


def test_commit_marker_stays_while_its_data_was_seen() -> None:
    transactions = CleanedTransactions([])
    transactions.on_batch(batch(10, 1))
    assert transactions.on_marker(batch(30, 1), ControlType.COMMIT) == (False, None)
    assert transactions.on_marker(batch(31, 1), ControlType.COMMIT) == (True, None)


def test_transactions_of_one_producer_follow_each_other() -> None:
    transactions = CleanedTransactions([aborted(1, 40, 50), aborted(1, 10, 20)])
    assert transactions.on_batch(batch(10, 1))
    assert transactions.on_marker(batch(20, 1), ControlType.ABORT) == (False, aborted(1, 10, 20))
    assert not transactions.on_batch(batch(25, 1))
    assert transactions.on_marker(batch(30, 1), ControlType.COMMIT) == (False, None)
    assert transactions.on_batch(batch(40, 1))
    assert transactions.on_marker(batch(50, 1), ControlType.ABORT) == (False, aborted(1, 40, 50))


def test_transaction_listed_twice_counts_once() -> None:
    transactions = CleanedTransactions([aborted(1, 10, 20), aborted(1, 10, 20)])
    transactions.on_batch(batch(10, 1))
    transactions.on_marker(batch(20, 1), ControlType.ABORT)
    assert not transactions.on_batch(batch(30, 1))


def test_emptied_marker_may_go_and_foreign_control_records_stay() -> None:
    transactions = CleanedTransactions([])
    assert transactions.on_marker(batch(1, 1), None) == (True, None)
    assert transactions.on_marker(batch(2, 1), ControlType.LEADER_CHANGE) == (False, None)
