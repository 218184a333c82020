"""Offsets of open transactions: which of them come to count."""

from __future__ import annotations

import pytest

from millstream.coordination.group_records import OffsetCommitKey, OffsetCommitValue
from millstream.coordination.groups.pending_offsets import PendingOffsets

KEY = OffsetCommitKey("g", "orders", 0)
OTHER_KEY = OffsetCommitKey("g", "orders", 1)
COMMIT, ABORT = True, False


def value(offset: int) -> OffsetCommitValue:
    return OffsetCommitValue(offset, "", 0)


def test_committed_transaction_counts() -> None:
    pending = PendingOffsets()
    pending.add(KEY, value(1), producer_id=7)
    pending.add(KEY, value(2), producer_id=7)
    pending.add(OTHER_KEY, value(3), producer_id=7)
    assert KEY in pending
    assert pending.end(7, COMMIT) == {KEY: value(2), OTHER_KEY: value(3)}
    assert not pending
    assert KEY not in pending
    assert not pending.has_group("g")


@pytest.mark.parametrize("end", [COMMIT, ABORT])
def test_unknown_producer_ends_nothing(end: bool) -> None:
    pending = PendingOffsets()
    pending.add(KEY, value(1), producer_id=7)
    assert pending.end(8, end) == {}
    assert KEY in pending


def test_aborted_transaction_counts_for_nothing() -> None:
    pending = PendingOffsets()
    pending.add(KEY, value(1), producer_id=7)
    assert pending.end(7, ABORT) == {}
    assert not pending


@pytest.mark.parametrize(
    ("first", "counts_first", "then", "counts_then"),
    [(7, {KEY: value(1)}, 8, {KEY: value(2)}), (8, {KEY: value(2)}, 7, {})],
)
def test_newer_record_wins_whoever_commits_first(
    first: int, counts_first: object, then: int, counts_then: object
) -> None:
    pending = PendingOffsets()
    pending.add(KEY, value(1), producer_id=7)
    pending.add(KEY, value(2), producer_id=8)
    assert pending.end(first, COMMIT) == counts_first
    assert KEY in pending  # the other is still open
    assert pending.end(then, COMMIT) == counts_then


def test_producer_that_writes_again_is_the_newer() -> None:
    pending = PendingOffsets()
    pending.add(KEY, value(1), producer_id=7)
    pending.add(KEY, value(2), producer_id=8)
    pending.add(KEY, value(3), producer_id=7)
    assert pending.end(8, COMMIT) == {KEY: value(2)}
    assert pending.end(7, COMMIT) == {KEY: value(3)}


def test_superseded_offset_is_unstable_but_will_not_count() -> None:
    pending = PendingOffsets()
    pending.add(KEY, value(1), producer_id=7)
    pending.supersede(KEY)
    assert KEY in pending
    assert list(pending) == []
    assert pending.end(7, COMMIT) == {}


def test_offset_added_after_a_newer_commit_counts() -> None:
    pending = PendingOffsets()
    pending.add(KEY, value(1), producer_id=7)
    pending.supersede(KEY)
    pending.add(KEY, value(3), producer_id=7)
    assert pending.end(7, COMMIT) == {KEY: value(3)}


def test_dropped_offset_is_gone_at_once() -> None:
    pending = PendingOffsets()
    pending.add(KEY, value(1), producer_id=7)
    pending.add(OTHER_KEY, value(2), producer_id=7)
    pending.drop(KEY)
    assert KEY not in pending
    assert pending.of_group("g") == [OTHER_KEY]
    assert pending.end(7, COMMIT) == {OTHER_KEY: value(2)}
    assert pending.of_group("g") == []
