"""Batches of states laid over each other, held against a map of single offsets."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.share_state import (
    DeliveryState,
    StateBatch,
    combine,
    from_entries,
    to_entries,
)

AVAILABLE, ACKNOWLEDGED = DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED
ARCHIVED = DeliveryState.ARCHIVED


@st.composite
def batches(draw: st.DrawFn) -> StateBatch:
    first = draw(st.integers(0, 20))
    return StateBatch(
        first,
        first + draw(st.integers(0, 6)),
        draw(st.sampled_from([AVAILABLE, ACKNOWLEDGED, ARCHIVED])),
        draw(st.integers(0, 2)),
        draw(st.sampled_from([0, 0, 50, 60])),
    )


def combined(*new: StateBatch, start_offset: int = 0) -> list[StateBatch]:
    known: list[StateBatch] = []
    combine(known, new, start_offset)
    return known


class Offsets:
    """The rule, offset by offset: the higher count wins, then the higher state, then the newer."""

    def __init__(self) -> None:
        self.states: dict[int, tuple[DeliveryState, int, int]] = {}

    def lay_over(self, batch: StateBatch) -> None:
        state = batch[2:]
        for offset in range(batch.first_offset, batch.last_offset + 1):
            known = self.states.get(offset)
            if known is None or (state[1], state[0]) >= (known[1], known[0]):
                self.states[offset] = state

    def start_at(self, start_offset: int) -> None:
        self.states = {it: state for it, state in self.states.items() if it >= start_offset}


def expanded(known: list[StateBatch]) -> dict[int, tuple[DeliveryState, int, int]]:
    return {
        offset: batch[2:]
        for batch in known
        for offset in range(batch.first_offset, batch.last_offset + 1)
    }


@given(st.lists(st.tuples(st.lists(batches(), max_size=4), st.integers(-1, 22)), max_size=12))
def test_combining_is_that_of_single_offsets(writes: list[tuple[list[StateBatch], int]]) -> None:
    known: list[StateBatch] = []
    reference = Offsets()
    start_offset = -1
    for new, start in writes:
        start_offset = max(start_offset, start)
        combine(known, new, start_offset)
        for batch in new:
            reference.lay_over(batch)
        reference.start_at(start_offset)
        assert expanded(known) == reference.states
        for before, after in itertools.pairwise(known):
            assert before.last_offset < after.first_offset
            # Nothing is in two batches that could be in one.
            adjoins = before.last_offset + 1 == after.first_offset
            assert not (adjoins and before[2:] == after[2:])


@given(st.lists(batches(), max_size=8))
def test_delivery_counts_never_shrink(new: list[StateBatch]) -> None:
    known: list[StateBatch] = []
    counts: dict[int, int] = {}
    for batch in new:
        combine(known, [batch], -1)
        now = {offset: state[1] for offset, state in expanded(known).items()}
        assert all(now[offset] >= count for offset, count in counts.items())
        counts = now


def test_batch_in_the_middle_splits_the_one_around_it() -> None:
    assert combined(StateBatch(0, 9, AVAILABLE, 1, 70), StateBatch(4, 5, ACKNOWLEDGED, 2)) == [
        StateBatch(0, 3, AVAILABLE, 1, 70),
        StateBatch(4, 5, ACKNOWLEDGED, 2),
        StateBatch(6, 9, AVAILABLE, 1, 70),
    ]


def test_batches_that_adjoin_and_say_the_same_become_one() -> None:
    parts = [StateBatch(first, first + 1, ACKNOWLEDGED, 1) for first in (0, 4, 2)]
    assert combined(*parts) == [StateBatch(0, 5, ACKNOWLEDGED, 1)]


def test_late_word_cannot_make_an_accepted_record_available() -> None:
    accepted = StateBatch(3, 3, ACKNOWLEDGED, 2)
    assert combined(accepted, StateBatch(3, 3, AVAILABLE, 2)) == [accepted]
    assert combined(accepted, StateBatch(3, 3, ARCHIVED, 1)) == [accepted]


def test_newer_due_time_replaces_the_one_before() -> None:
    assert combined(StateBatch(3, 3, AVAILABLE, 2, 50), StateBatch(3, 3, AVAILABLE, 2, 40)) == [
        StateBatch(3, 3, AVAILABLE, 2, 40)
    ]


def test_start_offset_cuts_the_batch_that_it_is_in() -> None:
    parts = [StateBatch(0, 1, ARCHIVED, 1), StateBatch(2, 9, AVAILABLE, 1)]
    assert combined(*parts, start_offset=5) == [StateBatch(5, 9, AVAILABLE, 1)]
    assert combined(*parts, start_offset=10) == []


def test_due_times_are_kept_between_brokers() -> None:
    batches = [
        StateBatch(0, 1, AVAILABLE, 2, 1_700_000_000_000),
        StateBatch(2, 2, ARCHIVED, 3),
        StateBatch(3, 9, AVAILABLE, 1, 5),
    ]
    entries = list(to_entries(batches))
    assert len(entries) == 5
    assert from_entries(entries) == batches


def test_due_time_without_its_batch_is_refused() -> None:
    (_, due), (batch,) = (
        to_entries([StateBatch(0, 1, AVAILABLE, 2, 7)]),
        [StateBatch(5, 6, AVAILABLE, 1)],
    )
    for entries in ([due], [batch, due]):
        with pytest.raises(ValueError, match="11"):
            from_entries(entries)
