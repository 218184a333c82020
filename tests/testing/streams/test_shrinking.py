"""Cases are made as small as they can be while they fail, and tries are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.testing.streams.case import Batch, Case
from millstream.testing.streams.report import Failure
from millstream.testing.streams.shrinking import Shrinking, shrink_failure
from tests.testing.streams.orders import arrivals, order

BATCH_COUNT = 6


def large_case(rows: int = 24) -> Case:
    orders = arrivals(*(order(number, number) for number in range(rows)))
    size = rows // BATCH_COUNT
    return Case(
        tuple(
            Batch(orders[number * size : (number + 1) * size], "restart" if number % 2 else None)
            for number in range(BATCH_COUNT)
        )
    )


def ids(case: Case) -> set[int]:
    return {it.row["id"] for it in case.arrivals}


def shrink(fails: Callable[[Case], bool], **settings: int) -> tuple[Case, Shrinking]:
    def verdicts(group: Sequence[Case]) -> list[bool]:
        return [fails(it) for it in group]

    shrinking = Shrinking(verdicts, **settings)  # type: ignore[arg-type]
    return shrinking.shrink(large_case()), shrinking


@given(st.sets(st.integers(0, 23), min_size=1, max_size=3))
def test_rows_that_matter_are_left(culprits: set[int]) -> None:
    smallest, _ = shrink(lambda case: culprits <= ids(case), tries_max=500)
    assert ids(smallest) == culprits
    assert smallest.size == (len(culprits), 1, 0)


def test_cut_and_fault_that_matter_are_left() -> None:
    def fails(case: Case) -> bool:
        """Two rows in two batches, and a restart after the first."""
        places = [
            number
            for number, batch in enumerate(case.batches)
            if {7, 20} & {it.row["id"] for it in batch.arrivals}
        ]
        return len(places) == 2 and any(
            it.fault == "restart" for it in case.batches[places[0] : places[1]]
        )

    smallest, shrinking = shrink(fails, tries_max=500)
    assert smallest.size == (2, 2, 1)
    assert ids(smallest) == {7, 20}
    assert shrinking.tries < 100


def test_tries_are_limited_and_what_comes_of_them_fails() -> None:
    smallest, shrinking = shrink(lambda case: 3 in ids(case), tries_max=6)
    assert 3 in ids(smallest)
    assert shrinking.tries <= 6


def test_case_that_breaks_its_rules_is_not_tried() -> None:
    tried: list[Case] = []

    def fails(group: Sequence[Case]) -> list[bool]:
        tried.extend(group)
        return [True] * len(group)

    shrinking = Shrinking(fails, is_sound=lambda case: 5 in ids(case))
    assert ids(shrinking.shrink(large_case())) == {5}
    assert all(5 in ids(case) for case in tried)


def test_rows_and_a_moved_watermark_stay_two_batches() -> None:
    """As one they would be printed as two: another story."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    first, last = arrivals(order(1, 1)), arrivals(order(2, 2))
    case = Case((Batch(first), Batch(watermark=moment), Batch(), Batch(last)))

    def fails(group: Sequence[Case]) -> list[bool]:
        return [it.arrivals == case.arrivals and moments(it) == [moment] for it in group]

    smallest = Shrinking(fails).shrink(case)
    assert [(len(it.arrivals), it.watermark) for it in smallest.batches] == [
        (1, None),
        (0, moment),
        (1, None),
    ]


def moments(case: Case) -> list[datetime]:
    return [it.watermark for it in case.batches if it.watermark is not None]


@pytest.mark.parametrize("error", [ZeroDivisionError, TimeoutError])
def test_case_that_raises_is_not_the_failure_that_was_found(error: type[Exception]) -> None:
    def judge(case: Case) -> Failure:
        if len(case.arrivals) < 5:
            raise error
        return Failure(case, {})

    found = shrink_failure(Failure(large_case(), {}), judge, lambda case: True, tries_max=500)
    assert found.failure.case.size == (5, 1, 0)
    assert found.tries > 0


def test_no_case_is_tried_twice() -> None:
    tried: list[str] = []

    def fails(group: Sequence[Case]) -> list[bool]:
        tried.extend(map(str, group))
        return [False] * len(group)

    Shrinking(fails).shrink(large_case())
    assert len(tried) == len(set(tried))
