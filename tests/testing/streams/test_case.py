"""Stories of streams: made smaller without losing their order, and told as code that tells them."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

from millstream.testing.streams.case import (
    Arrival,
    Batch,
    Case,
    again,
    as_code,
    late,
    value_text,
)
from tests.testing.streams.orders import arrivals, order

CASE = Case(
    (
        Batch(arrivals(order(1, 1), order(2, 2)), "restart"),
        Batch(),
        Batch((*arrivals(order(3, 3)), Arrival("orders", order(1, 1), is_late=True))),
    )
)


def ids(case: Case) -> list[list[int]]:
    return [[it.row["id"] for it in batch.arrivals] for batch in case.batches]


def test_case_loses_rows_by_their_place_in_all_batches() -> None:
    assert ids(CASE.without_arrivals({1, 2})) == [[1], [], [1]]
    assert CASE.without_arrivals({0, 1, 2, 3}).batches[0].fault == "restart"


def test_merged_batches_keep_all_rows_and_what_goes_wrong() -> None:
    merged = CASE.with_merged(0)
    assert ids(merged) == [[1, 2], [3, 1]]
    assert merged.batches[0].fault == "restart"
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    moving = Case((Batch(watermark=moment), Batch(arrivals(order(1, 1)))))
    assert moving.with_merged(0).batches[0].watermark == moment


def test_case_without_faults_is_smaller() -> None:
    calm = CASE.without_faults([0])
    assert calm.batches[0].fault is None
    assert calm.size < CASE.size


class Recorder:
    """Takes what `StreamTrial` takes, and makes the case of it again."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def batch(self, crash: str | None = None, **rows: list[Any]) -> None:
        fault: Any = None if crash is None else f"crash {crash}"
        given = [
            Arrival(name, it.row, it.is_late, it.is_repeat)
            if hasattr(it, "is_late")
            else Arrival(name, it)
            for name, them in rows.items()
            for it in them
        ]
        self.batches.append(Batch(tuple(given), fault))

    def advance_watermark(self, to: str) -> None:
        moment = datetime.fromisoformat(to).replace(tzinfo=UTC)
        self.batches.append(Batch(watermark=moment))

    def restart(self) -> None:
        self.batches[-1] = Batch(self.batches[-1].arrivals, "restart")

    def lose_commit(self) -> None:
        self.batches[-1] = Batch(self.batches[-1].arrivals, "lost commit")


def test_code_of_a_case_tells_the_same_case() -> None:
    repeated = Arrival("orders", order(2, 2), is_repeat=True)
    case = Case(
        (
            *CASE.batches,
            Batch((repeated, Arrival("clicks", {"n": None})), "crash after sink"),
            Batch(watermark=datetime(2026, 1, 1, 0, 5, 0, 1, tzinfo=UTC)),
            Batch(arrivals(order(4, 4)), "lost commit"),
        )
    )
    trial = Recorder()
    exec("\n".join(as_code(case)), {"trial": trial, "late": late, "again": again})
    assert Case(tuple(trial.batches)) == case


def test_values_are_told_as_people_write_them() -> None:
    moment = datetime(2026, 1, 1, 10, 0, 5, tzinfo=UTC)
    nested = {"at": moment, "days": [date(2026, 1, 2)], "n": 1.5}
    assert value_text(nested) == "{'at': '2026-01-01 10:00:05', 'days': ['2026-01-02'], 'n': 1.5}"


def test_numbers_that_are_not_finite_are_told_as_code() -> None:
    numbers = [float("nan"), float("inf"), float("-inf"), -1.5]
    told = eval(value_text(numbers))
    assert math.isnan(told[0])
    assert told[1:] == numbers[1:]
