"""What is persisted of changes."""

from __future__ import annotations

from millstream.coordination.share_state import DeliveryState, StateBatch
from millstream.coordination.sharing.changes import Change, combined
from millstream.coordination.sharing.runs import Run

ACKNOWLEDGED = DeliveryState.ACKNOWLEDGED
AVAILABLE = DeliveryState.AVAILABLE


def change_of(*noted: tuple[int, int, DeliveryState, int]) -> Change:
    change = Change()
    for first, last, state, count in noted:
        change.add(Run(first, last, DeliveryState.ACQUIRED, count), state, 0)
    return change


def test_neighbours_of_one_state_are_one_batch() -> None:
    change = change_of((0, 4, ACKNOWLEDGED, 1), (5, 9, ACKNOWLEDGED, 1), (10, 10, ACKNOWLEDGED, 2))
    assert change.batches == [
        StateBatch(0, 9, ACKNOWLEDGED, 1),
        StateBatch(10, 10, ACKNOWLEDGED, 2),
    ]


def test_batches_with_a_hole_between_them_stay_apart() -> None:
    change = change_of((0, 4, ACKNOWLEDGED, 1), (6, 9, ACKNOWLEDGED, 1))
    assert len(change.batches) == 2


def test_changes_are_combined_in_order_of_their_offsets() -> None:
    changes = [change_of((5, 9, ACKNOWLEDGED, 1)), change_of((0, 4, ACKNOWLEDGED, 1))]
    assert combined(changes, 0) == [StateBatch(0, 9, ACKNOWLEDGED, 1)]


def test_what_is_before_the_start_is_not_persisted() -> None:
    changes = [change_of((0, 4, ACKNOWLEDGED, 1)), change_of((6, 9, AVAILABLE, 1))]
    assert combined(changes, 8) == [StateBatch(8, 9, AVAILABLE, 1)]


def test_two_words_on_one_record_are_both_persisted() -> None:
    changes = [change_of((0, 0, AVAILABLE, 1)), change_of((0, 0, ACKNOWLEDGED, 2))]
    assert combined(changes, 0) == [
        StateBatch(0, 0, AVAILABLE, 1),
        StateBatch(0, 0, ACKNOWLEDGED, 2),
    ]
