"""Runs: finding, cutting and joining them."""

from __future__ import annotations

import random

import pytest

from millstream.coordination.share_state import DeliveryState
from millstream.coordination.sharing.runs import Run, Runs

HELD = DeliveryState.ACQUIRED
DONE = DeliveryState.ACKNOWLEDGED


def runs_of(*bounds: tuple[int, int], state: DeliveryState = HELD) -> Runs:
    runs = Runs()
    for first, last in bounds:
        runs.append(Run(first, last, state, 1))
    return runs


def bounds(runs: Runs | list[Run]) -> list[tuple[int, int]]:
    return [(run.first, run.last) for run in runs]


def test_run_is_found_by_any_of_its_offsets() -> None:
    runs = runs_of((10, 14), (15, 15), (16, 30))
    for offset, expected in ((10, 0), (14, 0), (15, 1), (16, 2), (30, 2), (5, 0)):
        assert runs.find(offset) == expected
    for offset in (9, 31):
        assert runs.at(offset) is None
    assert runs.at(20) is runs[2]
    assert Runs().at(0) is None


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 9, []),
        (0, 10, [(10, 14)]),
        (12, 13, [(10, 14)]),
        (12, 16, [(10, 14), (15, 15), (16, 30)]),
        (15, 15, [(15, 15)]),
        (15, 99, [(15, 15), (16, 30)]),
    ],
)
def test_overlapping_runs_are_those_with_any_of_the_offsets(
    first: int, last: int, expected: list[tuple[int, int]]
) -> None:
    assert bounds(runs_of((10, 14), (15, 15), (16, 30)).overlapping(first, last)) == expected


def test_piece_of_a_run_is_like_the_whole() -> None:
    runs = runs_of((0, 9))
    whole = runs[0]
    whole.member_id, whole.lock_end_ms = "a", 77
    piece = runs.isolate(whole, 3, 5)
    assert bounds(runs) == [(0, 2), (3, 5), (6, 9)]
    assert runs[1] is piece
    for run in runs:
        assert (run.member_id, run.lock_end_ms, run.delivery_count) == ("a", 77, 1)
        assert (run.batch_first, run.batch_size) == (0, 10)


def test_run_within_the_range_stays_whole() -> None:
    runs = runs_of((5, 9))
    assert runs.isolate(runs[0], 0, 20) is runs[0]
    assert bounds(runs) == [(5, 9)]


def test_runs_that_are_done_with_become_one() -> None:
    runs = runs_of((0, 1), (2, 3), (4, 5), (6, 7))
    for index in (1, 2):
        runs[index].state = DONE
    runs.join_done(4)
    assert bounds(runs) == [(0, 1), (2, 5), (6, 7)]


def test_cut_runs_cover_what_they_covered() -> None:
    source = random.Random(7)
    runs = runs_of((0, 999))
    for _ in range(200):
        first = source.randrange(1_000)
        last = min(999, first + source.randrange(20))
        for run in runs.overlapping(first, last):
            piece = runs.isolate(run, first, last)
            assert first <= piece.first <= piece.last <= last
        offset = 0
        for run in runs:
            assert run.first == offset
            offset = run.last + 1
        assert offset == 1_000
